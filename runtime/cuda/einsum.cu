// See einsum.h. Offsets of a tile's rows, columns and depths are made once, so that the products
// know nothing of loops.
#include "runtime/cuda/einsum.h"

#include "runtime/cuda/device_code.h"

namespace planc::cuda {
namespace {

constexpr int kThreads = kEinsumThreads, kTile = kEinsumTile, kDepth = kEinsumDepth;

struct Offsets {
  int64_t a, b, c;
};
PLANC_DEVICE Offsets offsetsOf(const EinsumArgs& e, int of, int64_t index) {
  Offsets at = {0, 0, 0};
  for (int l = e.ends[of] - 1; l >= (of == 0 ? 0 : e.ends[of - 1]); --l) {
    const EinsumLoop& loop = e.loops[l];
    int64_t i = index % loop.size;
    index /= loop.size;
    at.a += i * loop.strides[0];
    at.b += i * loop.strides[1];
    at.c += i * loop.strides[2];
  }
  return at;
}

// A group's rows. Offsets are indices in memory, whatever wrote them.
struct Rows {
  int64_t first, count;
};
PLANC_DEVICE int64_t clampRow(int64_t row, int64_t low, int64_t high) {
  return row < low ? low : row > high ? high : row;
}
PLANC_DEVICE Rows rowsOf(const int32_t* offsets, int groups, int last, int bound, int group) {
  int64_t first = groups == 1 ? 0 : clampRow(offsets[group], 0, bound);
  return {first, clampRow(offsets[groups == 1 ? last : group + 1], first, bound) - first};
}

// One block, a few groups: each thread counts the tiles before its groups.
PLANC_KERNEL(kThreads, 1) findTiles(RaggedTilesArgs t) {
  auto tilesOf = [&](int64_t rows) { return int((rows + t.rows - 1) / t.rows); };
  // The last one is what no group has.
  auto rowsAt = [&](int group) {
    if (group < t.groups) return rowsOf(t.offsets, t.groups, t.last, t.bound, group);
    int64_t used = clampRow(t.offsets[t.last], 0, t.bound);
    return Rows{used, t.bound - used};
  };
  for (int group = int(threadIdx.x); group <= t.groups + 1; group += kThreads) {
    int first = 0;
    for (int before = 0; before < group && before <= t.groups; ++before)
      first += tilesOf(rowsAt(before).count);
    if (group > t.groups) {
      for (int i = first; i < t.tileCount; ++i) t.tiles[i] = {RaggedTile::kNone, 0, 0};
      continue;
    }
    Rows rows = rowsAt(group);
    for (int i = 0; i < tilesOf(rows.count) && first + i < t.tileCount; ++i) {
      int64_t begin = int64_t(i) * t.rows, rest = rows.count - begin;
      t.tiles[first + i] = {group < t.groups ? group : RaggedTile::kNone,
                            int32_t(rows.first + begin), int32_t(rest < t.rows ? rest : t.rows)};
    }
  }
}

template <class T>
PLANC_DEVICE void storeSum(const EinsumArgs& e, int64_t at, T sum) {
  if (e.add) sum += loadOne<T>(asConst(e.c), at);
  storeOne(e.c, at, sum);
}

// Occupancy: 2 blocks of 256 threads on a multiprocessor (128 registers a thread): a quarter.
template <class T>
PLANC_KERNEL(kThreads, 2)
einsum(EinsumArgs e) {
  using E = EinsumArgs;
  auto& shared = sharedMemory<EinsumShared<T>>();
  int thread = int(threadIdx.x), row = thread / 16 * 4, column = thread % 16 * 4;
  // Which part of which product.
  int64_t rest = blockIdx.x;
  auto take = [&](int64_t count) {
    int64_t index = rest % count;
    rest /= count;
    return index;
  };
  int64_t split = take(e.splits);
  int64_t n0 = take((e.sizes[E::N] + kTile - 1) / kTile) * kTile, m0 = 0, rows = 0;
  int group = 0, lastGroup = 1;
  if (e.ragged == Ragged::Rows) {
    RaggedTile tile = e.tiles[take(e.tileCount)];
    if (tile.rows == 0 || (tile.group == RaggedTile::kNone && e.add)) return;
    m0 = tile.row;
    rows = tile.rows;
    group = tile.group;
    lastGroup = group == RaggedTile::kNone ? group : group + 1;
  } else {
    m0 = take((e.sizes[E::M] + kTile - 1) / kTile) * kTile;
    rows = e.sizes[E::M] - m0;
    if (e.ragged == Ragged::Sum) {
      group = e.sums ? 0 : int(take(e.groups));
      lastGroup = e.sums ? e.groups : group + 1;
    }
  }
  Offsets start = offsetsOf(e, E::Outer, rest);
  int64_t columns = e.sizes[E::N] - n0;
  for (int i = thread; i < 2 * kTile; i += kThreads) {
    if (i < kTile && i < rows) {
      Offsets at = {0, 0, 0};
      if (e.ragged == Ragged::Rows) at = {(m0 + i) * e.rowSteps[0], 0, (m0 + i) * e.rowSteps[2]};
      else at = offsetsOf(e, E::M, m0 + i);
      shared.aOfM[i] = at.a;
      shared.cOfM[i] = at.c;
    }
    int n = i - kTile;
    if (n >= 0 && n < columns) {
      Offsets at = offsetsOf(e, E::N, n0 + n);
      shared.bOfN[n] = at.b;
      shared.cOfN[n] = at.c;
    }
  }

  T sums[4][4] = {};
  for (int g = group; g < lastGroup; ++g) {
    Rows inSum = {0, 1};
    if (e.ragged == Ragged::Sum) inSum = rowsOf(e.offsets, e.groups, e.last, e.bound, g);
    int64_t depth = e.sizes[E::K] * inSum.count, k0 = split * e.eachSplit;
    int64_t end = k0 + e.eachSplit < depth ? k0 + e.eachSplit : depth;
    int64_t startA = start.a + g * e.slices[0], startB = start.b + g * e.slices[1];
    for (; k0 < end; k0 += kDepth) {
      __syncthreads();
      if (thread < kDepth && k0 + thread < end) {
        int64_t k = k0 + thread, inRow = inSum.first + k % inSum.count;
        Offsets at = offsetsOf(e, E::K, k / inSum.count);
        bool isRagged = e.ragged == Ragged::Sum;
        shared.aOfK[thread] = at.a + (isRagged ? inRow * e.rowSteps[0] : 0);
        shared.bOfK[thread] = at.b + (isRagged ? inRow * e.rowSteps[1] : 0);
      }
      __syncthreads();
#pragma unroll
      for (int first = 0; first < kTile * kDepth; first += kThreads) {
        int i = first + thread;
        int k = e.aByK ? i % kDepth : i / kTile, m = e.aByK ? i / kDepth : i % kTile;
        bool exists = m < rows && k0 + k < end;
        shared.a[k][m] = exists ? loadOne<T>(e.a, startA + shared.aOfM[m] + shared.aOfK[k]) : T(0);
        k = e.bByK ? i % kDepth : i / kTile;
        int n = e.bByK ? i / kDepth : i % kTile;
        exists = n < columns && k0 + k < end;
        shared.b[k][n] = exists ? loadOne<T>(e.b, startB + shared.bOfN[n] + shared.bOfK[k]) : T(0);
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[i][j] += shared.a[k][row + i] * shared.b[k][column + j];
        }
      }
    }
  }
  __syncthreads();
  int64_t startC = start.c + (lastGroup > group && !e.sums ? group * e.slices[2] : 0);
  int64_t outputs = e.sizes[E::Outer] * e.sizes[E::M] * e.sizes[E::N];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + i >= rows || column + j >= columns) continue;
      if (e.splits == 1) {
        storeSum(e, startC + shared.cOfM[row + i] + shared.cOfN[column + j], sums[i][j]);
        continue;
      }
      int64_t output = (rest * e.sizes[E::M] + m0 + row + i) * e.sizes[E::N] + n0 + column + j;
      static_cast<T*>(e.partial)[split * outputs + output] = sums[i][j];
    }
  }
}

