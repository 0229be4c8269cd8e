// Reverse-mode differentiation in named dims: walks @forward backwards and emits, for each op that
// lies between a weight and the loss, the ops of its gradient rule (gradient_rules.cpp). A `repeat`
// becomes a reversed repeat that carries the gradients of what the forward carried. Tested by
// tests/passes/autodiff and, in numbers, tests/unit/gradient_test.cpp (finite differences).
#include "passes/autodiff.h"

#include "passes/dead_ops.h"
#include "passes/passes.h"

namespace planc {

Value* Autodiff::saved(Value* value) {
  auto key = std::pair(value, back_->block());
  if (Value* known = cache_.lookup(key)) return known;
  // A value read further out in @backward serves its bodies too.
  for (const Block* block = back_->block(); block->owner();) {
    block = block->owner()->parent();
    if (Value* known = cache_.lookup({value, const_cast<Block*>(block)})) return known;
  }
  Value* result = nullptr;
  Op* def = value->def();
  if (def && def->kind == OpKind::Read && def->var->kind != VarKind::Slot) {
    result = back_->create(OpKind::Read, {}, {value->type}, {}, def->var, value->name)->result();
  } else if (def && def->kind == OpKind::Const) {
    result = back_->constant(def->attrs.number("value"), value->type);
  } else if (def && def->kind == OpKind::Cast && def->operand(0)->def() &&
             def->operand(0)->def()->kind == OpKind::Read) {
    // A weight in compute precision: cast again rather than saved.
    result = back_->value(OpKind::Cast, {saved(def->operand(0))}, value->type, {}, value->name);
  } else {
    result = back_->read(slotFor(value));
  }
  cache_[key] = result;
  return result;
}

Variable* Autodiff::slotFor(Value* value) {
  Variable*& slot = slots_[value];
  if (!slot) slot = saveValue(module_, value);
  return slot;
}

Variable* saveValue(Module& module, Value* value) {
  Variable var;
  Op* def = value->def();
  Block* block = value->block();
  var.name = !value->name.empty() ? value->name : def ? def->info().text.str() : "value";
  var.kind = VarKind::Slot;
  var.type.elem = value->type.elem;
  if (def) var.loc = def->loc;
  for (const Block* b = block; b && b->owner(); b = b->owner()->parent()) {
    const Attrs& repeat = b->owner()->attrs;
    var.stack.insert(var.stack.begin(), repeat.word("dim"));
    var.type.dims.insert(var.type.dims.begin(),
                         Dim{var.stack.front(), repeat.integer("count"), ""});
  }
  var.type.dims.append(value->type.dims.begin(), value->type.dims.end());
  Variable* slot = module.addVar(std::move(var));
  Builder builder(block, def ? block->indexOf(def) + 1 : 0);
  if (def) builder.loc = def->loc;
  builder.write(slot, value);
  return slot;
}

// A comparison is flat where it does not jump, and so is an expert's load: it counts choices.
static bool carriesGradient(const Op& op, unsigned result) {
  if (op.kind == OpKind::Ge || (op.kind == OpKind::Route && result == 2)) return false;
  return isFloat(op.result(result)->type.elem);
}

void Autodiff::findActive(const Block& block) {
  for (const Op* op : block.ops) {
    bool isActive = op->kind == OpKind::Read && op->var->kind == VarKind::Weight;
    for (Value* operand : op->operands()) isActive |= active_.contains(operand);
    if (op->kind == OpKind::Repeat) {
      // Carried values feed each other: repeat until nothing is added.
      for (size_t before = ~size_t{0}; before != active_.size();) {
        before = active_.size();
        for (size_t i = 0; i < op->operands().size(); ++i)
          if (active_.contains(op->operand(unsigned(i)))) active_.insert(op->body->args()[i]);
        findActive(*op->body);
        const Op* yield = op->body->ops.back();
        for (size_t i = 0; i < yield->operands().size(); ++i)
          if (active_.contains(yield->operand(unsigned(i)))) active_.insert(op->body->args()[i]);
      }
      for (size_t i = 0; i < op->results().size(); ++i)
        if (active_.contains(op->body->args()[i])) active_.insert(op->result(unsigned(i)));
    } else if (isActive) {
      for (unsigned i = 0; i < op->results().size(); ++i)
        if (carriesGradient(*op, i)) active_.insert(op->result(i));
    }
  }
}

// The read that a weight's value comes from, also through the cast to compute precision; or null.
static const Op* weightRead(const Value* value) {
  const Op* def = value->def();
  if (def && def->kind == OpKind::Cast) def = def->operand(0)->def();
  return def && def->kind == OpKind::Read && def->var->kind == VarKind::Weight ? def : nullptr;
}

void Autodiff::addGradient(Value* value, Value* gradient) {
  if (!active_.contains(value)) return;
  // Each contribution to a weight's gradient goes straight to its variable, in its precision.
  if (const Op* read = weightRead(value)) return accumulate(*read, gradient);
  gradient = fit(gradient, value->type);
  Value*& total = gradients_[value];
  total = total ? ew(OpKind::Add, {total, gradient}, value->type.elem) : gradient;
  shared_.insert(total);
  if (total->name.empty() && !value->name.empty()) total->name = "d" + value->name;
}

Value* Autodiff::fit(Value* gradient, const Type& type) {
  if (gradient->type == type) return gradient;
  bool lacksDims = false;
  for (const Dim& dim : type.dims) lacksDims |= !gradient->type.has(dim.name);
  if (lacksDims) return back_->value(OpKind::Add, {back_->constant(0, type), gradient}, type);
  if (gradient->type.dims == type.dims) {
    // A product or sum that was made only for this can give the wider element type at once, without
    // rounding in between.
    Op* def = gradient->def();
    if (def && def->has(Accumulates) && gradient->uses().empty() && !shared_.contains(gradient)) {
      gradient->type = type;
      return gradient;
    }
    return back_->value(OpKind::Cast, {gradient}, type);
  }
  llvm::StringRef group = gradient->type.grouping();
  if (!group.empty() && !type.has(group) && type.grouping().empty())
    if (Value* offsets = rows_ ? offsetsOf(rows_) : nullptr) {
      // Rows of no group are left out.
      Type groups = type.withElem(gradient->type.elem);
      groups.dims.insert(groups.dims.begin(),
                         gradient->type.dims[size_t(gradient->type.find(group))]);
      Value* byGroup = back_->value(OpKind::Sum, {gradient, saved(offsets)}, groups);
      return fit(sumGroups(byGroup, type), type);
    }
  return back_->value(OpKind::Sum, {gradient}, type);
}

Value* Autodiff::ew(OpKind kind, llvm::ArrayRef<Value*> operands, Elem elem) {
  Value* result = back_->elementwise(kind, operands);
  result->type.elem = elem;
  return result;
}

void Autodiff::differentiateRepeat(Op& op) {
  const Op* yield = op.body->ops.back();
  // What the reversed repeat carries: the gradient of each active carried value, then the sum of the
  // gradients of each active value that the body takes from outside.
  llvm::SmallVector<unsigned> carried;
  llvm::SmallVector<Value*> init, outer;
  for (unsigned i = 0; i < op.operands().size(); ++i) {
    if (!active_.contains(op.body->args()[i])) continue;
    carried.push_back(i);
    Value* gradient = gradients_.lookup(op.result(i));
    init.push_back(gradient ? gradient : back_->constant(0, op.result(i)->type));
  }
  llvm::DenseSet<const Block*> inside;
  inside.insert(op.body.get());
  walk(*op.body, [&](Op* inner) {
    if (inner->body) inside.insert(inner->body.get());
    for (Value* operand : inner->operands())
      if (!inside.contains(operand->block()) && active_.contains(operand) && !weightRead(operand) &&
          !llvm::is_contained(outer, operand))
        outer.push_back(operand);
  });
  for (Value* value : outer) init.push_back(back_->constant(0, value->type));

  Op* reversed =
      back_->repeat(op.attrs.word("dim"), op.attrs.integer("count"), !op.isFlag("reverse"), init);
  Block& body = *reversed->body;
  Builder* outside = back_;
  auto outsideGradients = std::move(gradients_);
  gradients_.clear();
  Builder inner(&body);
  inner.loc = op.loc;
  back_ = &inner;
  for (size_t k = 0; k < carried.size(); ++k)
    addGradient(yield->operand(carried[k]), body.args()[k]);
  for (size_t k = 0; k < outer.size(); ++k) {
    Value*& total = gradients_[outer[k]];
    Value* sum = body.args()[carried.size() + k];
    total = total ? ew(OpKind::Add, {sum, total}, sum->type.elem) : sum;
  }
  differentiate(*op.body);
  llvm::SmallVector<Value*> yields;
  auto gradientOf = [&](Value* value) {
    Value* gradient = gradients_.lookup(value);
    return gradient ? gradient : back_->constant(0, value->type);
  };
  for (unsigned i : carried) yields.push_back(gradientOf(op.body->args()[i]));
  for (Value* value : outer) yields.push_back(gradientOf(value));
  back_->create(OpKind::Yield, yields, {});

  back_ = outside;
  gradients_ = std::move(outsideGradients);
  for (size_t k = 0; k < carried.size(); ++k)
    addGradient(op.operand(carried[k]), reversed->result(unsigned(k)));
  for (size_t k = 0; k < outer.size(); ++k)
    addGradient(outer[k], reversed->result(unsigned(carried.size() + k)));
}

void Autodiff::differentiate(Block& block) {
  // Saving inserts writes into the block: walk a copy.
  std::vector<Op*> ops = block.ops;
  for (auto at = ops.rbegin(); at != ops.rend(); ++at) {
    Op& op = **at;
    back_->loc = op.loc;
    if (op.kind == OpKind::Accum && op.var->name == "loss") {
      if (active_.contains(op.operand(0)))
        addGradient(op.operand(0), back_->constant(1, op.operand(0)->type));
      continue;
    }
    bool hasGradient = false;
    for (Value* result : op.results()) hasGradient |= gradients_.lookup(result) != nullptr;
    if (op.kind == OpKind::Repeat) {
      // Its body may hold losses and weights even where no gradient comes from behind it.
      bool isActive = hasGradient;
      walk(*op.body, [&](Op* inner) {
        isActive |= inner->kind == OpKind::Accum && inner->var->name == "loss";
      });
      if (isActive) differentiateRepeat(op);
    } else if (hasGradient || op.kind == OpKind::Route) {
      rule(op);
    }
  }
}

void Autodiff::accumulate(const Op& read, Value* gradient) {
  back_->create(OpKind::Accum, {fit(gradient, read.result()->type)}, {}, {},
                weightGradients_.lookup(read.var));
}

// Marks the accumulation that comes first in a step; a gradient that gets none, or gets it in each
// iteration of a repeat, starts from zero in @begin.
void Autodiff::startGradients(Function& begin, const Function& backward) {
  llvm::DenseSet<const Variable*> started, later;
  walk(*backward.body, [&](Op* op) {
    if (op->kind != OpKind::Accum || op->var->kind != VarKind::Gradient) return;
    if (started.contains(op->var) || later.contains(op->var)) return;
    Words enclosing = op->parent()->enclosing();
    bool once = std::all_of(enclosing.begin(), enclosing.end(), [&](const std::string& dim) {
      return llvm::is_contained(op->var->stack, dim);
    });
    (once ? started : later).insert(op->var);
    if (once) op->attrs.set("first", int64_t{1});
  });
  Builder builder(begin.body.get());
  for (const auto& var : module_.vars)
    if (var->kind == VarKind::Gradient && !started.contains(var.get()))
      builder.create(OpKind::Zero, {}, {}, {}, var.get());
}

void Autodiff::run() {
  Function* forward = module_.findFunction("forward");
  if (!forward || !module_.findVar("loss")) {
    diags_.report({}, Diag::NothingToDifferentiate);
    return;
  }
  if (module_.findFunction("backward")) {
    diags_.report({}, Diag::AlreadyDifferentiated);
    return;
  }
  Elem gradientElem = elemByName(module_.settings.word("gradients")).value_or(Elem::F32);
  size_t weights = module_.vars.size();
  for (size_t i = 0; i < weights; ++i) {
    const Variable& weight = *module_.vars[i];
    if (weight.kind != VarKind::Weight) continue;
    Variable gradient;
    gradient.name = "grad." + weight.name;
    // Loads are counted, not rounded.
    bool keepsElem = weight.type.elem == Elem::F64 || weight.balance > 0;
    gradient.type = keepsElem ? weight.type : weight.type.withElem(gradientElem);
    gradient.kind = VarKind::Gradient;
    gradient.of = weight.name;
    gradient.stack = weight.stack;
    gradient.loc = weight.loc;
    weightGradients_[&weight] = module_.addVar(std::move(gradient));
  }
  findActive(*forward->body);
  walk(*forward->body, [&](const Op* op) {
    if (op->kind == OpKind::Fused || op->has(Gradient))
      diags_.report(op->loc, Diag::NoGradientRule, op->info().text);
  });
  if (diags_.failed()) return;

  Function* backward = module_.addFunction("backward");
  Builder builder(backward->body.get());
  back_ = &builder;
  differentiate(*forward->body);

  // What `planrun eval` shows: the logits of each cross-entropy.
  walk(*forward->body, [&](Op* op) {
    if (op->kind == OpKind::CrossEntropy)
      if (Variable* slot = slots_.lookup(op->operand(0))) slot->output = true;
  });
  Function* begin = module_.findFunction("begin");
  if (!begin) begin = module_.addFunction("begin");
  startGradients(*begin, *backward);

  llvm::DenseSet<const Variable*> reached;
  walk(*backward->body, [&](Op* op) {
    if (op->kind == OpKind::Accum) reached.insert(op->var);
  });
  for (const auto& var : module_.vars)
    if (var->kind == VarKind::Gradient && !reached.contains(var.get()))
      diags_.report(var->loc, Diag::WeightWithoutGradient, var->of);

  std::vector<Call> schedule;
  for (const Call& call : module_.schedule) {
    schedule.push_back(call);
    if (call.function == "forward") schedule.push_back({"backward", call.microbatch});
  }
  module_.schedule = std::move(schedule);
  eraseDeadOps(module_);
}

void autodiff(Module& module, Diagnostics& diags) { Autodiff(module, diags).run(); }

}  // namespace planc
