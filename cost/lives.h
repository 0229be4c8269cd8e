// What a rank program holds in its arena, where and when, read off the places of the emitted program.
//
// Time is a number a moment: the functions in the order in which the schedule comes to them, each once, and
// in them op by op, a repeat's body once between the repeat's begin and its end. A function that the
// schedule runs many times stands for all its runs, so what may be held during one of them is held.
#pragma once

#include <string>
#include <vector>

#include "ir/op.h"

namespace planc {

// Bytes that two lives share count once, for the one that stands first here.
enum class Holding : uint8_t {
  Weights,
  Gradients,
  Optimizer,
  Inputs,
  Activations,
  Communication,
  Workspace,
};
inline constexpr size_t kHoldings = size_t(Holding::Workspace) + 1;
llvm::StringRef name(Holding holding);  // as MemoryBill's fields are called

// Bytes [begin, end) of the arena, held from one moment to another, both included. Of a variable or of a
// value; the other is null.
struct Life {
  Holding holding;
  int64_t begin, end;
  int from, to;
  const Variable* var;
  const Value* value;
  int chunk;  // of the model, whose task touches it first; of slots only

  std::string name() const;
  Loc loc() const;
};

struct Lives {
  std::vector<Life> list;
  std::vector<const Op*> moments;  // the op that a moment is the begin of, or the end of a repeat
};

// Of a rank program. Keeps pointers into it.
Lives livesOf(const Module& role);

}  // namespace planc
