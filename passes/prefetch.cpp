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

// A gather of the layer's slice of a weight that is not changed meanwhile; between them may stand a
// change of the order in memory.
struct Gather {
  Op* read;
  Op* permute;  // or null
  Op* gather;

  bool isTheSame(const Gather& other) const {
    return read->var == other.read->var && gather->attrs == other.gather->attrs &&
           gather->operand(0)->type == other.gather->operand(0)->type;
  }
  // The gather's result is not used any more.
  void erase() {
    for (Op* op : {gather, permute, read})
      if (op && op->result()->uses().empty()) op->erase();
  }
};

bool isPermutation(const Op& op) {
  return op.kind == OpKind::Sum && op.operands().size() == 1 && !op.var &&
         op.operand(0)->type.dims.size() == op.result()->type.dims.size();
}

std::optional<Gather> asGather(Op& op, const Op& repeat, const VarSet& changed) {
  if (op.kind != OpKind::AllGather || op.operands().size() != 1) return std::nullopt;
  Gather found{op.operand(0)->def(), nullptr, &op};
  if (found.read && isPermutation(*found.read)) {
    found.permute = found.read;
    found.read = found.permute->operand(0)->def();
  }
  if (!found.read || found.read->kind != OpKind::Read || found.read->parent() != op.parent())
    return std::nullopt;
  const Variable& var = *found.read->var;
  bool isWeight = var.kind == VarKind::Weight || var.kind == VarKind::Copy;
  if (!isWeight || changed.contains(&var) || var.stack != Words{repeat.attrs.word("dim")})
    return std::nullopt;
  return found;
}

// The gathers of a layer's weights, one each; others of the same weight give way to it.
llvm::SmallVector<Gather, 16> gathersOf(const Op& repeat, const VarSet& changed) {
  llvm::SmallVector<Gather, 16> gathers;
  for (Op* op : std::vector<Op*>(repeat.body->ops)) {
    std::optional<Gather> found = asGather(*op, repeat, changed);
    if (!found) continue;
    auto same = llvm::find_if(gathers, [&](const Gather& g) { return g.isTheSame(*found); });
    if (same == gathers.end()) {
      gathers.push_back(*found);
      continue;
    }
    op->result()->replaceAllUsesWith(same->gather->result());
    found->erase();
  }
  return gathers;
}

// Gathers other slices of the same weights where the builder stands; in the order of the list.
llvm::SmallVector<Value*, 16> gatherAt(Builder builder, llvm::ArrayRef<Gather> gathers,
                                       const Attrs& slice, bool unlessLast) {
  llvm::SmallVector<Op*, 16> fresh;
  auto repeated = [&](const Op& op, Value* operand) {
    Attrs attrs = op.attrs;
    if (unlessLast) attrs.set("unless_last", int64_t{1});
    builder.loc = op.loc;
    return builder.value(op.kind, {operand}, op.result()->type, attrs, op.result()->name);
  };
  for (const auto& [read, permute, gather] : gathers) {
    builder.loc = read->loc;
    const Value& whole = *read->result();
    Value* piece =
        builder.create(OpKind::Read, {}, {whole.type}, slice, read->var, whole.name)->result();
    if (permute) piece = repeated(*permute, piece);
    fresh.push_back(repeated(*gather, piece)->def());
  }
  llvm::DenseMap<const Op*, Value*> gathered;
  for (const std::vector<Op*>& bucket : makeBuckets(fresh)) {
    if (bucket.size() < 2) {
      gathered[bucket.front()] = bucket.front()->result();
      continue;
    }
    Op* joined = joinBucket(builder, bucket);
    for (size_t i = 0; i < bucket.size(); ++i) gathered[bucket[i]] = joined->result(unsigned(i));
  }
  llvm::SmallVector<Value*, 16> values;
  for (Op* op : fresh) {
    values.push_back(gathered[op]);
    if (values.back()->def() != op) op->erase();
  }
  return values;
}

void prefetch(Op& repeat, const VarSet& changed) {
  int64_t count = repeat.attrs.integer("count");
  if (count < 2) return;
  llvm::SmallVector<Gather, 16> gathers = gathersOf(repeat, changed);
  Block& body = *repeat.body;
  int64_t first = repeat.isFlag("reverse") ? count - 1 : 0;
  auto init = gatherAt(Builder(repeat.parent(), repeat.parent()->indexOf(&repeat)), gathers,
                       {{"index", first}}, false);
  auto next = gatherAt(Builder(&body, 0), gathers, {{"ahead", int64_t{1}}}, true);
  for (auto [gather, value, later] : llvm::zip(gathers, init, next)) {
    repeat.addOperand(value);
    repeat.addResult(value->type, value->name);
    gather.gather->result()->replaceAllUsesWith(body.addArg(value->type, value->name));
    body.ops.back()->addOperand(later);
    gather.erase();
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
