// Reductions by blocks that stay in the first-level cache: a block is accumulated over all inputs,
// then written to all outputs. Tested by tests/runtime/comm_test.cpp.
#include "runtime/comm/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "runtime/bf16.h"

namespace planc::comm {
namespace {

constexpr int64_t kBlock = 1024;  // elements

template <class T>
T load(T x) {
  return x;
}
float load(Bf16 x) { return toFloat(x); }

struct Sum {
  template <class T>
  static T combine(T a, T b) {
    if constexpr (std::is_same_v<T, int32_t>) return int32_t(uint32_t(a) + uint32_t(b));
    else return a + b;
  }
};
struct Max {
  template <class T>
  static T combine(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

// T: in memory, A: what sums are made in.
template <class T, class A, class Op>
void reduceBlocks(llvm::ArrayRef<const void*> inputs, llvm::ArrayRef<void*> outputs, int64_t begin,
                  int64_t end) {
  A sums[kBlock];
  T rounded[kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    int64_t n = std::min(kBlock, end - at);
    auto in = [&](size_t k) { return static_cast<const T*>(inputs[k]) + at; };
    const T* first = in(0);
    if (inputs.size() == 1) {
      for (int64_t i = 0; i < n; ++i) sums[i] = load(first[i]);
    } else {
      const T* second = in(1);
      for (int64_t i = 0; i < n; ++i) sums[i] = Op::combine(load(first[i]), load(second[i]));
    }
    for (size_t k = 2; k < inputs.size(); ++k) {
      const T* next = in(k);
      for (int64_t i = 0; i < n; ++i) sums[i] = Op::combine(sums[i], load(next[i]));
    }
    const void* block = sums;
    if constexpr (!std::is_same_v<T, A>) {
      for (int64_t i = 0; i < n; ++i) rounded[i] = toBf16(sums[i]);
      block = rounded;
    }
    for (void* output : outputs) std::memcpy(static_cast<T*>(output) + at, block, n * sizeof(T));
  }
}

template <class T, class A = T>
void reduceAs(Reduction reduction, llvm::ArrayRef<const void*> inputs,
              llvm::ArrayRef<void*> outputs, int64_t begin, int64_t end) {
  if (reduction == Reduction::Sum) reduceBlocks<T, A, Sum>(inputs, outputs, begin, end);
  else reduceBlocks<T, A, Max>(inputs, outputs, begin, end);
}

}  // namespace

void reduce(Elem elem, Reduction reduction, llvm::ArrayRef<const void*> inputs,
            llvm::ArrayRef<void*> outputs, int64_t begin, int64_t end) {
  switch (elem) {
    case Elem::F32:
      return reduceAs<float>(reduction, inputs, outputs, begin, end);
    case Elem::BF16:
      return reduceAs<Bf16, float>(reduction, inputs, outputs, begin, end);
    case Elem::F64:
      return reduceAs<double>(reduction, inputs, outputs, begin, end);
    case Elem::I32:
      return reduceAs<int32_t>(reduction, inputs, outputs, begin, end);
  }
}

}  // namespace planc::comm
