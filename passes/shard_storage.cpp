// How variables are held. Weights and what belongs to them by their own names, plus what `shard` asks
// for; saved activations as their readers want them; sums of a step partial, until @reduce adds them
// up over ranks once.
#include "llvm/ADT/STLExtras.h"
#include "passes/shard.h"

namespace planc {

// Puts the axes that `shard` gives to `what` (optimizer, gradients or weights) on dims that they
// divide, outermost first. What no dim takes stays whole: every rank then does the same work on it.
void Sharder::addShards(Type& type, const Words& stack, llvm::StringRef what) const {
  // Each kind of shard includes those before it; later kinds go first, so that smaller pieces nest.
  static const llvm::StringRef kKinds[] = {"weights", "gradients", "optimizer"};
  auto put = [&](llvm::ArrayRef<Axis> axes) {
    for (size_t i = stack.size(); i < type.dims.size(); ++i) {
      Dim& dim = type.dims[i];
      if (axes.empty() || dim.isPadded() || dim.isRagged() || dim.size % ranksOver(axes) != 0)
        continue;
      Axes all = dim.axes;
      all.append(axes.begin(), axes.end());
      dim = splitDim(dim, all);
      return true;
    }
    return axes.empty();
  };
  for (llvm::StringRef kind : kKinds) {
    for (const Shard& shard : module_.shards) {
      if (shard.what != kind) continue;
      Axes axes, taken = type.splitAxes();
      for (const std::string& name : shard.axes)
        for (const Axis& axis : module_.grid.find(name))
          if (axis.size > 1 && !hasAxis(taken, axis.name)) axes.push_back(axis);
      if (put(axes)) continue;
      for (const Axis& axis : axes) put(axis);
    }
    if (kind == what) return;
  }
}

// A weight is held by its own names. Experts that no reader wants cut (a router's columns) stay whole.
Type Sharder::heldAs(const Variable& weight) const {
  Type type = weight.type.whole();
  Assignment own = rules_.assign(type);
  for (auto& [name, axes] : own.names) {
    if (!rules_.isExpert(name)) continue;
    bool isCut = false;
    for (const auto& function : module_.functions)
      walk(*function->body, [&](const Op* op) {
        bool reads = op->kind == OpKind::Read && (op->var == &weight || op->var->of == weight.name);
        if (!reads || function->name == "update") return;
        for (const Use& use : op->result()->uses()) {
          if (use.op->results().empty() || use.op->kind == OpKind::Repeat) continue;
          Type want = rules_.assign(*use.op).operand(*use.op, use.index);
          isCut |= want.has(name) && want.dims[size_t(want.find(name))].isSplit();
        }
      });
    if (!isCut) axes.clear();
  }
  return own.apply(type);
}

void Sharder::typeVariables() {
  llvm::StringSet<> copied;  // weights that compute in a copy: the weight itself is optimizer state
  for (const auto& var : module_.vars)
    if (var->kind == VarKind::Copy) copied.insert(var->of);
  for (const auto& var : module_.vars) {
    Type& type = var->type;
    switch (var->kind) {
      case VarKind::Input:
        typeInput(*var);
        break;
      case VarKind::Slot:
        typeSlot(*var);
        break;
      case VarKind::Weight:
      case VarKind::Copy:
      case VarKind::Gradient:
      case VarKind::Moment:
        type = heldAs(var->kind == VarKind::Weight ? *var : *module_.findVar(var->of))
                   .withElem(type.elem);
        addShards(type, var->stack,
                  var->kind == VarKind::Moment || copied.contains(var->name) ? "optimizer"
                  : var->kind == VarKind::Gradient                           ? "gradients"
                                                                             : "weights");
        break;
      default:
        break;
    }
  }
}

// The type in which a use takes a value.
Type Sharder::wanted(const Value* value, const Use& use) const {
  const Op& op = *use.op;
  if (op.results().empty() || op.kind == OpKind::Repeat)
    return rules_.assign(value->type).apply(value->type);
  Assignment assignment = rules_.assign(op);
  Type type = assignment.operand(op, use.index);
  if (int(use.index) == offsetsOperand(op))
    for (const Dim& dim : dimsOf(op))
      if (dim.isRagged()) {
        llvm::ArrayRef<Axis> axes = assignment.of(dim.name);
        type.partial.assign(axes.begin(), axes.end());
        module_.grid.sort(type.partial);
      }
  return type;
}

// Inputs are read from files, so they are held as far cut as all readers of any input agree on: then
// each reader cuts further for free, and no token is ever gathered. All inputs alike, since targets are
// tokens one further on.
void Sharder::typeInput(Variable& input) {
  Type held = rules_.assign(input.type, true).apply(input.type);
  for (const auto& function : module_.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->kind != OpKind::Read || op->var->kind != VarKind::Input) return;
      for (const Use& use : op->result()->uses()) {
        Type want = wanted(op->result(), use);
        for (Dim& dim : held.dims) {
          int at = want.find(dim.name);
          if (at < 0) continue;
          const Axes& other = want.dims[size_t(at)].axes;
          Axes shared = dim.axes;
          size_t n = 0;
          while (n < shared.size() && n < other.size() && shared[n] == other[n]) ++n;
          shared.resize(n);
          dim = splitDim(dim, shared);
        }
      }
    });
  input.type = held;
}

