// A device: one arena of memory, and a kernel for each op of a rank program. The interpreter
// resolves every value to a pointer and calls kernels in program order; kernels know nothing of
// models. Backends are made by the factories at the end (no header per backend).
//
// A device's memory may be out of the host's reach (`isHost` is false): then only `read` and `write`
// cross over, and what is run, copied or cleared is done later, in the order in which it was asked for.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

#include "ir/op.h"
#include "llvm/Support/Error.h"

namespace planc {

// What a kernel may depend on beside its operands.
struct RunContext {
  uint64_t seed = 0;
  int64_t step = 1;        // from 1
  int64_t microbatch = 0;  // from 0
  // Iteration of each enclosing repeat, outermost first (Block::enclosing() order).
  llvm::ArrayRef<int64_t> iteration;
};

// One op, prepared for its shapes. Pointers are to the first element of each operand and result, in
// the memory order of its type. An accumulating op (op.var set) has one result pointer: its
// variable's slice, to which it adds; with attribute `first` it overwrites when microbatch is 0.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(const RunContext& context, const void* const* operands,
                   void* const* results) = 0;
};

// So many bytes, from one offset to another.
struct CopyRun {
  int64_t to, from, bytes;
};

// Many copies between two places, prepared.
class Copies {
 public:
  virtual ~Copies() = default;
  virtual void run(void* to, const void* from) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual llvm::StringRef name() const = 0;
  virtual bool isHost() const { return true; }

  // The arena, zeroed, at least 64-byte aligned; called once.
  virtual llvm::Expected<std::byte*> allocateArena(int64_t bytes) = 0;
  // So many bytes were taken for it from the system.
  virtual int64_t arenaBytes() const = 0;
  // Memory beside it, for as long as the device lives (messages that can't lie in tensors); zeroed.
  virtual llvm::Expected<std::byte*> allocate(int64_t bytes) = 0;

  // Moves and clears bytes of the device's memory; ranges do not overlap.
  virtual void copy(void* to, const void* from, int64_t bytes) {
    std::memcpy(to, from, size_t(bytes));
  }
  virtual void zero(void* at, int64_t bytes) { std::memset(at, 0, size_t(bytes)); }
  virtual void copy(void* to, const void* from, llvm::ArrayRef<CopyRun> runs);
  virtual std::unique_ptr<Copies> prepareCopies(llvm::ArrayRef<CopyRun> runs);

  // Between the host's memory and the device's, behind all that was asked for before. When they return
  // the host's side is free, or filled.
  virtual llvm::Error read(void* host, const void* at, int64_t bytes) {
    std::memcpy(host, at, size_t(bytes));
    return llvm::Error::success();
  }
  virtual void write(void* at, const void* host, int64_t bytes) {
    std::memcpy(at, host, size_t(bytes));
  }
  // The number of the step that begins.
  virtual void beginStep(int64_t) {}
  // Waits until all is done. What went wrong since the last time.
  virtual llvm::Error finish() { return llvm::Error::success(); }

  // The kernel for an op; an error names the op and what this device lacks for it.
  virtual llvm::Expected<std::unique_ptr<Kernel>> prepare(const Op& op) = 0;
  // All ops are prepared: what their kernels share can be made.
  virtual llvm::Error finishPreparing() { return llvm::Error::success(); }
  // What is run next, for errors.
  virtual void at(const Op&, llvm::StringRef /*place*/) {}

  // Whether what is asked for can be recorded (from `beginRecording` to `endRecording`, when it is not
  // done) and then done again and again at little cost.
  virtual bool canRecord() const { return false; }
  virtual void beginRecording() {}
  virtual llvm::Error endRecording() { return llvm::Error::success(); }
  virtual void replay() {}
};

// `threads` 0: as many as this process may use. `rank`: where this device's rank stands in the grid;
// kernels over split dims ask it where their piece begins.
std::unique_ptr<Device> makeCpuDevice(int threads, Coordinates rank = {});
// The GPU of this number; an error in one line where there is none, or planc was built without them. It
// belongs to the thread that makes it.
llvm::Expected<std::unique_ptr<Device>> makeCudaDevice(int gpu, Coordinates rank = {});
llvm::Expected<int> countGpus();

}  // namespace planc
