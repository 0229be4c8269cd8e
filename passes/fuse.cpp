// Two rewrites that save sweeps over memory. (1) Elementwise ops over the same dims that feed each
// other become one `fused` op, which may end in a sum. (2) A product or sum that is only added to a
// variable accumulates there itself. Groups grow greedily in program order; an op joins the groups
// of its operands when no one outside would read the joined group before it is complete. Tested by
// tests/passes/fuse.
#include <algorithm>
#include <map>
#include <set>

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "passes/dead_ops.h"
#include "passes/passes.h"

namespace planc {
namespace {

constexpr size_t kMaxOps = 24;  // of one fused op: its values must fit the first cache
constexpr size_t kMaxInputs = 12;

bool isScalarConst(const Value* value) {
  return value->def() && value->def()->kind == OpKind::Const && value->type.dims.empty();
}

std::set<std::string> domainOf(const Op& op) {
  const Type& type = op.kind == OpKind::Sum ? op.operand(0)->type : op.result()->type;
  std::set<std::string> names;
  for (const Dim& dim : type.dims) names.insert(dim.name);
  return names;
}

bool isMember(const Op& op) {
  if (op.has(Elementwise)) return true;
  return op.kind == OpKind::Sum && op.operands().size() == 1 && !op.var &&
         op.operand(0)->type.grouping().empty() && isFloat(op.operand(0)->type.elem);
}

struct Group {
  std::vector<Op*> ops;  // in program order
  std::set<std::string> domain;
  bool hasSum = false;
};

class Fuser {
 public:
  explicit Fuser(Block& block) : block_(block) {}

  void run() {
    for (size_t i = 0; i < block_.ops.size(); ++i) position_[block_.ops[i]] = i;
    for (Op* op : block_.ops)
      if (isMember(*op)) join(*op);
    std::vector<Group*> groups;
    for (auto& group : groups_)
      if (group->ops.size() > 1) groups.push_back(group.get());
    for (Group* group : groups) rewrite(*group);
  }

 private:
  Group* groupOf(const Value* value) const {
    const Op* def = value->def();
    if (!def || def->parent() != &block_) return nullptr;
    return group_.lookup(def);
  }

  // Position in this block at which a use happens; a use inside a body happens at its op.
  size_t usePosition(const Op* user) const {
    while (user->parent() != &block_) user = user->parent()->owner();
    return position_.lookup(user);
  }

  void join(Op& op) {
    auto own = std::make_unique<Group>();
    own->ops = {&op};
    own->domain = domainOf(op);
    own->hasSum = op.kind == OpKind::Sum;
    Group* group = own.get();
    groups_.push_back(std::move(own));
    group_[&op] = group;
    for (const Value* operand : op.operands()) {
      Group* other = groupOf(operand);
      if (!other || other == group || !canMerge(*other, *group, op)) continue;
      for (Op* member : group->ops) group_[member] = other;
      other->ops.insert(other->ops.end(), group->ops.begin(), group->ops.end());
      llvm::sort(other->ops, [&](Op* a, Op* b) { return position_[a] < position_[b]; });
      other->hasSum |= group->hasSum;
      group->ops.clear();
      group = other;
    }
  }

  // `op` is the last op of both groups.
  bool canMerge(const Group& a, const Group& b, const Op& op) const {
    if (a.domain != b.domain || (a.hasSum && b.hasSum)) return false;
    if (a.ops.size() + b.ops.size() > kMaxOps) return false;
    llvm::DenseSet<const Op*> members(a.ops.begin(), a.ops.end());
    members.insert(b.ops.begin(), b.ops.end());
    std::set<const Value*> inputs;
    size_t last = position_.lookup(&op), first = last;
    for (const Op* member : members) {
      first = std::min(first, position_.lookup(member));
      for (const Value* result : member->results())
        for (const Use& use : result->uses())
          if (!members.contains(use.op) && usePosition(use.op) < last) return false;
      // Nothing may go on behind a sum.
      for (const Value* operand : member->operands())
        if (operand->def() && operand->def()->kind == OpKind::Sum &&
            members.contains(operand->def()))
          return false;
      for (const Value* operand : member->operands())
        if (!(operand->def() && members.contains(operand->def())) && !isScalarConst(operand))
          inputs.insert(operand);
    }
    if (inputs.size() > kMaxInputs || inputs.empty()) return false;
    // The domain must be the union of the inputs' dims, for that is how a fused op finds it.
    std::set<std::string> covered;
    for (const Value* input : inputs)
      for (const Dim& dim : input->type.dims) covered.insert(dim.name);
    if (covered != a.domain) return false;
    // Inputs read from a variable must still be what they were when the last member ran.
    bool changes = false;
    auto check = [&](const Op* between) {
      if (between->kind == OpKind::Read || !between->var) return;
      for (const Value* input : inputs)
        changes |=
            input->def() && input->def()->kind == OpKind::Read && input->def()->var == between->var;
    };
    for (size_t at = first; at < last; ++at) {
      check(block_.ops[at]);
      if (block_.ops[at]->body) walk(*block_.ops[at]->body, check);
    }
    return !changes;
  }

