// The state of differentiation, shared by autodiff.cpp (the walk) and gradient_rules.cpp (a rule for
// every op).
#pragma once

#include <algorithm>

#include "ir/diagnostics.h"
#include "ir/op.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {

class Autodiff {
 public:
  Autodiff(Module& module, Diagnostics& diags) : module_(module), diags_(diags) {}
  void run();

 private:
  // gradient_rules.cpp: emits the gradient of an op, some of whose results have one.
  void rule(Op& op);
  const Value* rows_ = nullptr;  // packed rows of the op whose rule runs, if it has some
  void contractionRule(Op& op, Value* dy);
  void elementwiseRule(Op& op, Value* dy);
  Value* spread(Value* gradient, const Type& type, Value* offsets);
  Value* sumGroups(Value* gradient, const Type& type);
  static Value* offsetsOf(const Value* rows);
  void joinRule(Op& op, Value* dy);
  void routeRule(Op& op);

  void findActive(const Block& block);
  void differentiate(Block& block);
  void differentiateRepeat(Op& op);
  void startGradients(Function& begin, const Function& backward);

  // The forward's value, in @backward: read again, cast again, or saved in a slot.
  Value* saved(Value* value);
  Variable* slotFor(Value* value);
  // Adds to a value's gradient; nothing when no weight lies behind the value.
  void addGradient(Value* value, Value* gradient);
  // Adds a weight's gradient to its variable.
  void accumulate(const Op& read, Value* gradient);
  // A gradient with the dims, order and element of `type`: sums what was broadcast, broadcasts what
  // was summed, permutes, casts.
  Value* fit(Value* gradient, const Type& type);
  Value* ew(OpKind kind, llvm::ArrayRef<Value*> operands, Elem elem);
  bool isActive(Value* value) const { return active_.contains(value); }

  Module& module_;
  Diagnostics& diags_;
  Builder* back_ = nullptr;                   // where gradients are emitted
  llvm::DenseSet<const Value*> active_;       // depends on a weight
  llvm::DenseMap<Value*, Value*> gradients_;  // of the values of the block at hand
  llvm::DenseMap<Value*, Variable*> slots_;
  llvm::DenseMap<std::pair<Value*, Block*>, Value*> cache_;  // saved() by block of @backward
  llvm::DenseSet<const Value*> shared_;                      // gradients that may get more uses
  llvm::DenseMap<const Variable*, Variable*> weightGradients_;
};

// Saves a value of @forward in a new slot, stacked over the repeats around it.
Variable* saveValue(Module& module, Value* value);

}  // namespace planc
