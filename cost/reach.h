// Where the ranks that a message is between lie on a cluster: counted over all of them, exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/cluster.h"
#include "llvm/ADT/ArrayRef.h"

namespace planc {

// To whom each rank of a group sends. A reduction or gather goes round a ring, which may visit the ranks
// in any order and visits those of one unit before it leaves it: here the order of their devices, whatever
// the order of the op's axes. (Each unit of n sends once to the next, 2 (n - 1) / n of what an all-reduce
// adds up; no algorithm sends less than half of that out of a unit.)
enum class Pattern : uint8_t {
  Ring,      // to the next in the order of devices
  Everyone,  // to each other the same
  Shift,     // to the one some places on in the group's own order
  Peer,      // to the rank at another coordinate of the first axis
};

// How the ranks of a message lie on a cluster.
struct Reach {
  // By level, of the bytes that a rank sends: the share that travels there, of all ranks on average and of
  // the ranks of the unit (of the level below) where it is most. Behind the last level: what no level of
  // the cluster joins.
  std::vector<double> share, most;
  size_t level = 0;  // the highest that is used
  int rounds = 0;    // of Ring and Everyone, ceil(log2 n); 1 of others; 0 where nothing is sent
};

// An axis of the grid as ranks are numbered: neighbours on it are `stride` ranks apart.
struct Steps {
  int64_t size = 1, stride = 1;
  bool operator==(const Steps&) const = default;
};

// Ranks that send each other messages: those that differ on `axes` alone.
struct Party {
  Pattern pattern = Pattern::Ring;
  std::vector<Steps> axes;          // the outermost of the group's order first
  std::vector<int64_t> among = {};  // only those at these coordinates of the first axis; none: all
  int64_t to = 0;                   // Shift: so many places; Peer: the coordinate
  // Those that send it stand at these coordinates.
  struct Fixed {
    Steps axis;
    int64_t at;
    bool operator==(const Fixed&) const = default;
  };
  std::vector<Fixed> where = {};
};

// `grid`: all of its axes. Ranks are those of the grid. Where every unit holds whole ranges of some axes,
// all groups lie alike and one is looked at; else all ranks are, which takes time in their number.
Reach reachOf(const Cluster& cluster, llvm::ArrayRef<Steps> grid, const Party& party);

// The same for parties that are the same.
std::vector<int64_t> keyOf(const Party& party);

// Whether units of so many devices hold the ranks of a grid by whole ranges: of some axes all, of one an
// equal part, of the others one rank each.
bool nests(llvm::ArrayRef<Steps> grid, int64_t devices);

// Whether ranks that differ on these axes alone lie in one unit of so many devices, wherever.
bool lieWithin(llvm::ArrayRef<Steps> grid, llvm::ArrayRef<Steps> axes, int64_t devices);

}  // namespace planc
