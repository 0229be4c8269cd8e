// Adds @update: the gradient's norm over all weights, clipping, the learning rate of the step, and
// the optimizer's op on every weight with its moments, or the step of a bias that loads move. With `precision bf16` it also renews the copies. Tested by
// tests/passes/optimizer and tests/runtime/equivalence_test.cpp.
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "passes/passes.h"

namespace planc {
namespace {

Variable* addMetric(Module& module, llvm::StringRef name, Elem elem) {
  Variable var;
  var.name = name.str();
  var.kind = VarKind::Metric;
  var.type = Type{elem, {}};
  return module.addVar(std::move(var));
}

Variable* addMoment(Module& module, const Variable& weight, llvm::StringRef suffix) {
  Variable var;
  var.name = weight.name + suffix.str();
  var.kind = VarKind::Moment;
  var.type = weight.type;
  var.of = weight.name;
  var.stack = weight.stack;
  var.loc = weight.loc;
  return module.addVar(std::move(var));
}

// A bias of routing moves towards even loads (Wang et al. 2024): b + rate * sign(mean(load) - load),
// where the last dim is the experts'. Loads are compared times the experts: whole numbers, so that
// equal ones are (up to 2^24 in f32, beyond which the least of differences may be rounded away).
Value* balanced(Builder& builder, Value* bias, Value* load, double rate) {
  Elem elem = bias->type.elem;
  Type scalar{elem, {}};
  const Dim experts = bias->type.dims.back();
  Value* sum = builder.value(OpKind::Sum, {load}, load->type.without(experts.name), {}, "loads");
  Value* scaled = builder.elementwise(
      OpKind::Mul, {load, builder.constant(double(experts.size), scalar)}, "load");
  Value* isBelow = builder.value(OpKind::Ge, {sum, scaled}, load->type);
  Value* isAbove = builder.value(OpKind::Ge, {scaled, sum}, load->type);
  Value* sign = builder.elementwise(OpKind::Sub, {isBelow, isAbove});
  Value* step = builder.elementwise(OpKind::Mul, {sign, builder.constant(rate, scalar)});
  return builder.elementwise(OpKind::Add, {bias, step}, "balanced");
}

}  // namespace

void precision(Module& module, Diagnostics&) {
  // Weights whose every read is only cast, and to which element type.
  llvm::DenseMap<const Variable*, std::vector<Op*>> casts;
  llvm::DenseSet<const Variable*> readAsIs;
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      if (op->kind != OpKind::Read || op->var->kind != VarKind::Weight) return;
      for (const Use& use : op->result()->uses()) {
        if (use.op->kind == OpKind::Cast && use.op->parent() == op->parent())
          casts[op->var].push_back(use.op);
        else readAsIs.insert(op->var);
      }
    });
  size_t count = module.vars.size();
  for (size_t i = 0; i < count; ++i) {
    const Variable& weight = *module.vars[i];
    auto at = casts.find(&weight);
    if (at == casts.end() || readAsIs.contains(&weight)) continue;
    Elem elem = at->second.front()->result()->type.elem;
    Variable copy;
    copy.name = weight.name + "." + name(elem).str();
    copy.kind = VarKind::Copy;
    copy.type = weight.type.withElem(elem);
    copy.of = weight.name;
    copy.stack = weight.stack;
    copy.loc = weight.loc;
    Variable* var = module.addVar(std::move(copy));
    for (Op* cast : at->second) {
      Op* read = cast->operand(0)->def();
      Block* block = cast->parent();
      Builder builder(block, block->indexOf(cast));
      builder.loc = cast->loc;
      Op* fresh =
          builder.create(OpKind::Read, {}, {cast->result()->type}, {}, var, cast->result()->name);
      cast->result()->replaceAllUsesWith(fresh->result());
      cast->erase();
      if (read->result()->uses().empty()) read->erase();
    }
  }
}

