// bf16 in memory and its way to and from f32.
#pragma once

#include <bit>
#include <cstdint>

namespace planc {

struct Bf16 {
  uint16_t bits;
};

inline float toFloat(Bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }

// Rounds to nearest even; a NaN stays one.
inline Bf16 toBf16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  uint32_t nan = (bits >> 16) | 0x40;
  return {uint16_t((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded)};
}

}  // namespace planc
