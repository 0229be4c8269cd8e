// Attention without tensor cores, in float and double, for rows of any width and any steps; and
// what the others need beforehand: da . a of each query, and which documents each tile holds. A
// block's tiles and sums lie in shared memory; a thread makes one score, or one element of a sum,
// at a time.
#include "runtime/cuda/attention_device.h"

namespace planc::cuda {
namespace {

constexpr int kThreads = kAttendPlainThreads;

PLANC_DEVICE float expOf(float x) { return expf(x); }
PLANC_DEVICE double expOf(double x) { return exp(x); }
PLANC_DEVICE float exp2Of(float x) { return exp2f(x); }
PLANC_DEVICE double exp2Of(double x) { return exp2(x); }
PLANC_DEVICE float logOf(float x) { return logf(x); }
PLANC_DEVICE double logOf(double x) { return log(x); }

template <class T>
constexpr T kLog2EOf = T(1.44269504088896340736);

// Consecutive pieces of a block's shared memory.
template <class T>
class Carver {
 public:
  PLANC_DEVICE explicit Carver(T* at) : at_(at) {}
  PLANC_DEVICE T* take(int count) {
    T* piece = at_;
    at_ += count;
    return piece;
  }

 private:
  T* at_;
};

// Rows from `start` on into a tile whose rows are `step` apart.
template <class T>
PLANC_DEVICE void loadTile(const AttendTensor& tensor, int64_t start, int rows, int width, T* tile,
                           int step) {
  for (int i = int(threadIdx.x); i < rows * width; i += kThreads) {
    int row = i / width, column = i % width;
    tile[row * step + column] =
        loadOne<T>({tensor.data, tensor.elem}, start + row * tensor.row + column * tensor.column);
  }
}
template <class T>
PLANC_DEVICE void storeTile(const AttendTensor& tensor, int64_t start, int rows, int width,
                            const T* tile, T scale) {
  for (int i = int(threadIdx.x); i < rows * width; i += kThreads) {
    int row = i / width, column = i % width;
    storeOne({tensor.data, tensor.elem}, start + row * tensor.row + column * tensor.column,
             tile == nullptr ? T(0) : tile[i] * scale);
  }
}
template <class T>
PLANC_DEVICE T dot(const T* a, const T* b, int width) {
  T sum = 0;
  for (int i = 0; i < width; ++i) sum += a[i] * b[i];
  return sum;
}
PLANC_DEVICE void loadIds(const AttendArgs& a, int role, const AttendHead& at,
                          const AttendTile& tile, int32_t* ids) {
  const int32_t* from = at.rows<const int32_t>(role, tile.at);
  for (int row = int(threadIdx.x); row < tile.rows; row += kThreads)
    ids[row] = from[row * a.tensors[role].row];
}

// Occupancy: as shared memory allows, which the host keeps to 96 KiB a block: 2 blocks of 256
// threads.
template <class T>
PLANC_KERNEL(kThreads, 2)
attend(AttendArgs a) {
  using Role = AttendRole;
  const T infinity = T(__builtin_huge_val());
  auto [block, head] = blockOf(a.queries);
  int outer = head / a.own, n = a.tile, widthQ = a.widthQ, widthV = a.widthV, stepK = widthQ + 1;
  int thread = int(threadIdx.x), lane = thread % kWarp;
  AttendHead at(a, outer, head % a.own);
  const AttendTensor &tensorA = a.tensors[Role::A], &tensorLse = a.tensors[Role::Lse];
  const AttendTensor &tensorK = a.tensors[Role::K], &tensorV = a.tensors[Role::V];
  int64_t startA = at.start(Role::A) + block.at * tensorA.row;
  int64_t startLse = at.start(Role::Lse) + block.at * tensorLse.row;
  Ref toLse = {tensorLse.data, tensorLse.elem};
  if (block.first == AttendTile::kPadding) {
    storeTile<T>(tensorA, startA, block.rows, widthV, nullptr, T(0));
    for (int row = thread; row < block.rows; row += kThreads)
      storeOne(toLse, startLse + row * tensorLse.row, T(0));
    return;
  }
  Carver<T> carver(&sharedMemory<T>());
  T *q = carver.take(n * widthQ), *k = carver.take(n * stepK), *v = carver.take(n * widthV);
  T *sums = carver.take(n * widthV), *scores = carver.take(n * n);
  T *most = carver.take(n), *total = carver.take(n), *rescale = carver.take(n);
  int32_t* documents = reinterpret_cast<int32_t*>(carver.take(n));
  int32_t* keyDocuments = reinterpret_cast<int32_t*>(carver.take(n));

  DocumentRange mine = {};
  if (a.hasDocuments) {
    loadIds(a, Role::OfQueries, at, block, documents);
    mine = documentsOf(at.rows<const int32_t>(Role::OfQueries, block.at),
                       a.tensors[Role::OfQueries].row, block.rows);
  }
  const AttendTensor &tensorQ = a.tensors[Role::Q], &before = a.tensors[Role::Before];
  const AttendTensor& lseBefore = a.tensors[Role::LseBefore];
  loadTile(tensorQ, at.start(Role::Q) + block.at * tensorQ.row, block.rows, widthQ, q, widthQ);
  if (a.goesOn)
    loadTile(before, at.start(Role::Before) + block.at * before.row, block.rows, widthV, sums,
             widthV);
  for (int i = thread; !a.goesOn && i < block.rows * widthV; i += kThreads) sums[i] = 0;
  for (int row = thread; row < block.rows; row += kThreads) {
    most[row] = -infinity;
    total[row] = 0;
    if (!a.goesOn) continue;
    most[row] = loadOne<T>({lseBefore.data, lseBefore.elem},
                           at.start(Role::LseBefore) + (block.at + row) * lseBefore.row);
    total[row] = 1;
  }

  TileWalk walk(a.keys, n, keysSeen(a, block), outer, mine);
  while (walk.next()) {
    AttendTile tile = walk.tile();
    __syncthreads();
    loadTile(tensorK, at.start(Role::K) + tile.at * tensorK.row, tile.rows, widthQ, k, stepK);
    loadTile(tensorV, at.start(Role::V) + tile.at * tensorV.row, tile.rows, widthV, v, widthV);
    if (a.hasDocuments) loadIds(a, Role::OfKeys, at, tile, keyDocuments);
    __syncthreads();
    for (int i = thread; i < block.rows * tile.rows; i += kThreads) {
      int row = i / tile.rows, key = i % tile.rows;
      bool isSeen = sees(a, block.first + row, tile.first + key) &&
                    (!a.hasDocuments || documents[row] == keyDocuments[key]);
      scores[row * n + key] =
          isSeen ? dot(q + row * widthQ, k + key * stepK, widthQ) * T(a.scale) : -infinity;
    }
    __syncthreads();
    for (int row = thread / kWarp; row < block.rows; row += kThreads / kWarp) {
      T high = most[row], sum = 0;
      for (int key = lane; key < tile.rows; key += kWarp)
        high = greater(scores[row * n + key], high);
      high = warpMax(high);
      // A query that saw no key yet has no maximum: its exponentials are all zero.
      T shift = high == -infinity ? T(0) : high;
      for (int key = lane; key < tile.rows; key += kWarp)
        sum += scores[row * n + key] = expOf(scores[row * n + key] - shift);
      sum = warpSum(sum);
      if (lane != 0) continue;
      rescale[row] = expOf(most[row] - shift);
      total[row] = total[row] * rescale[row] + sum;
      most[row] = high;
    }
    __syncthreads();
    for (int i = thread; i < block.rows * widthV; i += kThreads) {
      int row = i / widthV, column = i % widthV;
      T sum = sums[i] * rescale[row];
      for (int key = 0; key < tile.rows; ++key)
        sum += scores[row * n + key] * v[key * widthV + column];
      sums[i] = sum;
    }
  }
  __syncthreads();
  for (int row = thread; row < block.rows; row += kThreads) {
    bool isSeeing = total[row] != T(0);
    T lse = isSeeing ? most[row] + logOf(total[row]) : T(kAttendNoKeys);
    storeOne(toLse, startLse + row * tensorLse.row, lse);
    total[row] = isSeeing ? T(1) / total[row] : T(0);
  }
  __syncthreads();
  for (int i = thread; i < block.rows * widthV; i += kThreads) sums[i] *= total[i / widthV];
  __syncthreads();
  storeTile(tensorA, startA, block.rows, widthV, sums, T(1));
}

// See attention_backward.cu. Occupancy: as above.
template <class T, bool isOfKeys>
PLANC_KERNEL(kThreads, 2)
attendGrad(AttendArgs a) {
  using Role = AttendRole;
  constexpr int kX0 = isOfKeys ? Role::K : Role::Q, kX1 = isOfKeys ? Role::V : Role::Da;
  constexpr int kY0 = isOfKeys ? Role::Q : Role::K, kY1 = isOfKeys ? Role::Da : Role::V;
  constexpr int kFirst = isOfKeys ? Role::Dk : Role::Dq;
  constexpr int kIdsX = isOfKeys ? Role::OfKeys : Role::OfQueries;
  constexpr int kIdsY = isOfKeys ? Role::OfQueries : Role::OfKeys;
  auto [block, head] = blockOf(isOfKeys ? a.keys : a.queries);
  int outer = isOfKeys ? head : head / a.own, firstInner = isOfKeys ? 0 : head % a.own;
  int n = a.tile, widthQ = a.widthQ, widthV = a.widthV, thread = int(threadIdx.x);
  AttendHead own(a, outer, firstInner);
  const AttendTensor &x0Tensor = a.tensors[kX0], &x1Tensor = a.tensors[kX1];
  const AttendTensor &y0Tensor = a.tensors[kY0], &y1Tensor = a.tensors[kY1];
  const AttendTensor &toFirst = a.tensors[kFirst], &toSecond = a.tensors[Role::Dv];
  int64_t startFirst = own.start(kFirst) + block.at * toFirst.row;
  int64_t startSecond = own.start(Role::Dv) + block.at * toSecond.row;
  if (block.first == AttendTile::kPadding) {
    storeTile<T>(toFirst, startFirst, block.rows, widthQ, nullptr, T(0));
    if (isOfKeys) storeTile<T>(toSecond, startSecond, block.rows, widthV, nullptr, T(0));
    return;
  }
  Carver<T> carver(&sharedMemory<T>());
  T *x0 = carver.take(n * widthQ), *x1 = carver.take(n * widthV);
  T *y0 = carver.take(n * (widthQ + 1)), *y1 = carver.take(n * (widthV + 1));
  T *first = carver.take(n * widthQ), *second = carver.take(n * widthV);
  T *weights = carver.take(n * n), *slopes = carver.take(n * n), *stats = carver.take(n * 2);
  int32_t* idsX = reinterpret_cast<int32_t*>(carver.take(n));
  int32_t* idsY = reinterpret_cast<int32_t*>(carver.take(n));
  const T* found = static_cast<const T*>(a.stats);
  auto loadStats = [&](int inner, const AttendTile& queries) {
    const T* from = found + ((int64_t(outer) * a.own + inner) * a.queryRows + queries.at) * 2;
    for (int i = thread; i < queries.rows * 2; i += kThreads) stats[i] = from[i];
  };

  loadTile(x0Tensor, own.start(kX0) + block.at * x0Tensor.row, block.rows, widthQ, x0, widthQ);
  loadTile(x1Tensor, own.start(kX1) + block.at * x1Tensor.row, block.rows, widthV, x1, widthV);
  for (int i = thread; i < block.rows * widthQ; i += kThreads) first[i] = 0;
  for (int i = thread; isOfKeys && i < block.rows * widthV; i += kThreads) second[i] = 0;
  if (!isOfKeys) loadStats(firstInner, block);
  DocumentRange mine = {};
  if (a.hasDocuments) {
    loadIds(a, kIdsX, own, block, idsX);
    mine = documentsOf(own.rows<const int32_t>(kIdsX, block.at), a.tensors[kIdsX].row, block.rows);
  }
  AttendRange seen = isOfKeys ? queriesSeeing(a, block) : keysSeen(a, block);
  for (int inner = firstInner; inner < (isOfKeys ? a.own : firstInner + 1); ++inner) {
    AttendHead at(a, outer, inner);
    TileWalk walk(isOfKeys ? a.queries : a.keys, n, seen, isOfKeys ? outer * a.own + inner : outer,
                  mine);
    while (walk.next()) {
      AttendTile tile = walk.tile();
      __syncthreads();
      loadTile(y0Tensor, at.start(kY0) + tile.at * y0Tensor.row, tile.rows, widthQ, y0, widthQ + 1);
      loadTile(y1Tensor, at.start(kY1) + tile.at * y1Tensor.row, tile.rows, widthV, y1, widthV + 1);
      if (a.hasDocuments) loadIds(a, kIdsY, at, tile, idsY);
      if (isOfKeys) loadStats(inner, tile);
      __syncthreads();
      for (int i = thread; i < block.rows * tile.rows; i += kThreads) {
        int x = i / tile.rows, y = i % tile.rows;
        int query = isOfKeys ? tile.first + y : block.first + x;
        int key = isOfKeys ? block.first + x : tile.first + y;
        bool isSeen = sees(a, query, key) && (!a.hasDocuments || idsX[x] == idsY[y]);
        const T* stat = stats + (isOfKeys ? y : x) * 2;
        T p = 0, slope = 0;
        if (isSeen) {
          T score = dot(x0 + x * widthQ, y0 + y * (widthQ + 1), widthQ) * T(a.scale);
          p = exp2Of(score * kLog2EOf<T> - stat[0]);
          slope = p * (dot(x1 + x * widthV, y1 + y * (widthV + 1), widthV) - stat[1]);
        }
        weights[x * n + y] = p;
        slopes[x * n + y] = slope;
      }
      __syncthreads();
      for (int i = thread; i < block.rows * widthQ; i += kThreads) {
        int x = i / widthQ, column = i % widthQ;
        T sum = first[i];
        for (int y = 0; y < tile.rows; ++y)
          sum += slopes[x * n + y] * y0[y * (widthQ + 1) + column];
        first[i] = sum;
      }
      for (int i = thread; isOfKeys && i < block.rows * widthV; i += kThreads) {
        int x = i / widthV, column = i % widthV;
        T sum = second[i];
        for (int y = 0; y < tile.rows; ++y)
          sum += weights[x * n + y] * y1[y * (widthV + 1) + column];
        second[i] = sum;
      }
    }
  }
  __syncthreads();
  storeTile(toFirst, startFirst, block.rows, widthQ, first, T(a.scale));
  if (isOfKeys) storeTile(toSecond, startSecond, block.rows, widthV, second, T(1));
}

// The lane's part of da . a, by N elements at once.
template <int N, class T>
PLANC_DEVICE T dotOfLane(ConstRef x, int64_t startX, int64_t stepX, ConstRef y, int64_t startY,
                         int64_t stepY, int width) {
  T sum = 0;
  for (int i = int(threadIdx.x) % kWarp * N; i < width; i += kWarp * N) {
    T a[N], b[N];
    load(x, startX + i * stepX, a);
    load(y, startY + i * stepY, b);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += a[j] * b[j];
  }
  return sum;
}

// Memory-bound; occupancy: 4 blocks of 256 threads on a multiprocessor (64 registers a thread),
// each warp with a whole row of both, up to 256 wide, under way.
template <class T>
PLANC_KERNEL(kThreads, 4)
stats(AttendArgs a) {
  using Role = AttendRole;
  int64_t number = int64_t(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  int lane = int(threadIdx.x) % kWarp, head = int(number / a.queryRows);
  if (head >= a.outer * a.own) return;
  int64_t row = number % a.queryRows;
  AttendHead at(a, head / a.own, head % a.own);
  const AttendTensor &tensorA = a.tensors[Role::A], &tensorDa = a.tensors[Role::Da];
  const AttendTensor& tensorLse = a.tensors[Role::Lse];
  int64_t startA = at.start(Role::A) + row * tensorA.row;
  int64_t startDa = at.start(Role::Da) + row * tensorDa.row;
  ConstRef x = {tensorA.data, tensorA.elem}, y = {tensorDa.data, tensorDa.elem};
  constexpr int kUnit = sizeof(T) == 8 ? 2 : kAttendUnit;
  T sum = a.areUnits ? dotOfLane<kUnit, T>(x, startA, 1, y, startDa, 1, a.widthV)
                     : dotOfLane<1, T>(x, startA, tensorA.column, y, startDa, tensorDa.column,
                                       a.widthV);
  sum = warpSum(sum);
  if (lane != 0) return;
  T* to = static_cast<T*>(a.stats) + number * 2;
  to[0] = loadOne<T>({tensorLse.data, tensorLse.elem}, at.start(Role::Lse) + row * tensorLse.row) *
          kLog2EOf<T>;
  to[1] = sum;
}

// A warp a tile of the side that moves.
template <bool isOfKeys>
PLANC_KERNEL(kThreads, 4)
documents(AttendArgs a) {
  constexpr int kIds = isOfKeys ? AttendRole::OfKeys : AttendRole::OfQueries;
  const AttendSide& side = isOfKeys ? a.keys : a.queries;
  int64_t number = int64_t(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  int head = int(number / side.documentTiles), tile = int(number % side.documentTiles);
  if (head >= (isOfKeys ? a.outer : a.outer * a.own)) return;
  AttendHead at(a, isOfKeys ? head : head / a.own, isOfKeys ? 0 : head % a.own);
  const AttendSegment* segment = side.segments;
  while (segment + 1 < side.segments + side.segmentCount && segment[1].tile <= tile) ++segment;
  int begin = (tile - segment->tile) * a.tile, rest = segment->count - begin;
  DocumentRange range = documentsOf(at.rows<const int32_t>(kIds, segment->at + begin),
                                    a.tensors[kIds].row, rest < a.tile ? rest : a.tile);
  if (threadIdx.x % kWarp != 0) return;
  int32_t* to = const_cast<int32_t*>(side.documents) + 2 * number;
  to[0] = range.least;
  to[1] = range.most;
}

}  // namespace

PLANC_HANDLE(kAttendF32, AttendArgs, kThreads, attend<float>)
PLANC_HANDLE(kAttendF64, AttendArgs, kThreads, attend<double>)
PLANC_HANDLE(kAttendGradQF32, AttendArgs, kThreads, attendGrad<float, false>)
PLANC_HANDLE(kAttendGradQF64, AttendArgs, kThreads, attendGrad<double, false>)
PLANC_HANDLE(kAttendGradKVF32, AttendArgs, kThreads, attendGrad<float, true>)
PLANC_HANDLE(kAttendGradKVF64, AttendArgs, kThreads, attendGrad<double, true>)
PLANC_HANDLE(kAttendStatsF32, AttendArgs, kThreads, stats<float>)
PLANC_HANDLE(kAttendStatsF64, AttendArgs, kThreads, stats<double>)
PLANC_HANDLE(kAttendQueryDocuments, AttendArgs, kThreads, documents<false>)
PLANC_HANDLE(kAttendKeyDocuments, AttendArgs, kThreads, documents<true>)

}  // namespace planc::cuda