PLANC_DEVICE Offsets offsetsOfOutput(const EinsumArgs& e, int64_t output) {
  using E = EinsumArgs;
  Offsets n = offsetsOf(e, E::N, output % e.sizes[E::N]);
  output /= e.sizes[E::N];
  Offsets m = offsetsOf(e, E::M, output % e.sizes[E::M]);
  Offsets outer = offsetsOf(e, E::Outer, output / e.sizes[E::M]);
  return {n.a + m.a + outer.a, n.b + m.b + outer.b, n.c + m.c + outer.c};
}

// Memory-bound. Occupancy: 4 blocks of 256 threads on a multiprocessor (64 registers a thread):
// half.
template <class T>
PLANC_KERNEL(kThreads, 4)
dots(EinsumArgs e) {
  using E = EinsumArgs;
  int64_t number = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / e.lanes;
  int lane = int(threadIdx.x) % e.lanes;
  int64_t outputs = e.sizes[E::Outer] * e.sizes[E::M] * e.sizes[E::N];
  int64_t output = number / e.splits, split = number % e.splits;
  bool exists = output < outputs;
  Offsets start = exists ? offsetsOfOutput(e, output) : Offsets{0, 0, 0};
  int64_t end =
      (split + 1) * e.eachSplit < e.sizes[E::K] ? (split + 1) * e.eachSplit : e.sizes[E::K];
  T sum = 0;
  for (int64_t k = split * e.eachSplit + lane; exists && k < end; k += e.lanes) {
    Offsets at = offsetsOf(e, E::K, k);
    sum += loadOne<T>(e.a, start.a + at.a) * loadOne<T>(e.b, start.b + at.b);
  }
  for (int d = e.lanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(kAllLanes, sum, d);
  if (!exists || lane != 0) return;
  if (e.splits == 1) storeSum(e, start.c, sum);
  else static_cast<T*>(e.partial)[split * outputs + output] = sum;
}

// Memory-bound; occupancy as above.
template <class T>
PLANC_KERNEL(kThreads, 4)
addSplits(EinsumArgs e) {
  using E = EinsumArgs;
  int64_t outputs = e.sizes[E::Outer] * e.sizes[E::M] * e.sizes[E::N];
  int64_t output = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (output >= outputs) return;
  T sum = 0;
  for (int64_t split = 0; split < e.splits; ++split)
    sum += static_cast<const T*>(e.partial)[split * outputs + output];
  storeSum(e, offsetsOfOutput(e, output).c, sum);
}

}  // namespace

PLANC_HANDLE(kRaggedTiles, RaggedTilesArgs, kThreads, findTiles)
PLANC_HANDLE(kEinsumF32, EinsumArgs, kThreads, einsum<float>)
PLANC_HANDLE(kEinsumF64, EinsumArgs, kThreads, einsum<double>)
PLANC_HANDLE(kDotsF32, EinsumArgs, kThreads, dots<float>)
PLANC_HANDLE(kDotsF64, EinsumArgs, kThreads, dots<double>)
PLANC_HANDLE(kEinsumSplitsF32, EinsumArgs, kThreads, addSplits<float>)
PLANC_HANDLE(kEinsumSplitsF64, EinsumArgs, kThreads, addSplits<double>)

}  // namespace planc::cuda
