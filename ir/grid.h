// The grid of ranks and where a rank stands in it. Ranks are numbered along the axes in the grid's
// order, the last axis fastest.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "ir/type.h"

namespace planc {

// An axis as types use it. Where names need only a part of a plan's axis (4 kv heads over 8 ranks),
// the grid holds the parts, outermost first, and `of` names the plan's axis.
struct GridAxis {
  std::string name;
  int64_t size = 1;
  std::string of = {};
  bool operator==(const GridAxis&) const = default;
};

struct Grid {
  std::vector<GridAxis> axes;

  int64_t ranks() const;  // saturates
  // The axes with this name, or its parts; empty: there is none.
  Axes find(llvm::StringRef name) const;
  // Cuts an axis into parts that end at these products of ranks: 8 ranks at {4} are 4 x 2. The parts
  // are called `tensor_a`, `tensor_b`, ..., the outermost first. Products that divide nothing, and axes
  // that are in parts already, are left as they are.
  void cut(llvm::StringRef axis, const std::set<int64_t>& at);
  // Sorts axes into the grid's order.
  void sort(Axes& axes) const;
  bool operator==(const Grid&) const = default;
};

// Elements that lie one behind the other in a piece and in the dim's own order: those from `at` on in
// the piece are those from `first` on.
struct Segment {
  int64_t at, first, count;
  bool operator==(const Segment&) const = default;
};
using Segments = llvm::SmallVector<Segment, 2>;

// Where one rank stands. Without a grid there is one rank, 0.
class Coordinates {
 public:
  Coordinates() = default;
  Coordinates(const Grid& grid, int64_t rank);

  int64_t rank() const { return rank_; }
  // The coordinate on an axis of the grid; 0 on others.
  int64_t on(llvm::StringRef axis) const;
  // The rank's number among those that differ only on these axes, the outermost first.
  int64_t index(llvm::ArrayRef<Axis> axes) const;
  // Those ranks, in that order.
  std::vector<int64_t> group(llvm::ArrayRef<Axis> axes) const;
  // Where this rank's piece of a dim begins in the whole dim as it lies in memory (which for a dim in
  // zigzag order is not its own order).
  int64_t offset(const Dim& dim) const { return index(dim.axes) * dim.size; }
  // The piece in the dim's own order, without padding, in the order in which it lies; neighbours are
  // joined. `iteration`: of the repeat that the dim moves with.
  Segments segments(const Dim& dim, int64_t iteration = 0) const;
  // How many elements of the piece exist; those behind it are padding.
  int64_t valid(const Dim& dim) const;
  // Whether this rank is the first of those that hold the same elements of a value.
  bool isFirstCopy(const Type& type) const;

 private:
  struct Position {
    std::string axis;
    int64_t size, at, stride;  // stride: in ranks
  };
  std::vector<Position> positions_;
  int64_t rank_ = 0;
};

}  // namespace planc
