// Elementary functions without branches, so that loops over them vectorise: about 1e-7 relative
// error in float. The double overloads are the C library's.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace planc::cpu {

// The nearest integer of |x| < 2^22, by the rounding of an addition.
inline float roundNear(float x) { return (x + 12582912.0f) - 12582912.0f; }

// exp(x) = 2^n exp(r), |r| <= ln(2)/2 (Cephes' expf). Below the normal range it is 0.
inline float fastExp(float x) {
  float clamped = std::min(std::max(x, -87.33654f), 88.72283f);
  float n = roundNear(clamped * 1.44269504f);
  float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors: n may be 128, whose power has no float.
  int32_t whole = int32_t(n), half = whole / 2;
  float scaled = p * std::bit_cast<float>((half + 127) << 23) *
                 std::bit_cast<float>((whole - half + 127) << 23);
  float upper = x > 88.72283f ? std::numeric_limits<float>::infinity() : scaled;
  float lower = x < -87.33654f ? 0.0f : upper;
  return x != x ? x : lower;
}

// log(x) = e ln(2) + log(m), m in [sqrt(1/2), sqrt(2)) (Cephes' logf).
inline float fastLog(float x) {
  bool tiny = x < 1.17549435e-38f;
  float normal = tiny ? x * 8388608.0f : x;
  int32_t bits = std::bit_cast<int32_t>(normal);
  int32_t e = ((bits - 0x3F3504F3) >> 23);
  float m = std::bit_cast<float>(bits - (e << 23)) - 1.0f;
  float exponent = float(e) - (tiny ? 23.0f : 0.0f);
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float z = m * m;
  float y = m * z * p + exponent * -2.12194440e-4f - 0.5f * z;
  float result = (m + y) + exponent * 0.693359375f;
  float inf = std::numeric_limits<float>::infinity();
  float upper = x == inf ? inf : result;
  float zero = x == 0.0f ? -inf : upper;
  return x < 0.0f || x != x ? std::numeric_limits<float>::quiet_NaN() : zero;
}

inline float fastSigmoid(float x) { return 1.0f / (1.0f + fastExp(-x)); }

// A polynomial near 0, else 1 - 2 / (exp(2x) + 1).
inline float fastTanh(float x) {
  float a = std::abs(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  float small = p * z * x + x;
  float large = 1.0f - 2.0f / (fastExp(2.0f * a) + 1.0f);
  return a < 0.625f ? small : std::copysign(large, x);
}

// Juffa's erff: a polynomial near 0, else 1 - exp(polynomial).
inline float fastErf(float x) {
  float a = std::abs(x), z = x * x;
  float p = -5.96761703e-4f;
  p = p * z + 4.99119423e-3f;
  p = p * z - 2.67681349e-2f;
  p = p * z + 1.12819925e-1f;
  p = p * z - 3.76125336e-1f;
  p = p * z + 1.28379166e-1f;
  float small = p * x + x;
  float q = -1.72853470e-5f * a + 3.83197126e-4f;
  float u = -3.88396438e-3f * a + 2.42546219e-2f;
  q = q * z + u;
  q = q * a - 1.06777877e-1f;
  q = q * a - 6.34846687e-1f;
  q = q * a - 1.28717512e-1f;
  q = q * a - a;
  float large = 1.0f - fastExp(q);
  return a > 0.927734375f ? std::copysign(large, x) : small;
}

inline double fastExp(double x) { return std::exp(x); }
inline double fastLog(double x) { return std::log(x); }
inline double fastSigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double fastTanh(double x) { return std::tanh(x); }
inline double fastErf(double x) { return std::erf(x); }

// Sums and the like over a row; the order of the additions depends only on n.
template <class T>
T sumRow(const T* x, int64_t n) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}
template <class T>
T dotRow(const T* x, const T* y, int64_t n) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}
template <class T>
T maxRow(const T* x, int64_t n) {
  T most = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; ++i) most = x[i] > most ? x[i] : most;
  return most;
}
// y = exp(x - shift), which may be x; gives the sum.
template <class T>
T expRow(const T* x, T shift, int64_t n, T* y) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    T e = fastExp(x[i] - shift);
    y[i] = e;
    sum += e;
  }
  return sum;
}

}  // namespace planc::cpu
