// Products of groups on tensor cores: rows that are packed by group (of experts) times each group's
// matrix, or summed over each group's rows. How many rows a group has is known on the GPU alone, so
// the grid is that of the worst case, and blocks without rows end at once.
#pragma once

#include "runtime/cuda/einsum.h"

namespace planc::cuda {

// c[m, n] (+)= a[m, k] b[k, n] of each group; m is ragged, or k. Steps are in elements: one of a's,
// and one of b's, is 1, and so is c's along n. Others are multiples of 8.
struct GroupedArgs {
  const uint16_t *a, *b;
  Ref c;
  int64_t slices[3];  // from group to group
  int64_t stepA, stepB, stepC;
  int32_t m, n, k;  // but for the ragged one
  int32_t tilesM;   // of all groups
  int32_t groups, last, bound;
  const int32_t* offsets;
  const RaggedTile* tiles;  // where m is ragged
  bool add;
};

constexpr int kGroupedTile = 128, kGroupedDepth = 64, kGroupedThreads = 256;
struct GroupedShared {
  // By turns; rows of 64 or of 128.
  uint16_t a[2][kGroupedTile * kGroupedDepth], b[2][kGroupedTile * kGroupedDepth];
  int64_t startC;
  int32_t rows, columns;  // that exist
};

// x: tiles of m times tiles of n (times groups). m is ragged, and b's columns or its rows are along
// k; or k is.
extern const Kernel<GroupedArgs> kGroupedRowsByK, kGroupedRowsByN, kGroupedSums;

}  // namespace planc::cuda
