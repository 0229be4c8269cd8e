// A whole tensor from what the ranks hold of it.
#pragma once

#include <vector>

#include "ir/grid.h"
#include "runtime/comm.h"

namespace planc {

// A rank's piece of a tensor; `first` as in pieceRuns.
struct RankPiece {
  int rank;
  Type type;
  int64_t first = 0;
  const void* data = nullptr;  // the own rank's only
};

// On rank 0 the whole tensor, in the order of its type: pieces put together, partial sums added;
// elsewhere nothing. All ranks call it at once with the same pieces.
llvm::Expected<std::vector<std::byte>> assemble(Communicator& comm, const Grid& grid,
                                                const Type& whole,
                                                llvm::ArrayRef<RankPiece> pieces);

}  // namespace planc
