// A CRC is a remainder of polynomials over GF(2): n bytes behind A multiply its remainder by
// x^(8 n), and B's adds to it. Bit 31 holds the coefficient of x^0. Tested by
// tests/unit/safetensors_test.cpp.
#include "runtime/io/checksum.h"

namespace planc {
namespace {

constexpr uint32_t kPolynomial = 0xEDB88320, kOne = 0x80000000;

uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if ((a & kOne) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;  // times x
  }
  return product;
}

}  // namespace

uint32_t joinChecksums(uint32_t a, uint32_t b, int64_t bytesOfB) {
  uint32_t power = kOne >> 8;  // x^8, squared again and again
  for (int64_t n = bytesOfB; n > 0; n >>= 1, power = multiply(power, power))
    if ((n & 1) != 0) a = multiply(a, power);
  return a ^ b;
}

}  // namespace planc
