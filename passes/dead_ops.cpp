// One backward walk over each block: a user stands behind what it uses, so it is gone before its
// operands are looked at. Tested by tests/passes/fuse/dead.ir.
#include "passes/dead_ops.h"

#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

bool hasEffect(const Op& op) {
  if (op.kind == OpKind::Read) return false;
  if (op.has(Effect) || op.var || op.kind == OpKind::Send) return true;
  bool found = false;
  if (op.body) walk(*op.body, [&](const Op* inner) { found |= hasEffect(*inner); });
  return found;
}

void eraseDeadOps(Block& block) {
  std::vector<Op*> ops = block.ops;
  for (Op* op : llvm::reverse(ops)) {
    bool isUsed = op->kind == OpKind::Yield || hasEffect(*op);
    for (const Value* result : op->results()) isUsed |= !result->uses().empty();
    if (!isUsed) op->erase();
    else if (op->kind == OpKind::Repeat) eraseDeadOps(*op->body);
  }
}

}  // namespace

void eraseDeadOps(Module& module) {
  for (const auto& function : module.functions) eraseDeadOps(*function->body);
}

}  // namespace planc
