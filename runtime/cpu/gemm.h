// Matrix products by strides, on the calling thread.
#pragma once

#include <cstdint>

namespace planc::cpu {

// An operand of a product: element (r, c) is data[r * rows + c * columns].
template <class T>
struct Matrix {
  const T* data;
  int64_t rows, columns;
};

// Whether `gemm` takes an m x n matrix of these strides: one of them is 1, the other not less than
// the extent of that one.
bool isMatrix(int64_t m, int64_t n, int64_t rows, int64_t columns);

// c = alpha * a b + beta * c with a m x k, b k x n and c m x n; c's columns are neighbours and its
// rows `cRows` apart. With beta 0 c is only written. Sizes must be > 0.
void gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix<float> a, Matrix<float> b,
          float beta, float* c, int64_t cRows);
void gemm(int64_t m, int64_t n, int64_t k, double alpha, Matrix<double> a, Matrix<double> b,
          double beta, double* c, int64_t cRows);

}  // namespace planc::cpu
