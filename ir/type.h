// Element types, named dims and tensor types. A type is a plain value: compare it with ==.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ir/elem.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

namespace planc {

llvm::StringRef name(Elem elem);
std::optional<Elem> elemByName(llvm::StringRef text);
int64_t bytesPerElement(Elem elem);
inline bool isFloat(Elem elem) { return elem != Elem::I32; }

// An axis of the grid of ranks, or a part of one (see ir/grid.h).
struct Axis {
  std::string name;
  int64_t size = 1;
  bool operator==(const Axis&) const = default;
};
using Axes = llvm::SmallVector<Axis, 2>;

// The product of the sizes.
int64_t ranksOver(llvm::ArrayRef<Axis> axes);
bool hasAxis(llvm::ArrayRef<Axis> axes, llvm::StringRef name);

// One index of a tensor. A *ragged* dim (`over` not empty) holds the rows of all groups of the dim
// named `over`, packed: `[expert 8, slot 1024~expert, model 64]` is 1024 rows of 64 in all, grouped
// by expert; where each group starts is a run-time value (the `offsets` of `pack`).
//
// A *split* dim (`axes` not empty) is cut into equal pieces over a grid's axes, the outermost axis
// first: `batch 16/data` holds 16 elements on all ranks together. `size` is what one rank holds. When
// the axes do not divide `whole`, the last pieces are padded: see Coordinates::valid (ir/grid.h).
//
// A dim in *zigzag* order of c ranks lies in memory, whole or cut, as 2c equal blocks in the order
// 0, 2c-1, 1, 2c-2, ...: the first of c pieces has the first and the last block, so that causal
// attention is equal work for all. Who asks for positions asks Coordinates::segments.
//
// A piece may be another rank's: `moved` places, and one more for each iteration of the repeat `moves`,
// it has been passed on along the dim's axes, so it is that of the rank so many before this one (mod
// their number).
struct Dim {
  std::string name;
  int64_t size = 0;  // on one rank, padding included
  std::string over = {};
  Axes axes = {};
  int64_t whole = 0;  // on all ranks together; 0 when the dim is neither split nor limited by `room`
  int64_t zigzag = 0;      // ranks of the zigzag order; 0: in order
  int64_t room = 0;        // ragged: rows that a rank has room for, fewer than could come; 0: for all
  int64_t moved = 0;       // places, 0 <= moved < ranks; of pieces only
  std::string moves = {};  // a repeat around, empty: none

  bool isRagged() const { return !over.empty(); }
  bool isSplit() const { return !axes.empty(); }
  bool isMoved() const { return moved != 0 || !moves.empty(); }
  bool isPadded() const { return isSplit() && room == 0 && whole != size * ranksOver(axes); }
  int64_t all() const { return isSplit() || room > 0 ? whole : size; }
  bool operator==(const Dim&) const = default;
};

// The dim cut over these axes (none: whole), in the same order; the rank's own piece.
Dim splitDim(const Dim& dim, llvm::ArrayRef<Axis> axes);
// A ragged dim with room for so many rows on a rank; all that fit in its piece, when that is no fewer.
Dim limitRows(Dim dim, int64_t room);

// Dims are in memory order, outermost first. A scalar has no dims. A value that is `partial` over
// axes is the sum of what the ranks along those axes hold; along any other axis that splits none of
// its dims, ranks hold the same.
struct Type {
  Elem elem = Elem::F32;
  llvm::SmallVector<Dim, 4> dims = {};
  Axes partial = {};  // in the grid's order

  bool operator==(const Type& other) const {
    return elem == other.elem && dims == other.dims && partial == other.partial;
  }

  // Position of a dim, or -1.
  int find(llvm::StringRef name) const;
  bool has(llvm::StringRef name) const { return find(name) >= 0; }
  // Size of a dim that must exist.
  int64_t size(llvm::StringRef name) const;
  // The name of the dim that groups a ragged dim of this type; empty when no dim is ragged.
  llvm::StringRef grouping() const;
  // Elements in a rank's memory: the product of the sizes, where a dim that groups a ragged one counts as 1.
  // Saturates at INT64_MAX.
  int64_t elements() const;
  int64_t bytes() const;
  // The type less one dim (which must exist).
  Type without(llvm::StringRef name) const;
  Type withElem(Elem e) const;
  // What all ranks hold together: no splits, no partial sums. Its dims keep their order.
  Type whole() const;
  // Axes that split any dim.
  Axes splitAxes() const;
  // `f32[batch 16/data, seq 256/context:zigzag4+1+ring] partial(tensor)`, as IR text has it.
  std::string str() const;
};

// Saturating at INT64_MAX; both must be >= 0.
int64_t saturatingMul(int64_t a, int64_t b);
int64_t saturatingAdd(int64_t a, int64_t b);

}  // namespace planc
