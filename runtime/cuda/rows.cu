// See rows.h. Memory-bound: 16-byte accesses where rows lie so. Each lane holds one of a token's
// choices, 32 at a time; sums over choices run in their order.
#include "runtime/cuda/rows.h"

#include "runtime/cuda/walk_code.h"

namespace planc::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kScanThreads = 256;

// The rows that are here, of all that the offsets tell of.
struct RowsHere {
  int64_t first, count;

  PLANC_DEVICE explicit RowsHere(const OwnRows& own) {
    int64_t begin = own.offsets[own.firstExpert];
    first = begin < 0 ? 0 : begin;
    int64_t size = own.offsets[own.firstExpert + own.experts] - first;
    count = size < 0 ? 0 : size < own.bound ? size : own.bound;
  }
  // Where a row lies here; -1: it is another rank's, or was dropped.
  PLANC_DEVICE int64_t at(int64_t row) const {
    return row >= first && row < first + count ? row - first : -1;
  }
};

// This lane's choice of those from `first` on; -1: none is here.
PLANC_DEVICE int64_t laneRow(const TokenRows& by, const RowsHere& here, int64_t at, int first) {
  int choice = first + laneIndex();
  return choice < by.choices ? here.at(by.rows[at + choice * by.step]) : -1;
}

// Zeros in a row that nobody has; `walk`'s last tensor is the packed one.
template <class T, int V, int N>
PLANC_DEVICE void clearRow(Ref packed, int64_t at, const Walk<N>& walk, int64_t elements) {
  for (int64_t i = laneIndex() * V; i < elements; i += kWarp * V) {
    int64_t in[N];
    locate(walk, i, in);
    T zeros[V] = {};
    store(packed, at + in[N - 1], zeros);
  }
}

// Warps: one a token, then one for each row that there is room for.
// Occupancy: 4 blocks of 8 warps (64 registers a thread).
template <class T, int V>
PLANC_KERNEL(kThreads, 4) dispatch(DispatchArgs a) {
  int64_t token = warpIndex();
  RowsHere here(a.by.own);
  if (token >= a.by.count) {
    int64_t row = here.count + token - a.by.count;
    if (row < a.by.own.bound) clearRow<T, V>(a.packed, row * a.rowStride, a.row, a.elements);
    return;
  }
  int64_t at[2];
  locate(a.tokens, token, at);
  for (int first = 0; first < a.by.choices; first += kWarp) {
    int64_t mine = laneRow(a.by, here, at[1], first);
    unsigned sent = __ballot_sync(kAllLanes, mine >= 0);
    for (int64_t begin = 0; begin < a.elements; begin += kWarp * V) {
      int64_t i = begin + laneIndex() * V, in[2];
      bool exists = i < a.elements;
      T x[V] = {};
      if (exists) {
        locate(a.row, i, in);
        load(a.x, at[0] + in[0], x);
      }
      for (unsigned rest = sent; rest != 0; rest &= rest - 1) {
        int64_t row = __shfl_sync(kAllLanes, mine, __ffs(int(rest)) - 1);
        if (exists) store(a.packed, row * a.rowStride + in[1], x);
      }
    }
  }
}

// Occupancy: 4 blocks of 8 warps (64 registers a thread), each lane with two rows under way.
template <class T, int V>
PLANC_KERNEL(kThreads, 4) gather(GatherArgs a) {
  int64_t token = warpIndex();
  if (token >= a.by.count) return;
  RowsHere here(a.by.own);
  int64_t at[3];
  locate(a.tokens, token, at);
  int64_t mine = -1;
  T gate = T(1);
  auto choose = [&](int first) {
    mine = laneRow(a.by, here, at[1], first);
    if (mine >= 0 && a.gate.data != nullptr)
      gate = loadOne<T>(a.gate, at[2] + (first + laneIndex()) * a.gateStep);
    return __ballot_sync(kAllLanes, mine >= 0);
  };
  unsigned chosen = choose(0);
  for (int64_t begin = 0; begin < a.elements; begin += kWarp * V) {
    int64_t i = begin + laneIndex() * V, in[2];
    bool exists = i < a.elements;
    if (exists) locate(a.row, i, in);
    T sum[V] = {};
    for (int first = 0; first < a.by.choices; first += kWarp) {
      if (a.by.choices > kWarp) chosen = choose(first);
      for (unsigned rest = chosen; rest != 0;) {
        int lane[2];
        T x[2][V] = {}, weight[2];
        for (int k = 0; k < 2; ++k) {
          lane[k] = rest != 0 ? __ffs(int(rest)) - 1 : -1;
          rest &= rest - 1;
          int64_t row = __shfl_sync(kAllLanes, mine, lane[k] & (kWarp - 1));
          weight[k] = __shfl_sync(kAllLanes, gate, lane[k] & (kWarp - 1));
          if (exists && lane[k] >= 0) load(a.packed, row * a.rowStride + in[1], x[k]);
        }
        for (int k = 0; k < 2; ++k)
          for (int v = 0; lane[k] >= 0 && v < V; ++v) sum[v] += weight[k] * x[k][v];
      }
    }
    if (exists) store(a.y, at[0] + in[0], sum);
  }
}

