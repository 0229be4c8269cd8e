// A repeat's body gathers the weights of its layer where it uses them. Here it carries them instead:
// what is gathered at the top of an iteration is the next one's, and goes on to it at the end. Two
// layers' weights are then held at once, and a gather has a layer's time to arrive. What is gathered
// twice in a layer, for its own sake and for a recomputation, is gathered once, since it is held.
// Tested by tests/passes/prefetch.
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "passes/bucket.h"
#include "passes/passes.h"

namespace planc {
namespace {

using VarSet = llvm::SmallPtrSet<const Variable*, 16>;

VarSet changedBy(const Function& function) {
  VarSet changed;
  walk(*function.body, [&](const Op* op) {
    if (op->var && op->kind != OpKind::Read) changed.insert(op->var);
  });
  return changed;
}

// A gather of the layer's slice of a weight that is not changed meanwhile.
bool isLayersWeight(const Op& op, const Op& repeat, const VarSet& changed) {
  if (op.kind != OpKind::AllGather || op.operands().size() != 1) return false;
  const Op* read = op.operand(0)->def();
  if (!read || read->kind != OpKind::Read || read->parent() != op.parent()) return false;
  const Variable& var = *read->var;
  return (var.kind == VarKind::Weight || var.kind == VarKind::Copy) && !changed.contains(&var) &&
         var.stack == Words{repeat.attrs.word("dim")};
}

bool gatherTheSame(const Op& a, const Op& b) {
  return a.operand(0)->def()->var == b.operand(0)->def()->var && a.attrs == b.attrs;
}

// The gathers of a layer's weights, one each; others of the same weight give way to it.
llvm::SmallVector<Op*, 16> layersWeights(Op& repeat, const VarSet& changed) {
  llvm::SmallVector<Op*, 16> gathers;
  for (Op* op : std::vector<Op*>(repeat.body->ops)) {
    if (!isLayersWeight(*op, repeat, changed)) continue;
    auto same = llvm::find_if(gathers, [&](const Op* other) { return gatherTheSame(*op, *other); });
    if (same == gathers.end()) {
      gathers.push_back(op);
      continue;
    }
    op->result()->replaceAllUsesWith((*same)->result());
    Op* read = op->operand(0)->def();
    op->erase();
    if (read->result()->uses().empty()) read->erase();
  }
  return gathers;
}

// Gathers the slices that reads with this attribute give, where the builder stands; in the order of
// the list.
llvm::SmallVector<Value*, 16> gatherAt(Builder builder, llvm::ArrayRef<Op*> gathers,
                                       llvm::StringRef slice, int64_t number, bool unlessLast) {
  llvm::SmallVector<Op*, 16> fresh;
  for (const Op* gather : gathers) {
    const Op& read = *gather->operand(0)->def();
    builder.loc = gather->loc;
    Value* piece = builder
                       .create(OpKind::Read, {}, {read.result()->type}, {{slice.str(), number}},
                               read.var, read.result()->name)
                       ->result();
    Attrs attrs = gather->attrs;
    if (unlessLast) attrs.set("unless_last", int64_t{1});
    fresh.push_back(builder.create(OpKind::AllGather, {piece}, {gather->result()->type}, attrs,
                                   nullptr, gather->result()->name));
  }
  llvm::SmallVector<Value*, 16> values;
  llvm::DenseMap<const Op*, Value*> gathered;
  for (const std::vector<Op*>& bucket : makeBuckets(fresh)) {
    if (bucket.size() < 2) {
      gathered[bucket.front()] = bucket.front()->result();
      continue;
    }
    Op* joined = joinBucket(builder, bucket);
    for (size_t i = 0; i < bucket.size(); ++i) gathered[bucket[i]] = joined->result(unsigned(i));
  }
  for (Op* op : fresh) values.push_back(gathered[op]);
  for (Op* op : fresh)
    if (gathered[op]->def() != op) op->erase();
  return values;
}

void prefetch(Op& repeat, const VarSet& changed) {
  int64_t count = repeat.attrs.integer("count");
  if (count < 2) return;
  llvm::SmallVector<Op*, 16> gathers = layersWeights(repeat, changed);
  if (gathers.empty()) return;
  Block& body = *repeat.body;
  auto first = gatherAt(Builder(repeat.parent(), repeat.parent()->indexOf(&repeat)), gathers, "index",
                        repeat.isFlag("reverse") ? count - 1 : 0, false);
  auto next = gatherAt(Builder(&body, 0), gathers, "ahead", 1, true);
  for (auto [gather, init, later] : llvm::zip(gathers, first, next)) {
    repeat.addOperand(init);
    repeat.addResult(init->type, init->name);
    gather->result()->replaceAllUsesWith(body.addArg(init->type, init->name));
    body.ops.back()->addOperand(later);
    Op* read = gather->operand(0)->def();
    gather->erase();
    if (read->result()->uses().empty()) read->erase();
  }
}

}  // namespace

void prefetch(Module& module, Diagnostics& diags) {
  if (module.level != Level::Sharded) {
    diags.report({}, Diag::PassOrder, "prefetch", "a module typed by 'shard'");
    return;
  }
  for (const auto& function : module.functions) {
    VarSet changed = changedBy(*function);
    for (Op* op : std::vector<Op*>(function->body->ops))
      if (op->kind == OpKind::Repeat) prefetch(*op, changed);
  }
}

}  // namespace planc
