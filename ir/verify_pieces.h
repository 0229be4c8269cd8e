// That the stages of a pipeline together hold the model: no layer is dropped, none is held twice.
#pragma once

#include "ir/planx.h"
#include "llvm/Support/Error.h"

namespace planc {

// Along the pipeline's axis, whatever the other coordinates: of each weight of the model the programs'
// pieces have each iteration once; what is not stacked, or not cut, one of them holds. Copies marked
// `tied` do not count, but each program that holds one sums its gradient among all that do. The error
// names the weight, the iterations and the programs.
llvm::Error verifyPieces(const Planx& planx);

}  // namespace planc
