// Elementwise programs: chains of elementwise steps over the elements of a space of dims, run in
// blocks that stay in the first-level cache, with at most one sum at the end.
#pragma once

#include "runtime/chain.h"
#include "runtime/cpu/kernels.h"

namespace planc::cpu {

struct Program : Chain {
  Accumulate accumulate;  // how the sum is stored
  bool isDouble = false;

  explicit Program(const Op& op, Chain chain = {})
      : Chain(std::move(chain)), accumulate(op), isDouble(planc::isDouble(op)) {}
};

std::unique_ptr<Kernel> makeProgram(Program program, Shared& shared);

}  // namespace planc::cpu
