// Chains as code for the kernels of elementwise.h.
#pragma once

#include <optional>

#include "runtime/chain.h"
#include "runtime/cuda/elementwise.h"

namespace planc::cuda {

struct StepCode {
  std::vector<Step> steps;
  std::vector<double> constants;
  // Of the chain, those that are used: input i is loaded into slot i.
  llvm::SmallVector<int, 8> inputs;
  int slots = 0;
};

// A chain's code; what it sums is in acc when the last step is done.
StepCode codeOf(const Chain& chain);

}  // namespace planc::cuda
