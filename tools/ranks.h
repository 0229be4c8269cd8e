// Ranks as threads of this process, from beginning to end.
#pragma once

#include "runtime/comm.h"
#include "tools/command.h"

namespace planc {

// Runs `body` as each rank. What went wrong is said once; a run that failed between ranks is followed
// by the table of what each was doing. When a rank does not end then, the process does.
Exit runThreads(llvm::StringRef tool, int64_t ranks, std::chrono::milliseconds timeout,
                llvm::function_ref<llvm::Error(Communicator&)> body);

}  // namespace planc
