// That what a model asks of its attention is what the rank programs do, however its tokens are cut.
#pragma once

#include "ir/planx.h"
#include "llvm/Support/Error.h"

namespace planc {

// Every attention of a program, whole or of blocks, forward or back, stands for one of the model's at the
// same place in the plan: alike in what it goes over, in its mask (causal, window, documents) and in its
// scale. Where the model has several at one place (a module called twice), the programs of all stages
// together do none more often than the model. All parts of one attention are alike. The error names the
// place and what differs.
llvm::Error verifyLowering(const Planx& planx);

}  // namespace planc
