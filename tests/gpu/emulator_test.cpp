// The emulator: each of CUDA's words against what it means, each error seen, and a missing barrier
// that some order of threads turns into a wrong result. Compiled with simt.h included first, like
// kernels.
#include "tests/gpu/emulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "runtime/cuda/device_code.h"

namespace planc::cuda {
namespace {

constexpr uint64_t kSeeds = 12;

struct Args {
  int* out;
  int n;
};

std::string run(const Kernel<Args>& kernel, LaunchShape shape, std::vector<int>& out,
                uint64_t seed = 0) {
  Args args{out.data(), int(out.size())};
  return llvm::toString(emulator::launch(kernel, shape, &args, seed));
}

// What a kernel writes under every seed: the same.
std::vector<int> results(const Kernel<Args>& kernel, LaunchShape shape, size_t size) {
  std::vector<int> first;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::vector<int> out(size, -1);
    EXPECT_EQ(run(kernel, shape, out, seed), "") << "seed " << seed;
    if (seed == 0) first = out;
    EXPECT_EQ(out, first) << "seed " << seed;
  }
  return first;
}

// The first error, under any seed.
std::string errorOf(const Kernel<Args>& kernel, LaunchShape shape) {
  std::string error;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::vector<int> out(1024, 0);
    std::string text = run(kernel, shape, out, seed);
    EXPECT_NE(text, "") << "seed " << seed;
    if (error.empty()) error = text;
  }
  return error;
}

#define EXPECT_HAS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << std::string(text)

// --- what works ---

PLANC_KERNEL(1024, 1) indexes(Args a) {
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned at = block * blockDim.x + threadIdx.x;
  if (int(at) < a.n) a.out[at] = int(at);
}
PLANC_HANDLE(kIndexes, Args, 1024, indexes)

TEST(EmulatorTest, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> out = results(kIndexes, {.x = 3, .y = 5, .z = 2, .threads = 96}, 3000);
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(out[size_t(i)], i < 3 * 5 * 2 * 96 ? i : -1);
}

// The sum of a block by halves, with a barrier between the steps.
template <bool hasBarriers>
PLANC_KERNEL(256, 1) halves(Args a) {
  auto* s = &sharedMemory<int>();
  s[threadIdx.x] = int(threadIdx.x) + 1;
  __syncthreads();
  for (unsigned d = blockDim.x / 2; d > 0; d /= 2) {
    if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
    if (hasBarriers) __syncthreads();
  }
  if (threadIdx.x == 0) a.out[blockIdx.x] = s[0];
}
PLANC_HANDLE(kHalves, Args, 256, halves<true>)
PLANC_HANDLE(kHalvesBare, Args, 256, halves<false>)

TEST(EmulatorTest, Barriers) {
  LaunchShape shape{.x = 3, .threads = 256, .sharedBytes = 256 * sizeof(int)};
  EXPECT_EQ(results(kHalves, shape, 3), std::vector<int>(3, 256 * 257 / 2));
}

TEST(EmulatorTest, AMissingBarrierGivesWrongResults) {
  LaunchShape shape{.threads = 256, .sharedBytes = 256 * sizeof(int)};
  int wrong = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::vector<int> out(1);
    EXPECT_EQ(run(kHalvesBare, shape, out, seed), "");
    wrong += out[0] != 256 * 257 / 2;
  }
  EXPECT_GE(wrong, int(kSeeds) / 2);
}

PLANC_KERNEL(64, 1) untouched(Args a) {
  auto* s = &sharedMemory<int>();
  if (threadIdx.x == 0) a.out[0] = s[5];
  if (threadIdx.x == 1) s[5] = 7;
}
PLANC_HANDLE(kUntouched, Args, 64, untouched)

TEST(EmulatorTest, SharedMemoryIsGarbageInEveryBlock) {
  for (uint64_t seed : {0, 2, 3, 4}) {
    std::vector<int> out(1);
    EXPECT_EQ(run(kUntouched, {.x = 2, .threads = 1, .sharedBytes = 64}, out, seed), "");
    EXPECT_TRUE(out[0] == -1 || out[0] == int(0xa5a5a5a5)) << out[0];
  }
}

