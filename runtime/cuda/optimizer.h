// The optimizer's kernels: one sweep over a weight, its gradient and its moments.
#pragma once

#include "runtime/cuda/kernel.h"

namespace planc::cuda {

// m = momentum * m + g * gscale + decay * w; w -= lr * m. Results may lie on their operands.
struct SgdArgs {
  ConstRef w, g, m, lr, gscale;
  Ref newW, newM;
  double momentum, decay;
  int64_t size;
};
extern const Kernel<SgdArgs> kSgdF32, kSgdF64;

}  // namespace planc::cuda
