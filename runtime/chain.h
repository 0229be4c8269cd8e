// Chains of elementwise steps over the elements of a space of dims, with at most one sum at the
// end: what an elementwise op, a fused one, a `const`, a `sum` or an `accum` asks of a device.
#pragma once

#include <optional>
#include <vector>

#include "runtime/layout.h"

namespace planc {

// Values are numbered: first the inputs (the kernel's operands), then one for each step.
struct Chain {
  struct Step {
    OpKind kind;
    int a = -1, b = -1;   // values
    double constant = 0;  // of a Const
  };
  struct Output {
    int value;
    Type type;
    int result;  // which of the kernel's results it goes to
  };

  std::vector<Type> inputs;
  std::vector<Step> steps;
  std::vector<Output> outputs;
  std::optional<Output> sum;  // its type lacks the dims that it sums

  int valueOfStep(size_t step) const { return int(inputs.size() + step); }
  // Casts between float types change nothing inside a chain: what they are casts of, through all of
  // them.
  int source(int value) const;
  // Inputs, outputs, and the sum's.
  llvm::SmallVector<const Type*, 8> tensors() const;
  // The union of the dims of inputs and outputs, ordered as the biggest of them has them.
  llvm::SmallVector<Dim, 4> space() const;
};

// What keeps an op's body from being a chain; null: nothing.
const Op* notInChain(const Op& op);
// The chain of an op without such.
Chain chainOf(const Op& op);

}  // namespace planc
