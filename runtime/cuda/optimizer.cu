// See optimizer.h. Memory-bound: four elements a thread of each tensor under way, 16-byte accesses.
#include "runtime/cuda/optimizer.h"

#include <cmath>

#include "runtime/cuda/device_code.h"

namespace planc::cuda {
namespace {

// CUDA's own needs no table in local memory.
PLANC_DEVICE double cosineOfPi(double x) {
#ifdef __CUDACC__
  return cospi(x);
#else
  return std::cos(3.14159265358979323846 * x);
#endif
}

// Occupancy: 4 blocks of 256 threads on a multiprocessor (64 registers a thread): half, enough for
// streaming.
template <class T>
PLANC_KERNEL(kSweepThreads, 4) sgd(SgdArgs a) {
  constexpr int V = kSweepWidth;
  int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (at >= a.size) return;
  T lr = loadOne<T>(a.lr, 0), scale = loadOne<T>(a.gscale, 0);
  T keep = T(a.momentum), pull = T(a.decay);
  auto step = [&](T& w, T g, T& m) {
    m = keep * m + g * scale + pull * w;
    w -= lr * m;
  };
  if (a.isVector && at + V <= a.size) {
    T w[V], g[V], m[V];
    load(a.w, at, w);
    load(a.g, at, g);
    load(a.m, at, m);
#pragma unroll
    for (int i = 0; i < V; ++i) step(w[i], g[i], m[i]);
    store(a.newW, at, w);
    store(a.newM, at, m);
    return;
  }
  for (int64_t end = at + V < a.size ? at + V : a.size; at < end; ++at) {
    T w = loadOne<T>(a.w, at), m = loadOne<T>(a.m, at);
    step(w, loadOne<T>(a.g, at), m);
    storeOne(a.newW, at, w);
    storeOne(a.newM, at, m);
  }
}

template <class T>
struct AdamWRates {
  T rate, floor, keep;
};

// The blocks that the GPU holds at a time go over all elements, so that powers are taken by few
// threads.
// Occupancy: 4 blocks of 256 threads in float (64 registers a thread), each thread with 64 bytes
// under way; 2 in double.
template <class T>
PLANC_KERNEL(kSweepThreads, 2) adamw(AdamWArgs a) {
  constexpr int V = kSweepWidth;
  auto& rates = sharedMemory<AdamWRates<T>>();
  if (threadIdx.x == 0) {
    // With c1 = 1 - beta1^step and c2 = 1 - beta2^step:
    //   lr * (m / c1) / (sqrt(v / c2) + eps) = rate * m / (sqrt(v) + eps * sqrt(c2))
    double lr = loadOne<double>(a.lr, 0), step = loadOne<double>(a.step, 0);
    double c1 = 1 - std::pow(a.beta1, step), root2 = std::sqrt(1 - std::pow(a.beta2, step));
    rates = {T(lr * root2 / c1), T(a.eps * root2), T(1 - lr * a.decay)};
  }
  __syncthreads();
  T rate = rates.rate, floor = rates.floor, keep = rates.keep, scale = loadOne<T>(a.gscale, 0);
  T b1 = T(a.beta1), b2 = T(a.beta2), a1 = T(1 - a.beta1), a2 = T(1 - a.beta2);
  auto step = [&](T& w, T g, T& m, T& v) {
    g *= scale;
    m = b1 * m + a1 * g;
    v = b2 * v + a2 * g * g;
    w = w * keep - rate * m / (std::sqrt(v) + floor);
  };
  int64_t stride = int64_t(gridDim.x) * blockDim.x * V;
  int64_t begin = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  for (int64_t at = begin; at < a.size; at += stride) {
    if (a.isVector && at + V <= a.size) {
      T w[V], g[V], m[V], v[V];
      load(a.w, at, w);
      load(a.g, at, g);
      load(a.m, at, m);
      load(a.v, at, v);
#pragma unroll
      for (int i = 0; i < V; ++i) step(w[i], g[i], m[i], v[i]);
      store(a.newW, at, w);
      store(a.newM, at, m);
      store(a.newV, at, v);
      continue;
    }
    for (int64_t i = at; i < at + V && i < a.size; ++i) {
      T w = loadOne<T>(a.w, i), m = loadOne<T>(a.m, i), v = loadOne<T>(a.v, i);
      step(w, loadOne<T>(a.g, i), m, v);
      storeOne(a.newW, i, w);
      storeOne(a.newM, i, m);
      storeOne(a.newV, i, v);
    }
  }
}

// Occupancy: 4 blocks of 256 threads.
template <class T>
PLANC_KERNEL(kSweepThreads, 4) squares(SumSquaresArgs a) {
  constexpr int V = kSquaresWidth;
  double* scratch = &sharedMemory<double>();
  int64_t begin = int64_t(blockIdx.x) * kSquaresPiece, end = begin + kSquaresPiece;
  if (end > a.size) end = a.size;
  double sum = 0;
  for (int64_t at = begin + int64_t(threadIdx.x) * V; at < end; at += int64_t(blockDim.x) * V) {
    T x[V];
    if (a.isVector && at + V <= end) {
      load(a.x, at, x);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = at + i < end ? loadOne<T>(a.x, at + i) : T(0);
    }
    T unit = T(0);
#pragma unroll
    for (int i = 0; i < V; ++i) unit += x[i] * x[i];
    sum += double(unit);
  }
  sum = blockSum(sum, scratch);
  if (threadIdx.x == 0) a.partials[blockIdx.x] = sum;
}

PLANC_KERNEL(kSweepThreads, 1) squaresTotal(SumSquaresArgs a) {
  double* scratch = &sharedMemory<double>();
  double sum = 0;
  for (int64_t piece = threadIdx.x; piece < a.pieces; piece += blockDim.x) sum += a.partials[piece];
  sum = blockSum(sum, scratch);
  if (threadIdx.x == 0) storeOne(a.sum, 0, sum);
}

PLANC_KERNEL(kWarp, 1) learningRate(LearningRateArgs a) {
  if (threadIdx.x > 0) return;
  double step = loadOne<double>(a.step, 0), rate = a.lr;
  if (step < a.warmup) {
    rate = a.lr * step / a.warmup;
  } else if (a.cosine > 0) {
    double progress = step >= a.cosine ? 1 : (step - a.warmup) / (a.cosine - a.warmup);
    rate = a.lr * (a.floor + (1 - a.floor) * 0.5 * (1 + cosineOfPi(progress)));
  }
  storeOne(a.rate, 0, rate);
}

}  // namespace

PLANC_HANDLE(kSgdF32, SgdArgs, kSweepThreads, sgd<float>)
PLANC_HANDLE(kSgdF64, SgdArgs, kSweepThreads, sgd<double>)
PLANC_HANDLE(kAdamWF32, AdamWArgs, kSweepThreads, adamw<float>)
PLANC_HANDLE(kAdamWF64, AdamWArgs, kSweepThreads, adamw<double>)
PLANC_HANDLE(kSquaresF32, SumSquaresArgs, kSweepThreads, squares<float>)
PLANC_HANDLE(kSquaresF64, SumSquaresArgs, kSweepThreads, squares<double>)
PLANC_HANDLE(kSquaresTotal, SumSquaresArgs, kSweepThreads, squaresTotal)
PLANC_HANDLE(kLearningRate, LearningRateArgs, kWarp, learningRate)

}  // namespace planc::cuda
