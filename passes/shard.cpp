// Types every value from the plan's splits. For each op in order: the names it touches get axes
// (shard_rules.cpp), which types what it takes and what it makes; where a value's type and what an op
// takes differ there is a `reshard`, put behind the value so that all takers of a type share it.
// Nothing here is about a particular axis, dim or layer. Tested by tests/passes/shard and, in numbers,
// by every `planrun verify`.
#include "passes/shard.h"

#include "ir/verify.h"
#include "llvm/ADT/STLExtras.h"
#include "passes/dead_ops.h"
#include "passes/passes.h"

namespace planc {

// The offsets of packed rows, as they were packed: those of the op that made them, or of the rows that it
// made them of; of saved rows those that were saved.
Value* Sharder::offsetsFor(Value* rows) {
  if (Value* known = offsets_.lookup(rows)) return known;
  const Op* read = rows->def();
  Variable* slot = read && read->kind == OpKind::Read ? slotOffsets_.lookup(read->var) : nullptr;
  if (!slot) return nullptr;
  Builder builder(rows->block(), rows->block()->indexOf(read));
  builder.loc = read->loc;
  Value* saved = builder.read(slot);
  op(*saved->def());
  return offsets_[rows] = saved;
}

void Sharder::noteOffsets(const Op& op) {
  Value* offsets = nullptr;
  for (Value* operand : op.operands())
    if (!offsets && !operand->type.grouping().empty()) offsets = offsetsFor(operand);
  if (int at = offsetsOperand(op); at >= 0) offsets = packed_.lookup(op.operand(unsigned(at)));
  if (!offsets) return;
  for (Value* result : op.results())
    if (!result->type.grouping().empty()) offsets_[result] = offsets;
  if (op.kind != OpKind::Write || op.operand(0)->type.grouping().empty()) return;
  for (const Use& use : offsets->uses())
    if (use.op->kind == OpKind::Write && use.op->var->kind == VarKind::Slot)
      slotOffsets_[op.var] = use.op->var;
}

Value* Sharder::reshard(Value* value, const Type& type, Value* offsets) {
  if (value->type == type) return value;
  Value*& made = reshards_[{value, type.str()}];
  if (made) return made;
  // What is added up once is not added up again in another shape.
  if (!value->type.partial.empty())
    for (Value* other : sumsOf_[value])
      if (other->type.partial == type.partial) return made = reshard(other, type, offsets);
  Op* def = value->def();
  if (type.grouping().empty()) offsets = nullptr;
  else if (!offsets) offsets = offsetsFor(value);
  size_t at = def ? value->block()->indexOf(def) + 1 : 0;
  if (offsets && offsets->def() && offsets->block() == value->block())
    at = std::max(at, value->block()->indexOf(offsets->def()) + 1);
  Builder builder(value->block(), at);
  if (def) builder.loc = def->loc;
  if (def && def->kind == OpKind::Const) {
    // Constants are made as they are wanted; only zero is a partial sum of itself.
    bool isZero = def->attrs.number("value") == 0;
    Type constant = type;
    if (!isZero) constant.partial.clear();
    Value* fresh = builder.constant(def->attrs.number("value"), constant);
    fresh->name = value->name;
    if (isZero || type.partial.empty()) return made = fresh;
    value = fresh;
  }
  llvm::SmallVector<Value*, 2> from{value};
  if (offsets) from.push_back(offsets);
  Value* cast = builder.value(OpKind::Reshard, from, type, {}, value->name);
  if (offsets) {
    Value* packed = packed_.lookup(offsets);
    offsets_[cast] = packed ? packed : offsets;
  }
  if (value->type.partial != type.partial) sumsOf_[value].push_back(cast);
  return reshards_[{value, type.str()}] = cast;
}

void Sharder::take(Op& op, unsigned operand, const Type& type, Value* offsets) {
  op.setOperand(operand, reshard(op.operand(operand), type, offsets));
}

// Offsets of rows as experts have them are no other shape of those where rows are packed: they are
// counted anew (pass `experts`).
void Sharder::takeOffsets(Op& op, unsigned operand, const Type& type) {
  Value* offsets = op.operand(operand);
  Value*& made = reshards_[{offsets, "offsets " + type.str()}];
  if (!made) {
    size_t at = offsets->def() ? offsets->block()->indexOf(offsets->def()) + 1 : 0;
    Builder builder(offsets->block(), at);
    builder.loc = op.loc;
    made =
        builder.value(OpKind::Reshard, {offsets}, type, {{"offsets", int64_t{1}}}, offsets->name);
    packed_[made] = offsets;
  }
  op.setOperand(operand, made);
}

// The axes over which a value is left partial for the ops that take it.
Axes Sharder::keptPartial(const Value* value) const {
  return sums_.isReducedAtOnce(value) ? Axes() : value->type.partial;
}

void Sharder::operands(Op& op, const Assignment& assignment) {
  // An axis that splits a name of the op cannot also be summed over behind it.
  auto kept = [&](const Value* value) {
    Axes axes = keptPartial(value);
    llvm::erase_if(axes, [&](const Axis& axis) { return assignment.has(axis.name); });
    return axes;
  };
  Axes together = partialOperands(op, kept);
  module_.grid.sort(together);
  int offsets = offsetsOperand(op);
  Value* rowsOffsets = offsets < 0 ? nullptr : op.operand(unsigned(offsets));
  if (rowsOffsets) packed_.try_emplace(rowsOffsets, rowsOffsets);
  Axes alone;  // what operands that may be partial alone are partial over so far
  for (unsigned i = 0; i < op.operands().size(); ++i) {
    Value* value = op.operand(i);
    Type type = assignment.operand(op, i);
    if (int(i) == offsets) {
      for (const Dim& dim : dimsOf(op))
        if (dim.isRagged()) {
          llvm::ArrayRef<Axis> axes = assignment.of(dim.name);
          type.partial.assign(axes.begin(), axes.end());
        }
      module_.grid.sort(type.partial);
    } else if (linearIn(op, i) == Linear::Together) {
      type.partial = together;
    } else if (linearIn(op, i) == Linear::Alone) {
      for (const Axis& axis : kept(value))
        if (!hasAxis(alone, axis.name)) type.partial.push_back(axis);
      alone.append(type.partial.begin(), type.partial.end());
    }
    if (int(i) == offsets && value->type != type) takeOffsets(op, i, type);
    else take(op, i, type, rowsOffsets);
  }
}

void Sharder::results(Op& op, const Assignment& assignment) {
  Axes from;
  for (unsigned i = 0; i < op.operands().size(); ++i)
    if (linearIn(op, i) != Linear::No)
      for (const Axis& axis : op.operand(i)->type.partial)
        if (!hasAxis(from, axis.name)) from.push_back(axis);
  for (Value* result : op.results()) {
    Type type = assignment.result(op, result->index());
    type.partial = summedAxes(module_.grid, assignment,
                              inNamesOf(op, type, isResultOfKeys(op, result->index())));
    type.partial.append(from.begin(), from.end());
    module_.grid.sort(type.partial);
    result->type = type;
  }
}

// Dropout is keyed by an element's place in the whole tensor, and packed rows have none: each rank
// numbers its own.
void Sharder::checkDropout() {
  for (const auto& function : module_.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->kind != OpKind::Dropout) return;
      for (const Dim& dim : op->result()->type.dims)
        if ((dim.isRagged() || dim.name == op->result()->type.grouping()) && dim.isSplit() &&
            function->name == "forward")
          diags_.report(op->loc, Diag::RowsDropout, dim.axes.front().name)
              .suggest("drop the tokens before 'dispatch' or behind 'combine'");
    });
}

