// Makers of the optimizer's kernels. Tested by tests/gpu/kernels_gpu_test.cpp.
#include "runtime/cuda/optimizer.h"

#include "runtime/cuda/ops.h"

namespace planc::cuda {
namespace {

llvm::Error checkSameDims(const Op& op, unsigned operands) {
  for (unsigned i = 1; i < operands; ++i)
    if (op.operand(i)->type.dims != op.operand(0)->type.dims)
      return unsupported(op, "operands with other dims than the weight's");
  return llvm::Error::success();
}

// Slices of variables may begin anywhere.
bool areAligned(llvm::ArrayRef<const void*> places) {
  return llvm::all_of(places,
                      [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; });
}

template <size_t kOperands>
void takeTypes(const Op& op, Type (&types)[kOperands]) {
  for (unsigned i = 0; i < kOperands; ++i) types[i] = op.operand(i)->type;
}

}  // namespace

KernelOr prepareSgd(const Op& op, Shared& shared) {
  if (llvm::Error error = checkSameDims(op, 3)) return error;
  Type types[5];
  takeTypes(op, types);
  SgdArgs args{};
  args.momentum = op.attrs.number("momentum");
  args.decay = op.attrs.number("decay");
  args.size = types[0].elements();
  const auto& kernel = isDouble(op) ? kSgdF64 : kSgdF32;
  return makeKernel([=, &shared, &kernel](const RunContext&, Operands in, Results out) {
    SgdArgs launched = args;
    launched.w = refTo(in[0], types[0]);
    launched.g = refTo(in[1], types[1]);
    launched.m = refTo(in[2], types[2]);
    launched.lr = refTo(in[3], types[3]);
    launched.gscale = refTo(in[4], types[4]);
    launched.newW = refTo(out[0], types[0]);
    launched.newM = refTo(out[1], types[2]);
    launched.isVector = areAligned({in[0], in[1], in[2], out[0], out[1]});
    uint32_t blocks = blocksFor(args.size, kSweepWidth * kSweepThreads);
    shared.launch(kernel, {.x = blocks, .threads = kSweepThreads}, launched);
  });
}

KernelOr prepareAdamW(const Op& op, Shared& shared) {
  if (llvm::Error error = checkSameDims(op, 4)) return error;
  Type types[7];
  takeTypes(op, types);
  AdamWArgs args{};
  args.beta1 = op.attrs.number("beta1");
  args.beta2 = op.attrs.number("beta2");
  args.eps = op.attrs.number("eps");
  args.decay = op.attrs.number("decay");
  args.size = types[0].elements();
  const auto& kernel = isDouble(op) ? kAdamWF64 : kAdamWF32;
  uint32_t most = uint32_t(4 * shared.gpu.multiprocessors());
  LaunchShape shape;
  shape.x = std::min(blocksFor(args.size, kSweepWidth * kSweepThreads), std::max(most, 1u));
  shape.threads = kSweepThreads;
  shape.sharedBytes = 3 * sizeof(double);
  return makeKernel([=, &shared, &kernel](const RunContext&, Operands in, Results out) {
    AdamWArgs launched = args;
    launched.w = refTo(in[0], types[0]);
    launched.g = refTo(in[1], types[1]);
    launched.m = refTo(in[2], types[2]);
    launched.v = refTo(in[3], types[3]);
    launched.lr = refTo(in[4], types[4]);
    launched.gscale = refTo(in[5], types[5]);
    launched.step = refTo(in[6], types[6]);
    launched.newW = refTo(out[0], types[0]);
    launched.newM = refTo(out[1], types[2]);
    launched.newV = refTo(out[2], types[3]);
    launched.isVector = areAligned({in[0], in[1], in[2], in[3], out[0], out[1], out[2]});
    shared.launch(kernel, shape, launched);
  });
}

KernelOr prepareSumSquares(const Op& op, Shared& shared) {
  Type x = op.operand(0)->type, sum = op.result()->type;
  SumSquaresArgs args{};
  args.size = x.elements();
  args.pieces = blocksFor(args.size, kSquaresPiece);
  shared.needWorkspace(args.pieces * int64_t(sizeof(double)));
  const auto& kernel = isDouble(op) ? kSquaresF64 : kSquaresF32;
  LaunchShape shape;
  shape.x = uint32_t(args.pieces);
  shape.threads = kSweepThreads;
  shape.sharedBytes = kSweepThreads / kWarp * sizeof(double);
  LaunchShape one = shape;
  one.x = 1;
  return makeKernel([=, &shared, &kernel](const RunContext&, Operands in, Results out) {
    SumSquaresArgs launched = args;
    launched.x = refTo(in[0], x);
    launched.sum = refTo(out[0], sum);
    launched.partials = reinterpret_cast<double*>(shared.workspace());
    launched.isVector = areAligned({in[0]});
    shared.launch(kernel, shape, launched);
    shared.launch(kSquaresTotal, one, launched);
  });
}

KernelOr prepareLearningRate(const Op& op, Shared& shared) {
  Type step = op.operand(0)->type, rate = op.result()->type;
  LearningRateArgs args{};
  args.lr = op.attrs.number("lr");
  args.floor = op.attrs.number("floor");
  args.warmup = op.attrs.number("warmup");
  args.cosine = op.attrs.number("cosine");
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    LearningRateArgs launched = args;
    launched.step = refTo(in[0], step);
    launched.rate = refTo(out[0], rate);
    shared.launch(kLearningRate, {.x = 1, .threads = kWarp}, launched);
  });
}

}  // namespace planc::cuda
