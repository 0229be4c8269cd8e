// Tested by tests/unit/imbalance_test.cpp.
#include "cost/imbalance.h"

#include <algorithm>

#include "ir/cost.h"
#include "ir/verify_shapes.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

// Area under a causal mask over the queries before `position`; a window (0: none) hides what lies further
// back.
double areaBefore(double position, double window) {
  if (window <= 0 || position <= window) return position * position / 2;
  return window * window / 2 + (position - window) * window;
}

// The op of this kind that a value comes from, casts between ranks and counts of rows passed over; null:
// something else.
const Op* sourceOf(const Value* value, OpKind kind) {
  const Op* op = value->def();
  while (op && op->kind != kind) {
    bool isPassed = op->kind == OpKind::Wait || op->kind == OpKind::RowOffsets ||
                    op->kind == OpKind::RowCounts || op->kind == OpKind::ShardSlice ||
                    (op->has(Comm) && op->kind != OpKind::Receive);
    op = isPassed ? op->operand(0)->def() : nullptr;
  }
  return op;
}

// Rows that come to the experts of a rank at most: there is room for no more, or none are let in, of each
// sequence whose rows can come so many by each expert.
int64_t mostRows(const Op& product, const Dim& rows, const Dim& expert) {
  const Op* pack = sourceOf(product.operand(2), OpKind::Pack);
  const Op* admit =
      pack && pack->operands().size() > 1 ? sourceOf(pack->operand(1), OpKind::Admit) : nullptr;
  if (!admit) return rows.size;
  Type sequences = admit->operand(0)->type.whole();
  for (const char* key : {"seq", "choice"}) sequences = sequences.without(admit->attrs.word(key));
  int64_t groups = ranksOver(rows.axes), coming = (sequences.elements() + groups - 1) / groups;
  return std::min(rows.size, saturatingMul(saturatingMul(coming, expert.size), admitted(*admit)));
}

}  // namespace

double attentionImbalance(const Op& attention) {
  const Type& q = attention.operand(0)->type;
  const Dim& queries = q.dims[size_t(q.find(attention.attrs.word("seq")))];
  if (!queries.isSplit() || !attention.isFlag("causal")) return 1;
  double window = double(attention.attrs.integer("window")), most = 0, sum = 0;
  const Grid& grid = attention.parent()->module().grid;
  // Ranks that differ on other axes hold the same queries.
  std::vector<int64_t> ranks = Coordinates(grid, 0).group(queries.axes);
  for (int64_t rank : ranks) {
    double area = 0;
    for (const Segment& segment : Coordinates(grid, rank).segments(queries))
      area += areaBefore(double(segment.first + segment.count), window) -
              areaBefore(double(segment.first), window);
    most = std::max(most, area);
    sum += area;
  }
  return sum > 0 ? most * double(ranks.size()) / sum : 1;
}

std::vector<ExpertRows> expertRows(const Planx& planx) {
  std::vector<ExpertRows> list;
  auto add = [&](const Op& op) {
    if (op.kind != OpKind::Einsum || op.operands().size() < 3) return;
    const Type &a = op.operand(0)->type, &b = op.operand(1)->type;
    const Type& packed = a.grouping().empty() ? b : a;
    std::string group = packed.grouping().str();
    const Dim& expert = packed.dims[size_t(packed.find(group))];
    ExpertRows made{group, {}, expert.all(), expert.size};
    for (const Axis& axis : expert.axes) made.axes.push_back(axis.name);
    Type alone = packed;  // rows and experts
    llvm::erase_if(alone.dims,
                   [&](const Dim& dim) { return dim.name != group && !dim.isRagged(); });
    made.even = evenElements(alone);
    for (const Dim& dim : alone.dims)
      if (dim.isRagged()) made.most = mostRows(op, dim, expert);
    bool isSeen = llvm::any_of(list, [&](const ExpertRows& other) {
      return other.expert == made.expert && other.axes == made.axes && other.own == made.own &&
             other.even == made.even && other.most == made.most;
    });
    if (!isSeen) list.push_back(made);
  };
  for (const auto& role : planx.roles)
    for (const auto& function : role->functions)
      if (llvm::StringRef(function->name).startswith("forward"))
        walk(*function->body, [&](const Op* op) { add(*op); });
  return list;
}

}  // namespace planc
