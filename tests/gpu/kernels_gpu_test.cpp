// The tests of kernels on a fake GPU: each variant runs threads, blocks and streams in another
// order.
#include "tests/gpu/fake.h"
#include "tests/runtime/device_under_test.h"

namespace planc::test {

std::unique_ptr<Device> makeTestDevice(int variant, Coordinates rank) {
  // Forward, shuffled, backward.
  constexpr uint64_t kSeeds[] = {0, 5, 1};
  auto& options = cuda::fake::options();
  options.seed = kSeeds[(variant - 1) % 3];
  options.mode = variant == 1 ? cuda::fake::Mode::Eager : cuda::fake::Mode::Random;
  auto device = makeCudaDevice(0, std::move(rank));
  if (device) return std::move(*device);
  ADD_FAILURE() << llvm::toString(device.takeError());
  std::abort();
}

}  // namespace planc::test
