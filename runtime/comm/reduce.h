// The arithmetic of all-reduce and reduce-scatter, the same for every backend.
#pragma once

#include "runtime/comm.h"

namespace planc::comm {

// outputs[j][i] = reduction over the inputs, in their order, of inputs[k][i], for i in [begin, end).
// An output may be an input. Sums of bf16 are made in f32 and rounded once.
void reduce(Elem elem, Reduction reduction, llvm::ArrayRef<const void*> inputs,
            llvm::ArrayRef<void*> outputs, int64_t begin, int64_t end);

}  // namespace planc::comm
