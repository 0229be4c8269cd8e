// Where planc was built without CUDA.
#include "runtime/comm.h"
#include "runtime/device.h"

namespace planc {
namespace {

llvm::Error without() {
  return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                 "planc was built without CUDA: install nvcc, cuBLAS and NCCL, and "
                                 "configure it again (-DPLANC_CUDA=ON says what is missing)");
}

}  // namespace

llvm::Expected<std::unique_ptr<Device>> makeCudaDevice(int, Coordinates) { return without(); }
llvm::Expected<int> countGpus() { return without(); }
llvm::Expected<std::unique_ptr<Communicator>> makeNcclCommunicator(
    Communicator&, Device&, std::chrono::milliseconds) {
  return without();
}

}  // namespace planc
