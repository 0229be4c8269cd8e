// Attention's kernels. A block has a tile of queries (of keys, for their gradients) and meets the
// tiles of the other side that it sees, one after the other (Dao, FlashAttention-2, 2023). On
// tensor cores where all is bf16 and rows lie as they want them; plain for the rest.
#pragma once

#include "runtime/cuda/kernel.h"

namespace planc::cuda {

// Which tensor of an op; it may lack some.
struct AttendRole {
  enum : int { Q, K, V, A, Lse, Before, LseBefore, Da, Dq, Dk, Dv, OfQueries, OfKeys, kCount };
};

// Rows by position: steps from position to position and inside a row, in elements.
struct AttendTensor {
  void* data;
  int64_t row, column;
  Elem elem;
};

// A loop around attention's rows, with each tensor's step.
struct AttendLoop {
  int64_t strides[AttendRole::kCount];
  int32_t size;
};
constexpr int kAttendLoops = 8;

// Rows [at, at + count) at positions from `first` on; `tile`: the number of its first tile.
struct AttendSegment {
  int32_t at, first, count, tile;
};
// A tile inside a segment; of padding, which has no positions.
struct AttendTile {
  static constexpr int32_t kPadding = -1;
  int32_t at, first, rows;
};
// One side's rows.
struct AttendSide {
  const AttendSegment* segments;
  const AttendTile* tiles;  // what blocks have, padding included
  int32_t segmentCount, tileCount;
  // The least and the greatest document of each tile that this side moves by, by head. Null: all.
  const int32_t* documents;
  int32_t documentTiles;  // of a head
};

struct AttendArgs {
  AttendTensor tensors[AttendRole::kCount];
  int64_t start[AttendRole::kCount];  // first elements
  // Heads: outer loops, which queries and keys have, and inner ones over the queries that share a
  // key head. A query's head is outer * own + inner.
  AttendLoop loops[kAttendLoops];
  int32_t outerLoops, loopCount;
  int32_t outer, own;
  AttendSide queries, keys;
  int32_t queryRows;
  int32_t widthQ, widthV;
  int32_t window;  // 0: none
  bool isCausal, hasDocuments, goesOn;
  bool areUnits;  // a's and da's rows are units of kAttendUnit elements, for 16-byte loads
  double scale;
  // Of each query's row, by head and row: {log-sum-exp in units of log 2, da . a}, in float or
  // double.
  void* stats;
  int32_t tile;  // rows of the tiles that a side moves by; of the plain kernels, of all tiles
};

constexpr int kAttendUnit = 8;
constexpr float kAttendNoKeys = -1e38f;  // the log-sum-exp of none

// On tensor cores: rows that a block has, forward and backward, and that it moves by. Rows are at
// most D wide.
template <int D>
struct AttendShape {
  static constexpr int kThreads = 128;
  static constexpr int kQueries = D <= 128 ? 128 : 64, kKeys = D == 128 ? 32 : 64;
  static constexpr int kRows = 64, kStep = D == 64 ? 64 : 32;

  // Shared memory.
  struct Forward {
    uint16_t q[kQueries * D], k[kKeys * D], v[kKeys * D];
    int64_t startA, startLse;
    int32_t documents[kQueries], keyDocuments[kKeys];
  };
  // Of one side a tile; the other's come and go by turns.
  struct Backward {
    uint16_t x0[kRows * D], x1[kRows * D];
    uint16_t y0[2][kStep * D], y1[2][kStep * D];
    float stats[2][kStep][2];
    int32_t documents[2][kStep];
  };
};

// The plain kernels' shared memory, in elements; what is read across rows has odd steps.
constexpr int kAttendPlainThreads = 256;
constexpr int64_t attendPlainForward(int64_t tile, int64_t widthQ, int64_t widthV) {
  return tile * (2 * widthQ + 1 + 2 * widthV + tile + 3 + 2);
}
constexpr int64_t attendPlainBackward(int64_t tile, int64_t widthQ, int64_t widthV) {
  return tile * (3 * widthQ + 1 + 3 * widthV + 1 + 2 * tile + 2 + 2);
}

// x: tiles of queries times heads.
extern const Kernel<AttendArgs> kAttend64, kAttend128, kAttend256, kAttendF32, kAttendF64;
// Blocks of a warp a row, x: queries times heads.
extern const Kernel<AttendArgs> kAttendStatsF32, kAttendStatsF64;
// The same for tiles: x: tiles times heads.
extern const Kernel<AttendArgs> kAttendQueryDocuments, kAttendKeyDocuments;
// x: tiles of queries times heads.
extern const Kernel<AttendArgs> kAttendGradQ64, kAttendGradQ128, kAttendGradQ256, kAttendGradQF32,
    kAttendGradQF64;
// x: tiles of keys times outer heads. Rows of 256: keys and values one after the other.
extern const Kernel<AttendArgs> kAttendGradKV64, kAttendGradKV128, kAttendGradK256, kAttendGradV256,
    kAttendGradKVF32, kAttendGradKVF64;

}  // namespace planc::cuda
