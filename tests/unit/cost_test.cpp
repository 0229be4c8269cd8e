// Operations against closed forms.
#include "ir/cost.h"

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
                            Attrs{{"causal", int64_t{1}}, {"window", int64_t{20}}}}) {
    double keys = mask.has("window") ? 20 : mask.has("causal") ? 32 : 64;
    double whole = 2 * 6 * 64 * keys * (8 + 4);
    Attrs ring = mask, block = mask;
    ring.set("ring", int64_t{1});
    block.set("block", int64_t{1});
    EXPECT_DOUBLE_EQ(flops(OpKind::Attend, false, false, mask), whole);
    EXPECT_DOUBLE_EQ(flops(OpKind::Attend, true, false, mask), whole / 4);
    EXPECT_DOUBLE_EQ(flops(OpKind::Attend, true, true, ring), whole / 4);
    EXPECT_DOUBLE_EQ(flops(OpKind::AttendBlock, true, true, mask), whole / 16);
    EXPECT_DOUBLE_EQ(flops(OpKind::AttendGrad, true, true, block), 2.5 * whole / 16);
    EXPECT_DOUBLE_EQ(flops(OpKind::AttendGrad, true, true, ring), 2.5 * whole / 4);
  }
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
