// The device whose kernels are tested, and tensors in its memory. The same tests are linked with
// the CPU's (cpu_under_test.cpp) and, in tests/gpu, with a fake GPU and a real one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/bf16.h"
#include "runtime/device.h"
#include "runtime/reference.h"

namespace planc::test {

// Results are equal to the bit for every `variant`, from 1: threads of the CPU, orders of a fake
// GPU.
std::unique_ptr<Device> makeTestDevice(int variant, Coordinates rank = {});

// An element in the host's memory, rounded to its type.
inline void storeOne(double x, void* to, Elem elem, int64_t at) {
  if (elem == Elem::F32) static_cast<float*>(to)[at] = float(x);
  if (elem == Elem::BF16) static_cast<Bf16*>(to)[at] = toBf16(float(x));
  if (elem == Elem::F64) static_cast<double*>(to)[at] = x;
  if (elem == Elem::I32) static_cast<int32_t*>(to)[at] = int32_t(x);
}
inline double loadOne(const void* from, Elem elem, int64_t at) {
  if (elem == Elem::F32) return double(static_cast<const float*>(from)[at]);
  if (elem == Elem::BF16) return double(toFloat(static_cast<const Bf16*>(from)[at]));
  if (elem == Elem::F64) return static_cast<const double*>(from)[at];
  return double(static_cast<const int32_t*>(from)[at]);
}

// A tensor in a device's memory, aligned as in an arena, or as slice `slice` of
// a variable: so many times its size behind that; with guards behind it.
class DeviceTensor {
 public:
  DeviceTensor(Device& device, const Type& type, int64_t slice = 0)
      : device_(device), type_(type), bytes_(type.bytes()) {
    // Not more aligned than by 64 bytes.
    int64_t offset = kAlign + slice * bytes_;
    auto memory = device.allocate(offset + bytes_ + kGuard);
    if (!memory) {
      ADD_FAILURE() << llvm::toString(memory.takeError());
      std::abort();
    }
    start_ = *memory + offset;
    std::vector<std::byte> garbage(size_t(bytes_ + kGuard), kGarbage);
    device.write(start_, garbage.data(), bytes_ + kGuard);
  }
  DeviceTensor(const DeviceTensor&) = delete;

  void* data() const { return start_; }
  // Rounds the values to the element type.
  void set(const Array& values) {
    std::vector<std::byte> bytes(size_t(bytes_), kGarbage);
    for (size_t i = 0; i < values.size(); ++i)
      storeOne(values[i], bytes.data(), type_.elem, int64_t(i));
    device_.write(start_, bytes.data(), bytes_);
  }
  Array get() const {
    std::vector<std::byte> bytes = read(start_, bytes_);
    Array values;
    for (int64_t i = 0; i < type_.elements(); ++i)
      values.push_back(loadOne(bytes.data(), type_.elem, i));
    return values;
  }
  bool isIntact() const {
    std::vector<std::byte> guard = read(start_ + bytes_, kGuard);
    return std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == kGarbage; });
  }
  std::vector<std::byte> bits() const { return read(start_, bytes_); }

 private:
  static constexpr int64_t kAlign = 64, kGuard = 256;
  static constexpr std::byte kGarbage{0xA5};

  std::vector<std::byte> read(const std::byte* at, int64_t bytes) const {
    std::vector<std::byte> host(static_cast<size_t>(bytes));
    if (llvm::Error error = device_.read(host.data(), at, bytes))
      ADD_FAILURE() << llvm::toString(std::move(error));
    return host;
  }

  Device& device_;
  Type type_;
  int64_t bytes_;
  std::byte* start_;
};

// As the element type holds them.
inline Array rounded(const Type& type, const Array& values) {
  Array held;
  alignas(8) std::byte one[8];
  for (double x : values) {
    storeOne(x, one, type.elem, 0);
    held.push_back(loadOne(one, type.elem, 0));
  }
  return held;
}

}  // namespace planc::test
