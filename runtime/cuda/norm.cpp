// Makers of softmax, norms and log-sum-exp over one dim, and of their gradients. Tested by
// tests/gpu/kernels_gpu_test.cpp.
#include "runtime/cuda/norm.h"

#include <bit>

#include "runtime/cuda/ops.h"
#include "runtime/layout.h"

namespace planc::cuda {
namespace {

struct Kernels {
  const cuda::Kernel<RowsArgs>&teams, &beyond, &aloneF32, &aloneF64;
  int units;  // that a thread of a team keeps; `beyond`: of longer rows
};

// Rows along `over`; their other dims are those of `main`. Tensors: all operands, then all results.
KernelOr makeRows(const Op& op, const Type& main, const Kernels& kernels, Shared& shared) {
  std::string over = op.attrs.word("over");
  llvm::SmallVector<const Type*, kRowTensors> types;
  for (const Value* operand : op.operands()) types.push_back(&operand->type);
  for (const Value* result : op.results()) types.push_back(&result->type);
  Space space(dimsWithout(main, {over}), types);
  if (space.loops().size() > kRowLoops) return unsupported(op, "more than 8 loops over rows");

  RowsArgs args{};
  args.rows = space.count();
  args.size = main.size(over);
  args.eps = op.attrs.number("eps", 1e-5);
  args.center = op.isFlag("center");
  for (const Loop& loop : llvm::reverse(space.loops())) {
    args.sizes[args.loops] = loop.size;
    for (size_t t = 0; t < types.size(); ++t) args.tensors[t].strides[args.loops] = loop.strides[t];
    ++args.loops;
  }
  for (size_t t = 0; t < types.size(); ++t) {
    RowTensor& tensor = args.tensors[t];
    tensor.elem = types[t]->elem;
    tensor.step = strideOf(*types[t], over);
    auto isEven = [&](const Loop& loop) { return loop.strides[t] % kRowWidth == 0; };
    tensor.isVector = tensor.step == 1 && llvm::all_of(space.loops(), isEven);
  }

  // Rows across memory are left to a thread each where there are enough of them.
  bool isAcross = args.tensors[0].step != 1 && args.rows >= args.size;
  bool isAlone = isDouble(op) || isAcross;
  int64_t wanted = blocksFor(args.size, kernels.units * kRowWidth);
  uint64_t team = std::bit_ceil(uint64_t(std::min<int64_t>(wanted, kTeamThreads)));
  args.team = isAlone ? 1 : int32_t(team);
  int threads = std::max(args.team, kAloneThreads);
  if (args.team > kWarp) threads = args.team;
  LaunchShape shape;
  shape.x = blocksFor(args.rows, threads / args.team);
  shape.threads = uint32_t(threads);
  shape.sharedBytes = kWarp * sizeof(float);
  const auto& alone = isDouble(op) ? kernels.aloneF64 : kernels.aloneF32;
  const auto& together = wanted > kTeamThreads ? kernels.beyond : kernels.teams;
  const auto& kernel = isAlone ? alone : together;
  size_t operands = op.operands().size(), tensors = types.size();
  return makeKernel([=, &shared, &kernel](const RunContext&, Operands in, Results out) {
    RowsArgs launched = args;
    for (size_t t = 0; t < tensors; ++t) {
      RowTensor& tensor = launched.tensors[t];
      tensor.data = t < operands ? const_cast<void*>(in[t]) : out[t - operands];
      if (reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0) tensor.isVector = false;
    }
    shared.launch(kernel, shape, launched);
  });
}

}  // namespace

#define KERNELS(Kind) \
  {k##Kind##Teams, k##Kind##Long, k##Kind##AloneF32, k##Kind##AloneF64, k##Kind##Units}

KernelOr prepareSoftmax(const Op& op, Shared& shared) {
  return makeRows(op, op.result()->type, KERNELS(Softmax), shared);
}
KernelOr prepareSoftmaxGrad(const Op& op, Shared& shared) {
  return makeRows(op, op.result()->type, KERNELS(SoftmaxGrad), shared);
}
KernelOr prepareNorm(const Op& op, Shared& shared) {
  return makeRows(op, op.operand(0)->type, KERNELS(Norm), shared);
}
KernelOr prepareNormGrad(const Op& op, Shared& shared) {
  return makeRows(op, op.result()->type, KERNELS(NormGrad), shared);
}
KernelOr prepareLogSumExp(const Op& op, Shared& shared) {
  return makeRows(op, op.operand(0)->type, KERNELS(LogSumExp), shared);
}

}  // namespace planc::cuda
