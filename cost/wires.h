// Which wires of a cluster a message between ranks travels on, and the time that they need at the least.
//
// Rank r sits on device r (ir/cluster.h). Of n ranks, a reduction or gather is counted as a ring in the order
// of its members, to the next of whom each sends; an all-to-all sends to every other the same; a message goes
// to its peer. What goes from one unit of a level to another travels the wires of the first level whose unit
// holds both. A level's wires need at least the bytes that leave its fullest unit (of the level below) over
// what that unit's devices can send together; levels work at the same time. A call needs at least
// ceil(log2 n) latencies of its highest level (Chan et al. 2007, "Collective communication: theory, practice,
// and experience", section 2).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/planx.h"
#include "ir/traffic.h"

namespace planc {

// How the ranks of a message lie on a cluster.
struct Reach {
  // By level, of the bytes that a rank sends: the share that travels there, of all ranks on average and of
  // the ranks of the unit where it is most. Behind the last level: what no level of the cluster joins.
  std::vector<double> share, most;
  size_t level = 0;  // the highest that is used
  int rounds = 0;    // ceil(log2 n)
};

enum class Pattern : uint8_t { Ring, Everyone, Peer };
Pattern patternOf(OpKind kind);

class Wires {
 public:
  // Both must outlive this. A cluster without levels: all shares are empty, all times 0.
  Wires(const Cluster& cluster, const Grid& grid) : cluster_(cluster), grid_(grid) {}

  // Of the ranks that run the op: those of its module's `where`.
  const Reach& reach(const Op& collective);
  // The least time for so many calls that together send so many bytes a rank.
  double seconds(const Reach& reach, double bytes, double calls) const;
  const Cluster& cluster() const { return cluster_; }

 private:
  const Cluster& cluster_;
  const Grid& grid_;
  std::map<std::string, Reach> known_;
};

// What a rank of a program sends in a step along some axes by one kind of op.
struct Talk {
  Words axes;
  OpKind kind;
  int64_t calls = 0;
  int64_t bytes = 0;      // as the communicators count: Communicator::bytesSent
  bool isBound = false;   // rows of experts: `bytes` is the most there can be; the data decides
  int64_t evenBytes = 0;  // such rows spread evenly over their experts; else `bytes`
  Reach reach;
  double seconds = 0;  // the least that the wires need, for `bytes`
  double hidden = 0;   // of it, what compute can hide: see cost/step_time.h
};
// In falling order of bytes.
std::vector<Talk> talksOf(const Module& role, Wires& wires);

}  // namespace planc