// A saved value is held as its readers want it when the forward has it so, or makes it so for a use of
// its own: what the forward gathers is kept, unless the plan says to gather again. Else by its names.
void Sharder::typeSlot(Variable& slot) {
  const Value* value = nullptr;
  std::vector<Type> wants;
  for (const auto& function : module_.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->var != &slot) return;
      if (op->kind == OpKind::Write) value = op->operand(0);
      if (op->kind != OpKind::Read) return;
      for (const Use& use : op->result()->uses()) wants.push_back(wanted(op->result(), use));
    });
  if (!value) return;
  Type held = rules_.assign(value->type).apply(value->type);
  Type made = held;
  if (const Op* def = value->def();
      def && def->kind != OpKind::Repeat && def->kind != OpKind::Read) {
    Assignment assignment = rules_.assign(*def);
    made = assignment.result(*def, value->index());
    if (def->has(Packs)) made.partial = summedAxes(module_.grid, assignment, made);
  }
  bool gathersAgain = llvm::is_contained(module_.settings.words("recompute"), "gather");
  bool isGathered = llvm::any_of(value->uses(), [&](const Use& use) {
    return use.op->kind != OpKind::Write && !wants.empty() && wanted(value, use) == wants.front();
  });
  bool isAgreed = llvm::all_of(wants, [&](const Type& want) { return want == wants.front(); });
  // Rows and offsets are each rank's own: no other shape of them is the same thing.
  bool isOwn = value->def() && value->def()->kind == OpKind::Pack;
  if (wants.empty() || isOwn) held = made;
  else if (isAgreed && (wants.front() == made || (isGathered && !gathersAgain)))
    held = wants.front();
  Type type = slot.type;
  type.dims.truncate(slot.stack.size());
  type.dims.append(held.dims.begin(), held.dims.end());
  type.partial = held.partial;
  slot.type = type;
}

// Every accumulation of the step is typed: a variable is partial over what any of them is partial
// over. It then becomes this rank's sum, and @reduce makes the variable of its name from it.
void Sharder::finishSums() {
  llvm::DenseMap<const Variable*, Axes> partial;
  for (const Op* op : accums_) {
    Axes& axes = partial[op->var];
    if (sums_.isReducedAtOnce(op->operand(0))) continue;
    for (const Axis& axis : op->operand(0)->type.partial)
      if (!hasAxis(op->var->type.splitAxes(), axis.name) && !hasAxis(axes, axis.name))
        axes.push_back(axis);
  }
  std::vector<std::pair<Variable*, Variable*>> sums;
  for (size_t i = 0, count = module_.vars.size(); i < count; ++i) {
    Variable& var = *module_.vars[i];
    Axes axes = partial.lookup(&var);
    if (axes.empty()) continue;
    module_.grid.sort(axes);
    Variable whole = var;
    if (var.kind == VarKind::Gradient) addShards(whole.type, var.stack, "optimizer");
    std::string name = var.name;
    var.type.partial = axes;
    var.kind = VarKind::Sum;
    var.of = name;
    module_.rename(var, name + ".sum");
    sums.push_back({&var, module_.addVar(std::move(whole))});
  }
  for (Op* op : accums_)
    take(*op, 0, op->var->slice(op->parent()->enclosing()).withElem(op->operand(0)->type.elem));
  if (!sums.empty()) addReduce(sums);
}

// @reduce, and the step reads what it makes. Stacks whose sums are scattered go layer by layer: the
// piece that a rank keeps is then contiguous.
void Sharder::addReduce(const std::vector<std::pair<Variable*, Variable*>>& sums) {
  if (Function* step = module_.findFunction("update"))
    walk(*step->body, [&](Op* op) {
      for (const auto& [sum, whole] : sums)
        if (op->var == sum) op->var = whole;
    });
  Function* function = module_.addFunction("reduce");
  auto& functions = module_.functions;
  auto update = llvm::find_if(functions, [](const auto& f) { return f->name == "update"; });
  if (update != functions.end()) std::rotate(update, functions.end() - 1, functions.end());
  auto at = llvm::find_if(module_.schedule, [](const Call& c) { return c.function == "update"; });
  module_.schedule.insert(at, {"reduce", -1});

  std::vector<std::vector<Dim>> stacks{{}};
  auto stackOf = [](Variable* sum, Variable* whole) {
    return sum->type.dims == whole->type.dims ? std::vector<Dim>() : sum->stackDims();
  };
  for (const auto& [sum, whole] : sums)
    if (auto stack = stackOf(sum, whole); !llvm::is_contained(stacks, stack))
      stacks.push_back(stack);
  for (const std::vector<Dim>& stack : stacks) {
    Block* block = function->body.get();
    for (const auto& [sum, whole] : sums) {
      if (stackOf(sum, whole) != stack) continue;
      if (block == function->body.get())
        for (const Dim& dim : stack)
          block = Builder(block).repeat(dim.name, dim.size, false, {})->body.get();
      Builder builder(block);
      builder.loc = sum->loc;
      Value* total = reshard(builder.read(sum), whole->slice(block->enclosing()));
      Builder(block).write(whole, total);
    }
    for (; block->owner(); block = block->owner()->parent())
      Builder(block).create(OpKind::Yield, {}, {});
  }
}

}  // namespace planc
