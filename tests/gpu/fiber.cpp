// The switch itself is in assembly for x86-64 and aarch64 (the callee's registers, then the stack
// pointer) and by ucontext elsewhere, which costs a system call. A page behind each stack can't be
// touched. Tested by tests/gpu/emulator_test.cpp.
#include "tests/gpu/fiber.h"

#include <atomic>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__)
asm(R"(
.text
.globl plancSwitchStack
.type plancSwitchStack, @function
plancSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size plancSwitchStack, .-plancSwitchStack
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl plancSwitchStack
.type plancSwitchStack, %function
plancSwitchStack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size plancSwitchStack, .-plancSwitchStack
)");
#else
#include <ucontext.h>
#endif

namespace planc::emulator {
namespace {

// A process may have some 65 thousand mappings, and a guard makes two of one: the first so many stacks
// have theirs.
constexpr size_t kGuarded = 8192;
std::atomic<size_t> stacks;
constexpr size_t kGuard = 64 << 10;  // a multiple of any page's size
constexpr size_t kStack = 256 << 10;

#if defined(__x86_64__) || defined(__aarch64__)
extern "C" void plancSwitchStack(void** save, void* to);

void* stackThatCalls(void (*body)(), std::byte* end) {
#if defined(__x86_64__)
  // Six registers, where to return to, and where `body` would return to: entered as if by a call.
  auto* top = reinterpret_cast<void**>(end) - 8;
  std::memset(top, 0, 8 * sizeof(void*));
  top[6] = reinterpret_cast<void*>(body);
#else
  auto* top = reinterpret_cast<void**>(end) - 20;
  std::memset(top, 0, 20 * sizeof(void*));
  top[11] = reinterpret_cast<void*>(body);
#endif
  return top;
}
#endif

#if defined(__SANITIZE_ADDRESS__)
thread_local Context* leaving = nullptr;
thread_local Context* entering = nullptr;
#endif

}  // namespace

Context::~Context() {
#if defined(__SANITIZE_THREAD__)
  if (bytes_ != 0 && sanitizer_ != nullptr) __tsan_destroy_fiber(sanitizer_);
#endif
#if !defined(__x86_64__) && !defined(__aarch64__)
  delete static_cast<ucontext_t*>(top_);
#endif
}

void Context::switchTo(Context& to, [[maybe_unused]] bool isLast) {
#if defined(__SANITIZE_ADDRESS__)
  leaving = this;
  entering = &to;
  __sanitizer_start_switch_fiber(isLast ? nullptr : &sanitizer_, to.bottom_, to.bytes_);
#elif defined(__SANITIZE_THREAD__)
  if (sanitizer_ == nullptr) sanitizer_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.sanitizer_, 0);
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  plancSwitchStack(&top_, to.top_);
#else
  if (top_ == nullptr) top_ = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(top_), static_cast<ucontext_t*>(to.top_));
#endif
  fiberStarts();
}

void fiberStarts() {
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(entering->sanitizer_, &bottom, &bytes);
  // A thread's own stack is known only when it has been left.
  if (leaving->bytes_ == 0) {
    leaving->bottom_ = bottom;
    leaving->bytes_ = bytes;
  }
#endif
}

Fiber::Fiber() {
  void* memory = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool isGuarded = stacks++ < kGuarded;
  if (memory == MAP_FAILED || (isGuarded && mprotect(memory, kGuard, PROT_NONE) != 0)) {
    std::perror("a fiber's stack");
    std::abort();
  }
  memory_ = static_cast<std::byte*>(memory);
  // Stacks that all begin at the same place of a page would share a few lines of the cache.
  static thread_local size_t made = 0;
  end_ = memory_ + kGuard + kStack - made++ * 13 % 256 * 64;
  bottom_ = memory_ + kGuard;
  bytes_ = kStack;
#if defined(__SANITIZE_THREAD__)
  sanitizer_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  munmap(memory_, kGuard + kStack);
  --stacks;
}

void Fiber::prepare(void (*body)()) {
#if defined(__SANITIZE_ADDRESS__)
  sanitizer_ = nullptr;
  __asan_unpoison_memory_region(bottom_, bytes_);  // frames that were left for good
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  top_ = stackThatCalls(body, end_);
#else
  if (top_ == nullptr) top_ = new ucontext_t;
  auto* context = static_cast<ucontext_t*>(top_);
  getcontext(context);
  context->uc_stack = {};
  context->uc_stack.ss_sp = memory_ + kGuard;
  context->uc_stack.ss_size = size_t(end_ - memory_) - kGuard;
  context->uc_link = nullptr;
  makecontext(context, body, 0);
#endif
}

}  // namespace planc::emulator
