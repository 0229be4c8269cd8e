// Element types as C++ types, and the way from one to another.
#pragma once

#include <cstdint>

#include "ir/type.h"
#include "runtime/bf16.h"

namespace planc::cpu {

// Any element type to any: through float where bf16 takes part.
template <class To, class From>
inline To convert(From x) {
  if constexpr (std::is_same_v<From, To>) {
    return x;
  } else if constexpr (std::is_same_v<From, Bf16>) {
    return To(toFloat(x));
  } else if constexpr (std::is_same_v<To, Bf16>) {
    return toBf16(float(x));
  } else {
    return To(x);
  }
}

template <class To, class From>
inline void convertRow(const From* from, int64_t stride, int64_t n, To* to) {
  if (stride == 1) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = convert<To>(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = convert<To>(from[i * stride]);
  }
}

// Calls f with a null pointer of the element's C++ type.
template <class F>
decltype(auto) withElem(Elem elem, F&& f) {
  switch (elem) {
    case Elem::F32:
      return f(static_cast<float*>(nullptr));
    case Elem::BF16:
      return f(static_cast<Bf16*>(nullptr));
    case Elem::F64:
      return f(static_cast<double*>(nullptr));
    case Elem::I32:
      break;
  }
  return f(static_cast<int32_t*>(nullptr));
}

// A row of `n` elements, `stride` apart, as T: in place where it already is that, else in
// `scratch`.
template <class T>
const T* loadRow(const void* base, Elem elem, int64_t offset, int64_t stride, int64_t n,
                 T* scratch) {
  return withElem(elem, [&](auto* type) -> const T* {
    using S = std::remove_pointer_t<decltype(type)>;
    const S* from = static_cast<const S*>(base) + offset;
    if constexpr (std::is_same_v<S, T>) {
      if (stride == 1) return from;
    }
    convertRow(from, stride, n, scratch);
    return scratch;
  });
}

// Where a row that `storeRow` will store is best computed: in place, or in `scratch`.
template <class T>
T* rowTarget(void* base, Elem elem, int64_t offset, int64_t stride, T* scratch) {
  constexpr Elem own = std::is_same_v<T, double> ? Elem::F64 : Elem::F32;
  return elem == own && stride == 1 ? static_cast<T*>(base) + offset : scratch;
}

// Stores a row computed at its rowTarget.
template <class T>
void storeRow(const T* row, void* base, Elem elem, int64_t offset, int64_t stride, int64_t n) {
  withElem(elem, [&](auto* type) {
    using S = std::remove_pointer_t<decltype(type)>;
    S* to = static_cast<S*>(base) + offset;
    if (static_cast<const void*>(row) == to) return;
    if (stride == 1) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = convert<S>(row[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) to[i * stride] = convert<S>(row[i]);
    }
  });
}

// One element as T.
template <class T>
T loadOne(const void* base, Elem elem, int64_t offset = 0) {
  return withElem(elem, [&](auto* type) {
    using S = std::remove_pointer_t<decltype(type)>;
    return convert<T>(static_cast<const S*>(base)[offset]);
  });
}
template <class T>
void storeOne(T value, void* base, Elem elem, int64_t offset = 0) {
  storeRow(&value, base, elem, offset, 1, 1);
}

}  // namespace planc::cpu
