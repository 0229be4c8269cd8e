// Softmax and norms over one dim, and their gradients: a row at a time, which stays in cache
// between its sums and its result. Tested by tests/runtime/kernels_test.cpp.
#include "runtime/cpu/math.h"
#include "runtime/cpu/rows.h"

namespace planc::cpu {

KernelOr prepareSoftmax(const Op& op, Shared& shared) {
  const Type &x = op.operand(0)->type, &y = op.result()->type;
  Rows rows(y, op.attrs.word("over"), {&x, &y}, shared);
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([rows, &shared](const RunContext&, Operands in, Results out) {
      rows.each<T>(shared.pool, [&](const Rows::Row<T>& row) {
        int64_t n = rows.size();
        const T* x = row.load(0, in[0]);
        T* y = row.target(1, out[0]);
        T scale = T(1) / expRow(x, maxRow(x, n), n, y);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] *= scale;
        row.store(1, y, out[0]);
      });
    });
  });
}

KernelOr prepareSoftmaxGrad(const Op& op, Shared& shared) {
  const Type &y = op.operand(0)->type, &dy = op.operand(1)->type, &dx = op.result()->type;
  Rows rows(dx, op.attrs.word("over"), {&y, &dy, &dx}, shared);
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([rows, &shared](const RunContext&, Operands in, Results out) {
      rows.each<T>(shared.pool, [&](const Rows::Row<T>& row) {
        int64_t n = rows.size();
        const T *y = row.load(0, in[0]), *dy = row.load(1, in[1]);
        T* dx = row.target(2, out[0]);
        T dot = dotRow(y, dy, n);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - dot);
        row.store(2, dx, out[0]);
      });
    });
  });
}

KernelOr prepareNorm(const Op& op, Shared& shared) {
  const Type &x = op.operand(0)->type, &y = op.result(0)->type, &rstd = op.result(1)->type;
  Rows rows(x, op.attrs.word("over"), {&x, &y, &rstd}, shared);
  double eps = op.attrs.number("eps", 1e-5);
  bool center = op.isFlag("center");
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      rows.each<T>(shared.pool, [&](const Rows::Row<T>& row) {
        int64_t n = rows.size();
        const T* x = row.load(0, in[0]);
        T* y = row.target(1, out[0]);
        T mean = center ? sumRow(x, n) / T(n) : T(0);
        T squares = sumOf<T>(n, [=](int64_t i, auto kind) {
          auto difference = at<decltype(kind)>(x, i) - mean;
          return difference * difference;
        });
        T scale = T(1) / std::sqrt(squares / T(n) + T(eps));
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale;
        row.store(1, y, out[0]);
        row.setOne(2, scale, out[1]);
      });
    });
  });
}

KernelOr prepareNormGrad(const Op& op, Shared& shared) {
  const Type &dy = op.operand(0)->type, &y = op.operand(1)->type, &rstd = op.operand(2)->type;
  const Type& dx = op.result()->type;
  Rows rows(dx, op.attrs.word("over"), {&dy, &y, &rstd, &dx}, shared);
  bool center = op.isFlag("center");
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      rows.each<T>(shared.pool, [&](const Rows::Row<T>& row) {
        int64_t n = rows.size();
        const T *dy = row.load(0, in[0]), *y = row.load(1, in[1]);
        T* dx = row.target(3, out[0]);
        T scale = row.one(2, in[2]), meanDot = dotRow(y, dy, n) / T(n);
        T mean = center ? sumRow(dy, n) / T(n) : T(0);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) dx[i] = scale * (dy[i] - y[i] * meanDot - mean);
        row.store(3, dx, out[0]);
      });
    });
  });
}

}  // namespace planc::cpu
