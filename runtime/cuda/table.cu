// See table.h. Memory-bound: 16-byte accesses where rows lie so. A table's row is the sum of its
// tokens' in their order, cut at fixed places: the same in every run.
#include "runtime/cuda/table.h"

#include "runtime/cuda/walk_code.h"

namespace planc::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSumThreads = 128;
constexpr int kAhead = 4;  // rows that are under way together

// A warp a token. Occupancy: 5 blocks of 8 warps (48 registers a thread).
template <class T, int V>
PLANC_KERNEL(kThreads, 5) lookup(LookupArgs a) {
  int64_t token = warpIndex();
  if (token >= a.count) return;
  int64_t at[2];
  locate(a.tokens, token, at);
  int64_t id = a.ids[at[0]] - a.own.first;
  bool isHere = id >= 0 && id < a.own.valid;
  for (int64_t i = laneIndex() * V; i < a.elements; i += kWarp * V) {
    int64_t in[2];
    locate(a.row, i, in);
    T x[V] = {};
    if (isHere) load(a.table, id * a.stride + in[0], x);
    store(a.rows, at[1] + in[1], x);
  }
}

PLANC_KERNEL(kThreads, 8) tokenKeys(TokenKeysArgs a) {
  int64_t token = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (token >= a.count) return;
  int64_t at[2];
  locate(a.tokens, token, at);
  int64_t id = a.ids[at[0]] - a.own.first;
  a.keys[token] = id >= 0 && id < a.own.valid ? int32_t(id) : a.own.valid;
}

// A thread's elements of one row of the table.
template <class T, int V>
struct RowSum {
  T sum[V];

  PLANC_DEVICE void clear() {
    for (int v = 0; v < V; ++v) sum[v] = T(0);
  }
  PLANC_DEVICE void add(const T (&x)[V]) {
    for (int v = 0; v < V; ++v) sum[v] += x[v];
  }
  PLANC_DEVICE void writeTo(const LookupGradArgs& a, int32_t entry, int64_t offset) {
    int64_t at = entry * a.stride + offset;
    if (a.adds) {
      T x[V] = {};
      load(asConst(a.table), at, x);
      add(x);
    }
    store(a.table, at, sum);
  }
};

template <class T>
PLANC_DEVICE T* partialOf(const LookupGradArgs& a, int64_t piece, bool goesOn, int64_t element) {
  return static_cast<T*>(a.partial) + (2 * piece + (goesOn ? 1 : 0)) * a.elements + element;
}

// Blocks: pieces (x) by elements (y). Occupancy: 5 blocks of 4 warps (96 registers a thread), each
// thread with 4 rows under way.
template <class T, int V>
PLANC_KERNEL(kSumThreads, 5) sumPieces(LookupGradArgs a) {
  auto* offsets = &sharedMemory<int64_t>();  // of the piece's tokens
  int64_t piece = blockIdx.x, begin = piece * a.perPiece;
  int64_t end = begin + a.perPiece < a.count ? begin + a.perPiece : a.count;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    int64_t at[2];
    locate(a.byToken, a.tokens[i], at);
    offsets[i - begin] = at[1];
  }
  __syncthreads();
  int64_t element = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * V;
  if (element >= a.elements) return;
  int64_t in[2];
  locate(a.row, element, in);
  RowSum<T, V> row;
  row.clear();
  bool beginsHere = begin == 0 || a.keys[begin - 1] != a.keys[begin];
  for (int64_t first = begin; first < end; first += kAhead) {
    T x[kAhead][V];
    for (int k = 0; k < kAhead; ++k)
      if (first + k < end) load(a.dy, offsets[first + k - begin] + in[1], x[k]);
    for (int k = 0; k < kAhead; ++k) {
      int64_t i = first + k;
      int32_t key = i < end ? a.keys[i] : a.own.valid;
      if (key == a.own.valid) return;  // all behind it are too
      row.add(x[k]);
      bool isLast = i + 1 == a.count || a.keys[i + 1] != key;
      if (!isLast && i + 1 < end) continue;
      if (isLast && beginsHere) {
        row.writeTo(a, key, in[0]);
      } else {
        T* partial = partialOf<T>(a, piece, beginsHere, element);
        for (int v = 0; v < V; ++v) partial[v] = row.sum[v];
      }
      row.clear();
      beginsHere = true;
    }
  }
}

// Of the same blocks those of a piece where an entry begins whose tokens go on behind it.
template <class T, int V>
PLANC_KERNEL(kSumThreads, 8) sumEnds(LookupGradArgs a) {
  int64_t piece = blockIdx.x, begin = piece * a.perPiece, end = begin + a.perPiece;
  if (end >= a.count) return;
  int32_t key = a.keys[end - 1];
  if (key == a.own.valid || a.keys[end] != key) return;
  if (begin > 0 && a.keys[begin - 1] == key) return;
  int64_t element = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * V;
  if (element >= a.elements) return;
  int64_t in[2];
  locate(a.row, element, in);
  RowSum<T, V> row;
  row.clear();
  auto addPartial = [&](int64_t of, bool goesOn) {
    const T* partial = partialOf<T>(a, of, goesOn, element);
    T x[V];
    for (int v = 0; v < V; ++v) x[v] = partial[v];
    row.add(x);
  };
  addPartial(piece, true);
  for (int64_t next = end; next < a.count && a.keys[next] == key; next += a.perPiece)
    addPartial(next / a.perPiece, false);
  row.writeTo(a, key, in[0]);
}

}  // namespace

PLANC_HANDLE(kLookupVectorF32, LookupArgs, kThreads, lookup<float, kVector>)
PLANC_HANDLE(kLookupF32, LookupArgs, kThreads, lookup<float, 1>)
PLANC_HANDLE(kLookupF64, LookupArgs, kThreads, lookup<double, 1>)
PLANC_HANDLE(kTokenKeys, TokenKeysArgs, kThreads, tokenKeys)
PLANC_HANDLE(kSumPiecesVectorF32, LookupGradArgs, kSumThreads, sumPieces<float, kVector>)
PLANC_HANDLE(kSumPiecesF32, LookupGradArgs, kSumThreads, sumPieces<float, 1>)
PLANC_HANDLE(kSumPiecesF64, LookupGradArgs, kSumThreads, sumPieces<double, 1>)
PLANC_HANDLE(kSumEndsVectorF32, LookupGradArgs, kSumThreads, sumEnds<float, kVector>)
PLANC_HANDLE(kSumEndsF32, LookupGradArgs, kSumThreads, sumEnds<float, 1>)
PLANC_HANDLE(kSumEndsF64, LookupGradArgs, kSumThreads, sumEnds<double, 1>)

}  // namespace planc::cuda