PLANC_KERNEL(64, 1) shuffles(Args a) {
  int lane = int(threadIdx.x) % 32, *out = a.out + threadIdx.x * 8;
  out[0] = __shfl_sync(kAllLanes, lane * 10, 7);
  out[1] = __shfl_sync(kAllLanes, lane * 10, lane + 3, 8);
  out[2] = __shfl_xor_sync(kAllLanes, lane, 5);
  out[3] = __shfl_up_sync(kAllLanes, lane, 3u);
  out[4] = __shfl_down_sync(kAllLanes, lane, 3u, 16);
  out[5] = int(__shfl_xor_sync(kAllLanes, double(lane) + 0.5, 1) * 2);
  out[6] = int(__shfl_down_sync(kAllLanes, int64_t(lane) << 33, 1u) >> 33);
  out[7] = -2;
  unsigned odd = 0xaaaaaaaau;
  if (lane % 2 == 1) out[7] = int(__shfl_xor_sync(odd, float(lane), 2));
}
PLANC_HANDLE(kShuffles, Args, 64, shuffles)

TEST(EmulatorTest, Shuffles) {
  std::vector<int> out = results(kShuffles, {.threads = 64}, 64 * 8);
  for (int thread = 0; thread < 64; ++thread) {
    int lane = thread % 32;
    const int* got = &out[size_t(thread) * 8];
    EXPECT_EQ(got[0], 70);
    EXPECT_EQ(got[1], (lane / 8 * 8 + (lane + 3) % 8) * 10);
    EXPECT_EQ(got[2], lane ^ 5);
    EXPECT_EQ(got[3], lane < 3 ? lane : lane - 3);
    EXPECT_EQ(got[4], lane % 16 + 3 < 16 ? lane + 3 : lane);
    EXPECT_EQ(got[5], 2 * (lane ^ 1) + 1);
    EXPECT_EQ(got[6], lane == 31 ? 31 : lane + 1);
    EXPECT_EQ(got[7], lane % 2 == 1 ? lane ^ 2 : -2);
  }
}

PLANC_KERNEL(32, 1) votes(Args a) {
  int lane = int(threadIdx.x), *out = a.out + lane * 4;
  out[0] = int(__ballot_sync(kAllLanes, lane % 3 == 0));
  out[1] = __any_sync(kAllLanes, lane == 31);
  out[2] = __all_sync(kAllLanes, lane < 31);
  __syncwarp();
  std::byte all[32 * sizeof(int)];
  int mine = lane * lane;
  emulator::warpExchange(&mine, sizeof(mine), all);
  int sum = 0;
  for (int l = 0; l < 32; ++l) sum += (l + 1) * *reinterpret_cast<int*>(all + l * 4);
  out[3] = sum;
}
PLANC_HANDLE(kVotes, Args, 32, votes)

TEST(EmulatorTest, VotesAndExchange) {
  std::vector<int> out = results(kVotes, {.threads = 32}, 32 * 4);
  unsigned thirds = 0;
  int sum = 0;
  for (int l = 0; l < 32; ++l) thirds |= unsigned(l % 3 == 0) << l, sum += (l + 1) * l * l;
  for (size_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(out[lane * 4], int(thirds));
    EXPECT_EQ(out[lane * 4 + 1], 1);
    EXPECT_EQ(out[lane * 4 + 2], 0);
    EXPECT_EQ(out[lane * 4 + 3], sum);
  }
}

PLANC_KERNEL(128, 1) sums(Args a) {
  auto* s = &sharedMemory<float>();
  float sum = blockSum(float(threadIdx.x), s), most = blockMax(-float(threadIdx.x), s);
  a.out[threadIdx.x * 2] = int(sum);
  a.out[threadIdx.x * 2 + 1] = int(most);
}
PLANC_HANDLE(kSums, Args, 128, sums)

TEST(EmulatorTest, SumsOfBlocks) {
  std::vector<int> out = results(kSums, {.x = 2, .threads = 128, .sharedBytes = 16}, 256);
  for (size_t i = 0; i < 128; ++i) {
    EXPECT_EQ(out[i * 2], 127 * 128 / 2);
    EXPECT_EQ(out[i * 2 + 1], 0);
  }
}

