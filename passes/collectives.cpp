// Turns each `reshard` into collectives: per axis, what its place in the one type and in the other
// says. Sums come first (they shrink what follows), then what only moves between dims, then gathers,
// then slices of what is whole. The order in memory follows: what is gathered or scattered lies
// outermost while it is on its way, so that a message is one piece of memory. Tested by
// tests/passes/collectives and tests/unit/reshard_test.cpp.
#include "llvm/ADT/STLExtras.h"
#include "passes/dead_ops.h"
#include "passes/passes.h"

namespace planc {
namespace {

Words namesOf(llvm::ArrayRef<Axis> axes) {
  Words names;
  for (const Axis& axis : axes) names.push_back(axis.name);
  return names;
}

class Resharding {
 public:
  Resharding(Op& op) : op_(op), builder_(op.parent(), op.parent()->indexOf(&op)) {
    builder_.loc = op.loc;
    value_ = op.operand(0);
  }
  Value* run();

 private:
  const Type& from() const { return value_->type; }
  const Type& to() const { return op_.result()->type; }
  const Dim& dim(llvm::StringRef name) const { return from().dims[size_t(from().find(name))]; }

  void reduceScatter();
  void allReduce();
  llvm::ArrayRef<Axis> lost(const Dim& mine) const;
  llvm::ArrayRef<Axis> got(const Dim& wanted) const;
  Axes moving() const;
  void makeWay(llvm::ArrayRef<Axis> axes);
  void exchange();
  void gather(llvm::StringRef name, size_t kept);
  void gatherRest();
  void slice();
  void oneCopy();
  void bringOutermost(llvm::StringRef dim);
  void restoreOrder();
  void step(OpKind kind, Type type, Attrs attrs) {
    value_ = builder_.value(kind, {value_}, std::move(type), std::move(attrs), op_.result()->name);
  }
  void setSplit(Type& type, llvm::StringRef name, llvm::ArrayRef<Axis> axes) {
    Dim& dim = type.dims[size_t(type.find(name))];
    dim = splitDim(dim, axes);
  }
  // How many leading axes a dim keeps.
  static size_t common(llvm::ArrayRef<Axis> a, llvm::ArrayRef<Axis> b) {
    size_t n = 0;
    while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
    return n;
  }

