// The optimizer's kernels: sweeps over a weight, its gradient and its moments; the sum of squares
// for clipping; the learning rate.
#pragma once

#include "runtime/cuda/kernel.h"

namespace planc::cuda {

inline constexpr int kSweepThreads = 256, kSweepWidth = 4;  // elements of a thread at a time

// m = momentum * m + g * gscale + decay * w; w -= lr * m. Results may lie on their operands.
struct SgdArgs {
  ConstRef w, g, m, lr, gscale;
  Ref newW, newM;
  double momentum, decay;
  int64_t size;
  bool isVector;  // all are aligned
};
extern const Kernel<SgdArgs> kSgdF32, kSgdF64;

// Loshchilov & Hutter 2019, algorithm 2, with g * gscale. Results may lie on their operands.
struct AdamWArgs {
  ConstRef w, g, m, v, lr, gscale, step;
  Ref newW, newM, newV;
  double beta1, beta2, eps, decay;
  int64_t size;
  bool isVector;
};
extern const Kernel<AdamWArgs> kAdamWF32, kAdamWF64;

// Each block sums the squares of one piece; then one block adds up the pieces' sums.
inline constexpr int64_t kSquaresPiece = 1 << 15;
inline constexpr int kSquaresWidth = 8;
struct SumSquaresArgs {
  ConstRef x;
  int64_t size, pieces;
  double* partials;
  Ref sum;
  bool isVector;
};
extern const Kernel<SumSquaresArgs> kSquaresF32, kSquaresF64, kSquaresTotal;

// Linear up to `lr` over `warmup` steps, then, where `cosine` > 0, a cosine down to `floor` * lr
// there.
struct LearningRateArgs {
  ConstRef step;
  Ref rate;
  double lr, floor, warmup, cosine;
};
extern const Kernel<LearningRateArgs> kLearningRate;

}  // namespace planc::cuda
