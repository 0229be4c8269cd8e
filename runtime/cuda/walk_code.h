// For .cu files only: walking tokens and rows.
#pragma once

#include "runtime/cuda/device_code.h"
#include "runtime/cuda/walk.h"

namespace planc::cuda {

// Each tensor's offset at an index of [0, count). A walk of one loop divides nothing.
template <int N>
PLANC_DEVICE void locate(const Walk<N>& walk, int64_t index, int64_t (&offsets)[N]) {
  for (int t = 0; t < N; ++t) offsets[t] = 0;
  for (int k = walk.loops - 1; k > 0; --k) {
    int64_t size = walk.size[k], rest = index / size, i = index - rest * size;
    index = rest;
    for (int t = 0; t < N; ++t) offsets[t] += i * walk.stride[k][t];
  }
  for (int t = 0; t < N; ++t) offsets[t] += index * walk.stride[0][t];
}

// The warp's number among all of the launch, and the thread's in its warp.
PLANC_DEVICE int64_t warpIndex() {
  return int64_t(blockIdx.x) * (int(blockDim.x) / kWarp) + int(threadIdx.x) / kWarp;
}
PLANC_DEVICE int laneIndex() { return int(threadIdx.x) % kWarp; }

// An index in memory, whatever wrote it.
PLANC_DEVICE int32_t clampIndex(int32_t i, int32_t count) {
  return i < 0 ? 0 : i < count ? i : count - 1;
}

PLANC_DEVICE float expOf(float x) { return expf(x); }
PLANC_DEVICE double expOf(double x) { return exp(x); }
PLANC_DEVICE float logOf(float x) { return logf(x); }
PLANC_DEVICE double logOf(double x) { return log(x); }

// The sum of the threads before this one in its block; `total` that of all. `scratch`: shared, one
// element a warp; free again behind it.
template <class T>
PLANC_DEVICE T blockSumBefore(T x, T* scratch, T& total) {
  T sum = x;
  for (int d = 1; d < kWarp; d *= 2) {
    T other = __shfl_up_sync(kAllLanes, sum, d);
    if (laneIndex() >= d) sum += other;
  }
  int warp = int(threadIdx.x) / kWarp;
  if (laneIndex() == kWarp - 1) scratch[warp] = sum;
  __syncthreads();
  T before = T(0);
  total = T(0);
  for (int w = 0; w < int(blockDim.x) / kWarp; ++w) {
    if (w < warp) before += scratch[w];
    total += scratch[w];
  }
  __syncthreads();
  return before + sum - x;
}

}  // namespace planc::cuda
