// What lies in the arena: of every plan the fields add up and are what a count from scratch gives; what is
// held when, against a run that marks bytes; and programs by hand, with their answers.
#include <filesystem>
#include <fstream>
#include <regex>

#include "compile.h"
#include "cost/lives.h"
#include "cost/memory.h"
#include "marked_run.h"
#include "models.h"
#include "passes/passes.h"
#include "sharded.h"

namespace planc {
namespace {

using Range = test::MarkedRun::Range;

int64_t unionOf(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  int64_t bytes = 0, reached = 0;
  for (const Range& range : ranges) {
    bytes += std::max<int64_t>(0, range.end - std::max(range.begin, reached));
    reached = std::max(reached, range.end);
  }
  return bytes;
}

// Of the holdings up to this one, the bytes held at a moment.
int64_t heldAt(const Lives& lives, int moment, size_t upTo) {
  std::vector<Range> ranges;
  for (const Life& life : lives.list)
    if (life.from <= moment && moment <= life.to && size_t(life.holding) <= upTo)
      ranges.push_back({life.begin, life.end});
  return unionOf(std::move(ranges));
}

// Bytes of variables of these kinds; those that lie on the same place once.
int64_t bytesOf(const Module& role, std::initializer_list<VarKind> kinds) {
  std::vector<Range> ranges;
  for (const auto& var : role.vars)
    if (llvm::is_contained(kinds, var->kind))
      ranges.push_back({var->place->offset, var->place->offset + var->type.bytes()});
  return unionOf(std::move(ranges));
}

void checkBill(const Module& role) {
  MemoryBill bill = memoryOf(role);
  EXPECT_EQ(bill.arena, role.arenaBytes);
  EXPECT_EQ(bill.state() + bill.activations + bill.messages + bill.workspace + bill.gaps,
            bill.arena);
  for (int64_t field : {bill.weights, bill.gradients, bill.optimizer, bill.inputs, bill.activations,
                        bill.messages, bill.workspace, bill.gaps})
    EXPECT_GE(field, 0);
  EXPECT_EQ(bill.weights, bytesOf(role, {VarKind::Weight, VarKind::Copy}));
  EXPECT_EQ(bill.optimizer, bytesOf(role, {VarKind::Moment}));
  EXPECT_EQ(bill.state(),
            bytesOf(role, {VarKind::Input, VarKind::Weight, VarKind::Copy, VarKind::Gradient,
                           VarKind::Moment, VarKind::Sum, VarKind::Metric, VarKind::Step}));
  // By kinds, from scratch, at every moment.
  Lives lives = livesOf(role);
  int fullest = 0;
  int64_t most = 0, saved = 0;
  for (int moment = 0; moment < int(lives.moments.size()); ++moment)
    if (int64_t bytes = heldAt(lives, moment, kHoldings); bytes > most)
      most = bytes, fullest = moment;
  EXPECT_EQ(bill.fullest, lives.moments[size_t(fullest)]);
  int64_t fields[] = {bill.weights,     bill.gradients, bill.optimizer, bill.inputs,
                      bill.activations, bill.messages,  bill.workspace};
  int64_t before = 0;
  for (size_t holding = 0; holding < kHoldings; ++holding) {
    int64_t with = heldAt(lives, fullest, holding);
    EXPECT_EQ(fields[holding], with - before) << name(Holding(holding)).str();
    before = with;
  }
  EXPECT_EQ(bill.arena - bill.gaps, most);
  for (const SavedChunk& chunk : bill.saved) saved += chunk.bytes * chunk.flights;
  EXPECT_LE(bill.activations, saved);
  int64_t last = INT64_MAX;
  EXPECT_LE(bill.largest.size(), 8u);
  for (const HeldValue& held : bill.largest) {
    EXPECT_LE(held.bytes, last);
    EXPECT_FALSE(held.name.empty());
    last = held.bytes;
  }
}

// What a run needs is held; and what is held is needed, at both ends of its life.
void checkLives(const Module& role) {
  test::MarkedRun run(role);
  Lives lives = livesOf(role);
  auto isEnd = [&](int moment) {
    return moment > 0 && lives.moments[size_t(moment)]->kind == OpKind::Repeat &&
           llvm::is_contained(llvm::ArrayRef(lives.moments).take_front(size_t(moment)),
                              lives.moments[size_t(moment)]);
  };
  auto at = [&](int moment) {
    return test::MarkedRun::Moment{lives.moments[size_t(moment)], isEnd(moment)};
  };
  for (int moment = 1; moment < int(lives.moments.size()); ++moment) {
    std::vector<Range> held;
    for (const Life& life : lives.list)
      if (life.from <= moment && moment <= life.to) held.push_back({life.begin, life.end});
    std::vector<Range> both = held, needed = run.needed(at(moment));
    both.insert(both.end(), needed.begin(), needed.end());
    if (unionOf(both) == unionOf(held)) continue;
    for (const Range& range : needed) {
      both = held;
      both.push_back(range);
      ASSERT_EQ(unionOf(both), unionOf(held))
          << "bytes " << range.begin << " to " << range.end << " are needed and not held at\n"
          << printOp(*lives.moments[size_t(moment)]);
    }
  }
  for (const Life& life : lives.list)
    for (int moment : {life.from, life.to}) {
      bool isState = size_t(life.holding) <= size_t(Holding::Inputs);
      bool isCarried = life.value && !life.value->def();
      if (isState || isCarried || lives.moments[size_t(moment)]->kind == OpKind::Repeat) continue;
      // Functions that a slot is held through: not its own uses.
      if (life.var && !run.isRun(at(moment))) continue;
      EXPECT_TRUE(run.isNeeded(at(moment), {life.begin, life.end}))
          << life.name() << " is held from " << life.from << " to " << life.to
          << ", and not needed at\n"
          << printOp(*lives.moments[size_t(moment)]);
    }
}

// A plan's model; null where it is one of those that are to be refused. Some want more layers.
std::unique_ptr<Module> modelOf(const std::string& path, const std::string& plan) {
  for (const char* layers : {"", "8"}) {
    Diagnostics diags;
    CompileOptions options;
    options.plan = plan;
    if (*layers != 0) options.defines = {{"layers", layers}};
    auto files = readPlan(path, diags);
    if (auto model = diags.failed() ? nullptr : compilePlan(files, options, diags)) return model;
  }
  return nullptr;
}

// Its programs; none likewise.
Modules compiled(std::unique_ptr<Module> model) {
  Modules roles;
  if (!model) return roles;
  roles.push_back(std::move(model));
  Diagnostics diags;
  std::string internal;
  PassResult result = runPasses(roles, {}, diags, internal);
  EXPECT_NE(result, PassResult::InternalError) << internal;
  if (result != PassResult::Ok) roles.clear();
  return roles;
}

// False: it was refused.
bool check(std::unique_ptr<Module> model, bool isSmall) {
  Modules roles = compiled(std::move(model));
  for (const auto& role : roles) {
    checkBill(*role);
    if (isSmall && !::testing::Test::HasFailure()) checkLives(*role);
  }
  return !roles.empty();
}

// Plans of these folders, by file.
std::vector<std::pair<std::string, std::string>> plansIn(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> plans;
  for (const auto& entry : std::filesystem::directory_iterator(PLANC_SOURCE_DIR "/" + folder)) {
    if (entry.path().extension() != ".plan") continue;
    std::ifstream file(entry.path());
    std::string line;
    std::smatch found;
    while (std::getline(file, line))
      if (std::regex_search(line, found, std::regex("^plan (\\w+) of")))
        plans.emplace_back(entry.path().string(), found[1]);
  }
  std::sort(plans.begin(), plans.end());
  return plans;
}

class MemoryBills : public ::testing::TestWithParam<const char*> {};

TEST_P(MemoryBills, AddUpForEveryPlan) {
  bool isSmall = std::string(GetParam()) != "examples";
  int refused = 0;
  for (const auto& [path, plan] : plansIn(GetParam())) {
    if (!check(modelOf(path, plan), isSmall)) ++refused;
    if (HasFailure()) FAIL() << path << ", plan " << plan;
  }
  EXPECT_LE(refused, 5);  // that are there for it
}
INSTANTIATE_TEST_SUITE_P(Folders, MemoryBills,
                         ::testing::Values("examples", "tests/golden", "tests/tools",
                                           "tests/verify"),
                         [](const auto& info) {
                           return std::regex_replace(std::string(info.param), std::regex("/"), "_");
                         });

TEST(MemoryBill, TinyModels) {
  for (const test::TinyModel& row : test::kModels)
    for (const char* settings : {"microbatches 2", "precision bf16"}) {
      EXPECT_TRUE(check(test::compileModel(row, settings), true));
      if (HasFailure()) FAIL() << row.name << ", " << settings;
    }
}

TEST(MemoryBill, Grids) {
  std::string grids[] = {
      test::kTensor,
      test::kSequence,
      std::string(test::kSequence) + "recompute gather",
      "grid data 4 split batch over data recompute layer",
      "grid data 2, pipe 2 split batch over data split layer over pipe",
      "grid data 2, pipe 2 split batch over data split layer over pipe by zero_bubble",
      "grid context 2, data 2 split batch over data split seq over context by ring",
  };
  for (const std::string& text : test::onGrids(grids)) {
    EXPECT_TRUE(check(test::compileText(text), true));
    if (HasFailure()) FAIL() << text;
  }
}

// A step by hand: two layers scale x by a weight, and go back. 64 elements are 256 bytes.
constexpr const char* kByHand = R"(module m rank {
  arena 0x1000
  set microbatches = 2
  call @forward(0)
  call @backward(0)
  call @forward(1)
  call @backward(1)
  call @update
  var @x : i32[b 1, s 64] input vocab 8 @0x0
  var @w : f32[layer 2, s 64] weight stack [layer] init const(1.0) @0x100
  var @g : f32[layer 2, s 64] gradient of @w stack [layer] @0x300
  var @sum.w : f32[layer 2, s 64] sum of @g stack [layer] @0x300
  var @w.m : f32[layer 2, s 64] moment of @w stack [layer] @0x500
  var @loss : f32[] metric @0x700
  var @sum.loss : f32[] sum of @loss @0x740
  var @y : f32[layer 2, s 64] slot stack [layer] @0x800
  var @last : f32[s 64] slot @0xa00
  func @forward {
    %f = const {value = 1.0} : f32[s 64] @0xb00
    %r = repeat(%f) {count = 2, dim = layer} : f32[s 64] @0xb00 body(%c : f32[s 64] @0xb00) {
      %w = read @w : f32[s 64] @0x100+layer*0x100
      %y = mul(%c, %w) : f32[s 64] @0x800+layer*0x100
      write @y(%y)
      %t = tanh(%y) : f32[s 64] @0xd00
      yield(%t)
    }
    %l = exp(%r) : f32[s 64] @0xa00
    write @last(%l)
    %s = sum(%l) : f32[] @0xe00
    accum @sum.loss(%s) {first = 1}
  }
  func @backward {
    %l = read @last : f32[s 64] @0xa00
    %n = neg(%l) : f32[s 64] @0xb00
    %r = repeat(%n) {count = 2, dim = layer, reverse = 1} : f32[s 64] @0xb00 body(%c : f32[s 64] @0xb00) {
      %y = read @y : f32[s 64] @0x800+layer*0x100
      %d = mul(%c, %y) : f32[s 64] @0xd00
      accum @sum.w(%d) {first = 1}
      %w = read @w : f32[s 64] @0x100+layer*0x100
      %e = mul(%c, %w) : f32[s 64] @0xb00
      yield(%e)
    }
  }
  func @update {
    %a = read @sum.w : f32[layer 2, s 64] @0x300
    %n = neg(%a) : f32[layer 2, s 64] @0xa00
    write @w.m(%n)
  }
}
)";