// Over a split vocabulary: each rank's log-sum-exp over its piece, which all ranks then have of each
// other (a number a token and rank), and the target's logit, which one rank has. Logits stay where
// they are.
void Sharder::crossEntropy(Op& op, const Assignment& assignment) {
  llvm::ArrayRef<Axis> pieces = assignment.of(op.attrs.word("over"));
  operands(op, assignment);
  Value *logits = op.operand(0), *targets = op.operand(1), *count = op.operand(2);
  Value *loss = op.result(0), *lse = op.result(1);
  Builder builder(op.parent(), op.parent()->indexOf(&op));
  builder.loc = op.loc;
  std::string part = "part";
  while (logits->type.has(part)) part += "_";

  Assignment split = assignment;
  split.add(part, pieces);
  Type picked = lse->type.whole();
  Type lses = picked;
  lses.dims.insert(lses.dims.begin(), Dim{part, ranksOver(pieces)});
  Op* parts = builder.create(OpKind::CrossEntropyPart, {logits, targets}, {lses, picked},
                             {{"over", op.attrs.word("over")}, {"part", part}});
  parts->result(0)->name = lse->name;
  parts->result(1)->name = "picked";
  results(*parts, split);

  Type lseType = assignment.apply(lse->type.whole());
  Type gathered = lseType;
  gathered.dims.insert(gathered.dims.begin(), Dim{part, ranksOver(pieces)});
  Value* all = builder.value(OpKind::Reshard, {parts->result(0)}, gathered, {}, lse->name);
  Value* total = builder.value(OpKind::LogSumExp, {all}, lseType, {{"over", part}}, lse->name);
  Value* mine = builder.value(OpKind::Reshard, {parts->result(1)}, lseType, {}, "picked");
  Op* sum =
      builder.create(OpKind::CrossEntropyTotal, {targets, total, mine, count}, {loss->type.whole()},
                     {{"scale", op.attrs.number("scale", 1)}}, nullptr, loss->name);
  Assignment tokens = assignment;
  llvm::erase_if(tokens.names, [&](const auto& n) { return n.first == op.attrs.word("over"); });
  results(*sum, tokens);
  loss->replaceAllUsesWith(sum->result());
  lse->replaceAllUsesWith(total);
  op.erase();
}

