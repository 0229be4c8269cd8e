// Elementwise programs: chains of elementwise steps over the elements of a space of dims, run in
// blocks that stay in the first-level cache, with at most one sum at the end.
#pragma once

#include <optional>

#include "runtime/cpu/kernels.h"

namespace planc::cpu {

// Values are numbered: first the inputs (the kernel's operands), then one for each step.
struct Program {
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
  Accumulate accumulate;      // how the sum is stored
  bool isDouble = false;

  explicit Program(const Op& op) : accumulate(op), isDouble(cpu::isDouble(op)) {}
  int valueOfStep(size_t step) const { return int(inputs.size() + step); }
};

std::unique_ptr<Kernel> makeProgram(Program program, Shared& shared);

}  // namespace planc::cpu
