// Counts along the schedule and through repeats, as ir/traffic.cpp counts messages. Tested by
// tests/unit/work_test.cpp and tests/unit/closed_forms_flops_test.cpp.
#include "cost/work.h"

#include "ir/cost.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

double bytesOf(const Type& type) { return evenElements(type) * double(bytesPerElement(type.elem)); }

double bytesOf(llvm::ArrayRef<Value*> values) {
  double bytes = 0;
  for (size_t i = 0; i < values.size(); ++i)
    if (!llvm::is_contained(values.take_front(i), values[i])) bytes += bytesOf(values[i]->type);
  return bytes;
}

Type sliceOf(const Op& op) { return op.var->slice(op.parent()->enclosing()); }

// Whether a value was made where the variable lies that it is written to: both are needed then, so no other
// value begins there.
bool isMadeThere(const Op& write) {
  const auto &made = write.operand(0)->place, &there = write.var->place;
  return made && there && made->offset == there->offset;
}

// `times` is how often a step comes to the block, `last` how often to the last iteration of the repeat
// around it.
void each(const Block& block, double times, double last, RunVisitor visit) {
  for (const Op* op : block.ops) {
    if (op->kind == OpKind::Repeat)
      each(*op->body, times * double(op->attrs.integer("count")), times, visit);
    else visit(*op, op->isUnlessLast() ? times - last : times);
  }
}

}  // namespace

void eachRun(const Module& module, RunVisitor visit) {
  llvm::StringMap<double> calls;
  for (const Call& call : module.schedule)
    if (call.phase != Phase::Wait) ++calls[call.function];
  for (const auto& function : module.functions)
    if (double times = calls.lookup(function->name); times > 0)
      each(*function->body, times, 0, visit);
}

double memoryBytesOf(const Op& op) {
  if (op.has(Comm)) return 0;
  switch (op.kind) {
    case OpKind::Read:
    case OpKind::Repeat:
    case OpKind::Yield:
    case OpKind::Wait:
    case OpKind::StageShare:
      return 0;
    case OpKind::Zero:
      return double(op.var->type.bytes());
    case OpKind::Write:
      return isMadeThere(op) ? 0 : 2 * bytesOf(op.operands());
    case OpKind::Accum:
      return 3 * bytesOf(op.operands());
    case OpKind::Lookup:
      return 2 * bytesOf(op.results()) + bytesOf(op.operand(1)->type);
    case OpKind::LookupGrad:  // rows are read, and added to those of the table
      return 3 * bytesOf(op.operand(1)->type) + bytesOf(op.operand(0)->type) +
             bytesOf(op.results());
    case OpKind::Slice:
    case OpKind::ShardSlice:
    case OpKind::Dispatch:
      return 2 * bytesOf(op.results());
    default:
      break;
  }
  double added = op.var ? 2 * bytesOf(sliceOf(op)) : 0;
  return bytesOf(op.operands()) + bytesOf(op.results()) + added;
}

RankWork workOf(const Module& role) {
  RankWork work;
  eachRun(role, [&](const Op& op, double times) {
    double flops = times * flopsOf(op);
    (isProduct(op) ? work.flops : work.otherFlops) += flops;
    if (op.isFlag("again")) work.again += flops;
    work.memoryBytes += times * memoryBytesOf(op);
  });
  return work;
}

double modelFlops(const Module& model) {
  double forward = 0;
  eachRun(model, [&](const Op& op, double times) {
    if (isProduct(op)) forward += times * flopsOf(op);
  });
  return 3 * forward;
}

}  // namespace planc
