// Operations and memory traffic of a step, counted in the programs that ranks run.
#pragma once

#include "ir/op.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace planc {

// Of one rank in a step; where ranks of one program do unlike amounts (ir/cost.h), on average of them.
struct RankWork {
  double flops = 0;        // of products and attention, as executed, recomputation included
  double otherFlops = 0;   // of everything else
  double memoryBytes = 0;  // read and written by ops: operands and results, once each
  // Of `flops`, what is computed a second time for the backward pass.
  double again = 0;

  // Operations a byte.
  double intensity() const { return memoryBytes > 0 ? (flops + otherFlops) / memoryBytes : 0; }
};
RankWork workOf(const Module& role);

// What the model asks for in a step on all ranks together: three times the forward pass's products and
// attention (a causal mask halves the pairs), each gradient being as much as the pass itself (Kaplan et al.
// 2020, section 2.1; Narayanan et al. 2021, appendix).
double modelFlops(const Module& model);

// Bytes that one run of an op reads and writes: operands and results once each, of `fused` those of the
// whole; of tables, slices and pieces what is touched. A read is a view; so is a write of what was made in
// its place. Zero for repeats and what goes between ranks, whose bytes travel on wires.
double memoryBytesOf(const Op& op);

// Visits each op that is run on its own, bodies of repeats with them, with how often a step runs it.
using RunVisitor = llvm::function_ref<void(const Op& op, double times)>;
void eachRun(const Module& module, RunVisitor visit);

}  // namespace planc
