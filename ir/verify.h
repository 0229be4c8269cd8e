// The rules of the IR. Every pass's output and every module read from a file is verified, so that
// nothing behind it needs to check again: kernels rely on these shapes.
//
// All levels: operand and result counts; a value is defined before its use, in its block or an
// enclosing one; bodies end in one yield whose types fit; variables exist and their slices fit; each
// op's shape rule (verify.cpp); tokens and rows that index memory come from where they are in range.
// Rank level: variables and values have places inside the arena.
#pragma once

#include <string>

#include "ir/op.h"
#include "llvm/Support/Error.h"

namespace planc {

// The first rule that is broken, naming the function and the op; success if none is.
llvm::Error verify(const Module& module);

// Elements that one rank may hold of a variable or value, and that all ranks together may; repeats
// that may nest.
inline constexpr int64_t kMaxElements = int64_t{1} << 46;
inline constexpr int64_t kMaxWholeElements = int64_t{1} << 60;
inline constexpr unsigned kMaxNesting = 16;

}  // namespace planc
