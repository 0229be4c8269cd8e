// Checks the rule of sharding (ir/sharding.h) on every op of a sharded or rank module: a sum over
// ranks that is missing, doubled or over the wrong axes is a type error.
#pragma once

#include "ir/op.h"
#include "llvm/Support/Error.h"

namespace planc {

llvm::Error verifySharding(const Op& op, const Grid& grid);
// The grid itself, and a type's axes: known, each used once, partial in the grid's order.
llvm::Error verifyGrid(const Grid& grid);
llvm::Error verifyHeld(const Type& type, const Grid& grid);

}  // namespace planc
