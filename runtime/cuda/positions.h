// Kernels that ask where in the whole tensor an element stands: rope and dropout.
#pragma once

#include "runtime/cuda/kernel.h"

namespace planc::cuda {

inline constexpr int kPositionThreads = 256, kPositionLoops = 8;

// Pairs (a, b) of a row of `width` elements become (a c - b s, a s + b c) with the cosine and sine
// of the row's position. Pairs lie side by side, or half a row apart.
inline constexpr int kRopeWidth = 4;  // pairs of a thread
struct RopeArgs {
  ConstRef x;
  Ref y;
  // By position width / 2 cosines, then as many sines; in the type that is computed in.
  const void* angles;
  int64_t rows, width;
  int64_t units;  // of a row
  int32_t loops;  // over rows, innermost first
  int64_t sizes[kPositionLoops];
  int64_t inX[kPositionLoops], inY[kPositionLoops], inPositions[kPositionLoops];
  int64_t xStep, yStep;
  bool isVector;  // x and y, in units
  bool areNeighbours, inverse;
};
extern const Kernel<RopeArgs> kRopeF32, kRopeF64;

// y = x / (1 - rate) where the element is kept, else 0: runtime/philox.h by the element's index in
// the whole tensor. A thread does neighbours in memory, in y's order.
inline constexpr int kDropoutWidth = 8;
struct DropoutArgs {
  ConstRef x;
  Ref y;
  int64_t size;
  uint64_t key;
  // The counter is step * perStep + counter, with the step in device memory.
  const int64_t* step;
  uint64_t perStep, counter;
  float rate;
  double scale;
  bool isVector;     // x lies as y, and both are aligned
  bool isOneRun;     // the elements of a thread are neighbours in the whole too
  int32_t loops;     // of x, innermost first
  int64_t sizes[kPositionLoops], inX[kPositionLoops];
  // Of the whole, as runtime/whole_index.h has it, innermost first. A loop with places has them
  // from places[firstPlace] on.
  int64_t first, run;
  int32_t wholeLoops;
  int64_t wholeSizes[kPositionLoops], wholeStrides[kPositionLoops];
  int32_t firstPlace[kPositionLoops];  // -1: it has a stride
  const int64_t* places;
};
extern const Kernel<DropoutArgs> kDropoutF32, kDropoutF64;

}  // namespace planc::cuda