  void rewrite(Group& group) {
    llvm::DenseSet<const Op*> members(group.ops.begin(), group.ops.end());
    std::vector<Value*> inputs, outputs;
    for (Op* op : group.ops) {
      for (Value* operand : op->operands())
        if (!(operand->def() && members.contains(operand->def())) && !isScalarConst(operand) &&
            !llvm::is_contained(inputs, operand))
          inputs.push_back(operand);
      bool isUsed = false;
      for (const Use& use : op->result()->uses()) isUsed |= !members.contains(use.op);
      if (isUsed) outputs.push_back(op->result());
    }
    llvm::SmallVector<Type, 2> types;
    for (Value* output : outputs) types.push_back(output->type);
    Op* last = group.ops.back();
    Builder builder(&block_, block_.indexOf(last));
    builder.loc = last->loc;
    Op* fused = builder.create(OpKind::Fused, inputs, types);
    fused->body = std::make_unique<Block>(block_.module(), fused);
    // The sum comes last: nothing in the group reads it.
    std::stable_partition(group.ops.begin(), group.ops.end(),
                          [](const Op* op) { return op->kind != OpKind::Sum; });
    llvm::DenseMap<const Value*, Value*> inside;
    for (Value* input : inputs) inside[input] = fused->body->addArg(input->type, input->name);
    Builder body(fused->body.get());
    for (Op* op : group.ops) {
      llvm::SmallVector<Value*, 3> operands;
      for (Value* operand : op->operands()) {
        Value*& mapped = inside[operand];
        if (!mapped) mapped = body.constant(operand->def()->attrs.number("value"), operand->type);
        operands.push_back(mapped);
      }
      body.loc = op->loc;
      inside[op->result()] =
          body.value(op->kind, operands, op->result()->type, op->attrs, op->result()->name);
    }
    llvm::SmallVector<Value*, 2> yields;
    for (size_t i = 0; i < outputs.size(); ++i) {
      yields.push_back(inside[outputs[i]]);
      fused->result(unsigned(i))->name = outputs[i]->name;
      outputs[i]->replaceAllUsesWith(fused->result(unsigned(i)));
    }
    body.create(OpKind::Yield, yields, {});
    // Users before what they use.
    llvm::sort(group.ops, [&](Op* a, Op* b) { return position_[a] > position_[b]; });
    for (Op* op : group.ops) op->erase();
  }

  Block& block_;
  llvm::DenseMap<const Op*, size_t> position_;  // before any rewriting: order does not change
  llvm::DenseMap<const Op*, Group*> group_;
  std::vector<std::unique_ptr<Group>> groups_;
};

// einsum, sum, lookup_grad or fused-with-a-sum whose one use is an `accum` in the same block: takes
// over the variable. No other accumulation into it may lie between.
void accumulateInPlace(Block& block) {
  std::vector<Op*> accums;
  for (Op* op : block.ops)
    if (op->kind == OpKind::Accum) accums.push_back(op);
  for (Op* accum : accums) {
    Value* value = accum->operand(0);
    Op* def = value->def();
    if (!def || def->parent() != &block || !def->has(Accumulates) || def->var ||
        value->uses().size() != 1 || def->results().size() != 1 ||
        accum->var->type.elem == Elem::BF16 || accum->var->type.elem != value->type.elem)
      continue;
    if (def->kind == OpKind::Fused) {
      const Op* inner = def->body->ops.back()->operand(0)->def();
      if (!inner || inner->kind != OpKind::Sum) continue;
    }
    bool isClear = true;
    for (size_t i = block.indexOf(def) + 1; block.ops[i] != accum; ++i)
      isClear &= block.ops[i]->var != accum->var && !block.ops[i]->body;
    if (!isClear) continue;
    def->var = accum->var;
    if (accum->isFlag("first")) def->attrs.set("first", int64_t{1});
    accum->erase();
    def->dropResults();
  }
}

// A slot may be written any time before the block ends if the block does not read it: written last, it
// stands in no chain's way.
void sinkSlotWrites(Block& block) {
  llvm::DenseSet<const Variable*> read;
  walk(block, [&](const Op* op) {
    if (op->kind == OpKind::Read) read.insert(op->var);
  });
  std::vector<Op*> rest, writes;
  for (Op* op : block.ops) {
    const Op* def = op->kind == OpKind::Write ? op->operand(0)->def() : nullptr;
    bool sinks =
        def && op->var->kind == VarKind::Slot && def->parent() == &block && !read.contains(op->var);
    (sinks ? writes : rest).push_back(op);
  }
  bool hasYield = !rest.empty() && rest.back()->kind == OpKind::Yield;
  rest.insert(rest.end() - hasYield, writes.begin(), writes.end());
  block.ops = std::move(rest);
}

void fuseBlock(Block& block) {
  for (Op* op : block.ops)
    if (op->kind == OpKind::Repeat) fuseBlock(*op->body);
  sinkSlotWrites(block);
  Fuser(block).run();
  accumulateInPlace(block);
}

}  // namespace

void fuse(Module& module, Diagnostics&) {
  eraseDeadOps(module);
  for (const auto& function : module.functions) fuseBlock(*function->body);
  eraseDeadOps(module);
}

}  // namespace planc
