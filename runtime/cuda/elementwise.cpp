// Elementwise ops, fused chains, sums by name and spreads.
#include "runtime/cuda/ops.h"

namespace planc::cuda {

KernelOr prepareElementwise(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareSum(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareSpread(const Op& op, Shared&) { return unsupported(op, "not yet"); }

}  // namespace planc::cuda
