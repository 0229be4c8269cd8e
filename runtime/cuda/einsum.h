// Products that are no matrix products, or whose tensors no BLAS takes: any dims in any order, any
// mix of element types, and rows that groups share. The names fall into four classes:
//   outer: in all three, or around it    m: a and c    n: b and c    k: summed
// whose loops are walked as one.
#pragma once

#include "runtime/cuda/kernel.h"

namespace planc::cuda {

struct EinsumLoop {
  int64_t strides[3];  // a, b, c
  int64_t size;
};
constexpr int kEinsumLoops = 16;

// Whether a ragged dim is cut into its groups: it is m, or k.
enum class Ragged : uint8_t { None, Rows, Sum };

// Rows of one group, or of none (kNone: they become zeros), found when the groups are known.
struct RaggedTile {
  static constexpr int32_t kNone = -1;
  int32_t group, row, rows;
};
struct RaggedTilesArgs {
  const int32_t* offsets;
  RaggedTile* tiles;
  int32_t groups, last, bound;
  int32_t rows;  // of a tile
  int32_t tileCount;
};
// One block.
extern const Kernel<RaggedTilesArgs> kRaggedTiles;

struct EinsumArgs {
  enum : int { Outer, M, N, K, kClasses };
  ConstRef a, b;
  Ref c;
  EinsumLoop loops[kEinsumLoops];  // by class
  int32_t ends[kClasses];          // of each class's loops
  int64_t sizes[kClasses];         // the ragged dim's rows apart
  bool add;
  bool aByK, bByK;  // neighbours along k are nearer than those along m, n

  Ragged ragged;
  bool sums;  // the groups' products add up
  int32_t groups, last, bound;
  int64_t slices[3];  // from group to group
  int64_t rowSteps[3];
  const int32_t* offsets;
  const RaggedTile* tiles;
  int32_t tileCount;

  // k may be cut in splits, whose sums lie in `partial`, [splits, outputs].
  int64_t splits, eachSplit;
  void* partial;
  int32_t lanes;  // of a dot
};

constexpr int kEinsumTile = 64, kEinsumDepth = 16, kEinsumThreads = 256;
template <class T>
struct EinsumShared {
  T a[kEinsumDepth][kEinsumTile + 4], b[kEinsumDepth][kEinsumTile + 4];
  int64_t aOfM[kEinsumTile], cOfM[kEinsumTile], bOfN[kEinsumTile], cOfN[kEinsumTile];
  int64_t aOfK[kEinsumDepth], bOfK[kEinsumDepth];
};

// x: outer, groups (of a ragged sum) times tiles of m times tiles of n times splits.
extern const Kernel<EinsumArgs> kEinsumF32, kEinsumF64;
// Where m or n is 1: `lanes` threads an output; x: outputs times splits.
extern const Kernel<EinsumArgs> kDotsF32, kDotsF64;
// A thread an output: puts splits together.
extern const Kernel<EinsumArgs> kEinsumSplitsF32, kEinsumSplitsF64;

}  // namespace planc::cuda
