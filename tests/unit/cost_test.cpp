// Operations against closed forms.
#include "ir/cost.h"

#include <algorithm>

#include "sharded.h"

namespace planc {
namespace {

const Op* find(const Module& module, OpKind kind) {
  const Op* found = nullptr;
  walk(*module.findFunction("forward")->body, [&](const Op* op) {
    if (!found && op->kind == kind) found = op;
  });
  return found;
}

// Keys that a query sees on average under a causal mask with a window (0: none), by areas: column by column
// of a picture of queries and keys, in slices so thin that the edge counts for nothing.
constexpr double kThin = 1e-9;
double seen(double keys, double window) {
  constexpr int kSlices = 200000;
  double sum = 0;
  for (int i = 0; i < kSlices; ++i) {
    double query = keys * (i + 0.5) / kSlices;
    sum += window > 0 ? std::min(query, window) : query;
  }
  return sum / kSlices;
}

TEST(Cost, ProductsAndAttention) {
  auto module = test::compileText(test::dense("microbatches 1"));
  ASSERT_TRUE(module);
  const Op* product = find(*module, OpKind::Einsum);
  ASSERT_TRUE(product);
  int64_t names = 1;
  for (const Dim& dim : product->operand(0)->type.dims) names *= dim.size;
  for (const Dim& dim : product->operand(1)->type.dims)
    if (!product->operand(0)->type.has(dim.name)) names *= dim.size;
  EXPECT_EQ(flopsOf(*product), double(2 * names));

  // Causal: half of all pairs; a pair costs a product for its score and one for its value.
  const Op* attend = find(*module, OpKind::Attend);
  ASSERT_TRUE(attend);
  const Type& q = attend->operand(0)->type;
  EXPECT_EQ(flopsOf(*attend), double(2 * 2 * q.elements() * q.size("seq") / 2));
}

// Blocks of keys cost together what all keys do, and so does a ring.
TEST(Cost, PiecesOfAttention) {
  Module module;
  module.grid.axes = {{"context", 4}};
  Builder b(module.addFunction("f")->body.get());
  auto flops = [&](OpKind kind, bool isQuerySplit, bool isKeySplit, Attrs attrs) {
    Axes axes = module.grid.find("context");
    auto seq = [&](bool isSplit) { return splitDim({"s", 64}, isSplit ? axes : Axes()); };
    Type q{Elem::F32, {{"h", 6}, seq(isQuerySplit), {"w", 8}}};
    Type k{Elem::F32, {{"g", 2}, seq(isKeySplit), {"w", 8}}}, v{Elem::F32, k.dims};
    v.dims[2] = {"u", 4};
    Type a{Elem::F32, q.dims}, lse{Elem::F32, {q.dims[0], q.dims[1]}};
    a.dims[2] = {"u", 4};
    llvm::SmallVector<Value*, 8> operands;
    for (const Type& type : {q, k, v}) operands.push_back(b.constant(1, type));
    if (kind != OpKind::Attend)
      for (const Type& type : {a, lse}) operands.push_back(b.constant(1, type));
    if (kind == OpKind::AttendGrad) operands.push_back(operands[3]);
    using Named = std::pair<const char*, const char*>;
    for (auto [key, dim] : {Named{"seq", "s"}, {"by", "w"}, {"head", "h"}, {"kv", "g"}})
      attrs.set(key, std::string(dim));
    bool isGrad = kind == OpKind::AttendGrad;
    llvm::SmallVector<Type, 3> results = {a, lse};
    if (isGrad) results = {q, k, v};
    return flopsOf(*b.create(kind, operands, results, attrs));
  };
  for (const Attrs& mask : {Attrs(), Attrs{{"causal", int64_t{1}}},
                            Attrs{{"causal", int64_t{1}}, {"window", int64_t{20}}},
                            Attrs{{"causal", int64_t{1}}, {"window", int64_t{99}}}}) {
    int64_t window = mask.integer("window");
    double keys = mask.has("causal") ? seen(64, window) : 64;
    double whole = 2 * 6 * 64 * keys * (8 + 4);
    // Scores again, gradients of queries and keys; of scores and values.
    double back = 2 * 6 * 64 * keys * (3 * 8 + 2 * 4);
    // A window of 20 over pieces of 16 reaches into the piece before the one before.
    double blocks = window == 20 ? 3 : 4;
    Attrs ring = mask, block = mask;
    ring.set("ring", int64_t{1});
    block.set("block", int64_t{1});
    EXPECT_NEAR(flops(OpKind::Attend, false, false, mask) / (whole), 1, kThin);
    EXPECT_NEAR(flops(OpKind::Attend, true, false, mask) / (whole / 4), 1, kThin);
    EXPECT_NEAR(flops(OpKind::Attend, true, true, ring) / (whole / 4), 1, kThin);
    EXPECT_NEAR(flops(OpKind::AttendBlock, true, true, mask) / (whole / 4 / blocks), 1, kThin);
    EXPECT_NEAR(flops(OpKind::AttendGrad, true, true, block) / (back / 4 / blocks), 1, kThin);
    EXPECT_NEAR(flops(OpKind::AttendGrad, true, true, ring) / (back / 4), 1, kThin);
  }
}

// A row meets its own expert: rows x model x wide, spread evenly over the ranks that hold rows or experts
// apart, with room for more or not. Offsets are no factor.
TEST(Cost, PackedRowsCountTheirEvenShare) {
  Module module;
  module.grid.axes = {{"data", 2}, {"expert", 4}};
  Axes data = module.grid.find("data"), all = data;
  all.append(module.grid.find("expert"));
  Builder b(module.addFunction("f")->body.get());
  auto flops = [&](const Axes& rowAxes, const Axes& expertAxes, int64_t room) {
    Dim expert = splitDim({"expert", 8}, expertAxes);
    Dim rows = splitDim({"slot", 240, "expert"}, rowAxes);
    if (room > 0) rows = limitRows(rows, room);
    Type t{Elem::F32, {expert, rows, {"model", 6}}},
        w{Elem::F32, {expert, {"model", 6}, {"wide", 5}}};
    Type h{Elem::F32, {expert, rows, {"wide", 5}}}, offsets{Elem::I32, {{"bound", 9}}};
    Value *packed = b.constant(1, t), *starts = b.constant(0, offsets);
    double forward = flopsOf(*b.create(OpKind::Einsum, {packed, b.constant(1, w), starts}, {h}));
    double back = flopsOf(*b.create(OpKind::Einsum, {packed, b.constant(1, h), starts}, {w}));
    EXPECT_DOUBLE_EQ(forward, back);
    return forward;
  };
  double whole = 2 * 240 * 6 * 5;
  Axes experts = module.grid.find("expert");
  EXPECT_DOUBLE_EQ(flops({}, {}, 0), whole);
  EXPECT_DOUBLE_EQ(flops(data, {}, 0), whole / 2);
  EXPECT_DOUBLE_EQ(flops(all, {}, 0), whole / 8);         // packed, not yet sent
  EXPECT_DOUBLE_EQ(flops(data, experts, 0), whole / 8);   // sent: all rows could come
  EXPECT_DOUBLE_EQ(flops(data, experts, 45), whole / 8);  // room for a half more
  EXPECT_DOUBLE_EQ(flops({}, experts, 0), whole / 4);  // each rank packs those of its own experts
}

// 2 operations a parameter and token, but for the table, which is looked up and multiplied by once.
TEST(Cost, AModelIsTwiceItsParameters) {
  auto module = test::compileText(R"(import "std/llama3.plan"
plan p of llama3_8b(seq = 128) {})");
  ASSERT_TRUE(module);
  double parameters = 0;
  for (const auto& var : module->vars)
    if (var->kind == VarKind::Weight && var->name != "table")
      parameters += double(var->type.elements());
  double flops = flopsOf(*module->findFunction("forward")->body);
  EXPECT_NEAR(flops / (2 * parameters * 128), 1, 0.02);
}

TEST(Cost, RepeatsCountTheirIterations) {
  auto flops = [](const char* layers) {
    auto module =
        test::compileText(std::string("import \"std/llama3.plan\"\nplan p of llama3(layers = ") +
                          layers + ", seq = 64) {}");
    return flopsOf(*module->findFunction("forward")->body);
  };
  EXPECT_DOUBLE_EQ(flops("5") - flops("4"), flops("2") - flops("1"));
}

}  // namespace
}  // namespace planc
