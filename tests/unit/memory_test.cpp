// The memory pass against brute force: walking the program in order, no value's bytes are written
// by another op between its definition and its last use, unless the two are one buffer on purpose
// (an in-place result whose operand dies there, a carried value, a slice of its variable). What a
// collective is made of and what it makes are in use from its start to its wait.
#include <filesystem>
#include <map>
#include <set>

#include "compile.h"
#include "models.h"
#include "sharded.h"

namespace planc {
namespace {

struct Range {
  int64_t from, to;
  bool overlaps(const Range& other) const { return from < other.to && other.from < to; }
};

// Bytes that a place may touch over all iterations of the repeats around it.
Range reach(const Place& place, const Type& type, const std::map<std::string, int64_t>& counts) {
  int64_t end = place.offset + type.bytes();
  for (const auto& [dim, stride, ring] : place.strides) end += stride * (counts.at(dim) - 1);
  return {place.offset, end};
}

// The same for what is read: a slice ahead is not, in the last iteration.
Range reach(const Op& read, const std::map<std::string, int64_t>& counts) {
  const Place& place = *read.result()->place;
  Range range = reach(place, read.result()->type, counts);
  if (!read.isFlag("ahead")) return range;
  if (read.parent()->owner()->isFlag("reverse")) range.from += place.strides.back().bytes;
  else range.to -= place.strides.back().bytes;
  return range;
}

// Runs the program symbolically: memory holds, per byte range, which value was last written there.
class Checker {
 public:
  explicit Checker(const Module& module) {
    counts_["microbatch"] = module.settings.integer("microbatches", 1);
    for (const auto& function : module.functions)
      walk(*function->body, [&](const Op* op) {
        if (op->kind == OpKind::Repeat) counts_[op->attrs.word("dim")] = op->attrs.integer("count");
      });
  }

  // Every operand must still hold what was written when its value was made.
  void run(const Block& block) {
    for (const Op* op : block.ops) {
      for (const Value* operand : op->operands())
        if (!isAddedUpInPlace(*op, *operand)) check(*operand, *op);
      if (op->kind == OpKind::Read) {
        live_[op->result()] = reach(*op, counts_);
        if (op->var->kind != VarKind::Slot) continue;
        ++checked;
        EXPECT_TRUE(saved_.count(op->var)) << "@" << op->var->name << " was overwritten";
        continue;
      }
      if (op->kind == OpKind::Write && op->var->kind == VarKind::Slot) saved_.insert(op->var);
      if (op->var) overwrite(whole(*op->var), op->operands().empty() ? nullptr : op->operand(0));
      if (op->kind == OpKind::Repeat) {
        for (const Value* arg : op->body->args()) write(*arg);
        // Twice, so that the second iteration meets what the first left behind.
        for (int i = 0; i < 2; ++i) {
          run(*op->body);
          for (const Value* arg : op->body->args()) write(*arg);
        }
      }
      for (const Value* result : op->results()) write(*result);
    }
  }

  int checked = 0;

 private:
  static Range whole(const Variable& var) {
    return {var.place->offset, var.place->offset + var.type.bytes()};
  }
  // Bytes change; a value that is what they change to stays.
  void overwrite(Range range, const Value* except) {
    for (auto at = live_.begin(); at != live_.end();)
      at = at->first != except && at->second.overlaps(range) ? live_.erase(at) : std::next(at);
  }
  void write(const Value& value) {
    Range range = reach(*value.place, value.type, counts_);
    overwrite(range, nullptr);
    live_[&value] = range;
    for (auto at = saved_.begin(); at != saved_.end();)
      at = spoils(value, range, **at) ? saved_.erase(at) : std::next(at);
  }
  // Whether a value's bytes destroy a saved variable: not if it is what is saved there, nor if it
  // lies on this iteration's slice (whose read it follows, or the check of that read would fail).
  static bool spoils(const Value& value, Range range, const Variable& var) {
    if (!range.overlaps(whole(var))) return false;
    for (const Use& use : value.uses())
      if (use.op->kind == OpKind::Write && use.op->var == &var) return false;
    return value.place->strides.empty() || value.place->offset != var.place->offset;
  }
  // What a wait takes are the results that were started, which lie where its own do, and what they
  // are made of; where they are made in place, that is gone.
  static bool isAddedUpInPlace(const Op& wait, const Value& operand) {
    if (wait.kind != OpKind::Wait) return false;
    for (unsigned i = 0; i < wait.results().size(); ++i) {
      EXPECT_EQ(wait.operand(i)->place, wait.result(i)->place) << printOp(wait);
      if (wait.operand(i + wait.results().size()) == &operand && operand.place == wait.result(i)->place)
        return true;
    }
    return false;
  }
  void check(const Value& value, const Op& user) {
    if (user.kind == OpKind::Yield) return;
    ++checked;
    // A carried value's result lies on its argument; others must be untouched.
    EXPECT_TRUE(live_.count(&value)) << "%" << value.name << " was overwritten before\n"
                                     << printOp(user);
  }