PLANC_KERNEL(64, 1) atomics(Args a) {
  atomicAdd(a.out, 2);
  atomicMax(a.out + 1, int(threadIdx.x));
  atomicMin(a.out + 2, -int(threadIdx.x));
  atomicCAS(a.out + 3, -1, 9);
}
PLANC_HANDLE(kAtomics, Args, 64, atomics)

TEST(EmulatorTest, Atomics) {
  EXPECT_EQ(results(kAtomics, {.x = 10, .threads = 64}, 4), (std::vector<int>{1279, 63, -63, 9}));
}

TEST(EmulatorTest, Numbers) {
  EXPECT_EQ(toBf16Bits(1.0f), 0x3f80);
  EXPECT_EQ(toBf16Bits(1.00390625f), 0x3f80);  // a tie, to even
  EXPECT_EQ(toBf16Bits(1.01171875f), 0x3f82);
  EXPECT_EQ(toBf16Bits(3.4e38f), 0x7f80);
  EXPECT_TRUE(std::isnan(fromBf16(toBf16Bits(NAN))));
  EXPECT_EQ(fromBf16(0xc000), -2.0f);
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__ffs(8), 4);
  EXPECT_EQ(__popc(0xffu), 8);
  EXPECT_EQ(__umulhi(0x80000000u, 6), 3u);
}

// --- what is told ---

PLANC_KERNEL(64, 1) leaves(Args) {
  if (threadIdx.x == 40) return;
  __syncthreads();
}
PLANC_HANDLE(kLeaves, Args, 64, leaves)

TEST(EmulatorTest, AThreadThatNeverComesToABarrier) {
  std::string text = errorOf(kLeaves, {.x = 2, .threads = 64});
  EXPECT_HAS(text, "kernel kLeaves, block (0, 0, 0), thread 40: ends while other threads wait");
}

PLANC_KERNEL(64, 1) leavesWarp(Args a) {
  if (threadIdx.x == 33) return;
  a.out[threadIdx.x] = warpSum(1);
}
PLANC_HANDLE(kLeavesWarp, Args, 64, leavesWarp)

TEST(EmulatorTest, ALaneThatNeverComes) {
  EXPECT_HAS(errorOf(kLeavesWarp, {.threads = 64}), "thread 33: ends while lane 0");
  // A warp that is not whole.
  EXPECT_HAS(errorOf(kSums, {.threads = 40, .sharedBytes = 64}),
             "lane 8 of its warp, which has ended");
}

PLANC_KERNEL(64, 1) parts(Args a) {
  if (threadIdx.x < 16) a.out[threadIdx.x] = __shfl_sync(0xffffu, int(threadIdx.x), 20);
}
PLANC_HANDLE(kParts, Args, 64, parts)
PLANC_KERNEL(64, 1) stranger(Args a) { a.out[0] = __shfl_sync(0xfffeu, 1, 1); }
PLANC_HANDLE(kStranger, Args, 64, stranger)
PLANC_KERNEL(64, 1) masks(Args a) {
  a.out[0] = threadIdx.x < 16 ? __shfl_sync(kAllLanes, 1, 1) : __shfl_sync(0xffff8000u, 1, 20);
}
PLANC_HANDLE(kMasks, Args, 64, masks)
PLANC_KERNEL(64, 1) kinds(Args a) {
  if (threadIdx.x % 2 == 0) {
    __syncwarp();
  } else {
    a.out[0] = __shfl_sync(kAllLanes, 1, 1);
  }
}
PLANC_HANDLE(kKinds, Args, 64, kinds)

TEST(EmulatorTest, Masks) {
  EXPECT_HAS(errorOf(kParts, {.threads = 32}), "reads lane 20, which is not in the mask");
  EXPECT_HAS(errorOf(kStranger, {.threads = 32}), "the lane is not in its own mask");
  EXPECT_HAS(errorOf(kMasks, {.threads = 32}), "with another mask");
  EXPECT_HAS(errorOf(kKinds, {.threads = 32}),
             "__shfl_sync with lane 0 of its warp, which waits at __syncwarp");
}

PLANC_KERNEL(64, 1) crossed(Args a) {
  if (threadIdx.x == 3) __syncthreads();
  a.out[threadIdx.x] = warpSum(1);
  if (threadIdx.x != 3) __syncthreads();
}
PLANC_HANDLE(kCrossed, Args, 64, crossed)

