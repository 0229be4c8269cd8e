// Chains and moves as kernels, for this folder's makers.
#pragma once

#include "runtime/chain.h"
#include "runtime/cuda/ops.h"

namespace planc::cuda {

// Copies the elements of some loops over {an operand, result 0}, outermost first. Integers stay
// what they are.
struct Move {
  llvm::SmallVector<Loop, 4> axes;
  Elem from, to;
  int64_t fromOffset = 0, toOffset = 0;  // elements
  int operand = 0;
};
KernelOr makeMove(const Op& op, Move move, Shared& shared);

// Results as the chain says; its sum is added to the op's variable, where it has one.
KernelOr makeChain(const Op& op, const Chain& chain, Shared& shared);

}  // namespace planc::cuda
