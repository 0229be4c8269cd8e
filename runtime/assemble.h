// A whole tensor from what the ranks hold of it.
#pragma once

#include <vector>

#include "ir/grid.h"
#include "runtime/comm.h"

namespace planc {

// On rank 0 the whole tensor, in the order of type.whole(): pieces put together, partial sums added;
// elsewhere nothing. All ranks call it at once, each with its own piece of the same type.
llvm::Expected<std::vector<std::byte>> assemble(Communicator& comm, const Grid& grid,
                                                const Type& type, const void* piece);

}  // namespace planc
