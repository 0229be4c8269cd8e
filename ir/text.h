// IR text, both directions: parse(print(m)) equals m at every level, places included. The grammar
// stands in docs/ir.md.
#pragma once

#include <memory>
#include <string>

#include "ir/diagnostics.h"
#include "ir/op.h"
#include "llvm/Support/raw_ostream.h"

namespace planc {

struct PrintOptions {
  bool locations = true;  // `loc(file:line:column)` behind each op
  // For one rank's eyes: comments that say where it stands in the grid, and behind each collective
  // with whom it talks. -1: none.
  int64_t rank = -1;
};

void printModule(const Module& module, llvm::raw_ostream& out, const PrintOptions& options = {});
// One op on one line, without its body: for messages.
std::string printOp(const Op& op);
// `file:line:column` in the plan; empty when the op has none.
std::string placeInPlan(const Op& op);
// The op and its place in the plan, each on an indented line of its own.
std::string describe(const Op& op);

// Reads IR text; `file` is its number in `diags`. Empty or null after errors. What they give is
// verified. Behind `pipeline` a text has a module a role.
Modules parseModules(uint32_t file, Diagnostics& diags);
std::unique_ptr<Module> parseModule(uint32_t file, Diagnostics& diags);

// A number as IR text has it: the shortest text that reads back to the same double.
std::string numberText(double value);

}  // namespace planc
