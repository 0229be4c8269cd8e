// Fibers: stacks of their own that one thread of the machine switches between, at the cost of a
// call.
#pragma once

#include <cstddef>

namespace planc::emulator {

// Where a stack was left. A default one is the caller's own, filled when it is first left.
class Context {
 public:
  Context() = default;
  Context(const Context&) = delete;
  ~Context();

  // To `to`, until somebody switches back. `isLast`: nobody will.
  void switchTo(Context& to, bool isLast = false);

 protected:
  void* top_ = nullptr;            // saved stack pointer, or a ucontext_t
  void* sanitizer_ = nullptr;      // what ASan or TSan keep of it
  const void* bottom_ = nullptr;   // of the stack
  size_t bytes_ = 0;
  friend class Fiber;
  friend void fiberStarts();
};

class Fiber : public Context {
 public:
  Fiber();
  ~Fiber();
  // The next switch to it calls `body`, which never returns; what it did before is forgotten.
  void prepare(void (*body)());

 private:
  std::byte* memory_;
  std::byte* end_;  // where the stack begins
};

// The first thing that a body does.
void fiberStarts();

}  // namespace planc::emulator