  Op& op_;
  Builder builder_;
  Value* value_;
};

// The dim lies outermost in memory, but for dims of one element.
bool isOutermost(const Type& type, llvm::StringRef name) {
  for (const Dim& dim : type.dims) {
    if (dim.name == name) return true;
    if (dim.size != 1) return false;
  }
  return false;
}

void Resharding::bringOutermost(llvm::StringRef name) {
  if (isOutermost(from(), name)) return;
  Type type = from();
  auto at = llvm::find_if(type.dims, [&](const Dim& d) { return d.name == name; });
  std::rotate(type.dims.begin(), at, at + 1);
  step(OpKind::Sum, type, {});
}

void Resharding::restoreOrder() {
  Type type = from();
  llvm::SmallVector<Dim, 4> dims;
  for (const Dim& wanted : to().dims) dims.push_back(dim(wanted.name));
  if (type.dims == dims) return;
  type.dims = dims;
  step(OpKind::Sum, type, {});
}

void Resharding::reduceScatter() {
  for (const Dim& wanted : to().dims) {
    const Dim& mine = dim(wanted.name);
    size_t kept = common(mine.axes, wanted.axes);
    if (kept < mine.axes.size()) continue;
    // Behind the axes that the dim has already: those along which ranks hold the same are cut first,
    // for free; then as far as the value is partial.
    llvm::ArrayRef<Axis> rest = llvm::ArrayRef<Axis>(wanted.axes).drop_front(kept);
    Axes taken = from().splitAxes();
    auto isWhole = [&](const Axis& axis) {
      return !hasAxis(from().partial, axis.name) && !hasAxis(taken, axis.name);
    };
    llvm::ArrayRef<Axis> cut = rest.take_while(isWhole);
    Axes axes;
    for (const Axis& axis : rest.drop_front(cut.size())) {
      if (!hasAxis(from().partial, axis.name)) break;
      axes.push_back(axis);
    }
    if (axes.empty()) continue;
    std::string name = wanted.name;
    Axes all = mine.axes;
    all.append(cut.begin(), cut.end());
    Axes cutFirst = all;
    all.append(axes.begin(), axes.end());
    if (splitDim(mine, all).isPadded()) continue;
    if (!cut.empty()) {
      Type type = from();
      setSplit(type, name, cutFirst);
      step(OpKind::ShardSlice, type, {{"axes", namesOf(cut)}, {"dim", name}});
    }
    bringOutermost(name);
    Type type = from();
    setSplit(type, name, all);
    llvm::erase_if(type.partial, [&](const Axis& axis) { return hasAxis(axes, axis.name); });
    step(OpKind::ReduceScatter, type, {{"axes", namesOf(axes)}, {"dim", Words{name}}});
  }
}

void Resharding::allReduce() {
  Axes axes;
  Type type = from();
  for (const Axis& axis : from().partial)
    if (!hasAxis(to().partial, axis.name)) axes.push_back(axis);
  if (axes.empty()) return;
  llvm::erase_if(type.partial, [&](const Axis& axis) { return hasAxis(axes, axis.name); });
  step(OpKind::AllReduce, type, {{"axes", namesOf(axes)}});
}

// The axes of a dim behind those that it keeps.
llvm::ArrayRef<Axis> Resharding::lost(const Dim& mine) const {
  const Dim& wanted = to().dims[size_t(to().find(mine.name))];
  return llvm::ArrayRef<Axis>(mine.axes).drop_front(common(mine.axes, wanted.axes));
}

llvm::ArrayRef<Axis> Resharding::got(const Dim& wanted) const {
  const Dim& mine = dim(wanted.name);
  return llvm::ArrayRef<Axis>(wanted.axes).drop_front(common(mine.axes, wanted.axes));
}

// Axes that leave one place for another. Padding cannot be sent on.
Axes Resharding::moving() const {
  Axes axes;
  for (const Dim& mine : from().dims) {
    if (mine.isPadded()) continue;
    for (const Axis& axis : lost(mine))
      for (const Dim& wanted : to().dims)
        if (!wanted.isPadded() && hasAxis(got(wanted), axis.name)) axes.push_back(axis);
  }
  return axes;
}

// Only the innermost axes of a dim can leave it, so what is behind them and to be gathered goes
// first. Axes come behind those that are there, so what is cut anew in front of them is cut first.
void Resharding::makeWay(llvm::ArrayRef<Axis> axes) {
  for (const Dim& wanted : to().dims) {
    const Dim& mine = dim(wanted.name);
    size_t stay = mine.axes.size(), kept = stay - lost(mine).size();
    while (stay > kept && !hasAxis(axes, mine.axes[stay - 1].name)) --stay;
    if (stay > kept && stay < mine.axes.size()) gather(wanted.name, stay);
  }
  for (const Dim& wanted : to().dims) {
    llvm::ArrayRef<Axis> ahead = got(wanted);
    auto moves = [&](const Axis& axis) { return hasAxis(axes, axis.name); };
    if (!llvm::all_of(lost(dim(wanted.name)), moves)) continue;
    while (!ahead.empty() && !moves(ahead.back())) ahead = ahead.drop_back();
    Axes all = dim(wanted.name).axes;
    Words names;
    for (const Axis& axis : ahead)
      if (!hasAxis(from().splitAxes(), axis.name)) {
        all.push_back(axis);
        names.push_back(axis.name);
      }
    Type type = from();
    setSplit(type, wanted.name, all);
    if (names.empty() || type.dims[size_t(type.find(wanted.name))].isPadded()) continue;
    step(OpKind::ShardSlice, type, {{"axes", names}, {"dim", wanted.name}});
  }
}

// What splits the same elements elsewhere is one message to every rank along the axes that move. Those
// that cannot leave their place, or cannot come to the other one, are left to be gathered and cut.
void Resharding::exchange() {
  if (moving().empty()) return;
  makeWay(moving());
  Axes axes = moving();
  Type type;
  for (size_t tried = 0; tried != axes.size();) {
    tried = axes.size();
    type = from();
    Axes leaving, coming;
    for (Dim& dim : type.dims) {
      Axes rest = dim.axes;
      while (!rest.empty() && hasAxis(axes, rest.back().name)) rest.pop_back();
      leaving.append(dim.axes.begin() + long(rest.size()), dim.axes.end());
      dim = splitDim(dim, rest);
    }
    for (Dim& dim : type.dims) {
      llvm::ArrayRef<Axis> wanted = to().dims[size_t(to().find(dim.name))].axes;
      Axes all = dim.axes;
      if (common(all, wanted) < all.size()) continue;
      for (const Axis& axis : wanted.drop_front(all.size())) {
        if (!hasAxis(leaving, axis.name)) break;
        all.push_back(axis);
        coming.push_back(axis);
      }
      dim = splitDim(dim, all);
    }
    axes = coming;
  }
  if (axes.empty()) return;
  Words names, sources, targets;
  for (const Dim& mine : from().dims)
    for (const Axis& axis : mine.axes)
      for (const Dim& dim : type.dims)
        if (hasAxis(axes, axis.name) && hasAxis(dim.axes, axis.name)) {
          names.push_back(axis.name);
          sources.push_back(mine.name);
          targets.push_back(dim.name);
        }
  step(OpKind::AllToAll, type, {{"axes", names}, {"from", sources}, {"to", targets}});
}

// Gathers all but a dim's leading axes.
void Resharding::gather(llvm::StringRef name, size_t kept) {
  bringOutermost(name);
  llvm::ArrayRef<Axis> axes = dim(name).axes;
  Type type = from();
  setSplit(type, name, axes.take_front(kept));
  step(OpKind::AllGather, type,
       {{"axes", namesOf(axes.drop_front(kept))}, {"dim", Words{name.str()}}});
}

void Resharding::gatherRest() {
  for (const Dim& wanted : to().dims) {
    const Dim& mine = dim(wanted.name);
    if (!lost(mine).empty()) gather(wanted.name, mine.axes.size() - lost(mine).size());
  }
}

void Resharding::slice() {
  for (const Dim& wanted : to().dims) {
    const Dim& mine = dim(wanted.name);
    if (mine.axes.size() == wanted.axes.size()) continue;
    Words names = namesOf(llvm::ArrayRef<Axis>(wanted.axes).drop_front(mine.axes.size()));
    Type type = from();
    setSplit(type, wanted.name, wanted.axes);
    step(OpKind::ShardSlice, type, {{"axes", names}, {"dim", wanted.name}});
  }
}

void Resharding::oneCopy() {
  Axes axes;
  for (const Axis& axis : to().partial)
    if (!hasAxis(from().partial, axis.name)) axes.push_back(axis);
  if (axes.empty()) return;
  Type type = from();
  type.partial = to().partial;
  step(OpKind::OneCopy, type, {{"axes", namesOf(axes)}});
}

Value* Resharding::run() {
  reduceScatter();
  allReduce();
  exchange();
  gatherRest();
  slice();
  oneCopy();
  restoreOrder();
  return value_;
}

}  // namespace

// Packed rows change hands by their offsets, which is left to pass `experts`; what else changes comes
// behind it. True: nothing else does.
static bool splitRows(Op& op) {
  const Type &from = op.operand(0)->type, &to = op.result()->type;
  Type rows = from;
  for (Dim& dim : rows.dims)
    if (dim.isRagged() || dim.name == to.grouping()) dim = to.dims[size_t(to.find(dim.name))];
  if (rows == from) return false;
  if (rows == to) return true;
  Builder builder(op.parent(), op.parent()->indexOf(&op));
  builder.loc = op.loc;
  op.setOperand(0,
                builder.value(OpKind::Reshard, op.operands(), rows, op.attrs, op.result()->name));
  return false;
}

void collectives(Module& module, Diagnostics& diags) {
  if (module.level != Level::Sharded) {
    diags.report({}, Diag::PassOrder, "collectives", "a module typed by 'shard'");
    return;
  }
  std::vector<Op*> reshards;
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      if (op->kind == OpKind::Reshard && !op->isFlag("offsets")) reshards.push_back(op);
    });
  for (Op* op : reshards) {
    if (!op->result()->type.grouping().empty() && splitRows(*op)) continue;
    op->result()->replaceAllUsesWith(Resharding(*op).run());
    op->erase();
  }
  eraseDeadOps(module);
}

}  // namespace planc
