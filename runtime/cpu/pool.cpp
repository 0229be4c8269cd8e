// The thread pool. A job's tasks are claimed one by one from tickets, one for each thread's part.
// Between jobs workers spin for some 50 us, as long as the gaps between a program's kernels, then
// spin on while they let others run (which keeps them on a processor of their own when others are
// busy), and after a millisecond sleep on a futex. Tested by tests/runtime/kernels_test.cpp.
#include "runtime/cpu/pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "llvm/Support/ErrorHandling.h"

namespace planc::cpu {
namespace {

// A ticket of a job that hands out no tasks (yet).
constexpr uint64_t kClosed = 0xFFFFFFFF;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// Waits until `done()`, at most a millisecond if it `givesUp`. First without a pause for others, then
// letting them run: a thread that holds the last task may be waiting for this processor.
template <class F>
bool spinUntil(F&& done, bool givesUp) {
  using Clock = std::chrono::steady_clock;
  auto start = Clock::now();
  while (!done()) {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause();
    }
    auto waited = Clock::now() - start;
    if (waited > std::chrono::microseconds(50)) sched_yield();
    if (givesUp && waited > std::chrono::milliseconds(1)) return false;
  }
  return true;
}

int usableThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(int(std::thread::hardware_concurrency()), 1);
}

}  // namespace

Pool::Pool(int threads) {
  scratch_.resize(size_t(threads > 0 ? threads : usableThreads()));
  tickets_ = std::vector<Ticket>(scratch_.size());
  reserveScratch(1 << 20);
  for (int i = 1; i < this->threads(); ++i) workers_.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::reserveScratch(int64_t bytes) {
  if (bytes <= scratchBytes_) return;
  scratchBytes_ = (bytes + 4095) / 4096 * 4096;
  for (auto& memory : scratch_) {
    void* p = ::operator new (size_t(scratchBytes_), std::align_val_t{64}, std::nothrow);
    if (p == nullptr) llvm::report_bad_alloc_error("planc: no memory for a thread's scratch");
    memory.reset(static_cast<std::byte*>(p));
  }
}

void Pool::run(int64_t count, Task task, void* body) {
  if (threads() == 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) task(body, i, 0);
    return;
  }
  uint32_t job = job_.load(std::memory_order_relaxed) + 1;
  // Closed while the fields change: who reads a new field must fail to claim an old ticket.
  for (Ticket& ticket : tickets_) ticket.next.store(uint64_t(job) << 32 | kClosed);
  task_.store(task, std::memory_order_release);
  body_.store(body, std::memory_order_release);
  count_.store(count, std::memory_order_release);
  finished_.store(0, std::memory_order_relaxed);
  for (int t = 0; t < threads(); ++t) {
    tickets_[size_t(t)].next.store(uint64_t(job) << 32 | uint64_t(count * t / threads()));
  }
  job_.store(job);
  if (sleepers_.load() > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  takeTasks(job, 0);
  spinUntil([&] { return finished_.load(std::memory_order_acquire) == count; }, false);
}

void Pool::takeTasks(uint32_t job, int thread) {
  Task task = task_.load(std::memory_order_acquire);
  void* body = body_.load(std::memory_order_acquire);
  int64_t count = count_.load(std::memory_order_acquire);
  for (int part = thread, left = threads(); left > 0; --left, part = (part + 1) % threads()) {
    std::atomic<uint64_t>& next = tickets_[size_t(part)].next;
    int64_t end = count * (part + 1) / threads();
    uint64_t ticket = next.load(std::memory_order_acquire);
    while (uint32_t(ticket >> 32) == job && int64_t(ticket & kClosed) < end) {
      if (!next.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
      task(body, int64_t(ticket & kClosed), thread);
      finished_.fetch_add(1, std::memory_order_release);
      ticket = next.load(std::memory_order_acquire);
    }
  }
}

void Pool::serve(int thread) {
  uint32_t last = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    uint32_t job = last;
    auto isNew = [&] {
      job = job_.load(std::memory_order_acquire);
      return job != last || stop_.load(std::memory_order_relaxed);
    };
    spinUntil(isNew, true);
    if (job == last) {
      // Announced before the last look, so that the caller either is seen or sees a sleeper.
      uint32_t wake = wake_.load();
      sleepers_.fetch_add(1);
      if (job_.load() == last && !stop_.load()) wake_.wait(wake);
      sleepers_.fetch_sub(1);
      continue;
    }
    last = job;
    takeTasks(last, thread);
  }
}

}  // namespace planc::cpu
