// What the makers of kernels share, whatever the device.
#pragma once

#include <memory>

#include "llvm/ADT/STLExtras.h"
#include "runtime/device.h"

namespace planc {

using Operands = const void* const*;
using Results = void* const*;
using KernelOr = llvm::Expected<std::unique_ptr<Kernel>>;

// A kernel from a callable (context, operands, results).
template <class F>
std::unique_ptr<Kernel> makeKernel(F run) {
  struct Made : Kernel {
    explicit Made(F f) : body(std::move(f)) {}
    void run(const RunContext& context, Operands operands, Results results) override {
      body(context, operands, results);
    }
    F body;
  };
  return std::make_unique<Made>(std::move(run));
}

// Integers, which only a `sum` moves, go through double: it holds all of them.
inline bool isDouble(const Op& op) {
  if (op.kind == OpKind::Sum && op.operand(0)->type.elem == Elem::I32) return true;
  auto isF64 = [](const Value* value) { return value->type.elem == Elem::F64; };
  return llvm::any_of(op.operands(), isF64) || llvm::any_of(op.results(), isF64) ||
         (op.var != nullptr && op.var->type.elem == Elem::F64);
}

// Whether a kernel adds to what its result holds, or overwrites it.
struct Accumulate {
  explicit Accumulate(const Op& op) : adds(op.var != nullptr), first(op.isFlag("first")) {}
  bool addsIn(const RunContext& context) const {
    return adds && !(first && context.microbatch == 0);
  }
  bool adds, first;
};

}  // namespace planc
