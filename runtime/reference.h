// The oracle: runs a model-level module on one rank with plain loops over named dims, all in double
// precision. Slow and obviously right; shares no code with the kernels of runtime/cpu. Sums are not
// rounded to any element type, so bf16 programs run as if they were f64.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/op.h"
#include "runtime/device.h"

namespace planc {

// A value's elements in the memory order of its type (a ragged type: its packed rows).
using Array = std::vector<double>;

// The type of what an op makes: its results, or for an accumulating op (op.var set) the slice of
// its variable that it adds to.
std::vector<Type> resultTypes(const Op& op);

// Runs one op that touches no variable (all but read, write, accum, zero, repeat) on given
// operands. An accumulating op gives the one array that it would add; the caller adds it.
std::vector<Array> referenceOp(const Op& op, std::vector<Array> operands,
                               const RunContext& context);

class Reference {
 public:
  // Variables start as zeros, weights (and what is `of` no other variable) by their `init`.
  explicit Reference(const Module& module);

  // All elements of a variable, in the memory order of its full type (all iterations).
  Array& var(llvm::StringRef name);
  bool has(llvm::StringRef name) const { return vars_.count(name.str()) != 0; }

  // Runs one function; the context's iteration must be empty.
  void run(const Function& function, const RunContext& context);
  // Runs the module's schedule for a step (from 1).
  void step(int64_t step);

 private:
  using Values = std::map<const Value*, Array>;
  void runBlock(const Block& block, const RunContext& context, Values& values);
  void runRepeat(const Op& op, const RunContext& context, Values& values);
  // Where a variable's slice of this iteration and microbatch starts, and its elements.
  std::pair<size_t, size_t> slice(const Op& op, const RunContext& context);

  const Module& module_;
  std::map<std::string, Array> vars_;
};

}  // namespace planc
