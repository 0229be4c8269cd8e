// Packed rows go to the ranks that hold their experts, and home. Where `shard` left a `reshard` of rows
// stands an exchange with counts: how many rows go where is known at run time only, so ranks first
// tell each other. Of the offsets where rows were packed follow the counts; a small all-to-all makes
// of them what each rank gets, and from that follow the offsets of what it holds then. One set of
// counts serves all exchanges of a routing in a block. Tested by tests/passes/experts and, in numbers,
// by tests/verify.
#include <map>

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "passes/dead_ops.h"
#include "passes/passes.h"

namespace planc {
namespace {

struct Counts {
  Value* mine;   // by part and expert: what this rank sends
  Value* there;  // what it gets
};

class Exchanger {
 public:
  using Packed = llvm::DenseMap<Value*, Value*>;
  Exchanger(Block& block, Packed& packed) : block_(block), packed_(packed) {}
  // A body uses offsets of the blocks around it, so these come first.
  void run() {
    std::vector<Op*> ops = block_.ops;
    for (Op* op : ops) {
      if (op->kind != OpKind::Reshard) continue;
      Value* made = op->isFlag("offsets") ? offsets(*op) : rows(*op);
      made->name = op->result()->name;
      op->result()->replaceAllUsesWith(made);
      op->erase();
    }
    for (Op* op : std::vector<Op*>(block_.ops))
      if (op->body) Exchanger(*op->body, packed_).run();
  }

 private:
  static Words namesOf(llvm::ArrayRef<Axis> axes) {
    Words names;
    for (const Axis& axis : axes) names.push_back(axis.name);
    return names;
  }
  const Counts& counts(Op& at, Value* offsets, const Dim& expert, llvm::ArrayRef<Axis> axes);
  Value* offsets(Op& op);
  Value* rows(Op& op);

  Block& block_;
  std::map<std::pair<Value*, std::string>, Counts> counts_;
  Packed& packed_;  // offsets of own experts' rows: those where rows were packed
};

// `expert`: cut as rows lie where they go; its innermost axes are those along which they go.
const Counts& Exchanger::counts(Op& at, Value* offsets, const Dim& expert,
                                llvm::ArrayRef<Axis> axes) {
  auto [entry, isNew] =
      counts_.try_emplace({offsets, Type{Elem::I32, {expert}}.str() + std::to_string(axes.size())},
                          Counts{nullptr, nullptr});
  if (!isNew) return entry->second;
  Builder builder(&block_, block_.indexOf(&at));
  builder.loc = at.loc;
  Axes kept(expert.axes.begin(), expert.axes.end() - long(axes.size()));
  Type mine{Elem::I32, {splitDim(expert, kept)}, offsets->type.partial};
  if (axes.empty()) {
    Value* own = builder.value(OpKind::RowCounts, {offsets}, mine, {}, "rows");
    return entry->second = {own, own};
  }
  Dim part = splitDim(Dim{expert.name == "part" ? "part_" : "part", ranksOver(axes)}, axes);
  mine.dims.insert(mine.dims.begin(), part);
  llvm::erase_if(mine.partial, [&](const Axis& axis) { return hasAxis(axes, axis.name); });
  Type there = mine;
  there.dims[0] = splitDim(part, {});
  there.dims[1] = expert;
  Words names = namesOf(axes);
  Value* sent = builder.value(OpKind::RowCounts, {offsets}, mine, {}, "rows");
  Value* received = builder.value(OpKind::AllToAll, {sent}, there,
                                  {{"axes", names},
                                   {"from", Words(names.size(), part.name)},
                                   {"to", Words(names.size(), expert.name)}},
                                  "rows");
  return entry->second = {sent, received};
}

// The dim of experts has no place in the type of offsets: it is that of the op which takes them.
Value* Exchanger::offsets(Op& op) {
  const Type& to = op.result()->type;
  Value* from = op.operand(0);
  std::string expert = "expert";
  for (const Use& use : op.result()->uses())
    for (const Value* value : use.op->operands())
      if (!value->type.grouping().empty()) expert = value->type.grouping().str();
  const Dim& bound = to.dims.front();
  Axes axes;  // along which rows go
  for (const Axis& axis : bound.axes)
    if (hasAxis(from->type.partial, axis.name)) axes.push_back(axis);
  Dim dim = splitDim(Dim{expert, bound.all() - 1}, bound.axes);
  const Counts& made = counts(op, from, dim, axes);
  Builder builder(&block_, block_.indexOf(&op));
  builder.loc = op.loc;
  Value* own = builder.value(OpKind::RowOffsets, {made.there}, to);
  packed_[own] = from;
  return own;
}

Value* Exchanger::rows(Op& op) {
  const Type &from = op.operand(0)->type, &to = op.result()->type;
  Value* offsets = op.operand(1);
  if (Value* packed = packed_.lookup(offsets)) offsets = packed;
  const Dim &before = from.dims[size_t(from.find(from.grouping()))],
            &behind = to.dims[size_t(to.find(to.grouping()))];
  bool isHome = before.axes.size() > behind.axes.size();
  const Dim& expert = isHome ? before : behind;
  Axes axes(expert.axes.begin() + long(isHome ? behind.axes.size() : before.axes.size()),
            expert.axes.end());
  const Counts& made = counts(op, offsets, expert, axes);
  Attrs attrs{{"axes", namesOf(axes)}};
  if (isHome) attrs.set("home", int64_t{1});
  Builder builder(&block_, block_.indexOf(&op));
  builder.loc = op.loc;
  Op* exchange = builder.create(
      OpKind::ExchangeRows,
      {op.operand(0), isHome ? made.there : made.mine, isHome ? made.mine : made.there},
      {to, isHome ? from : to}, attrs);
  exchange->result(1)->name = "spare";
  return exchange->result(0);
}

}  // namespace

void experts(Module& module, Diagnostics& diags) {
  if (module.level != Level::Sharded) {
    diags.report({}, Diag::PassOrder, "experts", "a module typed by 'shard'");
    return;
  }
  bool isCast = true;  // other casts have become collectives
  for (const auto& function : module.functions)
    walk(*function->body, [&](const Op* op) {
      isCast &= op->kind != OpKind::Reshard || op->isFlag("offsets") || op->operands().size() > 1;
    });
  if (!isCast) {
    diags.report({}, Diag::PassOrder, "experts", "a module whose casts 'collectives' has made");
    return;
  }
  for (const auto& function : module.functions) {
    Exchanger::Packed packed;
    Exchanger(*function->body, packed).run();
  }
  eraseDeadOps(module);
}

}  // namespace planc
