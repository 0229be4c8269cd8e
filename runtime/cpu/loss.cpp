// Cross entropy and its gradient, a row of logits at a time; or in parts, where a rank holds a piece
// of each row: the part's log-sum-exp and the target's logit, then the loss from all parts. Rows are
// cut into fixed pieces whose losses are added in order. Tested by tests/runtime/kernels_test.cpp and
// split_kernels_test.cpp there.
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

namespace {

// log(sum(exp(x))) of n elements, any of which may be -inf; of none it is that, too.
template <class T>
T logSumExp(const T* x, int64_t n) {
  T most = maxRow(x, n), total = 0, block[kBlock];
  T shift = most > -std::numeric_limits<T>::infinity() ? most : T(0);
  for (int64_t i = 0; i < n; i += kBlock) {
    total += expRow(x + i, shift, std::min(kBlock, n - i), block);
  }
  return shift + std::log(total);
}

}  // namespace

KernelOr prepareCrossEntropyPart(const Op& op, Shared& shared) {
  const Type &logits = op.operand(0)->type, &targets = op.operand(1)->type;
  const Type &lse = op.result(0)->type, &picked = op.result(1)->type;
  Rows rows(logits, op.attrs.word("over"), {&logits, &targets, &lse, &picked}, shared);
  const Dim& over = logits.dims[size_t(logits.find(op.attrs.word("over")))];
  int64_t first = shared.rank.offset(over), valid = shared.rank.valid(over);
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      rows.each<T>(shared.pool, [&](const Rows::Row<T>& row) {
        const T* x = row.load(0, in[0]);
        row.setOne(2, logSumExp(x, valid), out[0]);
        int64_t target = static_cast<const int32_t*>(in[1])[row.offsets[1]];
        bool isHere = target >= first && target < first + valid;
        row.setOne(3, isHere ? x[target - first] : T(0), out[1]);
      });
    });
  });
}

KernelOr prepareLogSumExp(const Op& op, Shared& shared) {
  const Type &x = op.operand(0)->type, &lse = op.result()->type;
  Rows rows(x, op.attrs.word("over"), {&x, &lse}, shared);
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      rows.each<T>(shared.pool, [&](const Rows::Row<T>& row) {
        row.setOne(1, logSumExp(row.load(0, in[0]), rows.size()), out[0]);
      });
    });
  });
}

KernelOr prepareCrossEntropyTotal(const Op& op, Shared& shared) {
  const Type &targets = op.operand(0)->type, &lse = op.operand(1)->type;
  const Type& picked = op.operand(2)->type;
  Space tokens(memoryDims(targets), {&targets, &lse, &picked});
  std::vector<double> parts(size_t((tokens.count() + kTaskElements - 1) / kTaskElements));
  Elem lseElem = lse.elem, pickedElem = picked.elem, lossElem = op.result()->type.elem;
  double scale = op.attrs.number("scale", 1);
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) mutable {
    shared.pool.parallelPieces(tokens.count(), kTaskElements, [&](int64_t begin, int64_t end, int) {
      double sum = 0;
      tokens.each(begin, end, [&](int64_t, const int64_t* at) {
        if (static_cast<const int32_t*>(in[0])[at[0]] < 0) return;
        sum += loadOne<double>(in[1], lseElem, at[1]) - loadOne<double>(in[2], pickedElem, at[2]);
      });
      parts[size_t(begin / kTaskElements)] = sum;
    });
    double sum = 0;
    for (double part : parts) sum += part;
    storeOne<double>(sum * perToken(scale, in[3]), out[0], lossElem);
  });
}

KernelOr prepareCrossEntropyGrad(const Op& op, Shared& shared) {
  const Type &logits = op.operand(0)->type, &targets = op.operand(1)->type;
  const Type &lse = op.operand(3)->type, &dlogits = op.result()->type;
  Rows rows(dlogits, op.attrs.word("over"), {&logits, &targets, &lse, &dlogits}, shared);
  double scale = op.attrs.number("scale", 1);
  Elem dlossElem = op.operand(4)->type.elem;
  const Dim& over = dlogits.dims[size_t(dlogits.find(op.attrs.word("over")))];
  int64_t first = shared.rank.offset(over), valid = shared.rank.valid(over);
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      T weight = T(perToken(scale, in[2]) * loadOne<double>(in[4], dlossElem));
      rows.each<T>(shared.pool, [&](const Rows::Row<T>& row) {
        int64_t n = rows.size();
        T* dx = row.target(3, out[0]);
        int64_t target = static_cast<const int32_t*>(in[1])[row.offsets[1]];
        if (target < 0) {
          std::fill_n(dx, n, T(0));
        } else {
          const T* x = row.load(0, in[0]);
          T lse = row.one(2, in[3]);
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) dx[i] = fastExp(x[i] - lse) * weight;
          if (target >= first && target < first + valid) dx[target - first] -= weight;
          std::fill(dx + valid, dx + n, T(0));
        }
        row.store(3, dx, out[0]);
      });
    });
  });
}

}  // namespace planc::cpu
