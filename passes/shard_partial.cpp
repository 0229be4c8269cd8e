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

void PartialSums::estimate(const Block& block) {
  for (const Op* op : block.ops) {
    if (op->body && op->kind == OpKind::Repeat) {
      estimate(*op->body);
      continue;
    }
    if (op->results().empty() || op->has(Effect)) continue;
    Assignment assignment = rules_.assign(*op);
    Axes from;
    for (unsigned i = 0; i < op->operands().size(); ++i) {
      Linear linear = linearIn(*op, i);
      if (linear == Linear::No) continue;
      Axes mine = possible(op->operand(i));
      if (linear == Linear::Together && i > 0) {
        // Scalars meet halfway; see Sharder::operands.
        if (op->result()->type.dims.empty()) from.append(mine.begin(), mine.end());
        else llvm::erase_if(from, [&](const Axis& axis) { return !hasAxis(mine, axis.name); });
      } else {
        from.append(mine.begin(), mine.end());
      }
    }
    for (const Value* result : op->results()) {
      Axes axes = summedAxes(module_.grid, assignment, result->type);
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
  if (op.kind == OpKind::Accum) return 0;
  if (op.kind == OpKind::Write || op.results().empty() || op.kind == OpKind::Repeat) return all;
  Linear linear = linearIn(op, use.index);
  if (linear == Linear::No) return all;
  Axes mine = possible(value);
  if (linear == Linear::Together && !op.result()->type.dims.empty())
    for (const Value* other : op.operands()) {
      bool isZero = other->def() && other->def()->kind == OpKind::Const;
      for (const Axis& axis : mine)
        if (!isZero && !hasAxis(possible(other), axis.name)) return all;
    }
  // Scalars added up are one message in the end, however many they are.
  if (linear == Linear::Together && op.result()->type.dims.empty()) return 0;
  Assignment assignment = rules_.assign(op);
  for (const Axis& axis : mine)
    if (assignment.has(axis.name)) return all;
  int64_t cost = 0;
  for (const Value* result : op.results()) cost += laterCost(result);
  return cost;
}

}  // namespace planc
