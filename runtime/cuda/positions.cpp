// Rope and dropout: what depends on where an element stands.
#include "runtime/cuda/ops.h"

namespace planc::cuda {

KernelOr prepareRope(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareDropout(const Op& op, Shared&) { return unsupported(op, "not yet"); }

}  // namespace planc::cuda
