// Which wires of a cluster a message between ranks travels on, and the time that they need at the least.
//
// Rank r sits on device r (ir/cluster.h). What goes from one unit of a level to another travels the wires of
// the first level whose unit holds both; cost/reach.h says to whom ranks send. A level's wires need at least
// the bytes that leave its fullest unit (of the level below) over what those of that unit's devices that
// take part can send together: the others send alike at the same time, or nothing. Levels work at the same
// time. A call of n ranks needs at least ceil(log2 n) latencies of its highest level (Chan et al. 2007,
// "Collective communication: theory, practice, and experience", section 2).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cost/reach.h"
#include "ir/planx.h"
#include "ir/traffic.h"

namespace planc {

Pattern patternOf(OpKind kind);
// What a rank sends in one run of an op, of the ranks of its module on average: rows of experts in equal
// shares, of whose n parts its own stays.
double meanBytes(const Op& collective);

class Wires {
 public:
  // The cluster must outlive this. One without levels: all shares are empty, all times 0.
  Wires(const Cluster& cluster, const Grid& grid) : cluster_(cluster) { renumber(grid); }

  // Of the ranks that run the op: those of its module's `where`.
  const Reach& reach(const Op& collective) { return reach(partyOf(collective)); }
  const Reach& reach(Party party);
  // In the grid's order of now.
  Party partyOf(const Op& collective) const;
  // The least time for so many calls that together send so many bytes a rank.
  double seconds(const Reach& reach, double bytes, double calls) const;
  const Cluster& cluster() const { return cluster_; }

  // From here on ranks are numbered along this grid: of the same axes, in any order.
  void renumber(const Grid& grid);
  llvm::ArrayRef<Steps> grid() const { return steps_; }

 private:
  const Cluster& cluster_;
  std::map<std::string, Steps> byName_;
  std::vector<Steps> steps_;
  bool nests_ = false;  // at every level
  // By all that a party is: what differs in axes' names alone lies alike.
  std::map<std::vector<int64_t>, Reach> known_;
};

// What a rank of a program sends in a step along some axes by one kind of op.
struct Talk {
  Words axes;
  OpKind kind = OpKind::AllReduce;
  int64_t calls = 0;
  // As the communicators count, Communicator::bytesSent: of the rank that sends the most, and the least.
  // They differ where the pieces of an all-to-all do not meet evenly (ir/traffic.h).
  int64_t bytes = 0, leastBytes = 0;
  bool isBound = false;  // rows of experts: `bytes` is the most there can be; the data decides
  // On average; of such rows what leaves a rank when experts get equal shares.
  int64_t evenBytes = 0;
  // Where its ops reach differently far (messages to several stages): shares of all bytes together, the
  // highest level, the most rounds.
  Reach reach;
  double seconds = 0;  // the least that the wires need, for `evenBytes`
  double hidden = 0;   // of it, what compute can hide: see cost/step_time.h
};
// In falling order of bytes. Receives are their senders'.
std::vector<Talk> talksOf(const Module& role, Wires& wires);
// A rank's own bytes of one of its program's talks.
int64_t bytesOf(const Talk& talk, const Module& role, int64_t rank);

}  // namespace planc
