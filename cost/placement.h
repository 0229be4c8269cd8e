// Which axes of the grid lie close together: the order of the grid's axes over the levels of the cluster, the
// last axis fastest, for which the wires need the least time in a step. It is searched among all orders;
// ties go to the order that is nearest to the one written (the fewest pairs of axes the other way round, then
// the first by the plan's axes). The bytes are those of the programs, whatever their order.
//
// Axes are the plan's: parts of one stay together. An axis that a split cuts by `within LEVEL` is what it is
// by what lies behind it, so it keeps as many ranks behind it as the plan has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/planx.h"

namespace planc {

// Whether orders of so many axes over so many ranks are searched: of more than kMaxOrdered axes, or where all
// orders' ranks together are more than kMaxLooked, they are not, and axes stay as they are written.
inline constexpr size_t kMaxOrdered = 8;
inline constexpr int64_t kMaxLooked = int64_t{1} << 26;
bool areOrdered(size_t axes, int64_t ranks);

struct Placing {
  Words axes;  // the plan's, the outermost first
  // The least time of all messages of a step, behind each other, of the stage where it is most.
  double seconds = 0;
  // By level of the cluster: bytes that all ranks together send over its wires in a step, rows to experts
  // in equal shares.
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

// The plan's axes in the order in which they are written, which the programs' grid need not have: what was
// written stands in the model's setting `written` then.
Words writtenOrder(const Module& model);

// Whether there is anything to order: two axes, on a cluster of two levels.
bool hasOrders(const Module& model);

// A grid with its axes in this order.
Grid inOrder(const Grid& grid, llvm::ArrayRef<std::string> axes);

// Whether all ranks that differ on these axes alone lie in one unit of so many devices, wherever.
bool lieWithin(const Grid& grid, llvm::ArrayRef<std::string> axes, int64_t devices);

// What no order satisfies.
struct Broken {
  const Within* place = nullptr;  // the first that can't be met with those before it
  const Within* with = nullptr;   // one of these that it can't be met with; null: not even alone
  // An axis of `place` and the most ranks it may have to be met, if that helps; 0: it doesn't.
  std::string axis;
  int64_t most = 0;
};

// nullopt: there is nothing to order, or no order satisfies the plan's `place`: then `broken`, if given, says
// which. The programs may be of any order.
std::optional<Placement> placementOf(const Planx& planx, Broken* broken = nullptr);

}  // namespace planc
