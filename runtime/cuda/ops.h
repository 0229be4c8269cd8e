// What the makers of this folder's kernels share; one per op kind, as runtime/cpu/kernels.h has them
// (device.cpp holds the table). A maker does all that shapes decide, and copies tables to the GPU; the
// kernel it returns only enqueues on the compute stream. Kernels never wait for the host, so that a
// step can be recorded as a graph: what changes from step to step lies in device memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/grid.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"
#include "runtime/cuda/gpu.h"
#include "runtime/kernel_parts.h"

namespace planc::cuda {

// cuBLASLt's, in bytes.
inline constexpr int64_t kBlasWorkspace = 32 << 20;

// What kernels of one device share.
class Shared {
 public:
  // Fills device memory from the host's.
  using Write = std::function<void(void* at, const void* host, int64_t bytes)>;

  Shared(Driver& gpu, Stream stream, Coordinates rank, const int64_t* step, Write write)
      : gpu(gpu), stream(stream), rank(std::move(rank)), step(step), write_(std::move(write)) {}

  Driver& gpu;
  const Stream stream;      // compute
  const Coordinates rank;   // kernels over split dims ask it where their piece begins
  const int64_t* const step;  // in device memory: the step at hand; RunContext's is not to be used

  // A copy in device memory, for as long as the device lives. Out of memory: null, and the device says so.
  template <class T>
  const T* table(llvm::ArrayRef<T> values) {
    return static_cast<const T*>(upload(values.data(), int64_t(values.size() * sizeof(T))));
  }
  // The same of what many kernels use: made once for each key.
  template <class T, class F>
  const T* sharedTable(const std::string& key, F&& make) {
    auto [found, isNew] = tables_.try_emplace(key, nullptr);
    if (isNew) found->second = table<T>(make());
    return static_cast<const T*>(found->second);
  }
  // Memory that is this op's while its launches run, and then the next one's: asked for by a maker, found
  // by `workspace` when it runs. 256-byte aligned, not zeroed.
  void needWorkspace(int64_t bytes) { workspaceBytes_ = std::max(workspaceBytes_, bytes); }
  std::byte* workspace() const { return workspace_; }

  template <class Args>
  void launch(const cuda::Kernel<Args>& kernel, const LaunchShape& shape, const Args& args) {
    gpu.launch(stream, kernel, shape, &args);
  }

 private:
  friend class CudaDevice;
  const void* upload(const void* from, int64_t bytes);

  const Write write_;
  std::map<std::string, const void*> tables_;
  int64_t workspaceBytes_ = 0, workspaceRoom_ = 0;
  std::byte* workspace_ = nullptr;
};

inline llvm::Error unsupported(const Op& op, const llvm::Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                 "the cuda device cannot run '" + op.info().text + "': " + what);
}

inline ConstRef refTo(const void* data, const Type& type) { return {data, type.elem}; }
inline Ref refTo(void* data, const Type& type) { return {data, type.elem}; }

// So many blocks that `threads` each do one of `items`.
inline uint32_t blocksFor(int64_t items, int64_t threads) {
  return uint32_t(std::max<int64_t>(1, (items + threads - 1) / threads));
}

// elementwise.cpp
KernelOr prepareElementwise(const Op& op, Shared& shared);  // also fused, const, cast, accum
KernelOr prepareSum(const Op& op, Shared& shared);          // also of ragged rows
KernelOr prepareSpread(const Op& op, Shared& shared);
// norm.cpp
KernelOr prepareSoftmax(const Op& op, Shared& shared);
KernelOr prepareSoftmaxGrad(const Op& op, Shared& shared);
KernelOr prepareNorm(const Op& op, Shared& shared);
KernelOr prepareNormGrad(const Op& op, Shared& shared);
KernelOr prepareLogSumExp(const Op& op, Shared& shared);
// positions.cpp
KernelOr prepareRope(const Op& op, Shared& shared);
KernelOr prepareDropout(const Op& op, Shared& shared);
// copy.cpp
KernelOr prepareConcat(const Op& op, Shared& shared);
KernelOr prepareSlice(const Op& op, Shared& shared);
KernelOr prepareShardSlice(const Op& op, Shared& shared);
KernelOr prepareOneCopy(const Op& op, Shared& shared);
// einsum.cpp
KernelOr prepareEinsum(const Op& op, Shared& shared);  // also grouped
// attention.cpp
KernelOr prepareAttend(const Op& op, Shared& shared);  // also attend_block
KernelOr prepareAttendGrad(const Op& op, Shared& shared);
// table.cpp
KernelOr prepareLookup(const Op& op, Shared& shared);
KernelOr prepareLookupGrad(const Op& op, Shared& shared);
// loss.cpp
KernelOr prepareCountValid(const Op& op, Shared& shared);
KernelOr prepareCrossEntropy(const Op& op, Shared& shared);
KernelOr prepareCrossEntropyPart(const Op& op, Shared& shared);
KernelOr prepareCrossEntropyTotal(const Op& op, Shared& shared);
KernelOr prepareCrossEntropyGrad(const Op& op, Shared& shared);
// route.cpp
KernelOr prepareRoute(const Op& op, Shared& shared);
KernelOr prepareRouteGrad(const Op& op, Shared& shared);
KernelOr prepareAdmit(const Op& op, Shared& shared);
// rows.cpp
KernelOr preparePack(const Op& op, Shared& shared);
KernelOr prepareDispatch(const Op& op, Shared& shared);
KernelOr prepareDispatchGrad(const Op& op, Shared& shared);
KernelOr prepareCombine(const Op& op, Shared& shared);
KernelOr prepareCombineGrad(const Op& op, Shared& shared);
KernelOr prepareRowCounts(const Op& op, Shared& shared);
KernelOr prepareRowOffsets(const Op& op, Shared& shared);
// optimizer.cpp
KernelOr prepareLearningRate(const Op& op, Shared& shared);
KernelOr prepareSumSquares(const Op& op, Shared& shared);
KernelOr prepareAdamW(const Op& op, Shared& shared);
KernelOr prepareSgd(const Op& op, Shared& shared);

}  // namespace planc::cuda
