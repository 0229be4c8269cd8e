// The scheduler of a block. A fiber runs threads one after another until one has to wait; then the
// next that can run goes on, on its own fiber, without a detour: kernels without barriers run on
// one fiber, at the cost of a call for each thread. Tested by tests/gpu/emulator_test.cpp.
#include "tests/gpu/emulator.h"

#include <array>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/MathExtras.h"
#include "tests/gpu/fiber.h"
#include "tests/gpu/simt.h"

namespace planc::emulator {
namespace {

constexpr unsigned kLanes = 32;
constexpr unsigned kNobody = ~0u;
constexpr uint32_t kMostThreads = 1024;          // of a block, as all GPUs have it
constexpr uint32_t kMostShared = 163 << 10;      // bytes of a block, as sm_80 has it
constexpr uint64_t kFence = 0xfff7a5c3fff7a5c3;  // beside shared memory: NaNs as f64 and as f32
constexpr size_t kFrontWords = 16, kBackWords = 128;
constexpr auto kFences = [] {
  std::array<uint64_t, kBackWords> words;
  words.fill(kFence);
  return words;
}();

enum class State : uint8_t { New, Ready, AtBarrier, AtMeeting, Ended };

struct Thread {
  State state = State::New;
  Fiber* fiber = nullptr;
  // At a meeting.
  const Meeting* meeting = nullptr;
  unsigned mask = 0;
  const void* in = nullptr;
  void* out = nullptr;
};

struct Warp {
  unsigned waiting = 0, ended = 0;  // lanes
};

class Machine {
 public:
  llvm::Error launch(const cuda::KernelInfo& kernel, const cuda::LaunchShape& shape,
                     const void* args, uint64_t seed);
  void syncThreads();
  void meet(const Meeting& meeting, unsigned mask, const void* in, void* out);
  // No strings: the stack is left for good, with all that lies on it.
  [[noreturn]] [[gnu::format(printf, 2, 3)]] void fail(const char* format, ...);
  void* shared(size_t need);

 private:
  static void fiberBody();
  void runThreads();
  bool runBlock();
  void prepareBlock();
  void noteStuck();
  void checkFences();
  std::string nameOf(unsigned thread) const { return "thread " + std::to_string(thread); }
  void setError(unsigned thread, const std::string& what);

  void makeReady(unsigned thread);
  unsigned pick();
  bool isShuffled() const { return seed_ > 1; }
  // The thread that runs stops here until it is ready and its turn comes.
  void pause();
  void go(unsigned thread, Context& from, bool isLast);
  void endThread();

  const cuda::KernelInfo* kernel_ = nullptr;
  const void* args_ = nullptr;
  uint64_t seed_ = 0, random_ = 0;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> order_;  // in which threads start
  size_t started_ = 0;
  std::vector<unsigned> ready_;
  size_t firstReady_ = 0;
  bool startsFirst_ = false;  // new threads before those that have been waiting
  unsigned atBarrier_ = 0, ended_ = 0, current_ = 0;
  std::string error_;

  Context main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  struct alignas(128) Line {
    uint64_t words[16];
  };
  std::vector<Line> memory_;
  size_t sharedBytes_ = 0;
};

// Of the thread that launches; null before its first launch.
constinit thread_local Machine* machine = nullptr;

std::byte* sharedBegin(void* memory) {
  return static_cast<std::byte*>(memory) + kFrontWords * sizeof(uint64_t);
}

void Machine::setError(unsigned thread, const std::string& what) {
  if (!error_.empty()) return;
  error_ = std::string("kernel ") + kernel_->name + ", block (" + std::to_string(blockIdx.x) +
           ", " + std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) + ")";
  if (thread != kNobody) error_ += ", " + nameOf(thread);
  error_ += ": " + what;
}

void Machine::fail(const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  setError(current_, text);
  threads_[current_].fiber->switchTo(main_, true);
  llvm_unreachable("a thread that failed goes on");
}

void Machine::makeReady(unsigned thread) {
  threads_[thread].state = State::Ready;
  ready_.push_back(thread);
}

unsigned Machine::pick() {
  size_t waiting = ready_.size() - firstReady_;
  bool canStart = started_ < order_.size();
  if (canStart && (waiting == 0 || startsFirst_)) return order_[started_++];
  if (waiting == 0) return kNobody;
  if (isShuffled()) {
    std::swap(ready_[firstReady_], ready_[firstReady_ + nextRandom(random_) % waiting]);
  }
  // Backward, a warp goes as far ahead of the others as it can.
  if (seed_ == 1) std::swap(ready_[firstReady_], ready_.back());
  unsigned thread = ready_[firstReady_++];
  if (firstReady_ == ready_.size()) {
    ready_.clear();
    firstReady_ = 0;
  }
  return thread;
}

void Machine::go(unsigned thread, Context& from, bool isLast) {
  current_ = thread;
  threadIdx.x = thread;
  Thread& next = threads_[thread];
  if (next.fiber == nullptr) {
    if (free_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>());
      free_.push_back(fibers_.back().get());
    }
    next.fiber = free_.back();
    free_.pop_back();
    next.fiber->prepare(fiberBody);
  }
  from.switchTo(*next.fiber, isLast);
}