// What a repeat carries is held by its own names, and is never partial.
void Sharder::repeat(Op& op) {
  for (unsigned i = 0; i < op.operands().size(); ++i) {
    Type whole = op.operand(i)->type.whole();
    Type type = rules_.assign(whole).apply(whole);
    Value* offsets = type.grouping().empty() ? nullptr : offsetsFor(op.operand(i));
    take(op, i, type);
    op.body->args()[i]->type = type;
    op.result(i)->type = type;
    if (offsets) offsets_[op.body->args()[i]] = offsets_[op.result(i)] = offsets;
  }
  block(*op.body);
}

// The optimizer's state may be held in smaller pieces than the plan's splits say (`shard`): the
// step's ops work on the pieces of their most split operand.
void Sharder::updateOp(Op& op) {
  const Value* most = nullptr;
  for (const Value* value : op.operands())
    if (!most || ranksOver(value->type.splitAxes()) > ranksOver(most->type.splitAxes()))
      most = value;
  Assignment assignment;
  if (most)
    for (const Dim& dim : most->type.dims)
      if (dim.isSplit()) assignment.add(dim.name, dim.axes);
  operands(op, assignment);
  results(op, assignment);
}

void Sharder::op(Op& op) {
  switch (op.kind) {
    case OpKind::Read: {
      Type& type = op.result()->type;
      const Type& held = op.var->type;
      for (Dim& dim : type.dims) dim = held.dims[size_t(held.find(dim.name))];
      type.partial = held.partial;
      return;
    }
    case OpKind::Const:
    case OpKind::Zero:
      return;
    case OpKind::Accum:
      accums_.push_back(&op);
      return;
    case OpKind::Write:
      return take(op, 0, op.var->slice(op.parent()->enclosing()));
    case OpKind::Repeat:
      return repeat(op);
    case OpKind::Yield:
      for (unsigned i = 0; i < op.operands().size(); ++i)
        take(op, i, op.parent()->owner()->body->args()[i]->type);
      return;
    default:
      break;
  }
  if (isUpdate_) return updateOp(op);
  Assignment assignment = rules_.assign(
      op, partialOperands(op, [&](const Value* value) { return keptPartial(value); }));
  if (op.kind == OpKind::CrossEntropy && !assignment.of(op.attrs.word("over")).empty())
    return crossEntropy(op, assignment);
  operands(op, assignment);
  results(op, assignment);
}

