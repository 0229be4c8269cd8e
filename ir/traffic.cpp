// Counts collectives along the schedule and through repeats. Tested by tests/unit/traffic_test.cpp.
#include "ir/traffic.h"

#include <algorithm>

#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

// Bytes of one operand and its result: several are several messages behind each other, so each is
// rounded on its own.
int64_t bytesSent(OpKind kind, int64_t in, int64_t out, int64_t ranks) {
  switch (kind) {
    case OpKind::AllReduce:
      return saturatingMul(saturatingMul(2, ranks - 1), in) / ranks;
    case OpKind::ReduceScatter:
      return saturatingMul(ranks - 1, out);
    case OpKind::AllGather:
      return saturatingMul(ranks - 1, in);
    case OpKind::AllToAll:
      return saturatingMul(ranks - 1, in / ranks);
    case OpKind::Rotate:
      return in;
    default:
      return 0;
  }
}

// `times` is how often a step comes to the block, `last` how often to the last iteration of the
// repeat around it.
void count(const Block& block, int64_t times, int64_t last, std::vector<Transfer>& into) {
  for (const Op* op : block.ops) {
    if (op->has(Comm))
      into.push_back(
          {op, groupAxes(*op), op->isUnlessLast() ? times - last : times, bytesSent(*op)});
    if (op->kind == OpKind::Repeat)
      count(*op->body, saturatingMul(times, op->attrs.integer("count")), times, into);
  }
}

}  // namespace

Axes groupAxes(const Op& collective) {
  Axes axes;
  for (const std::string& name : collective.attrs.words("axes"))
    for (const GridAxis& axis : collective.parent()->module().grid.axes)
      if (axis.name == name) axes.push_back({axis.name, axis.size});
  return axes;
}

std::vector<int64_t> coordinatesOf(const Op& op, const Coordinates& rank) {
  std::vector<int64_t> list;
  for (const std::string& word : op.attrs.words("among")) {
    int64_t at = -1;
    if (!llvm::StringRef(word).getAsInteger(10, at)) list.push_back(at);
  }
  Axes axes = groupAxes(op);
  if ((op.kind != OpKind::Send && op.kind != OpKind::Receive) || axes.empty()) return list;
  int64_t peer = op.attrs.integer(op.kind == OpKind::Send ? "to" : "from", -1);
  return {std::min(peer, rank.on(axes[0].name)), std::max(peer, rank.on(axes[0].name))};
}

std::vector<int64_t> membersOf(const Op& collective, const Coordinates& rank) {
  Axes axes = groupAxes(collective);
  std::vector<int64_t> all = rank.group(axes), among = coordinatesOf(collective, rank);
  if (among.empty() || axes.empty()) return all;
  // The first axis is the outermost: a coordinate's ranks stand together.
  size_t each = all.size() / size_t(axes[0].size);
  std::vector<int64_t> members;
  for (size_t i = 0; i < all.size(); ++i)
    if (llvm::is_contained(among, int64_t(i / each))) members.push_back(all[i]);
  return members;
}

int64_t bytesSent(const Op& collective) {
  int64_t ranks = ranksOver(groupAxes(collective)), bytes = 0;
  if (size_t among = collective.attrs.words("among").size(); among > 0)
    ranks = ranks / groupAxes(collective)[0].size * int64_t(among);
  if (collective.kind == OpKind::Send)
    for (const Value* sent : collective.operands())
      bytes = saturatingAdd(bytes, sent->type.bytes());
  // How many rows leave is known at run time only: no more than the tokens' side has, and on average no
  // more come home.
  if (collective.kind == OpKind::ExchangeRows)
    return (collective.isFlag("home") ? collective.result() : collective.operand(0))->type.bytes();
  for (auto [in, out] : llvm::zip(collective.operands(), collective.results()))
    bytes = saturatingAdd(bytes,
                          bytesSent(collective.kind, in->type.bytes(), out->type.bytes(), ranks));
  return bytes;
}

bool isEven(const Op& op) {
  if (op.kind != OpKind::AllToAll) return true;
  const Type &from = op.operand(0)->type, &to = op.result()->type;
  return llvm::all_of(from.dims, [&](const Dim& before) {
    if (before.name == from.grouping()) return true;
    const Dim& behind = to.dims[size_t(to.find(before.name))];
    size_t shared = std::min(before.axes.size(), behind.axes.size());
    return !before.isPadded() && !behind.isPadded() &&
           llvm::equal(llvm::ArrayRef<Axis>(before.axes).take_front(shared),
                       llvm::ArrayRef<Axis>(behind.axes).take_front(shared));
  });
}

int64_t bytesSent(const Op& op, const Coordinates& rank) {
  if (isEven(op)) return bytesSent(op);
  const Type &from = op.operand(0)->type, &to = op.result()->type;
  int64_t bytes = 0;
  for (int64_t other : membersOf(op, rank)) {
    if (other == rank.rank()) continue;
    Coordinates there(op.parent()->module().grid, other);
    // What this rank holds before and the other behind it, by dim.
    int64_t box = bytesPerElement(from.elem);
    for (const Dim& before : from.dims) {
      if (before.name == from.grouping()) continue;  // no dim of memory
      const Dim& behind = to.dims[size_t(to.find(before.name))];
      int64_t begin = std::max(rank.offset(before), there.offset(behind));
      int64_t end = std::min(rank.offset(before) + rank.valid(before),
                             there.offset(behind) + there.valid(behind));
      box *= std::max<int64_t>(end - begin, 0);
    }
    bytes += box;
  }
  return bytes;
}

int64_t mostRowBytes(const Op& op) {
  int64_t held = op.operand(0)->type.bytes();
  if (!op.isFlag("home")) return held;
  int64_t others = ranksOver(groupAxes(op)) - 1;
  return std::min(held, saturatingMul(others, op.result()->type.bytes()));
}

Traffic trafficOf(const Module& module) {
  Traffic traffic;
  for (const auto& function : module.functions) {
    int64_t calls = llvm::count_if(module.schedule, [&](const Call& call) {
      return call.function == function->name && call.phase != Phase::Wait;
    });
    if (calls > 0) count(*function->body, calls, 0, traffic.transfers);
  }
  return traffic;
}

Traffic::Total Traffic::total(std::optional<OpKind> kind, llvm::StringRef axis) const {
  Total total;
  for (const Transfer& transfer : transfers) {
    if (kind && transfer.op->kind != *kind) continue;
    Axes parts = transfer.op->parent()->module().grid.find(axis);
    bool isAlong = axis.empty() || llvm::any_of(parts, [&](const Axis& part) {
                     return hasAxis(transfer.axes, part.name);
                   });
    if (!isAlong) continue;
    total.times = saturatingAdd(total.times, transfer.times);
    total.bytes = saturatingAdd(total.bytes, saturatingMul(transfer.times, transfer.bytes));
  }
  return total;
}

}  // namespace planc