void Machine::pause() {
  unsigned own = current_, next = pick();
  if (next == own) return;
  Fiber& fiber = *threads_[own].fiber;
  if (next == kNobody) {
    fiber.switchTo(main_);
  } else {
    go(next, fiber, false);
  }
}

void Machine::fiberBody() {
  fiberStarts();
  machine->runThreads();
}

void Machine::runThreads() {
  Fiber* fiber = threads_[current_].fiber;
  auto entry = reinterpret_cast<void (*)(const void*)>(kernel_->entry);
  for (;;) {
    entry(args_);
    endThread();
    unsigned next = pick();
    if (next != kNobody && threads_[next].fiber == nullptr) {
      threads_[next].fiber = fiber;
      current_ = next;
      threadIdx.x = next;
      continue;
    }
    free_.push_back(fiber);
    if (next == kNobody) fiber->switchTo(main_, true);
    go(next, *fiber, true);
  }
}

void Machine::endThread() {
  threads_[current_].state = State::Ended;
  ++ended_;
  if (atBarrier_ != 0) fail("ends while other threads wait for it at __syncthreads");
  Warp& warp = warps_[current_ / kLanes];
  unsigned lane = current_ % kLanes;
  warp.ended |= 1u << lane;
  if (warp.waiting == 0) return;
  for (unsigned other = 0; other < kLanes; ++other) {
    if ((warp.waiting >> other & 1) == 0) continue;
    const Thread& thread = threads_[current_ - lane + other];
    if (thread.mask >> lane & 1) {
      fail("ends while lane %u of its warp waits for it at %s", other, thread.meeting->name);
    }
  }
}

void Machine::syncThreads() {
  if (ended_ != 0) fail("waits at __syncthreads, and a thread of the block has ended");
  threads_[current_].state = State::AtBarrier;
  if (++atBarrier_ == threads_.size()) {
    atBarrier_ = 0;
    for (unsigned thread : order_) makeReady(thread);
  }
  pause();
}

void Machine::meet(const Meeting& meeting, unsigned mask, const void* in, void* out) {
  unsigned lane = current_ % kLanes, first = current_ - lane;
  Warp& warp = warps_[current_ / kLanes];
  Thread& own = threads_[current_];
  if ((mask >> lane & 1) == 0) fail("%s: the lane is not in its own mask", meeting.name);
  if (unsigned never = mask & warp.ended) {
    fail("%s: waits for lane %u of its warp, which has ended", meeting.name,
         unsigned(llvm::countTrailingZeros(never)));
  }
  auto agree = [&](unsigned l) {
    const Thread& other = threads_[first + l];
    if (other.meeting == &meeting && other.mask == mask) return;
    fail("%s with lane %u of its warp, which waits at %s%s", meeting.name, l, other.meeting->name,
         other.mask != mask ? " with another mask" : "");
  };
  // One of those that wait; all of them when all have come.
  if (unsigned there = mask & warp.waiting) agree(llvm::countTrailingZeros(there));
  own.state = State::AtMeeting;
  own.meeting = &meeting;
  own.mask = mask;
  own.in = in;
  own.out = out;
  warp.waiting |= 1u << lane;
  if ((mask & ~warp.waiting) != 0) return pause();

  std::array<const void*, kLanes> ins;
  std::array<void*, kLanes> outs;
  for (unsigned l = 0; l < kLanes; ++l) {
    if ((mask >> l & 1) == 0) continue;
    agree(l);
    ins[l] = threads_[first + l].in;
    outs[l] = threads_[first + l].out;
  }
  meeting.complete(mask, ins.data(), outs.data());
  warp.waiting &= ~mask;
  for (unsigned i = 0; i < kLanes; ++i) {
    unsigned l = seed_ == 1 ? kLanes - 1 - i : i;
    if (mask >> l & 1) makeReady(first + l);
  }
  pause();
}

void* Machine::shared(size_t need) {
  if (need > sharedBytes_) {
    fail("uses %zu bytes of shared memory, and the launch gave %zu", need, sharedBytes_);
  }
  return sharedBegin(memory_.data());
}

