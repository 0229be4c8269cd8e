// Kernels between the groups of a ragged dim and its rows: a group's element for each of its rows,
// and the sum over a group's rows. Where groups begin is read from `offsets` in device memory.
#pragma once

#include "runtime/cuda/kernel.h"

namespace planc::cuda {

inline constexpr int kRaggedThreads = 256, kRaggedLoops = 6;
inline constexpr int kRaggedWidth = 4;  // elements of a thread, neighbours in the innermost loop

// The loops that a row and a group share, innermost first, the first in units of kRaggedWidth.
struct RaggedLoops {
  int32_t loops;
  int64_t units;     // of all loops together
  int64_t unitSize;  // elements of the first loop
  int64_t sizes[kRaggedLoops], rows[kRaggedLoops], groups[kRaggedLoops];  // and strides of both
  int64_t rowStep, groupStep;       // in a unit
  bool isRowVector, isGroupVector;  // units are loaded and stored at once
};

// rows[r] = groups[the group of r]; 0 where r is of none.
struct SpreadArgs {
  ConstRef groups;
  Ref rows;
  const int32_t* offsets;
  int64_t groupCount, rowCount;
  int64_t rowStride, groupStride;
  RaggedLoops inner;
};
extern const Kernel<SpreadArgs> kSpreadF32, kSpreadF64;

// groups[g] (+)= the sum of g's rows, or, with one group for all, of all rows that are some
// group's. With `chunks` > 1 each row of blocks leaves partial sums of its share of the rows,
// `partials` elements apart.
struct RaggedSumArgs {
  ConstRef rows;
  Ref groups;
  const int32_t* offsets;
  int64_t groupCount, offsetCount, rowCount;
  int64_t rowStride, groupStride;
  RaggedLoops inner;
  int32_t summedLoops;  // other dims that are summed, innermost first
  int64_t summed;       // elements of them
  int64_t summedSizes[kRaggedLoops], summedStrides[kRaggedLoops];
  int32_t rowThreads;  // of a block share a unit's rows: a power of 2
  bool adds;
  int32_t chunks;
  void* partials;  // [chunk][group][unit], in the type that is computed in
};
extern const Kernel<RaggedSumArgs> kRaggedSumF32, kRaggedSumF64;
// Adds up the chunks.
extern const Kernel<RaggedSumArgs> kRaggedTotalF32, kRaggedTotalF64;

}  // namespace planc::cuda
