// Joining and cutting.
#include "runtime/cuda/ops.h"

namespace planc::cuda {

KernelOr prepareConcat(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareSlice(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareShardSlice(const Op& op, Shared&) { return unsupported(op, "not yet"); }
KernelOr prepareOneCopy(const Op& op, Shared&) { return unsupported(op, "not yet"); }

}  // namespace planc::cuda