void Machine::prepareBlock() {
  unsigned count = unsigned(threads_.size());
  std::fill(threads_.begin(), threads_.end(), Thread{});
  std::fill(warps_.begin(), warps_.end(), Warp{});
  // A last warp that is not whole.
  if (count % kLanes != 0) warps_.back().ended = ~0u << count % kLanes;
  if (isShuffled()) {
    for (unsigned i = count; i > 1; --i) std::swap(order_[i - 1], order_[nextRandom(random_) % i]);
    startsFirst_ = nextRandom(random_) & 1;
  }
  ready_.clear();
  started_ = firstReady_ = 0;
  atBarrier_ = ended_ = 0;
  free_.clear();
  for (auto& fiber : fibers_) free_.push_back(fiber.get());

  std::byte* begin = sharedBegin(memory_.data());
  std::memcpy(memory_.data(), kFences.data(), kFrontWords * sizeof(kFence));
  bool isNan = !isShuffled() || nextRandom(random_) % 4 != 0;
  std::memset(begin, isNan ? 0xff : 0xa5, sharedBytes_);
  std::memcpy(begin + sharedBytes_, kFences.data(), kBackWords * sizeof(kFence));
}

void Machine::checkFences() {
  std::byte* begin = sharedBegin(memory_.data());
  auto check = [&](std::byte* from, size_t words, const char* where) {
    if (std::memcmp(from, kFences.data(), words * sizeof(kFence)) == 0) return;
    for (size_t i = 0; i < words; ++i) {
      if (std::memcmp(from + i * sizeof(kFence), &kFence, sizeof(kFence)) == 0) continue;
      setError(kNobody, "wrote " + std::string(where) + " its " + std::to_string(sharedBytes_) +
                            " bytes of shared memory, at byte " +
                            std::to_string(from + i * sizeof(kFence) - begin));
      return;
    }
  };
  check(begin - kFrontWords * sizeof(kFence), kFrontWords, "in front of");
  check(begin + sharedBytes_, kBackWords, "behind");
}

// Nobody can run, and not all have ended.
void Machine::noteStuck() {
  for (unsigned t = 0; t < threads_.size(); ++t) {
    const Thread& thread = threads_[t];
    if (thread.state != State::AtMeeting) continue;
    unsigned missing = thread.mask & ~warps_[t / kLanes].waiting;
    unsigned never = t / kLanes * kLanes + llvm::countTrailingZeros(missing);
    return setError(t, std::string(thread.meeting->name) + ": waits for " + nameOf(never) +
                           ", which waits " +
                           (threads_[never].state == State::AtBarrier ? "at __syncthreads"
                                                                      : "for other lanes"));
  }
  setError(kNobody, "its threads wait for each other");
}

bool Machine::runBlock() {
  prepareBlock();
  go(pick(), main_, false);
  if (error_.empty() && ended_ != threads_.size()) noteStuck();
  if (error_.empty()) checkFences();
  return error_.empty();
}

llvm::Error Machine::launch(const cuda::KernelInfo& kernel, const cuda::LaunchShape& shape,
                            const void* args, uint64_t seed) {
  auto refuse = [&](const llvm::Twine& what) {
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "kernel " + llvm::Twine(kernel.name) + ": " + what);
  };
  if (shape.threads == 0 || shape.threads > uint32_t(kernel.threads) ||
      shape.threads > kMostThreads) {
    return refuse("launched with " + llvm::Twine(shape.threads) + " threads a block, takes 1 to " +
                  llvm::Twine(kernel.threads));
  }
  if (shape.x == 0 || shape.x > INT32_MAX || shape.y == 0 || shape.y > 65535 || shape.z == 0 ||
      shape.z > 65535) {
    return refuse("launched with " + llvm::Twine(shape.x) + " x " + llvm::Twine(shape.y) + " x " +
                  llvm::Twine(shape.z) + " blocks");
  }
  if (shape.sharedBytes > kMostShared) {
    return refuse("launched with " + llvm::Twine(shape.sharedBytes) + " bytes of shared memory");
  }
  kernel_ = &kernel;
  args_ = args;
  seed_ = random_ = seed;
  error_.clear();
  threads_.resize(shape.threads);
  warps_.resize((shape.threads + kLanes - 1) / kLanes);
  order_.resize(shape.threads);
  std::iota(order_.begin(), order_.end(), 0);
  if (seed == 1) std::reverse(order_.begin(), order_.end());
  sharedBytes_ = shape.sharedBytes;
  size_t bytes = sharedBytes_ + (kFrontWords + kBackWords) * sizeof(kFence);
  memory_.resize(bytes / sizeof(Line) + 1);
  gridDim = {shape.x, shape.y, shape.z};
  blockDim = {shape.threads, 1, 1};

  // Blocks: from some first one by some step that has no factor in common with their number.
  uint64_t blocks = uint64_t(shape.x) * shape.y * shape.z, first = 0, step = 1;
  if (seed == 1) first = blocks - 1, step = blocks - 1;
  if (isShuffled()) {
    first = nextRandom(random_) % blocks;
    do step = 1 + nextRandom(random_) % blocks;
    while (std::gcd(step, blocks) != 1);
  }
  for (uint64_t i = 0, block = first; i < blocks; ++i, block = (block + step) % blocks) {
    uint64_t row = block / shape.x;
    blockIdx = {unsigned(block % shape.x), unsigned(row % shape.y), unsigned(row / shape.y)};
    if (!runBlock()) {
      return llvm::createStringError(llvm::inconvertibleErrorCode(), error_);
    }
  }
  return llvm::Error::success();
}

}  // namespace

