// Tensor cores, in .cu files: products of bf16 with sums in f32, their fragments from shared
// memory, and copies to shared memory behind a thread's back. The emulated branches follow the
// fragments' layouts of the PTX manual lane by lane, so that a wrong layout is a wrong result on
// the CPU too.
//
// With g = lane / 4 and t = lane % 4, a lane holds of m16n8k16
//   A, rows by k:    a[0] (g, 2t..)  a[1] (g+8, 2t..)  a[2] (g, 2t+8..)  a[3] (g+8, 2t+8..)
//   B, k by columns: b[0] (2t.., g)  b[1] (2t+8.., g)
//   C:               c[0..1] (g, 2t..)  c[2..3] (g+8, 2t..)
// where `..` are two neighbours, the first in the lower half of a word.
#pragma once

#include "runtime/cuda/device_code.h"

#ifndef __CUDACC__
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>
#endif

namespace planc::cuda {

#ifdef __CUDACC__

// c += A B.
PLANC_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 by 8 matrices: matrix i has its rows, 16 bytes each, where lanes 8i to 8i + 7 say. Lane l
// gets (l / 4, 2 (l % 4)..) of matrix i in into[i]; transposed: (2 (l % 4).., l / 4).
PLANC_DEVICE void loadMatrices(uint32_t (&into)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
               : "r"(uint32_t(__cvta_generic_to_shared(row)))
               : "memory");
}
PLANC_DEVICE void loadTransposed(uint32_t (&into)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
               : "r"(uint32_t(__cvta_generic_to_shared(row)))
               : "memory");
}

// Two numbers as bf16, the first in the lower half.
PLANC_DEVICE uint32_t packBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// 2 to the x, to some 22 bits; 0 for what is below the least normal number.
PLANC_DEVICE float fastExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A thread's copies from global to shared memory, which arrive when they are waited for; other
// threads see them behind the next barrier. Both sides are aligned to what one copy takes. What
// does not exist is not read, and becomes zeros.
class AsyncCopies {
 public:
  PLANC_DEVICE void copy16(void* to, const void* from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
  }
  PLANC_DEVICE void copy8(void* to, const void* from, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :
                 : "r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from), "r"(exists ? 8 : 0)
                 : "memory");
  }
  // Those since the last call are a group.
  PLANC_DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  // Until all but the last N groups have arrived.
  template <int N>
  PLANC_DEVICE void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
  }
};

#else

inline float bf16Half(uint32_t word, int half) { return fromBf16(uint16_t(word >> (16 * half))); }

inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Fragments {
    uint32_t a[4], b[2];
  };
  Fragments mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}}, all[kWarp];
  emulator::warpExchange(&mine, sizeof mine, reinterpret_cast<std::byte*>(all));
  int lane = int(threadIdx.x) % kWarp;
  for (int i = 0; i < 4; ++i) {
    int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const Fragments& ofRow = all[row % 8 * 4 + k % 8 / 2];
      const Fragments& ofColumn = all[column * 4 + k % 8 / 2];
      c[i] += bf16Half(ofRow.a[row / 8 + k / 8 * 2], k % 2) * bf16Half(ofColumn.b[k / 8], k % 2);
    }
  }
}

inline void loadMatrices(uint32_t (&into)[4], const uint16_t* row) {
  const uint16_t* rows[kWarp];
  emulator::warpExchange(&row, sizeof row, reinterpret_cast<std::byte*>(rows));
  int lane = int(threadIdx.x) % kWarp;
  for (int i = 0; i < 4; ++i) std::memcpy(&into[i], rows[i * 8 + lane / 4] + lane % 4 * 2, 4);
  __syncwarp();
}

inline void loadTransposed(uint32_t (&into)[4], const uint16_t* row) {
  const uint16_t* rows[kWarp];
  emulator::warpExchange(&row, sizeof row, reinterpret_cast<std::byte*>(rows));
  int lane = int(threadIdx.x) % kWarp;
  for (int i = 0; i < 4; ++i) {
    const uint16_t* const* matrix = rows + i * 8;
    into[i] = matrix[lane % 4 * 2][lane / 4] | uint32_t(matrix[lane % 4 * 2 + 1][lane / 4]) << 16;
  }
  __syncwarp();
}

inline uint32_t packBf16(float low, float high) {
  return toBf16Bits(low) | uint32_t(toBf16Bits(high)) << 16;
}

inline float fastExp2(float x) { return std::exp2(x); }

