// Makers of the optimizer's kernels. Tested by tests/gpu/kernels_gpu_test.cpp.
#include "runtime/cuda/optimizer.h"

#include "runtime/cuda/ops.h"

namespace planc::cuda {

KernelOr prepareSgd(const Op& op, Shared& shared) {
  Type types[5];
  for (unsigned i = 0; i < 5; ++i) types[i] = op.operand(i)->type;
  double momentum = op.attrs.number("momentum"), decay = op.attrs.number("decay");
  const auto& kernel = isDouble(op) ? kSgdF64 : kSgdF32;
  int64_t size = types[0].elements();
  return makeKernel([=, &shared, &kernel](const RunContext&, Operands in, Results out) {
    SgdArgs args{};
    args.w = refTo(in[0], types[0]);
    args.g = refTo(in[1], types[1]);
    args.m = refTo(in[2], types[2]);
    args.lr = refTo(in[3], types[3]);
    args.gscale = refTo(in[4], types[4]);
    args.newW = refTo(out[0], types[0]);
    args.newM = refTo(out[1], types[2]);
    args.momentum = momentum;
    args.decay = decay;
    args.size = size;
    shared.launch(kernel, {.x = blocksFor(size, 4 * 256), .threads = 256}, args);
  });
}

KernelOr prepareLearningRate(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareSumSquares(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareAdamW(const Op& op, Shared&) { return unsupported(op, "not yet"); }

}  // namespace planc::cuda
