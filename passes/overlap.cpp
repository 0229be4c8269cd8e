// Collectives become pairs of start and wait, and the wait stands where the result is first used, so
// that what lies between runs meanwhile. Sums of the step that go straight to variables are joined to
// buckets: one message for many small tensors. Tested by tests/passes/overlap.
#include "llvm/ADT/STLExtras.h"
#include "passes/bucket.h"
#include "passes/passes.h"

namespace planc {
namespace {

// Stages run different programs: what goes between them stays in the order of the plan.
bool crossesStages(const Op& op) {
  return llvm::any_of(op.parent()->module().where, [&](const auto& at) {
    return llvm::is_contained(op.attrs.words("axes"), at.first);
  });
}

// A collective whose results only go to variables.
bool isStored(const Op& op) {
  return llvm::all_of(op.results(), [&](const Value* result) {
    return result->uses().size() == 1 && result->uses()[0].op->kind == OpKind::Write &&
           result->uses()[0].op->parent() == op.parent();
  });
}

// Joins the collectives of a bucket where the last of them stands; their writes come behind it.
void join(llvm::ArrayRef<Op*> bucket) {
  if (bucket.size() < 2) return;
  Block* block = bucket.back()->parent();
  Builder builder(block, block->indexOf(bucket.back()) + 1);
  Op* joined = joinBucket(builder, bucket);
  unsigned next = 0;
  for (Op* op : bucket) {
    for (Value* result : op->results()) {
      Op* write = result->uses()[0].op;
      Value* fresh = joined->result(next++);
      Builder behind(block, block->indexOf(joined) + next);
      behind.loc = write->loc;
      behind.write(write->var, fresh);
      write->erase();
    }
    op->erase();
  }
}

void joinStored(Block& block) {
  llvm::SmallVector<Op*, 8> stored;
  for (Op* op : block.ops)
    if (op->has(Comm) && op->kind != OpKind::AllToAll && !crossesStages(*op) && isStored(*op))
      stored.push_back(op);
  for (const std::vector<Op*>& bucket : makeBuckets(stored)) join(bucket);
}

// The first op of the block that uses a result, itself or within its body; the block's size if none.
size_t firstUse(const Op& op) {
  const Block& block = *op.parent();
  size_t first = block.ops.size();
  for (const Value* result : op.results())
    for (const Use& use : result->uses()) {
      const Op* user = use.op;
      while (user->parent() != &block) user = user->parent()->owner();
      first = std::min(first, block.indexOf(user));
    }
  return first;
}

void split(Op& op) {
  Block* block = op.parent();
  size_t at = firstUse(op);
  llvm::SmallVector<Value*, 8> operands(op.results().begin(), op.results().end());
  operands.append(op.operands().begin(), op.operands().end());
  llvm::SmallVector<Type, 8> types;
  for (const Value* result : op.results()) types.push_back(result->type);
  // Writes to variables are no reason to wait before the end.
  llvm::SmallVector<Op*, 8> writes;
  if (isStored(op)) {
    for (const Value* result : op.results()) writes.push_back(result->uses()[0].op);
    at = block->ops.size() - (block->owner() ? 1 : 0);
  }
  llvm::SmallVector<std::pair<Value*, llvm::SmallVector<Use, 4>>, 4> uses;
  for (Value* result : op.results())
    uses.push_back(
        {result, llvm::SmallVector<Use, 4>(result->uses().begin(), result->uses().end())});
  Builder builder(block, at);
  builder.loc = op.loc;
  Op* wait = builder.create(OpKind::Wait, operands, types);
  if (op.isUnlessLast()) wait->attrs.set("unless_last", int64_t{1});
  for (auto& [result, list] : uses) {
    wait->result(result->index())->name = result->name;
    for (const Use& use : list) use.op->setOperand(use.index, wait->result(result->index()));
  }
  for (Op* write : writes) {
    Builder behind(block, block->ops.size() - (block->owner() ? 1 : 0));
    behind.loc = write->loc;
    behind.write(write->var, write->operand(0));
    write->erase();
  }
  op.attrs.set("start", int64_t{1});
}

void overlap(Block& block) {
  joinStored(block);
  for (Op* op : std::vector<Op*>(block.ops)) {
    if (op->kind == OpKind::Repeat) overlap(*op->body);
    if (op->has(Comm) && !op->isFlag("start") && !crossesStages(*op)) split(*op);
  }
}

}  // namespace

void overlap(Module& module, Diagnostics& diags) {
  if (module.level != Level::Sharded) {
    diags.report({}, Diag::PassOrder, "overlap", "a module typed by 'shard'");
    return;
  }
  for (const auto& function : module.functions) overlap(*function->body);
}

}  // namespace planc