// Every other piece arrives at once, the rest no earlier than they must: so that a wait that is
// missing shows, and a barrier before memory is used again.
class AsyncCopies {
 public:
  void copy16(void* to, const void* from, bool exists) { copy({to, from, 16, exists}); }
  void copy8(void* to, const void* from, bool exists) { copy({to, from, 8, exists}); }
  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }
  template <int N>
  void wait() {
    while (groups_.size() > size_t(N)) {
      for (const Copy& copy : groups_.front()) finish(copy);
      groups_.erase(groups_.begin());
    }
  }

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    bool exists;
  };
  void copy(const Copy& copy) {
    uint32_t piece = uint32_t(reinterpret_cast<uintptr_t>(copy.to) / copy.bytes);
    bool isEarly = (piece * 2654435761u) >> 31 != 0;
    if (isEarly) finish(copy);
    else open_.push_back(copy);
  }
  static void finish(const Copy& copy) {
    if (copy.exists) std::memcpy(copy.to, copy.from, copy.bytes);
    else std::memset(copy.to, 0, copy.bytes);
  }
  std::vector<Copy> open_;
  std::vector<std::vector<Copy>> groups_;
};

#endif

// A tile of bf16 in shared memory: rows of D, whose chunks of 8 are permuted by row so that the
// same chunk of 8 neighbouring rows lies in different banks.
template <int D>
PLANC_DEVICE int chunkAt(int row, int chunk) {
  return row * D + (chunk ^ (row % 8)) * 8;
}
// The lane's row of a 16 by 16 part from (row, 8 * chunk) on, for four matrices: rows 0 to 7 and 8
// to 15 of its left half, then of its right half. `row` is a multiple of 8 and `chunk` even, so
// that a lane's own share of it is the same wherever the part lies.
template <int D>
PLANC_DEVICE const uint16_t* laneRow(const uint16_t* tile, int row, int chunk) {
  int lane = int(threadIdx.x) % kWarp, own = chunkAt<D>(lane % 16, lane / 16);
  return tile + row * D + chunk / 8 * 64 + (own ^ (chunk % 8 * 8));
}

// A fragment: 16 rows from `row` on, k from 8 * chunk on.
template <int D>
PLANC_DEVICE void loadA(uint32_t (&a)[4], const uint16_t* tile, int row, int chunk) {
  loadMatrices(a, laneRow<D>(tile, row, chunk));
}
// The same of a tile of k by rows: k from `row` on, 16 rows from 8 * chunk on.
template <int D>
PLANC_DEVICE void loadATransposed(uint32_t (&a)[4], const uint16_t* tile, int row, int chunk) {
  uint32_t found[4];
  loadTransposed(found, laneRow<D>(tile, row, chunk));
  a[0] = found[0], a[1] = found[2], a[2] = found[1], a[3] = found[3];
}
// Two B fragments, {b[0], b[1]} and {b[2], b[3]}: of a tile of columns by k, 8 columns each from
// `row` on, k from 8 * chunk on.
template <int D>
PLANC_DEVICE void loadB(uint32_t (&b)[4], const uint16_t* tile, int row, int chunk) {
  uint32_t found[4];
  loadMatrices(found, laneRow<D>(tile, row, chunk));
  b[0] = found[0], b[1] = found[2], b[2] = found[1], b[3] = found[3];
}
// The same of a tile of k by columns: k from `row` on, 8 columns each from 8 * chunk on.
template <int D>
PLANC_DEVICE void loadBTransposed(uint32_t (&b)[4], const uint16_t* tile, int row, int chunk) {
  loadTransposed(b, laneRow<D>(tile, row, chunk));
}

// Products over tiles go by 64 columns, of which those that do not exist are zeros.
constexpr int kColumns = 64;

// Copies `count` rows of `width` elements to a tile with room for `kRows` by D; what is missing of
// its rows, and of the last columns, is zeros. Rows are `step` elements apart and 16-byte aligned;
// width is a multiple of 8.
template <int D, int kRows, int kThreads>
PLANC_DEVICE void copyTile(AsyncCopies& copies, uint16_t* tile, const uint16_t* from, int64_t step,
                           int count, int width) {
  constexpr int kChunks = D / 8, kAtOnce = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kRows % kAtOnce == 0);
  int chunk = int(threadIdx.x) % kChunks, first = int(threadIdx.x) / kChunks;
  if (chunk * 8 / kColumns * kColumns >= width) return;
  if (chunk * 8 >= width) count = 0;
  const uint16_t* at = from + first * step + chunk * 8;
#pragma unroll 2
  for (int row = first; row < kRows; row += kAtOnce, at += kAtOnce * step)
    copies.copy16(tile + chunkAt<D>(row, chunk), at, row < count);
}

}  // namespace planc::cuda
