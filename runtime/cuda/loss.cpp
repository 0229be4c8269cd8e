// Cross-entropy.
#include "runtime/cuda/ops.h"

namespace planc::cuda {

KernelOr prepareCountValid(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareCrossEntropy(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareCrossEntropyPart(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareCrossEntropyTotal(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareCrossEntropyGrad(const Op& op, Shared&) { return unsupported(op, "not yet"); }

}  // namespace planc::cuda
