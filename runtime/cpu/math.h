// Elementary functions without branches, so that loops over them vectorise: about 1e-7 relative
// error in float. The double overloads are the C library's.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace planc::cpu {

// exp(x) = 2^n exp(r), |r| <= ln(2)/2 (Cephes' expf). Below the normal range it is 0.
inline float fastExp(float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float clamped = std::min(std::max(x, -87.33654f), 88.72283f);
  // Adding 1.5 * 2^23 rounds to an integer, which stands in the low bits.
  float shifted = clamped * 1.44269504f + 12582912.0f;
  float n = shifted - 12582912.0f;
  float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // n is added to the exponent of p.
  float scaled =
      std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
  float bounded = x <= 88.72283f ? scaled : x + kInfinity;  // a NaN stays one
  return x < -87.33654f ? 0.0f : bounded;
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

// The normal distribution function, given exp(-x^2 / 2), to 1e-7 absolute (Abramowitz & Stegun,
// 7.1.26); the lower tail is not found as a difference from 1.
inline float normalCdf(float x, float density) {
  float t = 1.0f / (1.0f + 0.23164189f * std::abs(x));
  float p = 0.5307027145f;
  p = p * t - 0.7265760135f;
  p = p * t + 0.7107068705f;
  p = p * t - 0.1422483680f;
  p = p * t + 0.1274147960f;
  float tail = p * t * density;
  return x > 0.0f ? 1.0f - tail : tail;
}

inline double fastExp(double x) { return std::exp(x); }
inline double fastLog(double x) { return std::log(x); }
inline double fastSigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double fastTanh(double x) { return std::tanh(x); }
inline double normalCdf(double x, double) { return 0.5 * std::erfc(x * -0.7071067811865476); }

// A whole vector of elements at any address of theirs.
template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(64), aligned(sizeof(T)), may_alias));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
inline constexpr int64_t kLanes = 64 / int64_t(sizeof(T));

// Folds terms 0 ... n - 1 in an order that depends only on n: lane by lane over whole vectors, four
// of them at a time, then the lanes as a tree, then the rest. term(i, X()) gives element i as T, or
// the elements from i on as a vector.
template <class T, class Term, class Fold>
inline T foldRow(int64_t n, T start, Term&& term, Fold&& fold) {
  using V = Vector<T>;
  constexpr int64_t L = kLanes<T>;
  V vectors[4];
  for (V& v : vectors) v = V{} + start;
  int64_t i = 0;
  for (; i + 4 * L <= n; i += 4 * L) {
    for (int64_t u = 0; u < 4; ++u) vectors[u] = fold(vectors[u], term(i + u * L, V()));
  }
  for (; i + L <= n; i += L) vectors[0] = fold(vectors[0], term(i, V()));
  V all = fold(fold(vectors[0], vectors[1]), fold(vectors[2], vectors[3]));
  T lanes[L];
  __builtin_memcpy(lanes, &all, sizeof lanes);
  for (int64_t w = L / 2; w > 0; w /= 2) {
    for (int64_t l = 0; l < w; ++l) lanes[l] = fold(lanes[l], lanes[l + w]);
  }
  T result = lanes[0];
  for (; i < n; ++i) result = fold(result, term(i, T()));
  return result;
}

template <class X, class T>
inline const X& at(const T* x, int64_t i) {
  return *reinterpret_cast<const X*>(x + i);
}

template <class T, class Term>
inline T sumOf(int64_t n, Term&& term) {
  return foldRow<T>(n, T(0), term, [](auto a, auto b) { return a + b; });
}
template <class T>
T sumRow(const T* x, int64_t n) {
  return sumOf<T>(n, [=](int64_t i, auto kind) { return at<decltype(kind)>(x, i); });
}
template <class T>
T dotRow(const T* x, const T* y, int64_t n) {
  return sumOf<T>(n, [=](int64_t i, auto kind) {
    using X = decltype(kind);
    return at<X>(x, i) * at<X>(y, i);
  });
}
template <class T>
T maxRow(const T* x, int64_t n) {
  return foldRow<T>(
      n, -std::numeric_limits<T>::infinity(),
      [=](int64_t i, auto kind) { return at<decltype(kind)>(x, i); },
      [](auto a, auto b) { return b > a ? b : a; });
}
// y = exp(x - shift), which may be x; gives the sum.
template <class T>
T expRow(const T* x, T shift, int64_t n, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = fastExp(x[i] - shift);
  return sumRow(y, n);
}

}  // namespace planc::cpu
