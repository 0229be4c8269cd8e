// What a program's schedule does to its memory, call by call: every call finds in slots what was put
// there for its microbatch, what is under way is left alone, and every sum has got all of its parts
// before it is used.
//
//   - Each function runs: for the whole step once, or for microbatches. One that adds to a gradient, a
//     metric or a sum runs exactly once for each microbatch, before the whole step reads the variable.
//   - Microbatch m has copy m modulo `flights` of a slot. A call for m reads a copy that holds m's value
//     (or the whole step's).
//   - Only functions that just send or just receive are started. Each start has one wait behind it. Until
//     then nobody reads or writes the copy that is received into, nor writes the one that is sent.
//   - A variable is set before it is added to; an accumulation with `first` sets it at microbatch 0, so
//     nothing adds to it before. What was added is not overwritten before it is read.
//
// The order of ops in a function counts, the iterations of its repeats do not: a write sets the whole
// variable.
#pragma once

#include "ir/op.h"
#include "llvm/Support/Error.h"

namespace planc {

// Of a verified module. The first rule that is broken: the call, the variable, the op and its line.
llvm::Error verifySchedule(const Module& module);

}  // namespace planc
