// Cross entropy and its gradient, a row of logits at a time. Rows are cut into fixed pieces whose
// losses are added in order. Tested by tests/runtime/kernels_test.cpp.
#include "runtime/cpu/math.h"
#include "runtime/cpu/rows.h"

namespace planc::cpu {
namespace {

constexpr int64_t kBlock = 256;

// What each valid token weighs; nothing in a step without any.
double perToken(double scale, const void* count) {
  int32_t tokens = *static_cast<const int32_t*>(count);
  return tokens > 0 ? scale / tokens : 0;
}

}  // namespace

KernelOr prepareCountValid(const Op& op, Shared&) {
  int64_t n = op.operand(0)->type.elements();
  return makeKernel([n](const RunContext&, Operands in, Results out) {
    const int32_t* targets = static_cast<const int32_t*>(in[0]);
    int32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < n; ++i) count += targets[i] >= 0;
    *static_cast<int32_t*>(out[0]) = count;
  });
}

KernelOr prepareCrossEntropy(const Op& op, Shared& shared) {
  const Type &logits = op.operand(0)->type, &targets = op.operand(1)->type;
  const Type &loss = op.result(0)->type, &lse = op.result(1)->type;
  Rows rows(logits, op.attrs.word("over"), {&logits, &targets, &lse}, shared);
  double scale = op.attrs.number("scale", 1);
  int64_t step = rowsPerTask(rows.size());
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    std::vector<double> parts(size_t((rows.count() + step - 1) / step));
    Elem elem = loss.elem;
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) mutable {
      rows.eachPiece<T>(shared.pool, step, [&](int64_t piece, auto&& visitRows) {
        double sum = 0;
        visitRows([&](const Rows::Row<T>& row) {
          int64_t n = rows.size();
          const T* x = row.load(0, in[0]);
          T most = maxRow(x, n), total = 0, block[kBlock];
          for (int64_t i = 0; i < n; i += kBlock) {
            total += expRow(x + i, most, std::min(kBlock, n - i), block);
          }
          T lse = most + std::log(total);
          row.setOne(2, lse, out[1]);
          int32_t target = static_cast<const int32_t*>(in[1])[row.offsets[1]];
          if (target >= 0 && target < n) sum += double(lse - x[target]);
        });
        parts[size_t(piece)] = sum;
      });
      double sum = 0;
      for (double part : parts) sum += part;
      storeOne<double>(sum * perToken(scale, in[2]), out[0], elem);
    });
  });
}

KernelOr prepareCrossEntropyGrad(const Op& op, Shared& shared) {
  const Type &logits = op.operand(0)->type, &targets = op.operand(1)->type;
  const Type &lse = op.operand(3)->type, &dlogits = op.result()->type;
  Rows rows(dlogits, op.attrs.word("over"), {&logits, &targets, &lse, &dlogits}, shared);
  double scale = op.attrs.number("scale", 1);
  Elem dlossElem = op.operand(4)->type.elem;
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      T weight = T(perToken(scale, in[2]) * loadOne<double>(in[4], dlossElem));
      rows.each<T>(shared.pool, [&](const Rows::Row<T>& row) {
        int64_t n = rows.size();
        T* dx = row.target(3, out[0]);
        int32_t target = static_cast<const int32_t*>(in[1])[row.offsets[1]];
        if (target < 0) {
          std::fill_n(dx, n, T(0));
        } else {
          const T* x = row.load(0, in[0]);
          T lse = row.one(2, in[3]);
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) dx[i] = fastExp(x[i] - lse) * weight;
          if (target < n) dx[target] -= weight;
        }
        row.store(3, dx, out[0]);
      });
    });
  });
}

}  // namespace planc::cpu
