// Cross-entropy: a block a row of logits.
#pragma once

#include "runtime/cuda/kernel.h"
#include "runtime/cuda/walk.h"

namespace planc::cuda {

// `count` is to be 0 before.
struct CountValidArgs {
  const int32_t* targets;
  int64_t size;
  int32_t* count;
};
extern const Kernel<CountValidArgs> kCountValid;

// A row of logits: this rank's piece [first, first + valid) of `size` elements.
struct LogitRow {
  int64_t stride;  // from element to element
  int64_t first, valid, size;
  bool isAligned;  // memory begins at a multiple of 16 bytes
};

// Each row's log-sum-exp, and of its target either the loss (double, 0 where there is none) or the
// logit (0 where it is not here).
struct LogSumExpArgs {
  ConstRef logits;
  const int32_t* targets;
  Ref lse, picked;
  double* losses;  // null: `picked` is wanted
  LogitRow row;
  Walk<4> rows;  // {logits, targets, lse, picked}
};
extern const Kernel<LogSumExpArgs> kLogitsF32, kLogitsF64;

// (exp(logits - lse) - onehot) * dloss * scale / count; may lie on the logits.
struct CrossEntropyGradArgs {
  ConstRef logits, lse, dloss;
  const int32_t *targets, *count;
  Ref dlogits;
  double scale;
  LogitRow row;      // of logits
  int64_t toStride;  // dlogits' from element to element
  Walk<4> rows;      // {logits, targets, lse, dlogits}
};
extern const Kernel<CrossEntropyGradArgs> kCrossEntropyGradF32, kCrossEntropyGradF64;

// What tokens with targets lose, by pieces of kLossPiece tokens.
inline constexpr int64_t kLossPiece = 4096;
struct TokenLossArgs {
  const int32_t* targets;
  ConstRef lse, picked;
  int64_t count;
  Walk<3> tokens;  // {targets, lse, picked}
  double* losses;
};
extern const Kernel<TokenLossArgs> kTokenLoss;

// scale * sum / count; 0 when nothing was counted. One block.
struct TotalLossArgs {
  const double* losses;
  int64_t size;
  const int32_t* count;
  double scale;
  Ref loss;
};
extern const Kernel<TotalLossArgs> kTotalLoss;

}  // namespace planc::cuda
