// The optimizer's kernels: one sweep over a weight, its gradient and its moments; the sum of
// squares for clipping (partial sums in double, in fixed pieces); the learning rate. Tested by
// tests/runtime/kernels_test.cpp.
#include <cmath>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/math.h"

namespace planc::cpu {
namespace {

// Elements handled at a time: what is not the compute type is copied, and stays in cache.
constexpr int64_t kBlock = 512;

// Runs work(n, rows) over blocks of tensors of one shape: rows[i] is tensor i as T. The last
// `results` tensors are results, whose rows start as the operands of the same number have them.
template <class T, size_t kOperands, size_t kResults, class F>
void sweep(Pool& pool, int64_t size, const Elem (&elems)[kOperands], Operands in, Results out,
           const int (&resultOf)[kResults], F&& work) {
  pool.parallelPieces(size, 4 * kTaskElements, [&](int64_t begin, int64_t end, int thread) {
    T* scratch = reinterpret_cast<T*>(pool.scratch(thread));
    for (int64_t at = begin; at < end; at += kBlock) {
      int64_t n = std::min(kBlock, end - at);
      const T* from[kOperands];
      for (size_t i = 0; i < kOperands; ++i) {
        from[i] = loadRow(in[i], elems[i], at, 1, n, scratch + int64_t(i) * kBlock);
      }
      T* to[kResults];
      for (size_t r = 0; r < kResults; ++r) {
        T* spare = scratch + int64_t(kOperands + r) * kBlock;
        to[r] = rowTarget(out[r], elems[resultOf[r]], at, 1, spare);
      }
      work(n, from, to);
      for (size_t r = 0; r < kResults; ++r) {
        storeRow(to[r], out[r], elems[resultOf[r]], at, 1, n);
      }
    }
  });
}

llvm::Error checkSameDims(const Op& op, unsigned operands) {
  for (unsigned i = 1; i < operands; ++i) {
    if (op.operand(i)->type.dims != op.operand(0)->type.dims) {
      return unsupported(op, "operands with other dims than the weight's");
    }
  }
  return llvm::Error::success();
}

}  // namespace

KernelOr prepareAdamW(const Op& op, Shared& shared) {
  if (llvm::Error error = checkSameDims(op, 4)) return error;
  Elem elem[7];
  for (unsigned i = 0; i < 7; ++i) elem[i] = op.operand(i)->type.elem;
  int64_t size = op.operand(0)->type.elements();
  double beta1 = op.attrs.number("beta1"), beta2 = op.attrs.number("beta2");
  double eps = op.attrs.number("eps"), decay = op.attrs.number("decay");
  shared.pool.reserveScratch(7 * kBlock * int64_t(sizeof(double)));
  return withCompute(op, [=, &shared](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      double lr = loadOne<double>(in[4], elem[4]), step = loadOne<double>(in[6], elem[6]);
      T scale = loadOne<T>(in[5], elem[5]);
      // With c1 = 1 - beta1^step and c2 = 1 - beta2^step:
      //   lr * (m / c1) / (sqrt(v / c2) + eps) = rate * m / (sqrt(v) + eps * sqrt(c2))
      double c1 = 1 - std::pow(beta1, step), c2 = 1 - std::pow(beta2, step);
      T rate = T(lr * std::sqrt(c2) / c1), floor = T(eps * std::sqrt(c2)), keep = T(1 - lr * decay);
      T b1 = T(beta1), b2 = T(beta2), a1 = T(1 - beta1), a2 = T(1 - beta2);
      const Elem elems[4] = {elem[0], elem[1], elem[2], elem[3]};
      sweep<T>(shared.pool, size, elems, in, out, {0, 2, 3},
               [&](int64_t n, const T*(&from)[4], T*(&to)[3]) {
                 const T *w = from[0], *g = from[1], *m = from[2], *v = from[3];
                 T *newW = to[0], *newM = to[1], *newV = to[2];
#pragma omp simd
                 for (int64_t i = 0; i < n; ++i) {
                   T gradient = g[i] * scale;
                   T mean = b1 * m[i] + a1 * gradient;
                   T variance = b2 * v[i] + a2 * gradient * gradient;
                   newM[i] = mean;
                   newV[i] = variance;
                   newW[i] = w[i] * keep - rate * mean / (std::sqrt(variance) + floor);
                 }
               });
    });
  });
}

KernelOr prepareSgd(const Op& op, Shared& shared) {
  if (llvm::Error error = checkSameDims(op, 3)) return error;
  Elem elem[5];
  for (unsigned i = 0; i < 5; ++i) elem[i] = op.operand(i)->type.elem;
  int64_t size = op.operand(0)->type.elements();
  double momentum = op.attrs.number("momentum"), decay = op.attrs.number("decay");
  shared.pool.reserveScratch(5 * kBlock * int64_t(sizeof(double)));
  return withCompute(op, [=, &shared](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      T lr = loadOne<T>(in[3], elem[3]), scale = loadOne<T>(in[4], elem[4]);
      T keep = T(momentum), pull = T(decay);
      const Elem elems[3] = {elem[0], elem[1], elem[2]};
      sweep<T>(shared.pool, size, elems, in, out, {0, 2},
               [&](int64_t n, const T*(&from)[3], T*(&to)[2]) {
                 const T *w = from[0], *g = from[1], *m = from[2];
                 T *newW = to[0], *newM = to[1];
#pragma omp simd
                 for (int64_t i = 0; i < n; ++i) {
                   T momentumOf = keep * m[i] + g[i] * scale + pull * w[i];
                   newM[i] = momentumOf;
                   newW[i] = w[i] - lr * momentumOf;
                 }
               });
    });
  });
}

KernelOr prepareSumSquares(const Op& op, Shared& shared) {
  const Type& type = op.operand(0)->type;
  int64_t size = type.elements();
  Elem from = type.elem, to = op.result()->type.elem;
  constexpr int64_t kPiece = 4 * kTaskElements;
  std::vector<double> parts(size_t((size + kPiece - 1) / kPiece));
  shared.pool.reserveScratch(kBlock * int64_t(sizeof(double)));
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) mutable {
      shared.pool.parallelPieces(size, kPiece, [&](int64_t begin, int64_t end, int thread) {
        double sum = 0;
        for (int64_t at = begin; at < end; at += kBlock) {
          int64_t n = std::min(kBlock, end - at);
          const T* x =
              loadRow(in[0], from, at, 1, n, reinterpret_cast<T*>(shared.pool.scratch(thread)));
          sum += double(dotRow(x, x, n));
        }
        parts[size_t(begin / kPiece)] = sum;
      });
      double sum = 0;
      for (double part : parts) sum += part;
      storeOne<double>(sum, out[0], to);
    });
  });
}

KernelOr prepareLearningRate(const Op& op, Shared&) {
  double lr = op.attrs.number("lr"), floor = op.attrs.number("floor");
  double warmup = op.attrs.number("warmup"), cosine = op.attrs.number("cosine");
  Elem from = op.operand(0)->type.elem, to = op.result()->type.elem;
  return makeKernel([=](const RunContext&, Operands in, Results out) {
    double step = loadOne<double>(in[0], from), rate = lr;
    if (step < warmup) {
      rate = lr * step / warmup;
    } else if (cosine > 0) {
      double progress = step >= cosine ? 1 : (step - warmup) / (cosine - warmup);
      rate = lr * (floor + (1 - floor) * 0.5 * (1 + std::cos(3.14159265358979323846 * progress)));
    }
    storeOne<double>(rate, out[0], to);
  });
}

}  // namespace planc::cpu
