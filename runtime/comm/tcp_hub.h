// Rank 0's side of tcp.cpp.
#pragma once

#include "runtime/comm.h"

namespace planc::comm {

// Waits for all other ranks; the communicator of rank 0.
llvm::Expected<std::unique_ptr<Communicator>> makeTcpHub(int size, const std::string& host,
                                                         int port,
                                                         std::chrono::milliseconds timeout);

}  // namespace planc::comm
