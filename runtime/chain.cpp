// Ops as chains. Tested by tests/runtime/kernels_test.cpp.
#include "runtime/chain.h"

#include "llvm/ADT/DenseMap.h"

namespace planc {
namespace {

// A value's number in a chain: of a body's argument, or of the step that computes it.
using Numbers = llvm::DenseMap<const Value*, int>;

// The steps' kinds that a body may hold beside its last sum.
bool isStep(const Op& op) {
  return op.has(Elementwise) || op.kind == OpKind::Const || op.kind == OpKind::Yield;
}

// Adds a body's ops to the chain; the sum, if any, is its last op.
void addBody(const Op& op, Chain& chain) {
  Numbers numbers;
  for (Value* arg : op.body->args()) {
    numbers[arg] = int(chain.inputs.size());
    chain.inputs.push_back(arg->type);
  }
  const Op* sum = nullptr;
  for (const Op* inner : op.body->ops) {
    if (inner->kind == OpKind::Sum) {
      sum = inner;
    } else if (inner->kind == OpKind::Yield) {
      for (unsigned i = 0; i < inner->operands().size(); ++i) {
        Value* value = inner->operand(i);
        if (sum != nullptr && value == sum->result()) {
          chain.sum = {numbers.lookup(sum->operand(0)), resultType(op, i), int(i)};
        } else {
          chain.outputs.push_back({numbers.lookup(value), op.result(i)->type, int(i)});
        }
      }
    } else {
      auto operand = [&](unsigned i) {
        return i < inner->operands().size() ? numbers.lookup(inner->operand(i)) : -1;
      };
      numbers[inner->result()] = chain.valueOfStep(chain.steps.size());
      chain.steps.push_back({inner->kind, operand(0), operand(1), inner->attrs.number("value")});
    }
  }
  // A sum into the op's variable need not be yielded.
  if (sum != nullptr && !chain.sum) {
    unsigned last = op.results().size();
    chain.sum = {numbers.lookup(sum->operand(0)), resultType(op, last), int(last)};
  }
}

}  // namespace

int Chain::source(int value) const {
  while (size_t(value) >= inputs.size()) {
    const Step& step = steps[size_t(value) - inputs.size()];
    if (step.kind != OpKind::Cast) break;
    value = step.a;
  }
  return value;
}

llvm::SmallVector<const Type*, 8> Chain::tensors() const {
  llvm::SmallVector<const Type*, 8> types;
  for (const Type& type : inputs) types.push_back(&type);
  for (const Output& output : outputs) types.push_back(&output.type);
  if (sum) types.push_back(&sum->type);
  return types;
}

llvm::SmallVector<Dim, 4> Chain::space() const {
  const Type* widest = nullptr;
  auto look = [&](const Type& type) {
    if (widest == nullptr || type.elements() > widest->elements()) widest = &type;
  };
  for (const Output& output : outputs) look(output.type);
  for (const Type& type : inputs) look(type);
  llvm::SmallVector<Dim, 4> dims = memoryDims(*widest);
  auto add = [&](const Type& type) {
    for (const Dim& dim : memoryDims(type)) {
      auto same = [&](const Dim& other) { return other.name == dim.name; };
      if (llvm::none_of(dims, same)) dims.push_back(dim);
    }
  };
  for (const Type& type : inputs) add(type);
  for (const Output& output : outputs) add(output.type);
  return dims;
}

const Op* notInChain(const Op& op) {
  if (op.kind != OpKind::Fused) return nullptr;
  const auto& ops = op.body->ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    bool isLastSum = ops[i]->kind == OpKind::Sum && i + 2 == ops.size();
    if (!isStep(*ops[i]) && !isLastSum) return ops[i];
  }
  return nullptr;
}

Chain chainOf(const Op& op) {
  Chain chain;
  if (op.kind == OpKind::Fused) {
    addBody(op, chain);
    return chain;
  }
  // Offsets move nothing.
  bool isCopy = op.kind == OpKind::Sum || op.kind == OpKind::Accum;
  for (Value* operand : op.operands().take_front(isCopy ? 1 : op.operands().size()))
    chain.inputs.push_back(operand->type);
  if (!isCopy) {
    int operands = int(op.operands().size());
    chain.steps.push_back(
        {op.kind, operands > 0 ? 0 : -1, operands > 1 ? 1 : -1, op.attrs.number("value")});
  }
  Type type = resultType(op);
  // A sum that sums nothing and adds to nothing only permutes.
  bool sums = isCopy &&
              (op.var != nullptr || memoryDims(type).size() < memoryDims(chain.inputs[0]).size());
  if (sums) {
    chain.sum = {0, type, 0};
  } else {
    chain.outputs.push_back({isCopy ? 0 : chain.valueOfStep(0), type, 0});
  }
  return chain;
}

}  // namespace planc
