// Threads that share the tasks of one job at a time; the caller takes part. Each thread begins with
// its own part of the tasks, so that kernels which cut a tensor alike find it in their own cache,
// and then takes from the others'. Tasks must not depend on the thread: kernels cut their work into
// fixed tasks, and results are the same, to the bit, for any number of threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <thread>
#include <type_traits>
#include <vector>

namespace planc::cpu {

class Pool {
 public:
  // `threads` counts the caller; 0: as many as this process may use.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;

  int threads() const { return int(scratch_.size()); }

  // Each thread's scratch will hold this much; called while kernels are prepared.
  void reserveScratch(int64_t bytes);
  // Memory of the thread `thread`, 64-byte aligned; a task may use it until it ends.
  std::byte* scratch(int thread) const { return scratch_[size_t(thread)].get(); }

  // Calls f(task, thread) for each task in [0, count), and returns when all are done. One caller at
  // a time; tasks may not call it.
  template <class F>
  void parallelFor(int64_t count, F&& f) {
    using Body = std::remove_reference_t<F>;
    run(
        count,
        [](void* body, int64_t task, int thread) { (*static_cast<Body*>(body))(task, thread); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }
  // The same over pieces of at most `piece` of [0, size): f(begin, end, thread).
  template <class F>
  void parallelPieces(int64_t size, int64_t piece, F&& f) {
    parallelFor((size + piece - 1) / piece, [&](int64_t task, int thread) {
      int64_t begin = task * piece, end = begin + piece < size ? begin + piece : size;
      f(begin, end, thread);
    });
  }

 private:
  using Task = void (*)(void* body, int64_t task, int thread);
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };

  // The job's number and the next task of one thread's part: (job << 32) | task. Claiming is one
  // compare-and-swap, so a late thread can never take a task of a job that has ended.
  struct alignas(64) Ticket {
    std::atomic<uint64_t> next{0};
  };

  void run(int64_t count, Task task, void* body);
  void serve(int thread);
  void takeTasks(uint32_t job, int thread);

  std::vector<Ticket> tickets_;
  alignas(64) std::atomic<uint32_t> job_{0};  // published when its tickets are open
  alignas(64) std::atomic<int64_t> finished_{0};
  alignas(64) std::atomic<Task> task_{nullptr};
  std::atomic<void*> body_{nullptr};
  std::atomic<int64_t> count_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<uint32_t> wake_{0};  // the futex that sleepers wait on
  std::atomic<bool> stop_{false};
  std::vector<std::unique_ptr<std::byte, Free>> scratch_;
  int64_t scratchBytes_ = 0;
  std::vector<std::thread> workers_;
};

}  // namespace planc::cpu
