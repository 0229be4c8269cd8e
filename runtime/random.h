// The counter-based generator: every random number is a function of (key, index), so that no grid,
// order or thread can change it. Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC 2011); all functions are inline so that kernels can vectorise them.
#pragma once

#include <cmath>
#include <cstdint>

#include "llvm/ADT/StringRef.h"

namespace planc {

struct Philox {
  uint32_t word[4];
};

inline Philox philox(uint64_t key, uint64_t counterHigh, uint64_t counterLow) {
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

// A key from the seed and a name (a weight's, a dropout site's, "data"): FNV-1a over the name,
// mixed with the seed.
inline uint64_t randomKey(uint64_t seed, llvm::StringRef name) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001B3ull;
  hash ^= seed + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9ull;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBull;
  return hash ^ (hash >> 31);
}

// Uniform in (0, 1), never 0 or 1: 23 bits, so that adding the half is exact.
inline float uniformFloat(uint32_t word) { return (float(word >> 9) + 0.5f) * 0x1p-23f; }

// Element `index` of a weight. Uniform in (-1, 1), and standard normal (Box-Muller), in double so
// that every element type starts from the same numbers.
inline double uniformAt(uint64_t key, uint64_t index) {
  Philox p = philox(key, 0, index);
  uint64_t bits = (uint64_t(p.word[0]) << 21) ^ (p.word[1] >> 11);
  return (double(bits & ((1ull << 53) - 1)) + 0.5) * 0x1p-52 - 1.0;
}
inline double normalAt(uint64_t key, uint64_t index) {
  Philox p = philox(key, 0, index);
  double u1 = (double(p.word[0]) + (double(p.word[1]) + 0.5) * 0x1p-32) * 0x1p-32;
  double u2 = (double(p.word[2]) + (double(p.word[3]) + 0.5) * 0x1p-32) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u1)) * std::cos(6.283185307179586 * u2);
}

// Whether dropout keeps element `index` (the global row-major index in the op's result, whose
// batch is one microbatch's). key: randomKey(seed, site). `iteration`: the repeats' iterations
// folded by dropoutCounter.
inline uint64_t dropoutCounter(int64_t step, int64_t microbatch, const int64_t* iteration,
                               size_t depth) {
  uint64_t c = uint64_t(step) * 0x9E3779B97F4A7C15ull + uint64_t(microbatch);
  for (size_t i = 0; i < depth; ++i) c = c * 0xBF58476D1CE4E5B9ull + uint64_t(iteration[i]) + 1;
  return c;
}
inline bool dropoutKeeps(uint64_t key, uint64_t counter, uint64_t index, float rate) {
  Philox p = philox(key, counter, index >> 2);
  return uniformFloat(p.word[index & 3]) >= rate;
}

}  // namespace planc
