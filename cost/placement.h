// Which axes of the grid lie close together: the order of the grid's axes over the levels of the cluster, the
// last axis fastest, for which the wires need the least time in a step. It is searched among all orders;
// ties go to the order that is nearest to the one written. The bytes are those of the programs, whatever
// their order.
#pragma once

#include <optional>
#include <vector>

#include "ir/planx.h"

namespace planc {

struct Placing {
  Words axes;  // the plan's, the outermost first
  // The least time of all messages of a step, behind each other, of the stage where it is most.
  double seconds = 0;
  // By level of the cluster: bytes that all ranks together send over its wires in a step.
  std::vector<double> bytes;
};

// For one axis: the best order in which no two of its ranks, or as few as can be, share a unit of the
// innermost level.
struct Across {
  std::string axis;
  Placing placing;
};

struct Placement {
  Placing written, chosen;
  // The best of those in which other ranks share units than in the chosen one.
  std::optional<Placing> runnerUp;
  // The best without the plan's `place`, where that is better.
  std::optional<Placing> unbound;
  std::vector<Across> across;
};

// Whether all ranks that differ on these axes alone lie in one unit of so many devices, wherever.
bool lieWithin(const Grid& grid, llvm::ArrayRef<std::string> axes, int64_t devices);

// nullopt: there is nothing to order (no cluster, a cluster of one level, one axis).
// `broken`, when no order satisfies the plan's `place`: the first that can't be met with those before it.
std::optional<Placement> placementOf(const Planx& planx, const Within** broken = nullptr);

}  // namespace planc