void optimizer(Module& module, Diagnostics& diags) {
  const Attrs& settings = module.settings;
  std::vector<Variable*> weights;
  llvm::DenseMap<const Variable*, Variable*> gradients, copies;
  for (const auto& var : module.vars) {
    if (var->kind == VarKind::Weight) weights.push_back(var.get());
    if (var->kind == VarKind::Gradient) gradients[module.findVar(var->of)] = var.get();
    if (var->kind == VarKind::Copy) copies[module.findVar(var->of)] = var.get();
  }
  if (weights.empty()) return;
  for (const Variable* weight : weights)
    if (!gradients.lookup(weight) || module.findFunction("update")) {
      diags.report({}, Diag::PassOrder, "optimizer", "a module just differentiated by 'autodiff'");
      return;
    }
  Elem elem = weights[0]->type.elem;
  Type scalar{elem, {}};
  Variable* step = module.findVar("step");
  if (!step) {
    Variable var;
    var.name = "step";
    var.kind = VarKind::Step;
    var.type = Type{Elem::I32, {}};
    step = module.addVar(std::move(var));
  }
  Variable* normMetric = addMetric(module, "grad_norm", elem);
  Variable* rateMetric = addMetric(module, "lr", elem);

  Function* update = module.addFunction("update");
  Builder builder(update->body.get());
  auto ew = [&](OpKind kind, llvm::ArrayRef<Value*> operands) {
    return builder.value(kind, operands, scalar);
  };
  Value* total = nullptr;
  for (Variable* weight : weights) {
    if (weight->balance > 0) continue;
    builder.loc = weight->loc;
    Value* squares =
        builder.value(OpKind::SumSquares, {builder.read(gradients.lookup(weight))}, scalar);
    total = total ? ew(OpKind::Add, {total, squares}) : squares;
  }
  if (!total) total = builder.constant(0, scalar);
  builder.loc = Loc();
  Value* norm = ew(OpKind::Sqrt, {total});
  norm->name = "norm";
  builder.write(normMetric, norm);
  // g * min(1, clip / norm): every element of every gradient counts once, whatever the weight.
  double clip = settings.number("clip");
  Value* scale = builder.constant(1, scalar);
  if (clip > 0) {
    Value* floor = builder.constant(1e-30, scalar);  // a zero gradient is not divided by
    Value* ratio =
        ew(OpKind::Div, {builder.constant(clip, scalar), ew(OpKind::Max, {norm, floor})});
    scale = ew(OpKind::Min, {ratio, scale});
  }
  scale->name = "scale";
  Value* stepValue = builder.read(step);
  Value* rate = builder.value(OpKind::LearningRate, {stepValue}, scalar,
                              {{"lr", settings.number("lr")},
                               {"warmup", int64_t(settings.number("warmup"))},
                               {"cosine", int64_t(settings.number("cosine"))},
                               {"floor", settings.number("floor")}},
                              "rate");
  builder.write(rateMetric, rate);

  bool isAdam = settings.word("optimizer") != "sgd";
  auto updateWeight = [&](Builder& builder, Variable* weight) {
    builder.loc = weight->loc;
    if (weight->balance > 0) {
      Value* bias = builder.read(weight);
      Value* load = builder.read(gradients.lookup(weight));
      return builder.write(weight, balanced(builder, bias, load, weight->balance));
    }
    double decay = weight->decay ? settings.number("decay") : 0;
    Value* w = builder.read(weight);
    Value* g = builder.read(gradients.lookup(weight));
    Op* op;
    llvm::SmallVector<Variable*, 3> targets{weight};
    if (isAdam) {
      targets.push_back(addMoment(module, *weight, ".m"));
      targets.push_back(addMoment(module, *weight, ".v"));
      Value* m = builder.read(targets[1]);
      Value* v = builder.read(targets[2]);
      op = builder.create(OpKind::AdamW, {w, g, m, v, rate, scale, stepValue},
                          {w->type, m->type, v->type},
                          {{"beta1", settings.number("beta1")},
                           {"beta2", settings.number("beta2")},
                           {"eps", settings.number("eps")},
                           {"decay", decay}});
    } else {
      targets.push_back(addMoment(module, *weight, ".m"));
      Value* m = builder.read(targets[1]);
      op = builder.create(OpKind::Sgd, {w, g, m, rate, scale}, {w->type, m->type},
                          {{"momentum", settings.number("momentum")}, {"decay", decay}});
    }
    for (size_t i = 0; i < targets.size(); ++i) {
      op->result(unsigned(i))->name = targets[i]->name;
      builder.write(targets[i], op->result(unsigned(i)));
    }
    if (Variable* copy = copies.lookup(weight))
      builder.write(copy, builder.value(OpKind::Cast, {op->result(0)},
                                        copy->slice(builder.block()->enclosing()), {}, copy->name));
  };
  // An optimizer does not care about dims: whole stacks at once. Only where ranks hold pieces of the
  // state (`shard`) it goes slice by slice, so that a piece is in one place in memory.
  auto stackOf = [&](const Variable* weight) {
    return module.shards.empty() ? std::vector<Dim>() : weight->stackDims();
  };
  std::vector<std::vector<Dim>> stacks;
  for (Variable* weight : weights)
    if (auto stack = stackOf(weight); !llvm::is_contained(stacks, stack)) stacks.push_back(stack);
  for (const std::vector<Dim>& stack : stacks) {
    Block* block = update->body.get();
    for (Variable* weight : weights) {
      if (stackOf(weight) != stack) continue;
      if (block == update->body.get())
        for (const Dim& dim : stack)
          block = Builder(block).repeat(dim.name, dim.size, false, {})->body.get();
      Builder inner(block);
      updateWeight(inner, weight);
    }
    for (; block->owner(); block = block->owner()->parent())
      Builder(block).create(OpKind::Yield, {}, {});
  }
  module.schedule.push_back({"update", -1});
}

}  // namespace planc
