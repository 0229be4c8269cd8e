// See copies.h. A warp a run; 16 bytes a lane where both sides allow.
#include "runtime/cuda/copies.h"

#include "runtime/cuda/device_code.h"

namespace planc::cuda {
namespace {

constexpr int kThreads = 256;

template <class Word>
PLANC_DEVICE void copyWords(char* to, const char* from, int64_t bytes) {
  for (int64_t at = int64_t(threadIdx.x % kWarp) * int64_t(sizeof(Word)); at < bytes;
       at += kWarp * int64_t(sizeof(Word)))
    *reinterpret_cast<Word*>(to + at) = *reinterpret_cast<const Word*>(from + at);
}

struct alignas(16) Sixteen {
  uint32_t words[4];
};

// Occupancy: full (8 blocks of 256 threads, 32 registers).
PLANC_KERNEL(kThreads, 8) copyRuns(CopyRunsArgs a) {
  int64_t number = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  if (number >= a.count) return;
  DeviceRun run = a.runs[number];
  char* to = static_cast<char*>(a.to) + run.to;
  const char* from = static_cast<const char*>(a.from) + run.from;
  uint64_t low = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) |
                 uint64_t(run.bytes);
  if (low % 16 == 0) copyWords<Sixteen>(to, from, run.bytes);
  else if (low % 4 == 0) copyWords<uint32_t>(to, from, run.bytes);
  else copyWords<uint16_t>(to, from, run.bytes);  // the smallest element
}

PLANC_KERNEL(32, 1) mark(MarkArgs a) {
  if (threadIdx.x == 0) *static_cast<volatile int32_t*>(a.cell) = a.value;
}

}  // namespace

PLANC_HANDLE(kCopyRuns, CopyRunsArgs, kThreads, copyRuns)
PLANC_HANDLE(kMark, MarkArgs, 32, mark)

}  // namespace planc::cuda
