// Partial sums stay partial as long as that is cheaper. What it costs to add up a value where it is
// made are its bytes; what it costs to leave it partial is what its uses then add up: nothing where it
// ends in a sum that is added up once a step anyway, its own bytes where an op needs the whole sum,
// and in between what the linear op's result costs. Equal costs add up at once: all uses share it.
//
// The costs are counted on whole types before anything is typed; they need not be exact, only lead to
// the same choice on every grid.
#include "llvm/ADT/STLExtras.h"
#include "passes/shard.h"

namespace planc {

PartialSums::PartialSums(const Module& module, const SplitRules& rules)
    : module_(module), rules_(rules) {
  for (const auto& function : module.functions) estimate(*function->body);
  // Decided before anything is typed, while the uses are those of the model.
  for (const auto& [value, axes] : possible_) {
    int64_t later = 0;
    for (const Use& use : value->uses()) later += useCost(value, use);
    if (value->type.bytes() <= later) reduced_.insert(value);
  }
}

Axes partialOperands(const Op& op, llvm::function_ref<Axes(const Value*)> partial) {
  Axes axes;
  auto add = [&](const Axes& more) {
    for (const Axis& axis : more)
      if (!hasAxis(axes, axis.name)) axes.push_back(axis);
  };
  bool isScalar = llvm::all_of(op.operands(), [](const Value* v) { return v->type.dims.empty(); });
  bool isFirst = true;
  for (unsigned i = 0; i < op.operands().size(); ++i) {
    const Value* value = op.operand(i);
    Linear linear = linearIn(op, i);
    if (linear == Linear::Alone) add(partial(value));
    if (linear != Linear::Together) continue;
    // Constants are made as they are wanted. Scalars meet halfway: what counts there is the number of
    // messages, so one for the sum of them all beats one each.
    bool isConst = value->def() && value->def()->kind == OpKind::Const;
    if (isConst && !isScalar) continue;
    Axes mine = partial(value);
    if (isScalar || isFirst) add(mine);
    else llvm::erase_if(axes, [&](const Axis& axis) { return !hasAxis(mine, axis.name); });
    isFirst = false;
  }
  return axes;
}

Assignment PartialSums::assign(const Op& op) const {
  return rules_.assign(op, partialOperands(op, [&](const Value* v) { return possible(v); }));
}

void PartialSums::estimate(const Block& block) {
  for (const Op* op : block.ops) {
    if (op->body && op->kind == OpKind::Repeat) {
      estimate(*op->body);
      continue;
    }
    if (op->results().empty() || op->has(Effect)) continue;
    Axes from = partialOperands(*op, [&](const Value* v) { return possible(v); });
    Assignment assignment = rules_.assign(*op, from);
    for (const Value* result : op->results()) {
      Axes axes = summedAxes(module_.grid, assignment,
                             inNamesOf(*op, result->type, isResultOfKeys(*op, result->index())));
      for (const Axis& axis : from)
        if (!assignment.has(axis.name) && !hasAxis(axes, axis.name)) axes.push_back(axis);
      if (!axes.empty()) possible_[result] = axes;
    }
  }
}

int64_t PartialSums::laterCost(const Value* value) {
  auto [at, isNew] = later_.try_emplace(value, 0);
  if (!isNew) return at->second;
  int64_t later = 0;
  for (const Use& use : value->uses()) later += useCost(value, use);
  later = std::min(later, value->type.bytes());
  return later_[value] = later;
}

int64_t PartialSums::useCost(const Value* value, const Use& use) {
  const Op& op = *use.op;
  int64_t all = value->type.bytes();
  if (op.parent() != value->block()) return all;  // in a loop: once is cheaper
  if (op.kind == OpKind::Accum) return 0;         // the step adds up once
  if (op.results().empty() || op.kind == OpKind::Repeat) return all;
  Linear linear = linearIn(op, use.index);
  if (linear == Linear::No) return all;
  bool isTogether = linear == Linear::Together;
  Axes kept = partialOperands(op, [&](const Value* v) { return possible(v); });
  Assignment assignment = assign(op);
  for (const Axis& axis : possible(value))
    if (assignment.has(axis.name) || !hasAxis(kept, axis.name)) return all;
  // What is added to sums that are partial anyway is added up with them, at no cost of its own.
  if (isTogether) return 0;
  int64_t cost = 0;
  for (const Value* result : op.results()) cost += laterCost(result);
  return cost;
}

}  // namespace planc
