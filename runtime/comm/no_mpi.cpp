// In place of mpi.cpp where there was no MPI when planc was built.
#include "runtime/comm.h"

namespace planc {

llvm::Expected<std::unique_ptr<Communicator>> makeMpiCommunicator(std::chrono::milliseconds) {
  return llvm::createStringError(
      llvm::inconvertibleErrorCode(),
      "this planc was built without MPI; install one (Debian, Ubuntu: libopenmpi-dev openmpi-bin), "
      "configure and build again");
}

}  // namespace planc
