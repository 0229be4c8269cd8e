// See ragged.h.
#include "runtime/cuda/ragged.h"

#include "runtime/cuda/device_code.h"

namespace planc::cuda {
namespace {

constexpr int V = kRaggedWidth;

// Where a unit lies in a row and in a group.
struct Unit {
  int64_t row = 0, group = 0;
  int valid = V;

  PLANC_DEVICE Unit(const RaggedLoops& inner, int64_t index) {
    for (int l = 0; l < inner.loops; ++l) {
      int64_t next = l + 1 == inner.loops ? 0 : index / inner.sizes[l];
      int64_t i = index - next * inner.sizes[l];
      index = next;
      row += i * inner.rows[l];
      group += i * inner.groups[l];
      if (l == 0 && inner.unitSize - i * V < V) valid = int(inner.unitSize - i * V);
    }
  }
};

template <class T>
PLANC_DEVICE void loadUnit(ConstRef from, int64_t at, int64_t step, bool isVector, int valid,
                           T (&x)[V]) {
  if (isVector && valid == V) return load(from, at, x);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = i < valid ? loadOne<T>(from, at + i * step) : T(0);
}
template <class T>
PLANC_DEVICE void storeUnit(Ref into, int64_t at, int64_t step, bool isVector, int valid,
                            const T (&x)[V]) {
  if (isVector && valid == V) return store(into, at, x);
#pragma unroll
  for (int i = 0; i < V; ++i)
    if (i < valid) storeOne(into, at + i * step, x[i]);
}

// Occupancy: 4 blocks of 256 threads.
template <class T>
PLANC_KERNEL(kRaggedThreads, 4) spread(SpreadArgs a) {
  int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  int64_t row = index / a.inner.units;
  if (row >= a.rowCount) return;
  // The first group that ends behind the row.
  int64_t low = 0, high = a.groupCount;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (a.offsets[middle + 1] > row) high = middle;
    else low = middle + 1;
  }
  Unit unit(a.inner, index - row * a.inner.units);
  T x[V];
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = T(0);
  if (low < a.groupCount) {
    loadUnit(a.groups, low * a.groupStride + unit.group, a.inner.groupStep, a.inner.isGroupVector,
             unit.valid, x);
  }
  storeUnit(a.rows, row * a.rowStride + unit.row, a.inner.rowStep, a.inner.isRowVector, unit.valid,
            x);
}

template <class T>
PLANC_DEVICE void put(const RaggedSumArgs& a, int64_t group, const Unit& unit, T (&total)[V]) {
  int64_t at = group * a.groupStride + unit.group;
  if (a.adds) {
    T old[V];
    loadUnit(asConst(a.groups), at, a.inner.groupStep, a.inner.isGroupVector, unit.valid, old);
#pragma unroll
    for (int i = 0; i < V; ++i) total[i] += old[i];
  }
  storeUnit(a.groups, at, a.inner.groupStep, a.inner.isGroupVector, unit.valid, total);
}

template <class T>
PLANC_DEVICE T* partialAt(const RaggedSumArgs& a, int64_t chunk, int64_t group, int64_t unit) {
  int64_t index = (chunk * a.groupCount + group) * a.inner.units + unit;
  return static_cast<T*>(a.partials) + index * V;
}

// A block does some units of one group, in each of which `rowThreads` threads share the rows.
// Occupancy: 3 blocks of 256 threads.
template <class T>
PLANC_KERNEL(kRaggedThreads, 3) raggedSum(RaggedSumArgs a) {
  T* scratch = &sharedMemory<T>();
  int shares = a.rowThreads, width = int(blockDim.x) / shares;
  int column = int(threadIdx.x) % width, share = int(threadIdx.x) / width;
  int64_t tiles = (a.inner.units + width - 1) / width;
  int64_t group = blockIdx.x / tiles, index = blockIdx.x % tiles * width + column;
  bool exists = index < a.inner.units;
  Unit unit(a.inner, exists ? index : 0);
  // Offsets are indices in memory, whatever wrote them.
  auto bound = [&](int64_t offset, int64_t least) {
    return offset < least ? least : offset > a.rowCount ? a.rowCount : offset;
  };
  bool isAll = a.groupCount == 1;
  int64_t begin = isAll ? 0 : bound(a.offsets[group], 0);
  int64_t end = bound(a.offsets[isAll ? a.offsetCount : group + 1], begin);
  int64_t rows = end - begin;
  end = begin + rows * (blockIdx.y + 1) / a.chunks;
  begin += rows * blockIdx.y / a.chunks;
  T total[V];
#pragma unroll
  for (int i = 0; i < V; ++i) total[i] = T(0);
  for (int64_t r = begin + share; exists && r < end; r += shares) {
    for (int64_t s = 0; s < a.summed; ++s) {
      int64_t at = r * a.rowStride + unit.row, rest = s;
      for (int l = 0; l < a.summedLoops; ++l) {
        at += rest % a.summedSizes[l] * a.summedStrides[l];
        rest /= a.summedSizes[l];
      }
      T x[V];
      loadUnit(a.rows, at, a.inner.rowStep, a.inner.isRowVector, unit.valid, x);
#pragma unroll
      for (int i = 0; i < V; ++i) total[i] += x[i];
    }
  }
  int thread = int(threadIdx.x), threads = int(blockDim.x);
#pragma unroll
  for (int i = 0; i < V; ++i) scratch[i * threads + thread] = total[i];
  __syncthreads();
  for (int half = shares / 2; half > 0; half /= 2) {
    if (share < half) {
#pragma unroll
      for (int i = 0; i < V; ++i)
        scratch[i * threads + thread] += scratch[i * threads + thread + half * width];
    }
    __syncthreads();
  }
  if (share > 0 || !exists) return;
#pragma unroll
  for (int i = 0; i < V; ++i) total[i] = scratch[i * threads + thread];
  if (a.chunks == 1) return put(a, group, unit, total);
  T* to = partialAt<T>(a, blockIdx.y, group, index);
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = total[i];
}

// Occupancy: 4 blocks of 256 threads.
template <class T>
PLANC_KERNEL(kRaggedThreads, 4) raggedTotal(RaggedSumArgs a) {
  int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  int64_t group = index / a.inner.units;
  index -= group * a.inner.units;
  if (group >= a.groupCount) return;
  T total[V];
#pragma unroll
  for (int i = 0; i < V; ++i) total[i] = T(0);
  for (int chunk = 0; chunk < a.chunks; ++chunk) {
    const T* from = partialAt<T>(a, chunk, group, index);
#pragma unroll
    for (int i = 0; i < V; ++i) total[i] += from[i];
  }
  put(a, group, Unit(a.inner, index), total);
}

}  // namespace

PLANC_HANDLE(kSpreadF32, SpreadArgs, kRaggedThreads, spread<float>)
PLANC_HANDLE(kSpreadF64, SpreadArgs, kRaggedThreads, spread<double>)
PLANC_HANDLE(kRaggedSumF32, RaggedSumArgs, kRaggedThreads, raggedSum<float>)
PLANC_HANDLE(kRaggedSumF64, RaggedSumArgs, kRaggedThreads, raggedSum<double>)
PLANC_HANDLE(kRaggedTotalF32, RaggedSumArgs, kRaggedThreads, raggedTotal<float>)
PLANC_HANDLE(kRaggedTotalF64, RaggedSumArgs, kRaggedThreads, raggedTotal<double>)

}  // namespace planc::cuda
