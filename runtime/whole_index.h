// Where a rank's elements, in memory order, stand in the whole tensor, all dims in their own order.
#pragma once

#include "ir/grid.h"
#include "ir/type.h"

namespace planc {

struct WholeIndex {
  // `places` where the steps are no stride.
  struct Loop {
    int64_t size, stride;
    llvm::SmallVector<int64_t, 4> places = {};
  };
  llvm::SmallVector<Loop, 4> loops;  // outermost first
  int64_t first = 0;                 // of the rank's first element
  int64_t run = 1;                   // this many elements are neighbours in the whole

  WholeIndex(const Type& type, const Coordinates& rank);
  int64_t at(int64_t index) const;
};

}  // namespace planc
