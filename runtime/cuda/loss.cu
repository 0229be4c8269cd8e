// See loss.h. Memory-bound: rows are read once, in 16-byte accesses wherever they begin; sums run
// in the order of threads.
#include "runtime/cuda/loss.h"

#include "runtime/cuda/walk_code.h"

namespace planc::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kSumThreads = 1024;

// How much each valid token weighs.
PLANC_DEVICE double perToken(double scale, const int32_t* count) {
  return *count > 0 ? scale / *count : 0.0;
}

PLANC_KERNEL(kThreads, 4) countValid(CountValidArgs a) {
  auto* scratch = &sharedMemory<int32_t>();
  int32_t mine = 0;
  int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < a.size; i += step)
    mine += a.targets[i] >= 0 ? 1 : 0;
  int32_t sum = blockSum(mine, scratch);
  if (threadIdx.x == 0) atomicAdd(a.count, sum);
}

// Elements of a row that a thread moves at once.
template <class T>
constexpr int kWidth = sizeof(T) == 8 ? 2 : kVector;

// Where a row of `n` elements that lie side by side has its vectors: `head` elements are before the
// first. What is left over at both ends are strays.
template <int V>
struct RowCut {
  int64_t head, vectors, n;

  PLANC_DEVICE RowCut(int64_t at, int64_t n, bool isVector) : head(n), vectors(0), n(n) {
    if (!isVector) return;
    if ((-at & (V - 1)) < n) head = -at & (V - 1);
    vectors = (n - head) / V;
  }
  PLANC_DEVICE int64_t strays() const { return n - vectors * V; }
  PLANC_DEVICE int64_t stray(int64_t i) const { return i < head ? i : vectors * V + i; }
};

template <class T>
PLANC_DEVICE T lowest() {
  return -T(INFINITY);
}

// What has been seen of a row: its greatest element, and the sum of exp(x - most).
template <class T>
struct Seen {
  T most = lowest<T>(), sum = T(0);

  PLANC_DEVICE static T shiftOf(T most) { return most > lowest<T>() ? most : T(0); }
  template <int N>
  PLANC_DEVICE void add(const T (&x)[N]) {
    T here = x[0];
    for (int v = 1; v < N; ++v) here = greater(here, x[v]);
    if (here > most) {
      sum *= expOf(most - here);
      most = here;
    }
    T shift = shiftOf(most);
    for (int v = 0; v < N; ++v) sum += expOf(x[v] - shift);
  }
  PLANC_DEVICE T logSumExp(T* scratch) const {
    T shift = shiftOf(blockMax(most, scratch));
    T total = blockSum(sum * expOf(shiftOf(most) - shift), scratch);
    return shift + logOf(total);
  }
};

// Occupancy: 2 blocks of 16 warps (64 registers a thread), each thread with 16 elements under way.
template <class T>
PLANC_KERNEL(kThreads, sizeof(T) == 8 ? 1 : 2) logits(LogSumExpArgs a) {
  auto* scratch = &sharedMemory<T>();
  int64_t at[4];
  locate(a.rows, blockIdx.x, at);
  constexpr int V = kWidth<T>;
  RowCut<V> cut(at[0], a.row.valid, a.row.stride == 1 && a.row.isAligned);
  Seen<T> seen;
  int threads = int(blockDim.x), me = int(threadIdx.x);
  int64_t vectorsAt = at[0] + cut.head;
  int64_t i = me;
  for (; i + threads < cut.vectors; i += 2 * threads) {
    T x[2][V];
    load(a.logits, vectorsAt + i * V, x[0]);
    load(a.logits, vectorsAt + (i + threads) * V, x[1]);
    seen.add(x[0]);
    seen.add(x[1]);
  }
  if (i < cut.vectors) {
    T x[V];
    load(a.logits, vectorsAt + i * V, x);
    seen.add(x);
  }
  for (int64_t s = me; s < cut.strays(); s += threads) {
    T x[1] = {loadOne<T>(a.logits, at[0] + cut.stray(s) * a.row.stride)};
    seen.add(x);
  }
  T lse = seen.logSumExp(scratch);
  if (me != 0) return;
  storeOne(a.lse, at[2], lse);
  int64_t target = a.targets[at[1]] - a.row.first;
  bool isHere = target >= 0 && target < a.row.valid;
  T x = isHere ? loadOne<T>(a.logits, at[0] + target * a.row.stride) : T(0);
  if (a.losses != nullptr) a.losses[blockIdx.x] = isHere ? double(lse - x) : 0.0;
  else storeOne(a.picked, at[3], x);
}

