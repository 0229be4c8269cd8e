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
#include "runtime/kernel_parts.h"

namespace planc::cpu {

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

inline llvm::Error unsupported(const Op& op, const llvm::Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                 "the cpu device cannot run '" + op.info().text + "': " + what);
}

// Calls make(T()) with the type that the op's kernel computes in.
template <class F>
KernelOr withCompute(const Op& op, F&& make) {
  return isDouble(op) ? make(double()) : make(float());
}

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
