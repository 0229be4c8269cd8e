// What the kernels of this folder share, and their makers, one per op kind (device.cpp holds the
// table). A maker does all that shapes decide; the kernel it returns only runs. Kernels compute in
// float for f32 and bf16, in double when f64 takes part.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"
#include "runtime/cpu/convert.h"
#include "runtime/layout.h"
#include "runtime/cpu/pool.h"
#include "runtime/device.h"

namespace planc::cpu {

using Operands = const void* const*;
using Results = void* const*;
using KernelOr = llvm::Expected<std::unique_ptr<Kernel>>;

// What kernels of one device share.
struct Shared {
  // Tables of rope by (positions, width, theta): see rope.cpp.
  template <class T>
  using Angles = std::map<std::tuple<std::vector<int64_t>, int64_t, double>,
                          std::shared_ptr<const std::vector<T>>>;

  explicit Shared(int threads, Coordinates rank = {}) : pool(threads), rank(std::move(rank)) {}
  Pool pool;
  const Coordinates rank;
  std::tuple<Angles<float>, Angles<double>> angles;
};

// A kernel from a callable (context, operands, results).
template <class F>
std::unique_ptr<Kernel> makeKernel(F run) {
  struct Made : Kernel {
    explicit Made(F f) : body(std::move(f)) {}
    void run(const RunContext& context, Operands operands, Results results) override {
      body(context, operands, results);
    }
    F body;
  };
  return std::make_unique<Made>(std::move(run));
}

inline llvm::Error unsupported(const Op& op, const llvm::Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                 "the cpu device cannot run '" + op.info().text + "': " + what);
}

// Integers, which only a `sum` moves, go through double: it holds all of them.
inline bool isDouble(const Op& op) {
  if (op.kind == OpKind::Sum && op.operand(0)->type.elem == Elem::I32) return true;
  auto isF64 = [](const Value* value) { return value->type.elem == Elem::F64; };
  return llvm::any_of(op.operands(), isF64) || llvm::any_of(op.results(), isF64) ||
         (op.var != nullptr && op.var->type.elem == Elem::F64);
}

// Calls make(T()) with the type that the op's kernel computes in.
template <class F>
KernelOr withCompute(const Op& op, F&& make) {
  return isDouble(op) ? make(double()) : make(float());
}

// Whether a kernel adds to what its result holds, or overwrites it.
struct Accumulate {
  explicit Accumulate(const Op& op) : adds(op.var != nullptr), first(op.isFlag("first")) {}
  bool addsIn(const RunContext& context) const {
    return adds && !(first && context.microbatch == 0);
  }
  bool adds, first;
};

// Rows of about this many elements in all make a task worth handing to a thread.
inline constexpr int64_t kTaskElements = 8192;
inline int64_t rowsPerTask(int64_t rowElements) {
  return std::max<int64_t>(1, kTaskElements / std::max<int64_t>(rowElements, 1));
}

KernelOr prepareElementwise(const Op& op, Shared& shared);  // also fused, sum, const, cast, accum
KernelOr prepareEinsum(const Op& op, Shared& shared);
KernelOr prepareSoftmax(const Op& op, Shared& shared);
KernelOr prepareSoftmaxGrad(const Op& op, Shared& shared);
KernelOr prepareNorm(const Op& op, Shared& shared);
KernelOr prepareNormGrad(const Op& op, Shared& shared);
KernelOr prepareLookup(const Op& op, Shared& shared);
KernelOr prepareLookupGrad(const Op& op, Shared& shared);
KernelOr prepareCountValid(const Op& op, Shared& shared);
KernelOr prepareCrossEntropy(const Op& op, Shared& shared);
KernelOr prepareCrossEntropyPart(const Op& op, Shared& shared);
KernelOr prepareLogSumExp(const Op& op, Shared& shared);
KernelOr prepareCrossEntropyTotal(const Op& op, Shared& shared);
KernelOr prepareCrossEntropyGrad(const Op& op, Shared& shared);
KernelOr prepareRope(const Op& op, Shared& shared);
KernelOr prepareAttend(const Op& op, Shared& shared);  // also attend_block
KernelOr prepareAttendGrad(const Op& op, Shared& shared);
KernelOr prepareDropout(const Op& op, Shared& shared);
KernelOr prepareConcat(const Op& op, Shared& shared);
KernelOr prepareSlice(const Op& op, Shared& shared);
KernelOr prepareShardSlice(const Op& op, Shared& shared);
KernelOr prepareOneCopy(const Op& op, Shared& shared);
KernelOr prepareSpread(const Op& op, Shared& shared);
KernelOr prepareRaggedSum(const Op& op, Shared& shared);
KernelOr prepareRoute(const Op& op, Shared& shared);
KernelOr prepareRouteGrad(const Op& op, Shared& shared);
KernelOr prepareAdmit(const Op& op, Shared& shared);
KernelOr preparePack(const Op& op, Shared& shared);
KernelOr prepareDispatch(const Op& op, Shared& shared);
KernelOr prepareDispatchGrad(const Op& op, Shared& shared);
KernelOr prepareCombine(const Op& op, Shared& shared);
KernelOr prepareCombineGrad(const Op& op, Shared& shared);
KernelOr prepareRowCounts(const Op& op, Shared& shared);
KernelOr prepareRowOffsets(const Op& op, Shared& shared);
KernelOr prepareLearningRate(const Op& op, Shared& shared);
KernelOr prepareSumSquares(const Op& op, Shared& shared);
KernelOr prepareAdamW(const Op& op, Shared& shared);
KernelOr prepareSgd(const Op& op, Shared& shared);

}  // namespace planc::cpu
