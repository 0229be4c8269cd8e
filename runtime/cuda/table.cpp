// Lookup and its gradient.
#include "runtime/cuda/ops.h"

namespace planc::cuda {

KernelOr prepareLookup(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareLookupGrad(const Op& op, Shared&) { return unsupported(op, "not yet"); }

}  // namespace planc::cuda
