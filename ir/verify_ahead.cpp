// What the last iteration leaves out has no value there, so its results may only go on to the next
// iteration, never out of the repeat. Tested by tests/unit/ahead_test.cpp.
#include "ir/verify_ahead.h"

#include "ir/broken.h"

namespace planc {
namespace {

using llvm::Error;
using llvm::Twine;

const Op* repeatAround(const Op& op) {
  const Op* owner = op.parent()->owner();
  return owner && owner->kind == OpKind::Repeat ? owner : nullptr;
}

Error ahead(const Op& op) {
  const Op* repeat = repeatAround(op);
  if (!repeat) return broken("reads ahead outside a repeat");
  std::string dim = repeat->attrs.word("dim");
  bool isSliced = false;
  for (const std::string& name : op.var->stack) isSliced |= name == dim;
  if (!isSliced) return broken("reads ahead, but '@" + op.var->name + "' stacks no '" + dim + "'");
  if (repeat->attrs.integer("count") < 2) return broken("reads ahead in a repeat of one iteration");
  for (const Use& use : op.result()->uses())
    if (use.op->parent() != op.parent() || !use.op->isUnlessLast())
      return broken("reads ahead for '" + use.op->info().text + "', which is not 'unless_last'");
  return Error::success();
}

Error index(const Op& op) {
  const Variable& var = *op.var;
  int64_t index = op.attrs.integer("index", -1);
  if (var.stack.empty() || var.kind == VarKind::Input)
    return broken("picks a slice of '@" + var.name + "', which stacks none");
  for (const std::string& name : op.parent()->enclosing())
    if (name == var.stack.front())
      return broken("picks a slice of '@" + var.name + "', which the repeat around it does");
  if (index < 0 || index >= var.type.dims.front().size)
    return broken("picks slice " + Twine(index) + " of " + Twine(var.type.dims.front().size));
  return Error::success();
}

Error unlessLast(const Op& op) {
  if (op.has(Effect) || op.var || op.body)
    return broken("is 'unless_last', but does more than make values");
  const Op* repeat = repeatAround(op);
  if (!repeat) return broken("is 'unless_last' outside a repeat");
  const Op* started = op.kind == OpKind::Wait ? op.operand(0)->def() : nullptr;
  if (started && !started->isUnlessLast())
    return broken("is 'unless_last', but what it waits for is not");
  for (const Value* result : op.results())
    for (const Use& use : result->uses()) {
      bool isYield = use.op->kind == OpKind::Yield && use.op->parent() == op.parent();
      if (isYield && use.index < repeat->results().size() &&
          repeat->result(use.index)->uses().empty())
        continue;
      if (use.op->isUnlessLast()) continue;
      return broken("is 'unless_last', but '" + use.op->info().text + "' needs result " +
                    Twine(result->index()));
    }
  return Error::success();
}

}  // namespace

Error verifyAhead(const Op& op) {
  if (op.kind == OpKind::Read && op.isFlag("ahead"))
    if (Error error = ahead(op)) return error;
  if (op.kind == OpKind::Read && op.attrs.has("index"))
    if (Error error = index(op)) return error;
  return op.isUnlessLast() ? unlessLast(op) : Error::success();
}

}  // namespace planc
