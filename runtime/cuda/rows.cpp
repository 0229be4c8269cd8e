// Packed rows of experts.
#include "runtime/cuda/ops.h"

namespace planc::cuda {

KernelOr preparePack(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareDispatch(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareDispatchGrad(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareCombine(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareCombineGrad(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareRowCounts(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareRowOffsets(const Op& op, Shared&) { return unsupported(op, "not yet"); }

}  // namespace planc::cuda
