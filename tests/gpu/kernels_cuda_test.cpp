// The tests of kernels on a real GPU, the first of the machine; without one all are skipped.
#include "tests/runtime/device_under_test.h"

namespace planc::test {
namespace {

std::string whyNot() {
  auto device = makeCudaDevice(0);
  return device ? "" : llvm::toString(device.takeError());
}

struct NeedsGpu : testing::Environment {
  void SetUp() override {
    if (std::string why = whyNot(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
  }
};
testing::Environment* const needsGpu = testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace

// All variants are the same: a GPU chooses its orders itself.
std::unique_ptr<Device> makeTestDevice(int, Coordinates rank) {
  auto device = makeCudaDevice(0, std::move(rank));
  if (device) return std::move(*device);
  ADD_FAILURE() << llvm::toString(device.takeError());
  std::abort();
}

}  // namespace planc::test
