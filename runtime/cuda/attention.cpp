// Attention over blocks of keys.
#include "runtime/cuda/ops.h"

namespace planc::cuda {

KernelOr prepareAttend(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareAttendGrad(const Op& op, Shared&) { return unsupported(op, "not yet"); }

}  // namespace planc::cuda
