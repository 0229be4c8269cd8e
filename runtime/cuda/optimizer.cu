// See optimizer.h. Memory-bound: four elements a thread, 16-byte accesses.
#include "runtime/cuda/optimizer.h"

#include "runtime/cuda/device_code.h"

namespace planc::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;  // elements of a thread; tensors of the arena begin at multiples of 64 bytes

// Occupancy: 4 blocks of 256 threads on a multiprocessor (64 registers a thread): half, enough for streaming.
template <class T>
PLANC_KERNEL(kThreads, 4) sgd(SgdArgs a) {
  int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * kEach;
  if (at >= a.size) return;
  T lr = loadOne<T>(a.lr, 0), scale = loadOne<T>(a.gscale, 0);
  T keep = T(a.momentum), pull = T(a.decay);
  auto step = [&](T& w, T g, T& m) {
    m = keep * m + g * scale + pull * w;
    w -= lr * m;
  };
  if (at + kEach <= a.size) {
    T w[kEach], g[kEach], m[kEach];
    load(a.w, at, w);
    load(a.g, at, g);
    load(a.m, at, m);
    for (int i = 0; i < kEach; ++i) step(w[i], g[i], m[i]);
    store(a.newW, at, w);
    store(a.newM, at, m);
    return;
  }
  for (; at < a.size; ++at) {
    T w = loadOne<T>(a.w, at), m = loadOne<T>(a.m, at);
    step(w, loadOne<T>(a.g, at), m);
    storeOne(a.newW, at, w);
    storeOne(a.newM, at, m);
  }
}

}  // namespace

PLANC_HANDLE(kSgdF32, SgdArgs, kThreads, sgd<float>)
PLANC_HANDLE(kSgdF64, SgdArgs, kThreads, sgd<double>)

}  // namespace planc::cuda
