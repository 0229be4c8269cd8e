// One element of a tensor in memory, as a double. For start-up work and for people, not for kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "ir/type.h"
#include "runtime/bf16.h"

namespace planc {

// Rounded to nearest even; an i32 must be whole already.
inline void store(Elem elem, void* tensor, int64_t i, double value) {
  auto put = [&](auto narrow) {
    std::memcpy(static_cast<std::byte*>(tensor) + i * int64_t(sizeof narrow), &narrow,
                sizeof narrow);
  };
  if (elem == Elem::F64) put(value);
  else if (elem == Elem::F32) put(float(value));
  else if (elem == Elem::BF16) put(toBf16(float(value)));
  else put(int32_t(value));
}

inline double fetch(Elem elem, const void* tensor, int64_t i) {
  auto get = [&](auto value) {
    std::memcpy(&value, static_cast<const std::byte*>(tensor) + i * int64_t(sizeof value),
                sizeof value);
    return value;
  };
  switch (elem) {
    case Elem::F64:
      return get(double());
    case Elem::F32:
      return double(get(float()));
    case Elem::BF16:
      return double(toFloat(get(Bf16())));
    case Elem::I32:
      break;
  }
  return get(int32_t());
}

// Splits [0, count) over at most `most` threads: body(from, to).
template <class F>
void inParallel(int64_t count, int most, F&& body) {
  constexpr int64_t kChunk = 1 << 16;
  int64_t threads = std::min<int64_t>(most, count / kChunk);
  if (threads < 2) return body(int64_t{0}, count);
  std::vector<std::thread> workers;
  for (int64_t t = 0; t < threads; ++t)
    workers.emplace_back([&, t] { body(count * t / threads, count * (t + 1) / threads); });
  for (std::thread& worker : workers) worker.join();
}

}  // namespace planc
