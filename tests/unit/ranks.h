// A small program between ranks, for tests: two all-reduces a layer along `tensor`, the gradient's
// reduce-scatter (started, then waited for) and the loss along `data`, then the weight's all-gather.
#pragma once

#include <string>

#include "ir/planx.h"

namespace planc::test {

inline Grid gridOf(std::initializer_list<std::pair<std::string, int64_t>> axes) {
  Grid grid;
  for (const auto& [name, size] : axes) grid.axes.push_back({name, size});
  return grid;
}

// The op whose first result has this name; of `wait`, the one that ends it.
inline Op* find(Module& module, llvm::StringRef name, bool isWait = false) {
  Op* found = nullptr;
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      if (!op->results().empty() && op->result()->name == name &&
          (op->kind == OpKind::Wait) == isWait)
        found = op;
    });
  return found;
}

// Takes an op out; what used its results uses its operands.
inline void drop(Op* op) {
  for (unsigned i = 0; i < op->results().size(); ++i)
    op->result(i)->replaceAllUsesWith(op->operand(i));
  op->erase();
}

inline Op* collective(Builder& b, OpKind kind, llvm::ArrayRef<Value*> operands,
                      llvm::ArrayRef<Type> results, Words axes, llvm::StringRef name, uint32_t line,
                      llvm::StringRef dim = "") {
  b.loc = {0, line, 9};
  Attrs attrs{{"axes", std::move(axes)}};
  if (!dim.empty()) attrs.set("dim", Words(operands.size(), dim.str()));
  Op* op = b.create(kind, operands, results, std::move(attrs), nullptr, name);
  b.loc = {};
  return op;
}

// Makes a message start only, and ends it at the end of its block (before a yield).
inline Op* defer(Op* op) {
  op->attrs.set("start", int64_t{1});
  Block* block = op->parent();
  bool yields = block->ops.back()->kind == OpKind::Yield;
  Builder b(block, block->ops.size() - (yields ? 1 : 0));
  b.loc = op->loc;
  llvm::SmallVector<Value*, 4> operands(op->results().begin(), op->results().end());
  operands.append(op->operands().begin(), op->operands().end());
  llvm::SmallVector<Type, 2> types;
  for (const Value* result : op->results()) types.push_back(result->type);
  Op* wait = b.create(OpKind::Wait, operands, types, {}, nullptr, op->result()->name);
  if (op->isUnlessLast()) wait->attrs.set("unless_last", int64_t{1});
  for (unsigned i = 0; i < types.size(); ++i)
    for (const Use& use : std::vector<Use>(op->result(i)->uses()))
      if (use.op != wait) use.op->setOperand(use.index, wait->result(i));
  return wait;
}

// The grid must have the axes `data` and `tensor`.
inline std::unique_ptr<Module> rankProgram(const Grid& grid, int64_t layers = 3) {
  auto module = std::make_unique<Module>();
  module->name = "ranks";
  module->level = Level::Rank;
  module->grid = grid;
  module->files = {"ranks.plan"};
  module->settings.set("microbatches", int64_t{2});
  module->schedule = {{"forward", 0}, {"forward", 1}, {"reduce", -1}, {"update", -1}};
  Axes data = grid.find("data"), tensor = grid.find("tensor");
  int64_t ranks = ranksOver(data);
  auto dim = [](const char* name, int64_t size, Axes axes = {}) {
    return splitDim(Dim{name, size}, axes);
  };
  Type x{Elem::F32, {dim("batch", 8 * ranks, data), dim("model", 64 * ranks)}};
  Type partial = x;
  partial.partial = tensor;
  Type grad{Elem::F32, {dim("model", 64 * ranks), dim("hidden", 256)}, data};
  Type piece{Elem::F32, {dim("model", 64 * ranks, data), dim("hidden", 256)}};
  Type whole = piece.whole(), sum{Elem::F32, {}, data}, scalar{Elem::F32, {}};

  Builder f(module->addFunction("forward")->body.get());
  Value* start = f.value(OpKind::Const, {}, x, {{"value", 0.0}}, "x");
  Op* repeat = f.repeat("layer", layers, false, {start});
  Builder b(repeat->body.get());
  Value* a = b.value(OpKind::Exp, {repeat->body->args()[0]}, partial);
  Value* attention =
      collective(b, OpKind::AllReduce, {a}, {x}, {"tensor"}, "attention", 5)->result();
  Value* m = b.value(OpKind::Exp, {attention}, partial);
  Value* ffn = collective(b, OpKind::AllReduce, {m}, {x}, {"tensor"}, "ffn", 7)->result();
  b.create(OpKind::Yield, {ffn}, {});

  Builder r(module->addFunction("reduce")->body.get());
  Value* g = r.value(OpKind::Const, {}, grad, {{"value", 0.0}}, "g");
  Value* l = r.value(OpKind::Const, {}, sum, {{"value", 0.0}}, "l");
  Op* gradient =
      collective(r, OpKind::ReduceScatter, {g}, {piece}, {"data"}, "gradient", 9, "model");
  collective(r, OpKind::AllReduce, {l}, {scalar}, {"data"}, "loss", 10);
  defer(gradient);

  Builder u(module->addFunction("update")->body.get());
  Value* w = u.value(OpKind::Const, {}, piece, {{"value", 0.0}}, "w");
  collective(u, OpKind::AllGather, {w}, {whole}, {"data"}, "weight", 12, "model");
  return module;
}

}  // namespace planc::test
