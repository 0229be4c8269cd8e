// A device: one arena of memory, and a kernel for each op of a rank program. The interpreter
// resolves every value to a pointer and calls kernels in program order; kernels know nothing of
// models. Backends are made by the factories at the end (no header per backend).
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

class Device {
 public:
  virtual ~Device() = default;
  // The arena, zeroed, at least 64-byte aligned; called once.
  virtual llvm::Expected<std::byte*> allocateArena(int64_t bytes) = 0;
  // Moves and clears bytes of the arena; ranges do not overlap.
  virtual void copy(void* to, const void* from, int64_t bytes) {
    std::memcpy(to, from, size_t(bytes));
  }
  virtual void zero(void* at, int64_t bytes) { std::memset(at, 0, size_t(bytes)); }
  // The kernel for an op; an error names the op and what this device lacks for it.
  virtual llvm::Expected<std::unique_ptr<Kernel>> prepare(const Op& op) = 0;
};

// `threads` 0: as many as this process may use. `rank`: where this device's rank stands in the grid;
// kernels over split dims ask it where their piece begins.
std::unique_ptr<Device> makeCpuDevice(int threads, Coordinates rank = {});

}  // namespace planc
