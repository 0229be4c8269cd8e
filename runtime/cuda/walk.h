// A Space (runtime/layout.h) as kernels walk it, and what decides whether that goes in vectors.
// Nothing of LLVM, as nvcc reads it.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace planc::cuda {

// Elements that a thread moves at once where all lies in a row: 16 bytes of bf16.
inline constexpr int kVector = 8;

template <int N>
struct Walk {
  static constexpr int kLoops = 8;
  int loops = 1;
  int64_t size[kLoops] = {1};  // outermost first
  int64_t stride[kLoops][N] = {};

  // False when the space has too many loops.
  template <class Space>
  bool set(const Space& space) {
    if (space.loops().size() > kLoops) return false;
    loops = 0;
    for (const auto& loop : space.loops()) {
      size[loops] = loop.size;
      for (int t = 0; t < N; ++t) stride[loops][t] = loop.strides[unsigned(t)];
      ++loops;
    }
    return true;
  }

  int64_t count() const {
    int64_t all = 1;
    for (int k = 0; k < loops; ++k) all *= size[k];
    return all;
  }
  // Whether vectors of the innermost loop are vectors of these tensors.
  bool isVector(std::initializer_list<int> tensors) const {
    if (size[loops - 1] % kVector != 0) return false;
    for (int t : tensors)
      if (stride[loops - 1][t] != 1 || !isWhole(t, loops - 1)) return false;
    return true;
  }
  // Whether all of a tensor's offsets are multiples of a vector.
  bool isWhole(int tensor) const { return isWhole(tensor, loops); }

 private:
  bool isWhole(int tensor, int outer) const {
    for (int k = 0; k < outer; ++k)
      if (stride[k][tensor] % kVector != 0) return false;
    return true;
  }
};

inline bool isAligned(std::initializer_list<const void*> tensors) {
  for (const void* at : tensors)
    if (reinterpret_cast<uintptr_t>(at) % 16 != 0) return false;
  return true;
}

}  // namespace planc::cuda
