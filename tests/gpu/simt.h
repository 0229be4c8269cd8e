// Included ahead of everything when a .cu file is compiled by the C++ compiler: CUDA's words for
// what runs on a GPU, done by tests/gpu/emulator.cpp. Only what planc's kernels use is here.
// Threads of a block are fibers of one thread of the machine, so that plain memory accesses are
// atomic.
#pragma once

#include <math.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

namespace planc::emulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

// What went wrong in the thread that runs; the launch ends here.
[[noreturn]] void fail(const char* what);

void* sharedMemory(size_t need);

// All lanes of the mask come here, with the same `meeting`; then `complete` runs once for all of
// them, with what each brought and where each wants its answer.
struct Meeting {
  const char* name;
  void (*complete)(unsigned mask, const void* const* in, void* const* out);
};
void meet(const Meeting& meeting, unsigned mask, const void* in, void* out);

// The whole warp gives `bytes` each, and each lane gets what all 32 gave, in the order of lanes.
void warpExchange(const void* mine, size_t bytes, std::byte* all);

enum class Shuffle : int { Index, Up, Down, Xor };
uint64_t shuffle(Shuffle how, unsigned mask, uint64_t bits, int by, int width);
unsigned ballot(unsigned mask, bool yes);

template <class T>
T shuffleAs(Shuffle how, unsigned mask, T value, int by, int width) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(how, mask, bits, by, width);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class To, class From>
To bitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace planc::emulator

#define __device__
#define __host__
#define __forceinline__ inline
#define PLANC_DEVICE inline
#define PLANC_KERNEL(threads, blocks) void
#define PLANC_HANDLE(handle, Args, threads, ...)                                             \
  extern const ::planc::cuda::Kernel<Args> handle;                                           \
  const ::planc::cuda::Kernel<Args> handle = {                                               \
      {#handle, reinterpret_cast<const void*>(+[](const void* args) {                        \
         static_cast<void (*)(Args)>(__VA_ARGS__)(*static_cast<const Args*>(args));          \
       }),                                                                                   \
       int(sizeof(Args)), threads}};

inline constinit thread_local planc::emulator::Index threadIdx, blockIdx, blockDim, gridDim;

// Blocks.
void __syncthreads();

// Warps.
void __syncwarp(unsigned mask = 0xffffffffu);
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return planc::emulator::shuffleAs(planc::emulator::Shuffle::Index, mask, value, lane, width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return planc::emulator::shuffleAs(planc::emulator::Shuffle::Up, mask, value, int(by), width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return planc::emulator::shuffleAs(planc::emulator::Shuffle::Down, mask, value, int(by), width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
  return planc::emulator::shuffleAs(planc::emulator::Shuffle::Xor, mask, value, by, width);
}
inline unsigned __ballot_sync(unsigned mask, int yes) {
  return planc::emulator::ballot(mask, yes != 0);
}
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) == mask; }

// Integers.
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned(uint64_t(x) * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}

// Atomics: on integers only (see runtime/cuda/device_code.h). All answer what was there before.
template <class T>
concept AtomicInteger = std::is_same_v<T, int> || std::is_same_v<T, unsigned> ||
                        std::is_same_v<T, unsigned long long>;
template <AtomicInteger T>
T atomicAdd(T* at, std::type_identity_t<T> x) {
  T old = *at;
  *at = T(old + x);
  return old;
}
template <AtomicInteger T>
T atomicMax(T* at, std::type_identity_t<T> x) {
  T old = *at;
  *at = std::max(old, x);
  return old;
}
template <AtomicInteger T>
T atomicMin(T* at, std::type_identity_t<T> x) {
  T old = *at;
  *at = std::min(old, x);
  return old;
}
template <AtomicInteger T>
T atomicOr(T* at, std::type_identity_t<T> x) {
  T old = *at;
  *at = old | x;
  return old;
}
template <AtomicInteger T>
T atomicExch(T* at, std::type_identity_t<T> x) {
  T old = *at;
  *at = x;
  return old;
}
template <AtomicInteger T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> x) {
  T old = *at;
  if (old == expected) *at = x;
  return old;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// Memory and numbers.
template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
  requires std::is_arithmetic_v<T>
constexpr T min(T a, std::type_identity_t<T> b) {
  return b < a ? b : a;
}
template <class T>
  requires std::is_arithmetic_v<T>
constexpr T max(T a, std::type_identity_t<T> b) {
  return a < b ? b : a;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __saturatef(float x) { return std::fmin(std::fmax(x, 0.0f), 1.0f); }
inline float __uint_as_float(unsigned x) { return planc::emulator::bitsAs<float>(x); }
inline float __int_as_float(int x) { return planc::emulator::bitsAs<float>(x); }
inline unsigned __float_as_uint(float x) { return planc::emulator::bitsAs<unsigned>(x); }
inline int __float_as_int(float x) { return planc::emulator::bitsAs<int>(x); }
inline double __longlong_as_double(long long x) { return planc::emulator::bitsAs<double>(x); }
inline long long __double_as_longlong(double x) { return planc::emulator::bitsAs<long long>(x); }
// Macros: the C library declares functions of these names, and has none.
#define __expf(x) ::expf(x)
#define __exp10f(x) ::exp10f(x)
#define __logf(x) ::logf(x)
#define __log2f(x) ::log2f(x)
#define __log10f(x) ::log10f(x)
#define __powf(x, y) ::powf(x, y)
#define __sinf(x) ::sinf(x)
#define __cosf(x) ::cosf(x)
#define __tanhf(x) ::tanhf(x)

// Vectors, for 16-byte accesses.
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace planc::cuda {

template <class T>
T& sharedMemory() {
  return *static_cast<T*>(emulator::sharedMemory(sizeof(T)));
}
inline float fromBf16(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
// To nearest, ties to even; every NaN becomes CUDA's.
inline uint16_t toBf16Bits(float x) {
  if (x != x) return 0x7fff;
  uint32_t bits = __float_as_uint(x);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace planc::cuda
