// Which experts a token is sent to.
#include "runtime/cuda/ops.h"

namespace planc::cuda {

KernelOr prepareRoute(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareRouteGrad(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareAdmit(const Op& op, Shared&) { return unsupported(op, "not yet"); }

}  // namespace planc::cuda
