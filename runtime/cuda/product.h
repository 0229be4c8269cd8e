// An einsum as its makers see it: the loops of its four classes and the dim that is ragged. Host
// side.
#pragma once

#include <optional>

#include "runtime/cuda/einsum.h"
#include "runtime/cuda/ops.h"
#include "runtime/layout.h"

namespace planc::cuda {

// Of a tensor of a product; the loops' strides are in this order.
enum { A, B, C };

// A ragged dim whose groups matter: some tensor has a slice for each group, or the rows are summed.
struct RaggedDim {
  std::string dim, over;
  Ragged role = Ragged::None;
  bool isOfB = false;  // rows that are b's, before a and b are exchanged
  bool sums = false;   // the groups' products add up
  int64_t groups = 1;
  int64_t slices[3] = {0, 0, 0};  // from one group's slice to the next
  int64_t rowSteps[3] = {0, 0, 0};
  int64_t bound = 0;  // rows in memory
  int64_t last = 0;   // of the offsets
};

using Loops = llvm::SmallVector<Loop, 4>;

struct Product {
  Type types[3];
  bool exchanged = false;  // a is the op's second operand
  bool isDouble = false;
  RaggedDim ragged;
  Loops outer, m, n, k;  // merged; without the ragged dim
  Accumulate accumulate;

  explicit Product(const Op& op);
  const void* a(Operands in) const { return in[exchanged ? 1 : 0]; }
  const void* b(Operands in) const { return in[exchanged ? 0 : 1]; }
};

int64_t countOf(llvm::ArrayRef<Loop> loops);
inline bool isAligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % uint64_t(bytes) == 0;
}

// einsum.cpp: by kernels of our own, whatever it is.
KernelOr makeProduct(const Op& op, const Product& product, Shared& shared);
// grouped.cpp: groups' products on tensor cores, with `other` for tensors that begin where those
// don't read; null where they don't fit.
std::unique_ptr<planc::Kernel> makeGrouped(const Product& product,
                                           const std::shared_ptr<planc::Kernel>& other,
                                           Shared& shared);
// So many tiles of `rows` rows hold any groups.
int64_t raggedTiles(const RaggedDim& ragged, int64_t rows);
// Launches what finds them.
void findTiles(const RaggedDim& ragged, const int32_t* offsets, RaggedTile* tiles, int64_t rows,
               Shared& shared);

}  // namespace planc::cuda
