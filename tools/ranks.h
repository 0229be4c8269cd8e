// Ranks as threads of this process, from beginning to end; or this process as one of them.
#pragma once

#include "runtime/comm.h"
#include "tools/command.h"

namespace planc {

// Runs `body` as the rank that this process is among those of `mpi`; where that is null, as each rank,
// a thread. What went wrong is said once; a run that failed between threads is followed by the table of
// what each was doing. When one does not end then, the process does.
Exit runRanks(llvm::StringRef tool, Communicator* mpi, int64_t ranks,
              std::chrono::milliseconds timeout,
              llvm::function_ref<llvm::Error(Communicator&)> body);

}  // namespace planc
