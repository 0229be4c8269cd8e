// Which ranks a plan's programs tell apart. Coordinates that neither a role nor a message between
// stages names are alike: exchanging two of them changes nothing. Ranks that such exchanges map to each
// other do the same, and one of them, the first, stands for all.
#pragma once

#include <set>
#include <vector>

#include "ir/planx.h"

namespace planc {

struct Representative {
  int64_t rank;
  std::vector<size_t> at;  // per axis of the grid, which of its told coordinates
  size_t role;
};

struct Ranks {
  std::vector<std::vector<int64_t>>
      told;                          // per axis: those that are named, and the first that is not
  std::vector<Representative> list;  // in the order of ranks
};
Ranks ranksToldApart(const Planx& planx);

// The programs of ranks that differ only along an axis, in its order: each such list once. Of no axis:
// each program alone.
std::set<std::vector<const Module*>> columns(const Planx& planx, llvm::StringRef axis);

}  // namespace planc
