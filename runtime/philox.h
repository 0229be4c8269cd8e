// The counter-based generator: every random number is a function of (key, index), so that no grid,
// order or thread can change it. Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC 2011); all functions are inline so that kernels can vectorise them. Kernels of GPUs
// include it too: nothing of LLVM here.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define PLANC_INLINE __host__ __device__ inline
#else
#define PLANC_INLINE inline
#endif

namespace planc {

struct Philox {
  uint32_t word[4];
};

PLANC_INLINE Philox philox(uint64_t key, uint64_t counterHigh, uint64_t counterLow) {
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  uint32_t c0 = uint32_t(counterLow), c1 = uint32_t(counterLow >> 32);
  uint32_t c2 = uint32_t(counterHigh), c3 = uint32_t(counterHigh >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1);
    c3 = uint32_t(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Uniform in (0, 1), never 0 or 1: 23 bits, so that adding the half is exact.
PLANC_INLINE float uniformFloat(uint32_t word) { return (float(word >> 9) + 0.5f) * 0x1p-23f; }

// Whether dropout keeps element `index` (the global row-major index in the op's result, whose
// batch is one microbatch's). key: randomKey(seed, site); counter: of dropoutCounter.
PLANC_INLINE bool dropoutKeeps(uint64_t key, uint64_t counter, uint64_t index, float rate) {
  Philox p = philox(key, counter, index >> 2);
  return uniformFloat(p.word[index & 3]) >= rate;
}

}  // namespace planc
