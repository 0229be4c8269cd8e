// What a `repeat` does for its next iteration: `read {ahead}` reads that one's slice, and ops with
// `unless_last`, which the last iteration leaves out, work on it; `read {index}`, outside, gives the
// slice that the first iteration needs.
#pragma once

#include "ir/op.h"
#include "llvm/Support/Error.h"

namespace planc {

// Whether these attributes stand where they mean something, and nobody reads what an op that was left
// out would have made.
llvm::Error verifyAhead(const Op& op);

}  // namespace planc
