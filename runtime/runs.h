// The same elements in two tensors, `a` and `b`, as runs that are contiguous in both, in the order of
// `a`: how a rank's piece lies in the whole tensor, and what one rank must send to another. All counts
// and offsets are in elements.
//
//   f32[model 4, ff 8/tensor] on rank 1 of 2: 4 runs of 4; run i begins at 4 i here, at 8 i + 4 there.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ir/grid.h"
#include "ir/op.h"
#include "ir/type.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/Error.h"

namespace planc {

struct Run {
  int64_t a, b;  // offsets of its first element
};

class Runs {
 public:
  struct Dim {
    int64_t count, strideA, strideB;
    // In b, where the first of each index lies, where that is no stride; counts from Run::b.
    llvm::SmallVector<int64_t, 4> placesB = {};
  };
  // A box of elements whose first lies at these offsets; dims outermost first.
  Runs(llvm::ArrayRef<Dim> dims, Run first);

  int64_t count() const { return count_; }
  int64_t length() const { return length_; }  // of each run
  int64_t elements() const { return count_ * length_; }
  Run at(int64_t run) const;

  // Calls f(a, b, count) for the elements [from, to), run by run or less, in order.
  template <class F>
  void forEach(int64_t from, int64_t to, F&& f) const {
    while (from < to) {
      Piece p = piece(from, to);
      f(p.a, p.b, p.count);
      from += p.count;
    }
  }
  // The same while f succeeds.
  template <class F>
  llvm::Error tryEach(int64_t from, int64_t to, F&& f) const {
    while (from < to) {
      Piece p = piece(from, to);
      if (llvm::Error error = f(p.a, p.b, p.count)) return error;
      from += p.count;
    }
    return llvm::Error::success();
  }

 private:
  struct Piece {
    int64_t a, b, count;
  };
  // What of element `from`'s run lies in front of `to`.
  Piece piece(int64_t from, int64_t to) const {
    int64_t inside = from % length_;
    Run run = at(from / length_);
    return {run.a + inside, run.b + inside, std::min(length_ - inside, to - from)};
  }

  llvm::SmallVector<Dim, 4> outer_;
  Run first_;
  int64_t count_ = 1, length_ = 1;
};

// A dim that lies in segments, as equal blocks: `size` elements each, block i those from firsts[i] on.
struct Blocks {
  int64_t size;
  llvm::SmallVector<int64_t, 4> firsts;
};
Blocks blocksOf(const Segments& segments);

// What exists of a rank's piece of a tensor (its padding does not): a is the piece in the rank's
// memory, b the whole tensor, all dims in their own order. `first`: so many of the whole's outermost
// dim stand in front of all that the type speaks of.
Runs pieceRuns(const Type& type, const Coordinates& rank, int64_t first = 0);
// The same of a variable, in the variable of the model.
inline Runs pieceRuns(const Variable& var, const Coordinates& rank) {
  return pieceRuns(var.type, rank, var.piece ? var.piece->first : 0);
}

// Elements [from, to) of a piece that one of `copies` ranks with the same piece does for all.
inline std::pair<int64_t, int64_t> share(int64_t elements, int64_t copy, int64_t copies) {
  int64_t each = elements / copies;
  return {each * copy, copy + 1 == copies ? elements : each * (copy + 1)};
}

}  // namespace planc
