// Many copies at once, and marks of progress.
#pragma once

#include "runtime/cuda/kernel.h"

namespace planc::cuda {

// Bytes, as planc::CopyRun has them; kLongestRun at most.
struct DeviceRun {
  int64_t to, from, bytes;
};
constexpr int64_t kLongestRun = 4096;

struct CopyRunsArgs {
  void* to;
  const void* from;
  const DeviceRun* runs;
  int64_t count;
};
extern const Kernel<CopyRunsArgs> kCopyRuns;

// Where the host sees it: pinned memory.
struct MarkArgs {
  int32_t* cell;
  int32_t value;
};
extern const Kernel<MarkArgs> kMark;

}  // namespace planc::cuda