void Sharder::block(Block& block) {
  // Typing an op puts others around it.
  for (Op* o : std::vector<Op*>(block.ops)) {
    bool isCrossEntropy = o->kind == OpKind::CrossEntropy;  // may be replaced
    op(*o);
    if (!isCrossEntropy) noteOffsets(*o);
  }
}

void Sharder::run() {
  if (module_.level != Level::Model) {
    diags_.report({}, Diag::PassOrder, "shard", "a module of the model's level");
    return;
  }
  module_.level = Level::Sharded;
  if (module_.grid.ranks() > 1) typeAll();
  checkSizes();
}

// What a rank holds is known only now. Of values one is told: the others follow from it.
void Sharder::checkSizes() {
  auto isTooLarge = [&](Loc loc, const Type& type) {
    if (type.elements() <= kMaxElements) return false;
    diags_.report(loc, Diag::TensorTooLarge, type.str(), kMaxElements);
    return true;
  };
  bool isTold = false;
  for (const auto& var : module_.vars) isTold |= isTooLarge(var->loc, var->type);
  for (const auto& function : module_.functions)
    walk(*function->body, [&](const Op* op) {
      for (const Value* result : op->results())
        isTold = isTold || isTooLarge(op->loc, result->type);
    });
}

// Every tensor of the program holds a dim in the one order that the plan's splits give it.
void Sharder::setOrder() {
  std::map<std::string, int64_t> zigzags;
  for (const Split& split : module_.splits) {
    if (split.order != "zigzag") continue;
    int64_t& ranks = zigzags.try_emplace(split.dim, 1).first->second;
    for (const std::string& axis : split.axes) ranks *= ranksOver(module_.grid.find(axis));
  }
  std::erase_if(zigzags, [](const auto& entry) { return entry.second < 2; });
  if (zigzags.empty()) return;
  auto set = [&](Type& type) {
    for (Dim& dim : type.dims)
      if (auto at = zigzags.find(dim.name); at != zigzags.end()) dim.zigzag = at->second;
  };
  for (const auto& var : module_.vars) set(var->type);
  for (const auto& function : module_.functions)
    walk(*function->body, [&](const Op* op) {
      for (Value* result : op->results()) set(result->type);
      if (op->body)
        for (Value* arg : op->body->args()) set(arg->type);
      if (function->name == "backward") return;  // has gradients of what is told already
      for (const std::string& dim : dimsByNumber(*op))
        if (zigzags.contains(dim))
          diags_.report(op->loc, Diag::ZigzagPicked, dim, op->info().text)
              .suggest("split '" + dim + "' by ring(contiguous)");
    });
}

void Sharder::typeAll() {
  setOrder();
  typeVariables();
  for (const auto& function : module_.functions)
    if (function->name != "update") block(*function->body);
  finishSums();
  if (Function* update = module_.findFunction("update")) {
    isUpdate_ = true;
    block(*update->body);
  }
  eraseDeadOps(module_);
  checkPadding(module_, diags_);
  checkDropout();
}

void shard(Module& module, Diagnostics& diags) { Sharder(module, diags).run(); }

}  // namespace planc
