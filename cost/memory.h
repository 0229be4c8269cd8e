// What lies in a rank's arena, read off the emitted program: the program's arena is what planrun allocates,
// so these figures are no estimate.
#pragma once

#include <string>
#include <vector>

#include "ir/op.h"

namespace planc {

// What saved activations of one chunk of the model take (one chunk where nothing is interleaved). A chunk
// has an entry for each number of flights, the most first: what only the weight gradients need waits longer
// than the rest.
struct SavedChunk {
  int chunk = 0;
  int64_t bytes = 0;    // of one microbatch
  int64_t flights = 1;  // microbatches that hold theirs at once
};

// Something that lies in the arena when it is fullest.
struct HeldValue {
  std::string name;  // a variable's, or a value's from the plan
  std::string kind;  // as MemoryBill's fields: `activations`, `workspace`, ...
  int64_t bytes = 0;  // that count for it, where others lie on the same
  Loc loc = {};
};

// Bytes. All but `arena` and `state` add up to `arena`.
struct MemoryBill {
  int64_t arena = 0;  // Module::arenaBytes
  // From the arena's start, through all steps.
  int64_t weights = 0;    // masters and, with bf16, the copies in compute precision
  int64_t gradients = 0;  // of weights, and what a rank adds up for them until @reduce
  int64_t optimizer = 0;  // moments
  int64_t inputs = 0;     // tokens, metrics, the step's number
  // When the arena is fullest: at the first op at which the most bytes are held. Bytes that several hold (a
  // result made on an operand, a sum made on a rank's own) count once, for the field that stands first here.
  int64_t activations = 0;    // saved for the backward pass, of all microbatches in flight
  int64_t messages = 0;  // what messages bring and take, gathered weights among it
  int64_t workspace = 0;      // all other values
  int64_t gaps = 0;           // alignment, and holes between buffers

  std::vector<SavedChunk> saved;
  // When that is: the op (null: no op needs memory), and the eight largest then, state included.
  const Op* fullest = nullptr;
  std::vector<HeldValue> largest;

  int64_t state() const { return weights + gradients + optimizer + inputs; }
};

// Of a rank program. Keeps pointers into it.
MemoryBill memoryOf(const Module& role);

}  // namespace planc