// Occupancy: 2 blocks of 16 warps (64 registers a thread).
template <class T>
PLANC_KERNEL(kThreads, 2) crossEntropyGrad(CrossEntropyGradArgs a) {
  int64_t at[4];
  locate(a.rows, blockIdx.x, at);
  T weight = T(perToken(a.scale, a.count) * loadOne<double>(a.dloss, 0));
  int64_t target = a.targets[at[1]];
  bool isUsed = target >= 0;
  T lse = isUsed ? loadOne<T>(a.lse, at[2]) : T(0);
  target = isUsed ? target - a.row.first : -1;
  auto gradOf = [&](T x, int64_t place) {
    if (!isUsed || place >= a.row.valid) return T(0);
    T d = expOf(x - lse) * weight;
    return place == target ? d - weight : d;
  };
  constexpr int V = kWidth<T>;
  bool isVector =
      a.row.isAligned && a.row.stride == 1 && a.toStride == 1 && (at[0] - at[3]) % V == 0;
  RowCut<V> cut(at[0], a.row.size, isVector);
  for (int64_t i = threadIdx.x; i < cut.vectors; i += blockDim.x) {
    int64_t place = cut.head + i * V;
    T x[V] = {};
    if (isUsed) load(a.logits, at[0] + place, x);
    for (int v = 0; v < V; ++v) x[v] = gradOf(x[v], place + v);
    store(a.dlogits, at[3] + place, x);
  }
  for (int64_t s = threadIdx.x; s < cut.strays(); s += blockDim.x) {
    int64_t place = cut.stray(s);
    T x = isUsed ? loadOne<T>(a.logits, at[0] + place * a.row.stride) : T(0);
    storeOne(a.dlogits, at[3] + place * a.toStride, gradOf(x, place));
  }
}

PLANC_KERNEL(kThreads, 2) tokenLoss(TokenLossArgs a) {
  auto* scratch = &sharedMemory<double>();
  int64_t begin = blockIdx.x * kLossPiece;
  int64_t end = begin + kLossPiece < a.count ? begin + kLossPiece : a.count;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    int64_t at[3];
    locate(a.tokens, i, at);
    if (a.targets[at[0]] < 0) continue;
    sum += loadOne<double>(a.lse, at[1]) - loadOne<double>(a.picked, at[2]);
  }
  sum = blockSum(sum, scratch);
  if (threadIdx.x == 0) a.losses[blockIdx.x] = sum;
}

PLANC_KERNEL(kSumThreads, 1) totalLoss(TotalLossArgs a) {
  auto* scratch = &sharedMemory<double>();
  double sum = 0;
  for (int64_t i = threadIdx.x; i < a.size; i += blockDim.x) sum += a.losses[i];
  sum = blockSum(sum, scratch);
  if (threadIdx.x == 0) storeOne(a.loss, 0, sum * perToken(a.scale, a.count));
}

}  // namespace

PLANC_HANDLE(kCountValid, CountValidArgs, kThreads, countValid)
PLANC_HANDLE(kLogitsF32, LogSumExpArgs, kThreads, logits<float>)
PLANC_HANDLE(kLogitsF64, LogSumExpArgs, kThreads, logits<double>)
PLANC_HANDLE(kCrossEntropyGradF32, CrossEntropyGradArgs, kThreads, crossEntropyGrad<float>)
PLANC_HANDLE(kCrossEntropyGradF64, CrossEntropyGradArgs, kThreads, crossEntropyGrad<double>)
PLANC_HANDLE(kTokenLoss, TokenLossArgs, kThreads, tokenLoss)
PLANC_HANDLE(kTotalLoss, TotalLossArgs, kSumThreads, totalLoss)

}  // namespace planc::cuda
