// Kernels and GPUs for the tests of the fake machine. Compiled with simt.h included first.
#pragma once

#include <gtest/gtest.h>

#include "runtime/cuda/device_code.h"
#include "tests/gpu/fake_driver.h"

namespace planc::cuda {

#define EXPECT_HAS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << std::string(text)

// x = a x + b, over all of x: whoever runs out of order is seen.
struct StepArgs {
  int32_t* x;
  int32_t n, a, b;
};
inline PLANC_KERNEL(64, 1) step(StepArgs s) {
  for (int i = int(threadIdx.x); i < s.n; i += int(blockDim.x)) s.x[i] = s.a * s.x[i] + s.b;
}
// to = from.
struct MoveArgs {
  int32_t* to;
  const int32_t* from;
  int32_t n;
};
inline PLANC_KERNEL(64, 1) move(MoveArgs m) {
  for (int i = int(threadIdx.x); i < m.n; i += int(blockDim.x)) m.to[i] = m.from[i];
}
namespace {
PLANC_HANDLE(kStep, StepArgs, 64, step)
PLANC_HANDLE(kMove, MoveArgs, 64, move)
}  // namespace

struct Gpu {
  std::unique_ptr<Driver> driver;
  Stream a, b;
  Event event;

  explicit Gpu(int index = 0) {
    auto opened = openGpu(index);
    if (!opened) {
      ADD_FAILURE() << llvm::toString(opened.takeError());
      std::abort();
    }
    driver = std::move(*opened);
    a = driver->makeStream(false);
    b = driver->makeStream(true);
    event = driver->makeEvent();
  }
  Driver* operator->() { return driver.get(); }

  template <class T = int32_t>
  T* memory(int64_t n) {
    auto made = driver->allocate(n * int64_t(sizeof(T)));
    if (made) return reinterpret_cast<T*>(*made);
    ADD_FAILURE() << llvm::toString(made.takeError());
    return nullptr;
  }
  void step(Stream stream, int32_t* x, int32_t a, int32_t b, int32_t n = 1) {
    StepArgs args{x, n, a, b};
    driver->launch(stream, kStep, {.threads = 32}, &args);
  }
  void move(Stream stream, int32_t* to, const int32_t* from, int32_t n = 1) {
    MoveArgs args{to, from, n};
    driver->launch(stream, kMove, {.threads = 32}, &args);
  }
  // Until the stream is empty; the error, where there is one.
  std::string finish(Stream stream) {
    driver->record(event, stream);
    return finish(event);
  }
  std::string finish(Event waited) {
    for (;;) {
      bool isDone = driver->isDone(waited);
      std::string error = llvm::toString(driver->error());
      if (isDone || !error.empty()) return error;
    }
  }
  template <class T>
  void write(T* to, const std::vector<T>& values) {
    int64_t bytes = int64_t(values.size() * sizeof(T));
    std::byte* pinned = *driver->allocateHost(bytes);
    std::memcpy(pinned, values.data(), size_t(bytes));
    driver->copy(a, to, pinned, bytes);
    EXPECT_EQ(finish(a), "");
  }
  template <class T>
  std::vector<T> read(const T* from, int64_t n) {
    std::byte* pinned = *driver->allocateHost(n * int64_t(sizeof(T)));
    driver->copy(a, pinned, from, n * int64_t(sizeof(T)));
    EXPECT_EQ(finish(a), "");
    auto* values = reinterpret_cast<T*>(pinned);
    return {values, values + n};
  }
};

// Calls `body` with each mode and some seeds.
template <class Body>
void inAllOrders(Body&& body) {
  const fake::Options before = fake::options();
  for (fake::Mode mode : fake::kModes)
    for (uint64_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(testing::Message() << "mode " << int(mode) << " seed " << seed);
      fake::options().mode = mode;
      fake::options().seed = seed;
      body();
    }
  fake::options() = before;
}

}  // namespace planc::cuda
