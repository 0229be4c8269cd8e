// For .cu files only: the words that kernels are written in, the same under nvcc and under the emulator
// (tests/gpu/simt.h, which the build includes ahead of everything then). CUDA's own names are used where
// the emulator has them too:
//   threadIdx.x blockIdx.{x,y,z} blockDim.x gridDim.{x,y,z}
//   __syncthreads __syncwarp __shfl_sync __shfl_xor_sync __shfl_up_sync __shfl_down_sync
//   __ballot_sync __any_sync __all_sync __popc __ffs atomicAdd(int*, int)
// Shared memory is dynamic only: `auto& s = sharedMemory<Tiles>();`, its size is the launch's. Kernels
// are deterministic: no atomics on floats, sums in a fixed order.
#pragma once

#include "runtime/cuda/kernel.h"

#ifdef __CUDACC__
#define PLANC_DEVICE __device__ __forceinline__
// At most `threads` a block, of which `blocks` must fit on a multiprocessor: the compiler keeps
// registers below that, and tests/gpu/registers.py sees that nothing spills.
#define PLANC_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
// Defines the handle that NAME.h declares: `extern const Kernel<NormArgs> kNormF32;`
#define PLANC_HANDLE(handle, Args, threads, ...)                                              \
  extern const ::planc::cuda::Kernel<Args> handle;                                            \
  const ::planc::cuda::Kernel<Args> handle = {                                                \
      {#handle, reinterpret_cast<const void*>(static_cast<void (*)(Args)>(__VA_ARGS__)), \
       int(sizeof(Args)), threads}};
#include <cuda_bf16.h>

namespace planc::cuda {
template <class T>
PLANC_DEVICE T& sharedMemory() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return *reinterpret_cast<T*>(bytes);
}
PLANC_DEVICE float fromBf16(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
PLANC_DEVICE uint16_t toBf16Bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
}  // namespace planc::cuda
#else
#ifndef PLANC_EMULATED
#error "kernels are compiled by nvcc, or with tests/gpu/simt.h included first"
#endif
#endif

namespace planc::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

// Elements [at, at + N) as T; all threads of a warp agree on `elem`. N > 1: 16-byte accesses where
// `at` is a multiple of N and the tensor is aligned (see `isVector`), and all N exist.
template <int N, class T>
PLANC_DEVICE void load(ConstRef from, int64_t at, T (&into)[N]) {
  struct alignas(N * sizeof(uint16_t)) Halves { uint16_t v[N]; };
  struct alignas(N * 4 > 16 ? 16 : N * 4) Words { float v[N]; };
  struct alignas(N * 8 > 16 ? 16 : N * 8) Doubles { double v[N]; };
  struct alignas(N * 4 > 16 ? 16 : N * 4) Ints { int32_t v[N]; };
  switch (from.elem) {
    case Elem::BF16: {
      Halves x = *reinterpret_cast<const Halves*>(static_cast<const uint16_t*>(from.data) + at);
      for (int i = 0; i < N; ++i) into[i] = T(fromBf16(x.v[i]));
      return;
    }
    case Elem::F32: {
      Words x = *reinterpret_cast<const Words*>(static_cast<const float*>(from.data) + at);
      for (int i = 0; i < N; ++i) into[i] = T(x.v[i]);
      return;
    }
    case Elem::F64: {
      Doubles x = *reinterpret_cast<const Doubles*>(static_cast<const double*>(from.data) + at);
      for (int i = 0; i < N; ++i) into[i] = T(x.v[i]);
      return;
    }
    case Elem::I32: {
      Ints x = *reinterpret_cast<const Ints*>(static_cast<const int32_t*>(from.data) + at);
      for (int i = 0; i < N; ++i) into[i] = T(x.v[i]);
      return;
    }
  }
}

template <int N, class T>
PLANC_DEVICE void store(Ref into, int64_t at, const T (&from)[N]) {
  struct alignas(N * sizeof(uint16_t)) Halves { uint16_t v[N]; };
  struct alignas(N * 4 > 16 ? 16 : N * 4) Words { float v[N]; };
  struct alignas(N * 8 > 16 ? 16 : N * 8) Doubles { double v[N]; };
  struct alignas(N * 4 > 16 ? 16 : N * 4) Ints { int32_t v[N]; };
  switch (into.elem) {
    case Elem::BF16: {
      Halves x;
      for (int i = 0; i < N; ++i) x.v[i] = toBf16Bits(float(from[i]));
      *reinterpret_cast<Halves*>(static_cast<uint16_t*>(into.data) + at) = x;
      return;
    }
    case Elem::F32: {
      Words x;
      for (int i = 0; i < N; ++i) x.v[i] = float(from[i]);
      *reinterpret_cast<Words*>(static_cast<float*>(into.data) + at) = x;
      return;
    }
    case Elem::F64: {
      Doubles x;
      for (int i = 0; i < N; ++i) x.v[i] = double(from[i]);
      *reinterpret_cast<Doubles*>(static_cast<double*>(into.data) + at) = x;
      return;
    }
    case Elem::I32: {
      Ints x;
      for (int i = 0; i < N; ++i) x.v[i] = int32_t(from[i]);
      *reinterpret_cast<Ints*>(static_cast<int32_t*>(into.data) + at) = x;
      return;
    }
  }
}

template <class T>
PLANC_DEVICE T loadOne(ConstRef from, int64_t at) {
  T x[1];
  load(from, at, x);
  return x[0];
}
template <class T>
PLANC_DEVICE void storeOne(Ref into, int64_t at, T x) {
  T one[1] = {x};
  store(into, at, one);
}
PLANC_DEVICE ConstRef asConst(Ref ref) { return {ref.data, ref.elem}; }

// Of all lanes, on all lanes; always in the same order.
template <class T>
PLANC_DEVICE T warpSum(T x) {
  for (int d = kWarp / 2; d > 0; d /= 2) x += __shfl_xor_sync(kAllLanes, x, d);
  return x;
}
// A NaN anywhere makes a NaN.
template <class T>
PLANC_DEVICE T greater(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
PLANC_DEVICE T warpMax(T x) {
  for (int d = kWarp / 2; d > 0; d /= 2) x = greater(x, __shfl_xor_sync(kAllLanes, x, d));
  return x;
}

// Of all threads, on all threads. `scratch`: shared, one element a warp; free again behind it. Blocks are
// whole warps.
template <class T>
PLANC_DEVICE T blockSum(T x, T* scratch) {
  x = warpSum(x);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  T sum = T(0);
  for (int w = 0; w < int(blockDim.x) / kWarp; ++w) sum += scratch[w];
  __syncthreads();
  return sum;
}
template <class T>
PLANC_DEVICE T blockMax(T x, T* scratch) {
  x = warpMax(x);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  T most = scratch[0];
  for (int w = 1; w < int(blockDim.x) / kWarp; ++w) most = greater(most, scratch[w]);
  __syncthreads();
  return most;
}

}  // namespace planc::cuda