uint64_t nextRandom(uint64_t& state) {
  uint64_t x = state += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

llvm::Error launch(const cuda::KernelInfo& kernel, const cuda::LaunchShape& shape, const void* args,
                   uint64_t seed) {
  static thread_local Machine own;
  machine = &own;
  return own.launch(kernel, shape, args, seed);
}

void fail(const char* what) { machine->fail("%s", what); }

void* sharedMemory(size_t need) { return machine->shared(need); }

void meet(const Meeting& meeting, unsigned mask, const void* in, void* out) {
  machine->meet(meeting, mask, in, out);
}

namespace {

struct Exchanged {
  const void* bytes;
  size_t count;
};

void exchange(unsigned, const void* const* in, void* const* out) {
  size_t count = static_cast<const Exchanged*>(in[0])->count;
  for (unsigned to = 0; to < kLanes; ++to) {
    for (unsigned from = 0; from < kLanes; ++from) {
      auto& given = *static_cast<const Exchanged*>(in[from]);
      if (given.count != count) fail("warpExchange: lanes give different numbers of bytes");
      std::memcpy(static_cast<std::byte*>(out[to]) + from * count, given.bytes, count);
    }
  }
}
constexpr Meeting kExchange = {"warpExchange", exchange};

struct Shuffled {
  Shuffle how;
  uint64_t bits;
  int by;
  unsigned width;
};

unsigned sourceOf(const Shuffled& want, unsigned lane) {
  unsigned first = lane & ~(want.width - 1), by = unsigned(want.by);
  switch (want.how) {
    case Shuffle::Index: return first | (by & (want.width - 1));
    case Shuffle::Up: return lane < first + by ? lane : lane - by;
    case Shuffle::Down: return lane + by >= first + want.width ? lane : lane + by;
    case Shuffle::Xor: return (lane ^ by) >= first + want.width ? lane : lane ^ by;
  }
  llvm_unreachable("no such shuffle");
}

void completeShuffle(unsigned mask, const void* const* in, void* const* out) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    unsigned source = sourceOf(*static_cast<const Shuffled*>(in[lane]), lane);
    if (source >= kLanes || (mask >> source & 1) == 0) {
      machine->fail("a shuffle's lane %u reads lane %u, which is not in the mask", lane, source);
    }
    *static_cast<uint64_t*>(out[lane]) = static_cast<const Shuffled*>(in[source])->bits;
  }
}
constexpr Meeting kShuffles[] = {{"__shfl_sync", completeShuffle},
                                 {"__shfl_up_sync", completeShuffle},
                                 {"__shfl_down_sync", completeShuffle},
                                 {"__shfl_xor_sync", completeShuffle}};

void completeBallot(unsigned mask, const void* const* in, void* const* out) {
  unsigned votes = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (mask >> lane & 1) votes |= unsigned(*static_cast<const bool*>(in[lane])) << lane;
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (mask >> lane & 1) *static_cast<unsigned*>(out[lane]) = votes;
  }
}
constexpr Meeting kBallot = {"a vote", completeBallot};
constexpr Meeting kSyncWarp = {"__syncwarp", [](unsigned, const void* const*, void* const*) {}};

}  // namespace

void warpExchange(const void* mine, size_t bytes, std::byte* all) {
  Exchanged given{mine, bytes};
  machine->meet(kExchange, ~0u, &given, all);
}

uint64_t shuffle(Shuffle how, unsigned mask, uint64_t bits, int by, int width) {
  if (width < 1 || width > int(kLanes) || (width & (width - 1)) != 0) {
    machine->fail("a shuffle's width is %d", width);
  }
  Shuffled given{how, bits, by, unsigned(width)};
  uint64_t got = 0;
  machine->meet(kShuffles[int(how)], mask, &given, &got);
  return got;
}

unsigned ballot(unsigned mask, bool yes) {
  unsigned votes = 0;
  machine->meet(kBallot, mask, &yes, &votes);
  return votes;
}

}  // namespace planc::emulator

void __syncthreads() { planc::emulator::machine->syncThreads(); }
void __syncwarp(unsigned mask) {
  planc::emulator::machine->meet(planc::emulator::kSyncWarp, mask, nullptr, nullptr);
}
