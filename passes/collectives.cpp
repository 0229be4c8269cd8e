// Turns each `reshard` into collectives: per axis, what its place in the one type and in the other
// says. Sums come first (they shrink what follows), then what only moves between dims, then gathers,
// then slices of what is whole. The order in memory follows: what is gathered or scattered lies
// outermost while it is on its way, so that a message is one piece of memory. Tested by
// tests/passes/collectives and tests/unit/sharding_test.cpp.
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
  void exchange();
  void gather();
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
    // The axes behind those that the dim has already, as far as the value is partial over them.
    Axes axes;
    for (const Axis& axis : llvm::ArrayRef<Axis>(wanted.axes).drop_front(kept)) {
      if (!hasAxis(from().partial, axis.name)) break;
      axes.push_back(axis);
    }
    if (axes.empty()) continue;
    std::string name = wanted.name;
    Axes all = mine.axes;
    all.append(axes.begin(), axes.end());
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

// Axes that leave one dim and come to another: one message to every rank along them. What a dim loses
// and gets must be its innermost axes, and all that it loses must go to other dims; else it is
// gathered and cut.
void Resharding::exchange() {
  Axes axes;
  Words sources, targets;
  Type type = from();
  for (const Dim& mine : from().dims) {
    const Dim& wanted = to().dims[size_t(to().find(mine.name))];
    size_t kept = common(mine.axes, wanted.axes);
    llvm::ArrayRef<Axis> lost = llvm::ArrayRef<Axis>(mine.axes).drop_front(kept);
    if (mine.isPadded() || lost.empty()) continue;
    llvm::SmallVector<std::string, 2> into;
    for (const Axis& axis : lost)
      for (const Dim& other : to().dims)
        if (other.name != mine.name && hasAxis(other.axes, axis.name) && !other.isPadded())
          into.push_back(other.name);
    if (into.size() != lost.size()) continue;
    axes.append(lost.begin(), lost.end());
    sources.insert(sources.end(), lost.size(), mine.name);
    targets.insert(targets.end(), into.begin(), into.end());
    setSplit(type, mine.name, llvm::ArrayRef<Axis>(mine.axes).take_front(kept));
  }
  if (axes.empty()) return;
  // The targets get them in the order that the wanted type has.
  for (const Dim& wanted : to().dims) {
    Axes all = type.dims[size_t(type.find(wanted.name))].axes;
    size_t kept = common(all, wanted.axes);
    if (kept < all.size()) {
      if (llvm::is_contained(targets, wanted.name)) return;
      continue;
    }
    size_t got = 0, due = size_t(llvm::count(targets, wanted.name));
    for (const Axis& axis : llvm::ArrayRef<Axis>(wanted.axes).drop_front(kept)) {
      if (!hasAxis(axes, axis.name)) break;
      all.push_back(axis);
      ++got;
    }
    if (got != due) return;
    setSplit(type, wanted.name, all);
  }
  step(OpKind::AllToAll, type, {{"axes", namesOf(axes)}, {"from", sources}, {"to", targets}});
}

void Resharding::gather() {
  for (const Dim& wanted : to().dims) {
    const Dim& mine = dim(wanted.name);
    size_t kept = common(mine.axes, wanted.axes);
    if (kept == mine.axes.size()) continue;
    llvm::ArrayRef<Axis> lost = llvm::ArrayRef<Axis>(mine.axes).drop_front(kept);
    Words names = namesOf(lost);
    Axes rest(mine.axes.begin(), mine.axes.begin() + long(kept));
    std::string name = wanted.name;
    bringOutermost(name);
    Type type = from();
    setSplit(type, name, rest);
    step(OpKind::AllGather, type, {{"axes", names}, {"dim", Words{name}}});
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
  gather();
  slice();
  oneCopy();
  restoreOrder();
  return value_;
}

}  // namespace

void collectives(Module& module, Diagnostics& diags) {
  if (module.level != Level::Sharded) {
    diags.report({}, Diag::PassOrder, "collectives", "a module typed by 'shard'");
    return;
  }
  std::vector<Op*> reshards;
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      if (op->kind == OpKind::Reshard) reshards.push_back(op);
    });
  for (Op* op : reshards) {
    op->result()->replaceAllUsesWith(Resharding(*op).run());
    op->erase();
  }
  eraseDeadOps(module);
}

}  // namespace planc