// Warps as in `dispatch`. Occupancy: 2 blocks of 8 warps (up to 128 registers a
// thread), each lane with two vectors under way.
template <class T, int V>
PLANC_KERNEL(kThreads, 2) combineGrad(CombineGradArgs a) {
  int64_t token = warpIndex();
  RowsHere here(a.by.own);
  if (token >= a.by.count) {
    int64_t row = here.count + token - a.by.count;
    if (row < a.by.own.bound) clearRow<T, V>(a.dO, row * a.dOStride, a.row, a.elements);
    return;
  }
  int64_t at[4];
  locate(a.tokens, token, at);
  for (int first = 0; first < a.by.choices; first += kWarp) {
    int64_t mine = laneRow(a.by, here, at[1], first);
    int choice = first + laneIndex();
    T gate = mine >= 0 ? loadOne<T>(a.gate, at[2] + choice * a.gateStep) : T(0), dgate = T(0);
    unsigned chosen = __ballot_sync(kAllLanes, mine >= 0);
    for (; chosen != 0; chosen &= chosen - 1) {
      int lane = __ffs(int(chosen)) - 1;
      int64_t row = __shfl_sync(kAllLanes, mine, lane);
      T weight = __shfl_sync(kAllLanes, gate, lane), dot = T(0);
      for (int64_t i = laneIndex() * V; i < a.elements; i += kWarp * V) {
        int64_t in[3];
        locate(a.row, i, in);
        T dy[V], o[V];
        load(a.dy, at[0] + in[0], dy);
        load(a.o, row * a.oStride + in[1], o);
        for (int v = 0; v < V; ++v) {
          dot += dy[v] * o[v];
          dy[v] *= weight;
        }
        store(a.dO, row * a.dOStride + in[2], dy);
      }
      dot = warpSum(dot);
      if (laneIndex() == lane) dgate = dot;
    }
    if (choice < a.by.choices) storeOne(a.dgate, at[3] + choice * a.dgateStep, dgate);
  }
}

PLANC_KERNEL(kThreads, 8) packKeys(PackKeysArgs a) {
  int64_t entry = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (entry >= a.count) return;
  int64_t at[3];
  locate(a.entries, entry, at);
  bool fits = a.fit.data == nullptr || loadOne<float>(a.fit, at[1]) != 0;
  a.keys[entry] = fits ? clampIndex(a.choice[at[0]], a.experts) : -1;
}

PLANC_KERNEL(kThreads, 8) storeRows(StoreRowsArgs a) {
  int64_t entry = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (entry >= a.count) return;
  int64_t at[3];
  locate(a.entries, entry, at);
  a.rows[at[2]] = a.places[entry];
}

PLANC_KERNEL(kThreads, 8) rowCounts(RowCountsArgs a) {
  int64_t e = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (e < a.count) a.counts[e] = a.offsets[e + 1] - a.offsets[e];
}

// Past what an i32 counts the exchange of these rows ends the run.
PLANC_KERNEL(kScanThreads, 1) rowOffsets(RowOffsetsArgs a) {
  auto* scratch = &sharedMemory<int64_t>();
  int64_t carry = 0;
  if (threadIdx.x == 0) a.offsets[0] = 0;
  for (int64_t first = 0; first < a.count; first += blockDim.x) {
    int64_t e = first + threadIdx.x, mine = 0, total;
    for (int64_t part = 0; e < a.count && part < a.parts; ++part)
      mine += a.counts[part * a.count + e];
    int64_t end = carry + blockSumBefore(mine, scratch, total) + mine;
    if (e < a.count) a.offsets[e + 1] = int32_t(end < INT32_MAX ? end : INT32_MAX);
    carry += total;
  }
}

}  // namespace

PLANC_HANDLE(kDispatchVectorF32, DispatchArgs, kThreads, dispatch<float, kVector>)
PLANC_HANDLE(kDispatchF32, DispatchArgs, kThreads, dispatch<float, 1>)
PLANC_HANDLE(kDispatchF64, DispatchArgs, kThreads, dispatch<double, 1>)
PLANC_HANDLE(kGatherVectorF32, GatherArgs, kThreads, gather<float, kVector>)
PLANC_HANDLE(kGatherF32, GatherArgs, kThreads, gather<float, 1>)
PLANC_HANDLE(kGatherF64, GatherArgs, kThreads, gather<double, 1>)
PLANC_HANDLE(kCombineGradVectorF32, CombineGradArgs, kThreads, combineGrad<float, kVector>)
PLANC_HANDLE(kCombineGradF32, CombineGradArgs, kThreads, combineGrad<float, 1>)
PLANC_HANDLE(kCombineGradF64, CombineGradArgs, kThreads, combineGrad<double, 1>)
PLANC_HANDLE(kPackKeys, PackKeysArgs, kThreads, packKeys)
PLANC_HANDLE(kStoreRows, StoreRowsArgs, kThreads, storeRows)
PLANC_HANDLE(kRowCounts, RowCountsArgs, kThreads, rowCounts)
PLANC_HANDLE(kRowOffsets, RowOffsetsArgs, kScanThreads, rowOffsets)

}  // namespace planc::cuda
