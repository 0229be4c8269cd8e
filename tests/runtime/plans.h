// Plans on all their ranks beside their models on one, for tests: as `planrun verify` has them, but
// with the compiler's steps apart, so that a test can spoil the program between two of them.
#pragma once

#include "passes/passes.h"
#include "passes/widen.h"
#include "runtime/verify.h"
#include "tests/runtime/ranks.h"
#include "tests/unit/compile.h"

namespace planc::test {

// A plan of a model of tests/inputs/base.plan. `model` may have arguments: `dense(layers = 2)`.
inline std::string planOf(const std::string& model, const std::string& statements) {
  return "import \"" PLANC_SOURCE_DIR "/tests/inputs/base.plan\"\nplan p of " + model + " {\n" +
         statements + "\n}\n";
}

// Splits of the dense models over `tensor`; and the residual stream too.
inline const std::string kTensor =
    "split batch over data\nsplit head, kv, ffn, vocab over tensor\n";
inline const std::string kSequence = kTensor + "split seq over tensor by gather\n";
// Clips, so that a wrong norm reaches the weights; an epsilon that keeps AdamW's first steps from
// magnifying rounding.
inline const std::string kAdamW = "optimizer adamw { lr 1e-2, clip 0.1, eps 1e-3 }\n";

struct Compiled {
  std::unique_ptr<Module> one;      // the model's program for one rank
  std::unique_ptr<Module> program;  // that of every rank of the grid
};

using Spoil = std::function<void(Module&)>;

// A compiled plan, up to the program that still says what each value is to the ranks. In f64 unless the
// plan's own precision is wanted.
inline Compiled compileSharded(const std::string& text, bool ownPrecision = false) {
  Compiled made{nullptr, compileText(text)};
  if (!made.program) return {};
  if (!ownPrecision) widen(*made.program);
  made.one = cloneForOneRank(*made.program);
  runAll(*made.one);
  runAll(*made.program, {"autodiff", "recompute", "precision", "optimizer", "shard", "collectives",
                         "ring", "experts"});
  return made;
}

// The rest of the way, for a sharded program that may be wrong: nothing verifies it.
inline void finishUnverified(Module& program) {
  Diagnostics diags;
  for (auto* pass : {fuse, overlap, memory, emit}) pass(program, diags);
}

inline Compiled compilePlanOn(const std::string& text, bool ownPrecision = false) {
  Compiled made = compileSharded(text, ownPrecision);
  if (made.program) runAll(*made.program, {"fuse", "overlap", "memory", "emit"});
  return made;
}

// With a spoiled program.
inline Compiled compileSpoiled(const std::string& text, const Spoil& spoil) {
  Compiled made = compileSharded(text);
  if (!made.program) return {};
  if (spoil) spoil(*made.program);
  finishUnverified(*made.program);
  return made;
}

// `programOf`: the program of each rank.
inline VerifyReport verifyRanks(const Module& one, int64_t ranks, const VerifyOptions& options,
                                const std::function<const Module&(int64_t)>& programOf) {
  auto verification = makeVerification(one, nullptr, [] { return makeCpuDevice(1); }, options);
  EXPECT_TRUE(bool(verification)) << llvm::toString(verification.takeError());
  if (!verification) return {};
  onGoodRanks(ranks, [&](Communicator& comm) {
    const Module& program = programOf(comm.rank());
    auto device = makeCpuDevice(1, Coordinates(program.grid, comm.rank()));
    return (*verification)->run(program, comm, *device);
  });
  return (*verification)->report();
}

inline VerifyReport verifyPlan(const Compiled& plan, const VerifyOptions& options = {}) {
  return verifyRanks(*plan.one, plan.program->grid.ranks(), options,
                     [&](int64_t) -> const Module& { return *plan.program; });
}

inline std::string describe(const Comparison& c) {
  std::string text = c.kind + " '" + c.tensor + "' " + c.iteration + ", step " +
                     std::to_string(c.step) + ", off by " + std::to_string(c.difference) + " on";
  for (int64_t rank : c.ranks) text += " " + std::to_string(rank);
  return text;
}

// All ranks have what one rank has (MATCH, in cases_ranks_test.cpp).
inline void expectEqual(const Compiled& plan, const VerifyOptions& options = {}) {
  ASSERT_TRUE(plan.one && plan.program);
  VerifyReport report = verifyPlan(plan, options);
  EXPECT_FALSE(report.comparisons.empty());
  int shown = 0;
  for (const Comparison& c : report.comparisons)
    if (!c.ranks.empty() && ++shown <= 5) ADD_FAILURE() << describe(c);
}

}  // namespace planc::test
