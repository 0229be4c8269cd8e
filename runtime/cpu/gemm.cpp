// Matrix products: oneDNN's sgemm for float, a plain blocked loop for double (which only serves
// `planrun verify`). Tested by tests/runtime/kernels_test.cpp.
#include "runtime/cpu/gemm.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>

#include "llvm/Support/ErrorHandling.h"

namespace planc::cpu {
namespace {

bool isRowMajor(int64_t m, int64_t n, int64_t rows, int64_t columns) {
  return (n == 1 || columns == 1) && (m == 1 || rows >= n);
}

// How sgemm reads a matrix: 'N' by rows or 'T' by columns, with the distance between them.
template <class T>
std::pair<char, int64_t> order(int64_t m, int64_t n, const Matrix<T>& x) {
  if (isRowMajor(m, n, x.rows, x.columns)) return {'N', m == 1 ? n : x.rows};
  return {'T', n == 1 ? m : x.columns};
}

}  // namespace

bool isMatrix(int64_t m, int64_t n, int64_t rows, int64_t columns) {
  return isRowMajor(m, n, rows, columns) || isRowMajor(n, m, columns, rows);
}

void gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix<float> a, Matrix<float> b,
          float beta, float* c, int64_t cRows) {
  // The pool's threads each run their own product: oneDNN must not start threads in them.
  thread_local bool alone = (omp_set_num_threads(1), true);
  (void)alone;
  auto [orderA, stepA] = order(m, k, a);
  auto [orderB, stepB] = order(k, n, b);
  dnnl_status_t status = dnnl_sgemm(orderA, orderB, m, n, k, alpha, a.data, stepA, b.data, stepB,
                                    beta, c, std::max(cRows, n));
  if (status != dnnl_success) llvm::report_fatal_error("planc: dnnl_sgemm refused its arguments");
}

void gemm(int64_t m, int64_t n, int64_t k, double alpha, Matrix<double> a, Matrix<double> b,
          double beta, double* c, int64_t cRows) {
  constexpr int64_t kStep = 64;
  for (int64_t i = 0; i < m; ++i) {
    double* row = c + i * cRows;
    for (int64_t j = 0; j < n; ++j) row[j] = beta == 0 ? 0 : beta * row[j];
  }
  for (int64_t kBegin = 0; kBegin < k; kBegin += kStep) {
    int64_t kEnd = std::min(k, kBegin + kStep);
    for (int64_t i = 0; i < m; ++i) {
      double* row = c + i * cRows;
      if (b.columns == 1) {
        for (int64_t p = kBegin; p < kEnd; ++p) {
          double x = alpha * a.data[i * a.rows + p * a.columns];
          const double* y = b.data + p * b.rows;
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) row[j] += x * y[j];
        }
      } else {
        for (int64_t j = 0; j < n; ++j) {
          const double *x = a.data + i * a.rows, *y = b.data + j * b.columns;
          double sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t p = kBegin; p < kEnd; ++p) sum += x[p * a.columns] * y[p * b.rows];
          row[j] += alpha * sum;
        }
      }
    }
  }
}

}  // namespace planc::cpu
