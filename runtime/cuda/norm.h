// Kernels over rows along one dim: softmax, norms, log-sum-exp and gradients.
#pragma once

#include "runtime/cuda/kernel.h"

namespace planc::cuda {

inline constexpr int kRowLoops = 8, kRowTensors = 4;

struct RowTensor {
  void* data;
  int64_t strides[kRowLoops];  // of the loops over rows
  int64_t step;                // along the row; 0: one element a row
  Elem elem;
  bool isVector;               // units of 8 are loaded and stored at once
};

// Rows in loops, innermost first. Tensors: operands, then results.
struct RowsArgs {
  int64_t rows, size;
  int32_t loops;
  int32_t team;  // threads that share a row: a power of 2 up to a warp, or the block
  int64_t sizes[kRowLoops];
  RowTensor tensors[kRowTensors];
  double eps;
  bool center;
};

// `Teams`: a team a row, which it reads once: up to `k..Units` units of kRowWidth elements for each
// thread, two of one operand or one of each of two. `Long`: any number of them, read again for each
// sum. `Alone`: a thread a row, which is strided; neighbours in neighbouring rows.
inline constexpr int kTeamThreads = 1024, kAloneThreads = 256;
inline constexpr int kRowWidth = 8;
#define PLANC_ROW_KERNELS(X) \
  X(Softmax, 2) X(SoftmaxGrad, 1) X(Norm, 2) X(NormGrad, 1) X(LogSumExp, 2)
#define DECLARE(Kind, units)                                                              \
  extern const Kernel<RowsArgs> k##Kind##Teams, k##Kind##Long, k##Kind##AloneF32, \
      k##Kind##AloneF64;                                                            \
  inline constexpr int k##Kind##Units = units;
PLANC_ROW_KERNELS(DECLARE)
#undef DECLARE

}  // namespace planc::cuda
