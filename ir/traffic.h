// What a rank sends in a step: counted, not measured. The field's convention, for n ranks:
// all-reduce 2(n-1)/n of the tensor; reduce-scatter and all-gather (n-1)/n of the larger side;
// all-to-all (n-1)/n of the tensor; what is sent to another stage, or round a ring, as it is. Rows to
// experts: all that the tokens' side has, though fewer may leave. `Communicator::bytesSent` counts the
// same at run time.
#pragma once

#include <optional>
#include <vector>

#include "ir/op.h"

namespace planc {

// The axes along which a collective's ranks lie, in the order of its attribute; those that the grid
// lacks are left out.
Axes groupAxes(const Op& collective);

// The coordinates of its first axis that take part: with `among` those, of a message the two that it
// goes between; none: all.
std::vector<int64_t> coordinatesOf(const Op& collective, const Coordinates& rank);

// The ranks of a collective or message that this rank takes part in, in the order of its axes: with
// `among` only those; of a message the two that it goes between.
std::vector<int64_t> membersOf(const Op& collective, const Coordinates& rank);

// Bytes that each rank sends in one run of a collective.
int64_t bytesSent(const Op& collective);
// Whether they are the same for all ranks. Pieces of an all-to-all may not meet evenly: where the last are
// padded, or a dim is cut otherwise before and after; then those are the convention's, and each rank's own
// what leaves it.
bool isEven(const Op& collective);
int64_t bytesSent(const Op& collective, const Coordinates& rank);
// Of rows to experts or home, the most that may leave a rank: all that it holds, and home no more than the
// others sent.
int64_t mostRowBytes(const Op& exchange);

struct Transfer {
  const Op* op;
  Axes axes;
  int64_t times;  // in a step: the schedule's calls, times the repeats around it
  int64_t bytes;  // each time
};

struct Traffic {
  std::vector<Transfer> transfers;  // collectives that a step runs, in the order of the text

  struct Total {
    int64_t times = 0, bytes = 0;  // in a step
    bool operator==(const Total&) const = default;
  };
  // Of one kind, or of all; along one of the plan's axes, or all. What runs along several axes at
  // once counts for each of them.
  Total total(std::optional<OpKind> kind = std::nullopt, llvm::StringRef axis = "") const;
};

Traffic trafficOf(const Module& module);

}  // namespace planc
