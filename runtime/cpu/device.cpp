// The CPU device: an arena from the system's allocator, and the table of kernel makers.
// Tested by tests/runtime/kernels_test.cpp.
#include "runtime/device.h"

#include <sys/mman.h>

#include "runtime/cpu/kernels.h"

namespace planc {
namespace {

using cpu::Shared;
using Maker = KernelOr (*)(const Op& op, Shared& shared);

Maker makerOf(const Op& op) {
  if (op.has(Elementwise)) return cpu::prepareElementwise;
  switch (op.kind) {
    case OpKind::Accum:
    case OpKind::Const:
    case OpKind::Fused:
      return cpu::prepareElementwise;
    case OpKind::Sum:
      return op.operands().size() == 2 ? cpu::prepareRaggedSum : cpu::prepareElementwise;
    case OpKind::Einsum:
      return cpu::prepareEinsum;
    case OpKind::Spread:
      return cpu::prepareSpread;
    case OpKind::Softmax:
      return cpu::prepareSoftmax;
    case OpKind::SoftmaxGrad:
      return cpu::prepareSoftmaxGrad;
    case OpKind::Norm:
      return cpu::prepareNorm;
    case OpKind::NormGrad:
      return cpu::prepareNormGrad;
    case OpKind::Lookup:
      return cpu::prepareLookup;
    case OpKind::LookupGrad:
      return cpu::prepareLookupGrad;
    case OpKind::CountValid:
      return cpu::prepareCountValid;
    case OpKind::CrossEntropy:
      return cpu::prepareCrossEntropy;
    case OpKind::CrossEntropyPart:
      return cpu::prepareCrossEntropyPart;
    case OpKind::LogSumExp:
      return cpu::prepareLogSumExp;
    case OpKind::CrossEntropyTotal:
      return cpu::prepareCrossEntropyTotal;
    case OpKind::CrossEntropyGrad:
      return cpu::prepareCrossEntropyGrad;
    case OpKind::Rope:
      return cpu::prepareRope;
    case OpKind::Attend:
    case OpKind::AttendBlock:
      return cpu::prepareAttend;
    case OpKind::AttendGrad:
      return cpu::prepareAttendGrad;
    case OpKind::Dropout:
      return cpu::prepareDropout;
    case OpKind::Concat:
      return cpu::prepareConcat;
    case OpKind::Slice:
      return cpu::prepareSlice;
    case OpKind::ShardSlice:
      return cpu::prepareShardSlice;
    case OpKind::OneCopy:
      return cpu::prepareOneCopy;
    case OpKind::Route:
      return cpu::prepareRoute;
    case OpKind::RouteGrad:
      return cpu::prepareRouteGrad;
    case OpKind::Admit:
      return cpu::prepareAdmit;
    case OpKind::Pack:
      return cpu::preparePack;
    case OpKind::Dispatch:
      return cpu::prepareDispatch;
    case OpKind::DispatchGrad:
      return cpu::prepareDispatchGrad;
    case OpKind::Combine:
      return cpu::prepareCombine;
    case OpKind::CombineGrad:
      return cpu::prepareCombineGrad;
    case OpKind::RowCounts:
      return cpu::prepareRowCounts;
    case OpKind::RowOffsets:
      return cpu::prepareRowOffsets;
    case OpKind::LearningRate:
      return cpu::prepareLearningRate;
    case OpKind::SumSquares:
      return cpu::prepareSumSquares;
    case OpKind::AdamW:
      return cpu::prepareAdamW;
    case OpKind::Sgd:
      return cpu::prepareSgd;
    default:
      return nullptr;
  }
}

class CpuDevice : public Device {
 public:
  CpuDevice(int threads, Coordinates rank) : shared_(threads, std::move(rank)) {}
  ~CpuDevice() override {
    if (arena_ != nullptr) munmap(arena_, size_t(bytes_));
  }

  llvm::StringRef name() const override { return "cpu"; }

  llvm::Expected<std::byte*> allocateArena(int64_t bytes) override {
    bytes_ = std::max<int64_t>(bytes, 1);
    // Anonymous pages are zero and only taken when touched; huge ones save page faults.
    void* p =
        mmap(nullptr, size_t(bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
      return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                     "no memory for an arena of " + llvm::Twine(bytes_) + " bytes");
    }
    madvise(p, size_t(bytes_), MADV_HUGEPAGE);
    arena_ = static_cast<std::byte*>(p);
    return arena_;
  }

  int64_t arenaBytes() const override { return bytes_; }

  llvm::Expected<std::byte*> allocate(int64_t bytes) override {
    return more_.emplace_back(new std::byte[size_t(bytes)]()).get();
  }

  llvm::Expected<std::unique_ptr<Kernel>> prepare(const Op& op) override {
    Maker maker = makerOf(op);
    if (maker == nullptr) return cpu::unsupported(op, "it has no kernel");
    return maker(op, shared_);
  }

 private:
  Shared shared_;
  std::byte* arena_ = nullptr;
  int64_t bytes_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> more_;
};

}  // namespace

std::unique_ptr<Device> makeCpuDevice(int threads, Coordinates rank) {
  return std::make_unique<CpuDevice>(threads, std::move(rank));
}

}  // namespace planc