TEST(EmulatorTest, ThreadsThatWaitForEachOther) {
  EXPECT_HAS(errorOf(kCrossed, {.threads = 64}),
             "waits for thread 3, which waits at __syncthreads");
}

PLANC_KERNEL(64, 1) writesAt(Args a) {
  auto* s = &sharedMemory<int>();
  if (threadIdx.x == 0) s[a.out[0]] = 1;
}
PLANC_HANDLE(kWritesAt, Args, 64, writesAt)

TEST(EmulatorTest, SharedMemory) {
  for (int at : {0, 24}) {
    std::vector<int> out{at};
    EXPECT_EQ(run(kWritesAt, {.threads = 32, .sharedBytes = 100}, out), "");
  }
  std::vector<int> behind{25}, far{250}, before{-2};
  LaunchShape shape{.threads = 32, .sharedBytes = 100};
  EXPECT_HAS(run(kWritesAt, shape, behind),
             "wrote behind its 100 bytes of shared memory, at byte 100");
  EXPECT_HAS(run(kWritesAt, shape, far), "behind its 100 bytes of shared memory, at byte 9");
  EXPECT_HAS(run(kWritesAt, shape, before), "wrote in front of its 100 bytes");
  EXPECT_HAS(run(kWritesAt, {.threads = 32}, behind),
             "uses 4 bytes of shared memory, and the launch gave 0");
}

PLANC_KERNEL(64, 1) reads4(Args a) {
  int four[4];
  load<4>({a.out, Elem::I32}, a.out[0], four);
  a.out[0] = four[0];
}
PLANC_HANDLE(kReads4, Args, 64, reads4)

TEST(EmulatorTest, AccessesThatAreNotAligned) {
#ifndef PLANC_CHECKS_ALIGNMENT
  GTEST_SKIP() << "UBSan tells of them";
#endif
  alignas(16) int memory[8] = {};
  Args args{memory, 8};
  for (int at : {0, 4, 1}) {
    memory[0] = at;
    std::string text = llvm::toString(emulator::launch(kReads4, {.threads = 1}, &args, 0));
    if (at % 4 == 0) EXPECT_EQ(text, "");
    else EXPECT_HAS(text, "is not aligned to 16 bytes (");
  }
}

TEST(EmulatorTest, LaunchesThatNoGpuTakes) {
  std::vector<int> out(1);
  EXPECT_HAS(run(kUntouched, {.threads = 65}, out),
             "launched with 65 threads a block, takes 1 to 64");
  EXPECT_HAS(run(kUntouched, {.threads = 0}, out), "launched with 0 threads");
  EXPECT_HAS(run(kUntouched, {.y = 65536, .threads = 32}, out),
             "launched with 1 x 65536 x 1 blocks");
  EXPECT_HAS(run(kUntouched, {.x = 0, .threads = 32}, out), "launched with 0 x 1 x 1 blocks");
  EXPECT_HAS(run(kUntouched, {.threads = 32, .sharedBytes = 300000}, out),
             "bytes of shared memory");
}

TEST(EmulatorTest, GoesOnBehindAnError) {
  for (int i = 0; i < 3; ++i) {
    errorOf(kLeaves, {.threads = 64});
    EXPECT_EQ(results(kHalves, {.threads = 64, .sharedBytes = 256}, 1)[0], 65 * 32);
  }
}

std::vector<int> order;
PLANC_KERNEL(64, 1) note(Args) { order.push_back(int(threadIdx.x + 32 * blockIdx.x)); }
PLANC_HANDLE(kNote, Args, 64, note)

TEST(EmulatorTest, OrdersDiffer) {
  std::set<std::vector<int>> seen;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    order.clear();
    std::vector<int> out(1);
    EXPECT_EQ(run(kNote, {.x = 8, .threads = 32}, out, seed), "");
    seen.insert(order);
    std::sort(order.begin(), order.end());
    for (int i = 0; i < 256; ++i) ASSERT_EQ(order[size_t(i)], i);
  }
  EXPECT_EQ(seen.size(), kSeeds);
}

}  // namespace
}  // namespace planc::cuda