TEST(MemoryBill, ByHand) {
  auto role = test::parse(kByHand);
  ASSERT_TRUE(role);
  MemoryBill bill = memoryOf(*role);
  EXPECT_EQ(bill.weights, 512);
  EXPECT_EQ(bill.gradients, 512);  // the sum lies on the gradient
  EXPECT_EQ(bill.optimizer, 512);
  EXPECT_EQ(bill.inputs, 256 + 8);  // x, the loss and what is added up for it
  // In the forward's second half: @y, the carried value and what is yielded for it; then @last is made
  // as the carried value dies.
  EXPECT_EQ(bill.activations, 512);
  EXPECT_EQ(bill.workspace, 512);
  EXPECT_EQ(bill.messages, 0);
  EXPECT_EQ(bill.gaps, 0x1000 - 4 * 512 - 512 - 264);
  ASSERT_TRUE(bill.fullest);
  EXPECT_EQ(bill.fullest->result()->name, "t");
  ASSERT_EQ(bill.saved.size(), 1u);
  EXPECT_EQ(bill.saved[0].bytes, 512 + 256);
  EXPECT_EQ(bill.saved[0].flights, 1);
  std::vector<std::string> names;
  for (const HeldValue& held : bill.largest) names.push_back(held.name + " " + held.kind);
  EXPECT_EQ(names,
            (std::vector<std::string>{"w weights", "g gradients", "w.m optimizer", "y activations",
                                      "x inputs", "c workspace", "t workspace", "loss inputs"}));
  checkBill(*role);
  checkLives(*role);
  // @last is held from where its value is made in its place, not from where it is set.
  Lives lives = livesOf(*role);
  auto last = llvm::find_if(lives.list,
                            [](const Life& life) { return life.var && life.var->name == "last"; });
  ASSERT_NE(last, lives.list.end());
  EXPECT_EQ(lives.moments[size_t(last->from)]->kind, OpKind::Exp);
}

}  // namespace
}  // namespace planc
