// Products count what their names say; everything else is a few operations an element, which is
// little beside them. Tested by tests/unit/cost_test.cpp and tests/unit/closed_forms_flops_test.cpp.
#include "ir/cost.h"

#include <algorithm>

#include "ir/sharding.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

// Rows of a ragged dim on a rank, spread evenly over the ranks along the axes that cut the rows or the dim
// that groups them.
double evenRows(const Type& type, const Dim& rows) {
  Axes axes = rows.axes;
  if (int group = type.find(rows.over); group >= 0)
    for (const Axis& axis : type.dims[size_t(group)].axes)
      if (!hasAxis(axes, axis.name)) axes.push_back(axis);
  return std::min(double(rows.size), double(rows.all()) / double(ranksOver(axes)));
}

double sizeOf(const Type& type, const Dim& dim) {
  return dim.isRagged() ? evenRows(type, dim) : double(dim.size);
}

// The product of all names of a product, that of the groups left out where rows are packed: a row meets
// its own group alone. Offsets are no factor.
double space(const Op& product) {
  double all = 1;
  const Type &a = product.operand(0)->type, &b = product.operand(1)->type;
  llvm::StringRef groups = a.grouping().empty() ? b.grouping() : a.grouping();
  for (const Dim& dim : a.dims)
    if (dim.name != groups) all *= sizeOf(a, dim);
  for (const Dim& dim : b.dims)
    if (dim.name != groups && !a.has(dim.name)) all *= sizeOf(b, dim);
  return all;
}

// Keys that a query sees on average, of all `keys`: area under the mask over the number of queries.
double keysSeen(const Op& op, double keys) {
  if (!op.isFlag("causal")) return keys;
  double window = std::min(keys, double(op.attrs.integer("window")));
  return window > 0 ? window - window * window / (2 * keys) : keys / 2;
}

// Blocks of keys that a rank meets: all, or those that a window over tokens in order reaches back to.
double blocksOf(const Op& op, const Dim& held) {
  int64_t ranks = ranksOver(held.axes), window = op.attrs.integer("window");
  bool isNear = op.isFlag("causal") && window > 0 && held.zigzag == 0;
  return double(isNear ? std::min(ranks, 1 + (window - 2 + held.size) / held.size) : ranks);
}

// Scores take the width of queries and keys, what is blended that of values, for each pair of a query and a
// key. Forward both once; backward the scores again, the gradients of queries and keys (widths of keys), of
// scores and values (of values): 2.5 times as much where the widths are the same (Dao 2023, section 4.1).
double attention(const Op& op) {
  const Type &q = op.operand(0)->type, &k = op.operand(1)->type, &v = op.operand(2)->type;
  std::string by = op.attrs.word("by"), seq = op.attrs.word("seq");
  const Dim& held = k.dims[size_t(k.find(seq))];
  double keyWidth = double(q.size(by)), queries = evenElements(q) / keyWidth;
  double valueWidth = evenElements(v) / evenElements(k) * double(k.size(by));
  double pairs = queries * keysSeen(op, double(held.all()));
  if (!op.isFlag("ring")) pairs /= blocksOf(op, held);
  bool isBackward = op.kind == OpKind::AttendGrad;
  return 2 * pairs * (isBackward ? 3 * keyWidth + 2 * valueWidth : keyWidth + valueWidth);
}

}  // namespace

bool isProduct(const Op& op) { return op.kind == OpKind::Einsum || isAttention(op); }

double evenElements(const Type& type) {
  llvm::StringRef groups = type.grouping();
  double elements = 1;
  for (const Dim& dim : type.dims)
    if (dim.name != groups) elements *= sizeOf(type, dim);
  return elements;
}

double flopsOf(const Op& op) {
  if (op.kind == OpKind::Einsum) return 2 * space(op);
  if (isAttention(op)) return attention(op);
  switch (op.kind) {
    case OpKind::Read:
    case OpKind::Write:
    case OpKind::Const:
    case OpKind::Yield:
    case OpKind::Wait:
      return 0;
    case OpKind::Repeat:
      return double(op.attrs.integer("count")) * flopsOf(*op.body);
    case OpKind::Fused:
      return flopsOf(*op.body);
    default:
      break;
  }
  if (op.has(Comm)) return 0;
  double touched = 0;
  for (const Value* operand : op.operands())
    touched = std::max(touched, evenElements(operand->type));
  for (const Value* result : op.results()) touched = std::max(touched, evenElements(result->type));
  return touched;
}

double flopsOf(const Block& block) {
  double sum = 0;
  for (const Op* op : block.ops) sum += flopsOf(*op);
  return sum;
}

}  // namespace planc
