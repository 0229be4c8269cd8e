// Tested by tests/gpu/fake_test.cpp.
#include "tests/gpu/memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace planc::cuda::fake {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kFence = 256;  // bytes behind each allocation; the range begins with one, too
constexpr int kFenceByte = 0xc9;
constexpr size_t kHugePage = 2 << 20;

int64_t roundUp(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Says what the fault means before the process dies of it.
constexpr int kMostRanges = 256;
std::atomic<std::byte*> rangeBegin[kMostRanges];
std::atomic<size_t> rangeBytes[kMostRanges];
struct sigaction before;

void onFault(int, siginfo_t* info, void*) {
  auto* at = static_cast<std::byte*>(info->si_addr);
  for (int i = 0; i < kMostRanges; ++i) {
    std::byte* begin = rangeBegin[i];
    if (begin == nullptr || at < begin || at >= begin + rangeBytes[i]) continue;
    constexpr char kText[] = "the host touched a GPU's memory\n";
    [[maybe_unused]] auto written = write(STDERR_FILENO, kText, sizeof kText - 1);
  }
  sigaction(SIGSEGV, &before, nullptr);  // the access is made again
}

void watch(std::byte* begin, size_t bytes) {
  static const bool isInstalled = [] {
    struct sigaction action = {};
    action.sa_sigaction = onFault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return sigaction(SIGSEGV, &action, &before) == 0;
  }();
  if (!isInstalled) return;
  for (int i = 0; i < kMostRanges; ++i) {
    std::byte* free = nullptr;
    if (!rangeBegin[i].compare_exchange_strong(free, begin)) continue;
    rangeBytes[i] = bytes;
    return;
  }
}

void forget(std::byte* begin) {
  for (auto& range : rangeBegin) {
    std::byte* expected = begin;
    range.compare_exchange_strong(expected, nullptr);
  }
}

bool isFence(const std::byte* at) {
  // All bytes equal the next one, and the first is right.
  return *at == std::byte{kFenceByte} && std::memcmp(at, at + 1, kFence - 1) == 0;
}

}  // namespace

DeviceMemory::DeviceMemory(int64_t bytes, bool isProtected)
    : room_(bytes), isProtected_(isProtected) {
  // Allocations are counted without their fences: twice the room is enough for all but the
  // smallest.
  range_ = size_t(2 * bytes + (64 << 20)) + kHugePage;
  void* memory = mmap(nullptr, range_, isProtected ? PROT_NONE : PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("memory of a fake GPU");
    std::abort();
  }
  mapped_ = static_cast<std::byte*>(memory);
  begin_ = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) /
                                        kHugePage * kHugePage);
  range_ -= kHugePage;
  // Few pages, so that protecting them costs little.
  madvise(begin_, range_, MADV_HUGEPAGE);
  if (isProtected_) watch(begin_, range_);
}

DeviceMemory::~DeviceMemory() {
  forget(begin_);
  munmap(mapped_, range_ + kHugePage);
}

// All that is allocated, in whole big pages.
void DeviceMemory::protect(int access) {
  if (device_.empty()) return;
  size_t bytes = size_t(device_.back().at + roundUp(device_.back().bytes) + kFence - begin_);
  bytes = std::min(range_, (bytes + kHugePage - 1) / kHugePage * kHugePage);
  if (mprotect(begin_, bytes, access) == 0) return;
  std::perror("protecting the memory of a fake GPU");
  std::abort();
}

void DeviceMemory::open(int by) {
  if (!isProtected_) return;
  std::lock_guard lock(mutex_);
  bool wasOpen = open_ > 0;
  open_ += by;
  if (wasOpen != (open_ > 0)) protect(open_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
}

std::byte* DeviceMemory::allocate(int64_t bytes) {
  int64_t counted = roundUp(std::max<int64_t>(bytes, 1));
  int64_t at = device_.empty() ? kFence : device_.back().at - begin_ + kFence +
                                              roundUp(device_.back().bytes);
  if (counted > freeBytes() || size_t(at + counted + kFence) > range_) return nullptr;
  {
    std::lock_guard lock(mutex_);
    // What is open now has the new piece, too.
    device_.push_back({begin_ + at, bytes});
    if (open_ > 0) protect(PROT_READ | PROT_WRITE);
  }
  used_ += counted;
  Open open(*this);
  std::memset(begin_, kFenceByte, kFence);
  std::memset(begin_ + at + bytes, kFenceByte, size_t(counted - bytes + kFence));
  return begin_ + at;
}

std::byte* DeviceMemory::allocateHost(int64_t bytes) {
  pinned_.push_back(
      std::make_unique_for_overwrite<std::byte[]>(size_t(bytes + kFence + kAlign)));
  auto* at = reinterpret_cast<std::byte*>(
      roundUp(reinterpret_cast<intptr_t>(pinned_.back().get())));
  std::memset(at + bytes, kFenceByte, kFence);
  host_.push_back({at, bytes});
  return at;
}

bool DeviceMemory::isIn(const std::vector<Piece>& pieces, const void* at, int64_t bytes) {
  auto* first = static_cast<const std::byte*>(at);
  return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    return first >= piece.at && bytes <= piece.bytes - (first - piece.at);
  });
}

std::string DeviceMemory::broken(const std::vector<Piece>& pieces, const char* what) {
  for (const Piece& piece : pieces) {
    if (isFence(piece.at + piece.bytes)) continue;
    return std::string("written behind an allocation of ") + std::to_string(piece.bytes) + what;
  }
  return "";
}

std::string DeviceMemory::brokenFence() const {
  if (!device_.empty() && !isFence(begin_)) return "written in front of the first allocation";
  std::string text = broken(device_, " bytes of the GPU's memory");
  return text.empty() ? broken(host_, " bytes of pinned memory") : text;
}

}  // namespace planc::cuda::fake
