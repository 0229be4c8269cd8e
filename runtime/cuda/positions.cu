// See positions.h.
#include "runtime/cuda/positions.h"

#include "runtime/cuda/device_code.h"
#include "runtime/philox.h"

namespace planc::cuda {
namespace {

// Occupancy: 4 blocks of 256 threads on a multiprocessor, each thread with two units of x under
// way.
template <class T>
PLANC_KERNEL(kPositionThreads, 4) rope(RopeArgs a) {
  constexpr int V = kRopeWidth;
  int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  int64_t row = index / a.units;
  if (row >= a.rows) return;
  int64_t pair = (index - row * a.units) * V, half = a.width / 2;
  int64_t inX = 0, inY = 0, position = 0;
  for (int l = 0; l < a.loops; ++l) {
    int64_t next = l + 1 == a.loops ? 0 : row / a.sizes[l];
    int64_t i = row - next * a.sizes[l];
    row = next;
    inX += i * a.inX[l];
    inY += i * a.inY[l];
    position += i * a.inPositions[l];
  }
  const T* cosines = static_cast<const T*>(a.angles) + position * a.width + pair;
  const T* sines = cosines + half;
  T turn = a.inverse ? T(-1) : T(1);
  auto rotate = [&](int i, T& x, T& y) {
    T c = cosines[i], s = turn * sines[i], first = x;
    x = first * c - y * s;
    y = first * s + y * c;
  };
  if (a.isVector && pair + V <= half) {
    int64_t first = a.areNeighbours ? 2 * pair : pair;
    int64_t second = a.areNeighbours ? 2 * pair + V : pair + half;
    T x[V], y[V];
    load(a.x, inX + first, x);
    load(a.x, inX + second, y);
    if (a.areNeighbours) {
#pragma unroll
      for (int i = 0; i < V / 2; ++i) {
        rotate(i, x[2 * i], x[2 * i + 1]);
        rotate(i + V / 2, y[2 * i], y[2 * i + 1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) rotate(i, x[i], y[i]);
    }
    store(a.y, inY + first, x);
    store(a.y, inY + second, y);
    return;
  }
  for (int i = 0; i < V && pair + i < half; ++i) {
    int64_t first = a.areNeighbours ? 2 * (pair + i) : pair + i;
    int64_t second = a.areNeighbours ? first + 1 : first + half;
    T x = loadOne<T>(a.x, inX + first * a.xStep), y = loadOne<T>(a.x, inX + second * a.xStep);
    rotate(i, x, y);
    storeOne(a.y, inY + first * a.yStep, x);
    storeOne(a.y, inY + second * a.yStep, y);
  }
}

PLANC_DEVICE int64_t wholeIndex(const DropoutArgs& a, int64_t index) {
  int64_t outer = index / a.run, at = a.first + (index - outer * a.run);
  for (int l = 0; l < a.wholeLoops; ++l) {
    int64_t next = outer / a.wholeSizes[l], i = outer - next * a.wholeSizes[l];
    outer = next;
    at += a.firstPlace[l] < 0 ? i * a.wholeStrides[l] : a.places[a.firstPlace[l] + i];
  }
  return at;
}

// Occupancy: 4 blocks of 256 threads. Two or three draws of four numbers serve eight neighbours.
template <class T>
PLANC_KERNEL(kPositionThreads, 4) dropout(DropoutArgs a) {
  constexpr int V = kDropoutWidth;
  int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (at >= a.size) return;
  int valid = a.size - at < V ? int(a.size - at) : V;
  T x[V];
  if (a.isVector && valid == V) {
    load(a.x, at, x);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      int64_t rest = at + i, from = 0;
      for (int l = 0; l < a.loops; ++l) {
        from += rest % a.sizes[l] * a.inX[l];
        rest /= a.sizes[l];
      }
      x[i] = i < valid ? loadOne<T>(a.x, from) : T(0);
    }
  }
  uint64_t counter = uint64_t(*a.step) * a.perStep + a.counter;
  int64_t index = wholeIndex(a, at);
  Philox drawn = philox(a.key, counter, uint64_t(index) >> 2);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i > 0) {
      int64_t before = index;
      index = a.isOneRun ? index + 1 : wholeIndex(a, at + i < a.size ? at + i : at);
      if (index >> 2 != before >> 2) drawn = philox(a.key, counter, uint64_t(index) >> 2);
    }
    uint32_t low = index & 1 ? drawn.word[1] : drawn.word[0];
    uint32_t high = index & 1 ? drawn.word[3] : drawn.word[2];
    bool isKept = uniformFloat(index & 2 ? high : low) >= a.rate;
    x[i] = isKept ? x[i] * T(a.scale) : T(0);
  }
  if (a.isVector && valid == V) return store(a.y, at, x);
#pragma unroll
  for (int i = 0; i < V; ++i)
    if (i < valid) storeOne(a.y, at + i, x[i]);
}

}  // namespace

PLANC_HANDLE(kRopeF32, RopeArgs, kPositionThreads, rope<float>)
PLANC_HANDLE(kRopeF64, RopeArgs, kPositionThreads, rope<double>)
PLANC_HANDLE(kDropoutF32, DropoutArgs, kPositionThreads, dropout<float>)
PLANC_HANDLE(kDropoutF64, DropoutArgs, kPositionThreads, dropout<double>)

}  // namespace planc::cuda