  std::map<const Value*, Range> live_;
  std::set<const Variable*> saved_;
  std::map<std::string, int64_t> counts_;
};

TEST(Memory, NoLiveValueIsOverwritten) {
  for (const char* plan : {"/tests/golden/gpt2.plan", "/tests/golden/llama.plan",
                           "/tests/golden/moe.plan", "/examples/quickstart.plan",
                           "/examples/moe_small.plan", "/examples/nanogpt_char.plan"}) {
    auto module = test::compileFile(std::string(PLANC_SOURCE_DIR) + plan);
    test::runAll(*module);
    Checker checker(*module);
    for (const auto& call : module->schedule) checker.run(*module->findFunction(call.function)->body);
    EXPECT_GT(checker.checked, 50) << plan;
  }
}

TEST(Memory, NoLiveValueIsOverwrittenInTinyModels) {
  for (const test::TinyModel& row : test::kModels) {
    auto module = test::compileModel(row, "microbatches 2");
    ASSERT_TRUE(module) << row.name;
    test::runAll(*module);
    Checker checker(*module);
    for (const auto& call : module->schedule) checker.run(*module->findFunction(call.function)->body);
    EXPECT_GT(checker.checked, 10) << row.name;
  }
}

// What is summed up over blocks of keys stays where it is; queries and keys are read until the end.
TEST(Memory, AttentionOverBlocksLiesOnWhatItGoesOnFrom) {
  auto module = test::parse(R"(module m model {
  call @forward
  var @x : f32[s 8, w 4] weight init const(1.0)
  var @l : f32[s 8] weight init const(1.0)
  var @y : f32[s 8, w 4] slot
  func @forward {
    %x = read @x : f32[s 8, w 4]
    %l = read @l : f32[s 8]
    %q = exp(%x) : f32[s 8, w 4]
    %k = neg(%x) : f32[s 8, w 4]
    %v = square(%x) : f32[s 8, w 4]
    %a = tanh(%x) : f32[s 8, w 4]
    %b = exp(%l) : f32[s 8]
    %c, %d = attend_block(%q, %k, %v, %a, %b) {seq = s, by = w} : f32[s 8, w 4], f32[s 8]
    %e = add(%c, %d) : f32[s 8, w 4]
    write @y(%e)
  }
})");
  ASSERT_TRUE(module);
  test::runAll(*module, {"memory"});
  const Op* attend = nullptr;
  walk(*module->findFunction("forward")->body, [&](const Op* op) {
    if (op->kind == OpKind::AttendBlock) attend = op;
  });
  ASSERT_TRUE(attend);
  EXPECT_EQ(attend->result(0)->place, attend->operand(3)->place);
  EXPECT_EQ(attend->result(1)->place, attend->operand(4)->place);
  Checker checker(*module);
  checker.run(*module->findFunction("forward")->body);
}

TEST(Memory, NoLiveValueIsOverwrittenBetweenRanks) {
  std::string grids[] = {
      test::kTensor,
      test::kSequence,
      std::string(test::kSequence) + "recompute gather",
      "grid data 4 split batch over data recompute layer",
      "grid tensor 4 split head, ffn, vocab over tensor split seq over tensor by gather",
  };
  for (const std::string& text : test::onGrids(grids)) {
    auto module = test::sharded(text, "emit");
    ASSERT_TRUE(module) << text;
    Checker checker(*module);
    for (const auto& call : module->schedule)
      checker.run(*module->findFunction(call.function)->body);
    EXPECT_GT(checker.checked, 200);
    if (HasFailure()) FAIL() << text;
  }
}

// Weights gathered a layer ahead: those of two layers, nothing else.
TEST(Memory, ALayerAheadTakesTwoLayers) {
  for (const char* recompute : {"none", "layer"}) {
    std::string plan =
        std::string(test::kTensor) + "shard weights over data recompute " + recompute;
    auto module = test::sharded(test::dense(plan), "emit");
    auto before = test::compileText(test::dense(plan));
    std::vector<std::string> passes;
    for (const PassInfo& pass : allPasses())
      if (pass.name != "prefetch") passes.push_back(pass.name.str());
    test::runAll(*before, passes);
    int64_t layer = 0;
    walk(*module->findFunction("backward")->body, [&](Op* op) {
      if (op->kind == OpKind::AllGather && op->isUnlessLast())
        for (const Value* result : op->results()) layer += (result->type.bytes() + 63) / 64 * 64;
    });
    EXPECT_GT(layer, 0);
    EXPECT_GT(module->arenaBytes, before->arenaBytes);
    EXPECT_LE(module->arenaBytes, before->arenaBytes + 2 * layer);
  }
}

// Slots live from the forward to the backward: nothing else may reach them in between.
TEST(Memory, VariablesDoNotOverlapWhereBothLive) {
  auto module = test::compileFile(std::string(PLANC_SOURCE_DIR) + "/examples/quickstart.plan");
  test::runAll(*module);
  for (const auto& a : module->vars)
    for (const auto& b : module->vars) {
      if (a.get() >= b.get() || a->kind == VarKind::Slot || b->kind == VarKind::Slot) continue;
      Range first{a->place->offset, a->place->offset + a->type.bytes()};
      Range second{b->place->offset, b->place->offset + b->type.bytes()};
      EXPECT_FALSE(first.overlaps(second)) << a->name << " and " << b->name;
    }
}

TEST(Memory, ArenaIsExact) {
  auto module = test::compileFile(std::string(PLANC_SOURCE_DIR) + "/examples/quickstart.plan");
  test::runAll(*module);
  int64_t top = 0;
  std::map<std::string, int64_t> counts{{"layer", 2}};
  auto reached = [&](const Place& place, const Type& type) {
    top = std::max(top, reach(place, type, counts).to);
  };
  for (const auto& var : module->vars) reached(*var->place, var->type);
  for (const auto& function : module->functions)
    walk(*function->body, [&](const Op* op) {
      for (const Value* result : op->results())
        if (result->place) reached(*result->place, result->type);
    });
  EXPECT_LE(module->arenaBytes - top, 63);  // the last buffer's alignment
}

}  // namespace
}  // namespace planc
