// The tests of kernels on the CPU: each variant has another number of threads.
#include "tests/runtime/device_under_test.h"

namespace planc::test {

std::unique_ptr<Device> makeTestDevice(int variant, Coordinates rank) {
  return makeCpuDevice(variant, std::move(rank));
}

}  // namespace planc::test
