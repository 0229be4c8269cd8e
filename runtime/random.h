// Random numbers of the model: a weight's elements, and what dropout keeps.
#pragma once

#include <cmath>
#include <cstdint>

#include "llvm/ADT/StringRef.h"
#include "runtime/philox.h"

namespace planc {

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

// What dropout draws with at this place of the run (see dropoutKeeps). `iteration`: of the repeats
// around it, outermost first.
inline uint64_t dropoutCounter(int64_t step, int64_t microbatch, const int64_t* iteration,
                               size_t depth) {
  uint64_t c = uint64_t(step) * 0x9E3779B97F4A7C15ull + uint64_t(microbatch);
  for (size_t i = 0; i < depth; ++i) c = c * 0xBF58476D1CE4E5B9ull + uint64_t(iteration[i]) + 1;
  return c;
}

}  // namespace planc
