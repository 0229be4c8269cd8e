// Many copies, where nothing faster is known: one after the other.
#include "runtime/device.h"

namespace planc {

void Device::copy(void* to, const void* from, llvm::ArrayRef<CopyRun> runs) {
  for (const CopyRun& run : runs)
    copy(static_cast<std::byte*>(to) + run.to, static_cast<const std::byte*>(from) + run.from,
         run.bytes);
}

std::unique_ptr<Copies> Device::prepareCopies(llvm::ArrayRef<CopyRun> runs) {
  struct Each : Copies {
    Each(Device& device, llvm::ArrayRef<CopyRun> runs) : device(device), runs(runs.vec()) {}
    void run(void* to, const void* from) override { device.copy(to, from, runs); }
    Device& device;
    std::vector<CopyRun> runs;
  };
  return std::make_unique<Each>(*this, runs);
}

}  // namespace planc
