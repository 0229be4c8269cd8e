// Softmax, norms and log-sum-exp over one dim, and their gradients.
#include "runtime/cuda/ops.h"

namespace planc::cuda {

KernelOr prepareSoftmax(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareSoftmaxGrad(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareNorm(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareNormGrad(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareLogSumExp(const Op& op, Shared&) { return unsupported(op, "not yet"); }

}  // namespace planc::cuda
