// The steps of elementwise programs: what each op kind computes from one or two elements, and the
// loops over blocks made of it.
#pragma once

#include "ir/op.h"
#include "llvm/Support/ErrorHandling.h"
#include "runtime/cpu/math.h"

namespace planc::cpu {

template <class T, OpKind kind>
inline T evaluate(T a, [[maybe_unused]] T b) {
  constexpr T kRoot2OverPi = T(0.7978845608028654), kCubic = T(0.044715);
  constexpr T kDensity = T(0.3989422804014327);  // 1 / sqrt(2 pi)
  if constexpr (kind == OpKind::Add) return a + b;
  if constexpr (kind == OpKind::Sub) return a - b;
  if constexpr (kind == OpKind::Mul) return a * b;
  if constexpr (kind == OpKind::Div) return a / b;
  if constexpr (kind == OpKind::Max) return a > b ? a : b;
  if constexpr (kind == OpKind::Min) return a < b ? a : b;
  if constexpr (kind == OpKind::Ge) return a >= b ? T(1) : T(0);
  if constexpr (kind == OpKind::Neg) return -a;
  if constexpr (kind == OpKind::Exp) return fastExp(a);
  if constexpr (kind == OpKind::Log) return fastLog(a);
  if constexpr (kind == OpKind::Sqrt) return std::sqrt(a);
  if constexpr (kind == OpKind::Rsqrt) return T(1) / std::sqrt(a);
  if constexpr (kind == OpKind::Square) return a * a;
  if constexpr (kind == OpKind::Tanh) return fastTanh(a);
  if constexpr (kind == OpKind::Sigmoid) return fastSigmoid(a);
  if constexpr (kind == OpKind::Relu) return a > T(0) ? a : T(0);
  if constexpr (kind == OpKind::Silu) return a * fastSigmoid(a);
  if constexpr (kind == OpKind::Gelu) return a * normalCdf(a, fastExp(T(-0.5) * a * a));
  if constexpr (kind == OpKind::GeluTanh) {
    return T(0.5) * a * (T(1) + fastTanh(kRoot2OverPi * (a + kCubic * a * a * a)));
  }
  if constexpr (kind == OpKind::ReluGrad) return a > T(0) ? b : T(0);
  if constexpr (kind == OpKind::SiluGrad) {
    T s = fastSigmoid(a);
    return b * s * (T(1) + a * (T(1) - s));
  }
  if constexpr (kind == OpKind::GeluGrad) {
    T e = fastExp(T(-0.5) * a * a);
    return b * (normalCdf(a, e) + a * kDensity * e);
  }
  if constexpr (kind == OpKind::GeluTanhGrad) {
    T t = fastTanh(kRoot2OverPi * (a + kCubic * a * a * a));
    T slope = kRoot2OverPi * (T(1) + T(3) * kCubic * a * a);
    return b * T(0.5) * ((T(1) + t) + a * (T(1) - t * t) * slope);
  }
  return a;
}

// out[i] = op(a[i], b[i]); `out` may be a or b. A unary step ignores b.
template <class T>
using BlockLoop = void (*)(int64_t n, const T* a, const T* b, T* out);

template <class T, OpKind kind>
void blockLoop(int64_t n, const T* a, const T* b, T* out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = evaluate<T, kind>(a[i], b[i]);
}

template <class T>
BlockLoop<T> blockLoopOf(OpKind kind) {
  switch (kind) {
#define STEP(Kind)   \
  case OpKind::Kind: \
    return blockLoop<T, OpKind::Kind>;
    STEP(Add)
    STEP(Sub)
    STEP(Mul) STEP(Div) STEP(Max) STEP(Min) STEP(Ge) STEP(Neg) STEP(Exp) STEP(Log) STEP(Sqrt)
        STEP(Rsqrt) STEP(Square) STEP(Tanh) STEP(Sigmoid) STEP(Relu) STEP(Silu) STEP(Gelu)
            STEP(GeluTanh) STEP(ReluGrad) STEP(SiluGrad) STEP(GeluGrad) STEP(GeluTanhGrad)
                STEP(Cast)
#undef STEP
                    default : llvm_unreachable("not an elementwise op");
  }
}

}  // namespace planc::cpu
