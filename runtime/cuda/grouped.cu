// See grouped.h. Eight warps share a tile of 128 by 128, 32 rows by 64 columns each.
#include "runtime/cuda/grouped.h"

#include "runtime/cuda/mma.h"

namespace planc::cuda {
namespace {

constexpr int kThreads = kGroupedThreads, kTile = kGroupedTile, kDepth = kGroupedDepth;

// Blocks that run at once should share what they read: they are 8 columns of tiles wide.
struct Place {
  int m, n;
};
PLANC_DEVICE Place placeOf(int64_t block, int tilesM, int tilesN) {
  constexpr int kWide = 8;
  int strip = int(block / (int64_t(tilesM) * kWide)), rest = int(block % (int64_t(tilesM) * kWide));
  int wide = tilesN - strip * kWide < kWide ? tilesN - strip * kWide : kWide;
  return {rest / wide, strip * kWide + rest % wide};
}

// Occupancy: 2 blocks of 256 threads on a multiprocessor (128 registers a thread, 64 KiB of shared
// memory a block): a quarter, with two tiles on the way while one is in use.
template <Ragged kRagged, bool bByK>
PLANC_KERNEL(kThreads, 2)
grouped(GroupedArgs g) {
  constexpr bool aByK = kRagged == Ragged::Rows;
  auto& shared = sharedMemory<GroupedShared>();
  int tilesN = (g.n + kTile - 1) / kTile;
  int64_t block = blockIdx.x;
  int group = 0, rows = kTile, m0 = 0, k = g.k;
  int64_t firstK = 0;
  if (kRagged == Ragged::Sum) {
    int64_t blocks = int64_t(g.tilesM) * tilesN;
    group = int(block / blocks);
    block %= blocks;
    // Offsets are indices in memory, whatever wrote them.
    auto clampRow = [&](int row, int low) {
      return row < low ? low : row > g.bound ? g.bound : row;
    };
    int first = g.groups == 1 ? 0 : clampRow(g.offsets[group], 0);
    k = clampRow(g.offsets[g.groups == 1 ? g.last : group + 1], first) - first;
    firstK = first;
  }
  auto [tileM, tileN] = placeOf(block, g.tilesM, tilesN);
  if (kRagged == Ragged::Rows) {
    RaggedTile tile = g.tiles[tileM];
    bool isUsed = tile.group != RaggedTile::kNone;
    if (tile.rows == 0 || (!isUsed && g.add)) return;
    m0 = tile.row;
    rows = tile.rows;
    group = isUsed ? tile.group : 0;
    if (!isUsed) k = 0;
  } else {
    m0 = tileM * kTile;
    rows = g.m - m0 < kTile ? g.m - m0 : kTile;
  }
  int n0 = tileN * kTile, columns = g.n - n0 < kTile ? g.n - n0 : kTile;
  const uint16_t* a = g.a + group * g.slices[0] + (aByK ? m0 * g.stepA : firstK * g.stepA + m0);
  const uint16_t* b = g.b + group * g.slices[1] + (bByK ? n0 * g.stepB : firstK * g.stepB + n0);

  // What is needed now and then takes no registers in between.
  if (threadIdx.x == 0) {
    shared.startC = (kRagged == Ragged::Sum ? group * g.slices[2] : 0) + m0 * g.stepC + n0;
    shared.rows = rows;
    shared.columns = columns;
  }
  __syncthreads();

  AsyncCopies copies;
  // The next part along k, of which `left` are left.
  int left = k;
  auto fetch = [&](int turn) {
    int depth = left < kDepth ? left : kDepth;
    int m = shared.rows, n = shared.columns;
    if constexpr (aByK)
      copyTile<kDepth, kTile, kThreads>(copies, shared.a[turn], a, g.stepA, m, depth);
    else copyTile<kTile, kDepth, kThreads>(copies, shared.a[turn], a, g.stepA, depth, m);
    if constexpr (bByK)
      copyTile<kDepth, kTile, kThreads>(copies, shared.b[turn], b, g.stepB, n, depth);
    else copyTile<kTile, kDepth, kThreads>(copies, shared.b[turn], b, g.stepB, depth, n);
    a += aByK ? kDepth : kDepth * g.stepA;
    b += bByK ? kDepth : kDepth * g.stepB;
    left -= depth;
  };
  int warp = int(threadIdx.x) / kWarp, warpRow = warp / 2 * 32, warpColumn = warp % 2 * 64;
  float sums[2][8][4] = {};
  int parts = (k + kDepth - 1) / kDepth;
  if (parts > 0) fetch(0);
  copies.commit();
  for (int turn = 0; parts > 0; --parts, turn ^= 1) {
    if (parts > 1) fetch(turn ^ 1);
    copies.commit();
    copies.wait<1>();
    __syncthreads();
    // Unrolled it would need more registers than two blocks leave.
#pragma unroll 1
    for (int i = 0; i < kDepth / 16; ++i) {
      uint32_t x[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (aByK) loadA<kDepth>(x[r], shared.a[turn], warpRow + r * 16, i * 2);
        else loadATransposed<kTile>(x[r], shared.a[turn], i * 16, warpRow / 8 + r * 2);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t y[4];
        if constexpr (bByK) loadB<kDepth>(y, shared.b[turn], warpColumn + n * 16, i * 2);
        else loadBTransposed<kTile>(y, shared.b[turn], i * 16, warpColumn / 8 + n * 2);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          multiply(sums[r][2 * n], x[r], y[0], y[1]);
          multiply(sums[r][2 * n + 1], x[r], y[2], y[3]);
        }
      }
    }
    __syncthreads();  // done with what the next turn overwrites
  }
  copies.wait<0>();

  int lane = int(threadIdx.x) % kWarp;
  Ref c = g.c;
  bool adds = g.add;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    int row = warpRow + r / 2 * 16 + r % 2 * 8 + lane / 4;
    if (row >= shared.rows) continue;
    int64_t start = shared.startC + row * g.stepC;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      int column = warpColumn + n * 8 + lane % 4 * 2;
      if (column >= shared.columns) continue;
      int64_t at = start + column;
      float x[2] = {sums[r / 2][n][r % 2 * 2], sums[r / 2][n][r % 2 * 2 + 1]};
      if (adds) {
        float old[2];
        load(asConst(c), at, old);
        x[0] += old[0];
        x[1] += old[1];
      }
      store(c, at, x);
    }
  }
}

}  // namespace

PLANC_HANDLE(kGroupedRowsByK, GroupedArgs, kThreads, grouped<Ragged::Rows, true>)
PLANC_HANDLE(kGroupedRowsByN, GroupedArgs, kThreads, grouped<Ragged::Rows, false>)
PLANC_HANDLE(kGroupedSums, GroupedArgs, kThreads, grouped<Ragged::Sum, false>)

}  // namespace planc::cuda
