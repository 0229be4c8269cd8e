// Products count what their names say; everything else is a few operations an element, which is
// little beside them. Tested by tests/unit/cost_test.cpp.
#include "ir/cost.h"

#include "ir/sharding.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

double elements(const Type& type) { return double(type.elements()); }

// The product of all names that an op touches, a packed row once.
double space(const Op& op) {
  double product = 1;
  llvm::StringRef groups;
  for (const Value* value : op.operands())
    if (!value->type.grouping().empty()) groups = value->type.grouping();
  for (const Dim& dim : dimsOf(op))
    if (dim.name != groups) product *= double(dim.size);
  return product;
}

// Scores and blended values: each pair of query and key costs the width of both; a causal mask hides
// half. Of a block of keys, what a rank meets in it on average; with `ring`, all blocks.
double attention(const Op& op) {
  const Type &q = op.operand(0)->type, &k = op.operand(1)->type, &v = op.operand(2)->type;
  std::string by = op.attrs.word("by"), seq = op.attrs.word("seq");
  const Dim& held = k.dims[size_t(k.find(seq))];
  double queries = elements(q) / double(q.size(by));
  double keys = double(held.all());
  double width = double(q.size(by)) + elements(v) / elements(k) * double(k.size(by));
  int64_t window = op.attrs.integer("window");
  if (op.isFlag("causal")) keys = window > 0 ? std::min(keys, double(window)) : keys / 2;
  if (!op.isFlag("ring")) keys *= double(held.size) / double(held.all());
  return 2 * queries * keys * width;
}

}  // namespace

double flopsOf(const Op& op) {
  double touched = 0;
  for (const Value* operand : op.operands()) touched = std::max(touched, elements(operand->type));
  for (const Value* result : op.results()) touched = std::max(touched, elements(result->type));
  switch (op.kind) {
    case OpKind::Read:
    case OpKind::Write:
    case OpKind::Const:
    case OpKind::Yield:
      return 0;
    case OpKind::Repeat:
      return double(op.attrs.integer("count")) * flopsOf(*op.body);
    case OpKind::Fused:
      return flopsOf(*op.body);
    case OpKind::Einsum:
      return 2 * space(op);
    case OpKind::Attend:
    case OpKind::AttendBlock:
      return attention(op);
    case OpKind::AttendGrad:  // the scores again, and four products more
      return 2.5 * attention(op);
    default:
      return op.has(Comm) ? 0 : touched;
  }
}

double flopsOf(const Block& block) {
  double sum = 0;
  for (const Op* op : block.ops) sum += flopsOf(*op);
  return sum;
}

}  // namespace planc
