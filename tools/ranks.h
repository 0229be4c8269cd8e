// Ranks as threads of this process, from beginning to end; or this process as one of them.
#pragma once

#include "runtime/comm.h"
#include "tools/command.h"

namespace planc {

// Runs `body` as each rank. What went wrong is said once; a run that failed between ranks is followed
// by the table of what each was doing. When a rank does not end then, the process does.
Exit runThreads(llvm::StringRef tool, int64_t ranks, std::chrono::milliseconds timeout,
                llvm::function_ref<llvm::Error(Communicator&)> body);

// Runs `body` as the rank that this process is among those of `mpi`; without it, as all ranks.
Exit runRanks(llvm::StringRef tool, Communicator* mpi, int64_t ranks,
              std::chrono::milliseconds timeout,
              llvm::function_ref<llvm::Error(Communicator&)> body);

}  // namespace planc
