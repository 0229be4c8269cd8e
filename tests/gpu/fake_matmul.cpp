// Products by plain loops. Tested by tests/gpu/fake_test.cpp.
#include <algorithm>
#include <vector>

#include "llvm/ADT/StringExtras.h"
#include "runtime/bf16.h"
#include "tests/gpu/fake_driver.h"

namespace planc::cuda::fake {
namespace {

template <class T>
T loadAs(const void* from, Elem elem, int64_t at) {
  if (elem == Elem::BF16) return T(toFloat(static_cast<const Bf16*>(from)[at]));
  if (elem == Elem::F32) return T(static_cast<const float*>(from)[at]);
  return T(static_cast<const double*>(from)[at]);
}

template <class T>
void storeAs(void* to, Elem elem, int64_t at, T x) {
  if (elem == Elem::BF16) {
    static_cast<Bf16*>(to)[at] = toBf16(float(x));
  } else if (elem == Elem::F32) {
    static_cast<float*>(to)[at] = float(x);
  } else {
    static_cast<double*>(to)[at] = double(x);
  }
}

// op(X) with its columns packed, `rows` by `columns`.
template <class T>
std::vector<T> pack(const void* from, Elem elem, int64_t first, bool isTransposed, int64_t rows,
                    int64_t columns, int64_t ld) {
  std::vector<T> packed(size_t(rows * columns));
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r)
      packed[size_t(c * rows + r)] =
          loadAs<T>(from, elem, first + (isTransposed ? r * ld + c : c * ld + r));
  return packed;
}

template <class T>
void run(const MatmulShape& s, const void* a, const void* b, void* d, T beta) {
  std::vector<T> sums(static_cast<size_t>(s.m));
  for (int64_t i = 0; i < s.batch; ++i) {
    std::vector<T> left = pack<T>(a, s.a, i * s.strideA, s.transA, s.m, s.k, s.lda);
    std::vector<T> right = pack<T>(b, s.b, i * s.strideB, s.transB, s.k, s.n, s.ldb);
    for (int64_t n = 0; n < s.n; ++n) {
      std::fill(sums.begin(), sums.end(), T(0));
      for (int64_t k = 0; k < s.k; ++k) {
        T y = right[size_t(n * s.k + k)];
        const T* x = &left[size_t(k * s.m)];
        for (int64_t m = 0; m < s.m; ++m) sums[size_t(m)] += x[m] * y;
      }
      for (int64_t m = 0; m < s.m; ++m) {
        int64_t at = i * s.strideD + n * s.ldd + m;
        // Without beta, D is not read: it may be NaN.
        T sum = sums[size_t(m)];
        if (beta != T(0)) sum += beta * loadAs<T>(d, s.d, at);
        storeAs<T>(d, s.d, at, sum);
      }
    }
  }
}

}  // namespace

std::string checkMatmul(const MatmulShape& s) {
  bool isKind = s.a == s.b && s.a != Elem::I32 &&
                (s.d == s.a || (s.a == Elem::BF16 && s.d == Elem::F32));
  if (!isKind)
    return (name(s.a) + " by " + name(s.b) + " to " + name(s.d) + " is no kind of product").str();
  if (s.m < 1 || s.n < 1 || s.k < 1 || s.batch < 1 || std::max({s.m, s.n, s.k}) > INT32_MAX)
    return "a size below 1, or above 2^31 - 1";
  if (s.lda < (s.transA ? s.k : s.m)) return "columns of a overlap (lda)";
  if (s.ldb < (s.transB ? s.n : s.k)) return "columns of b overlap (ldb)";
  if (s.ldd < s.m) return "columns of d overlap (ldd)";
  if (s.batch > 1 && s.strideD < (s.n - 1) * s.ldd + s.m && s.ldd < (s.batch - 1) * s.strideD + s.m)
    return "the d of one product overlaps that of the next";
  if (s.strideA < 0 || s.strideB < 0 || s.strideD < 0) return "a negative stride";
  return "";
}

MatmulExtents extentsOf(const MatmulShape& s) {
  auto extent = [&](bool isTransposed, int64_t rows, int64_t columns, int64_t ld, int64_t stride) {
    if (isTransposed) std::swap(rows, columns);
    return (s.batch - 1) * stride + (columns - 1) * ld + rows;
  };
  return {extent(s.transA, s.m, s.k, s.lda, s.strideA),
          extent(s.transB, s.k, s.n, s.ldb, s.strideB), extent(false, s.m, s.n, s.ldd, s.strideD)};
}

void runMatmul(const MatmulShape& s, const void* a, const void* b, void* d, double beta) {
  if (s.a == Elem::F64) return run<double>(s, a, b, d, beta);
  run<float>(s, a, b, d, float(beta));
}

}  // namespace planc::cuda::fake
