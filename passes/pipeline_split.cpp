// A chunk's backward in two: the gradient of its input, which the chunk before it waits for, and the
// gradients of its weights, which nobody does. To the first belongs what its results and what goes
// through a repeat depend on; all else is the second's, with saved copies of what it takes from the
// first (Qi et al. 2024, section 2). Tested by tests/passes/pipeline.
#include "llvm/ADT/STLExtras.h"
#include "passes/autodiff.h"
#include "passes/pipeline.h"

namespace planc {
namespace {

class BackwardSplit {
 public:
  // `arrived`: the places of what came from another chunk, which are others' once the gradient of the
  // input is made.
  BackwardSplit(Module& module, const llvm::DenseSet<const Variable*>& arrived, Function& inputs,
                Function& weights)
      : module_(module), arrived_(arrived), inputs_(inputs), weights_(weights) {}
  void run() {
    keep(*inputs_.body);
    move(*inputs_.body, *weights_.body);
    erase(*inputs_.body);
  }

 private:
  // Marks what the gradient of the input needs: all that is written and carried.
  void keep(const Block& block) {
    for (const Op* op : llvm::reverse(block.ops)) {
      bool isNeeded =
          op->kind == OpKind::Write || op->kind == OpKind::Yield || op->body || kept_.contains(op);
      if (isNeeded) need(op);
    }
  }
  void need(const Op* op) {
    kept_.insert(op);
    for (const Value* operand : op->operands())
      if (operand->def()) kept_.insert(operand->def());
    if (op->kind == OpKind::Repeat) {
      keep(*op->body);
      return;
    }
    if (op->body)
      walk(*op->body, [&](const Op* inner) {
        for (const Value* operand : inner->operands())
          if (operand->def()) kept_.insert(operand->def());
      });
  }

  // Clones the other ops to where the weights' gradients are made.
  void move(Block& from, Block& to) {
    Builder builder(&to);
    for (Op* op : std::vector<Op*>(from.ops)) {
      if (op->kind == OpKind::Repeat) {
        moveRepeat(builder, *op);
        continue;
      }
      if (kept_.contains(op)) continue;
      llvm::SmallVector<Value*> operands;
      for (Value* operand : op->operands()) operands.push_back(get(builder, operand));
      Op* made = builder.copy(*op, operands, op->var);
      for (Value* result : op->results()) moved_[result] = made->result(result->index());
    }
  }
  void moveRepeat(Builder& builder, Op& op) {
    if (llvm::all_of(op.body->ops, [&](const Op* o) { return kept_.contains(o) && !o->body; }))
      return;
    builder.loc = op.loc;
    Op* made =
        builder.repeat(op.attrs.word("dim"), op.attrs.integer("count"), op.isFlag("reverse"), {});
    if (op.attrs.has("first")) made->attrs.set("first", op.attrs.integer("first"));
    move(*op.body, *made->body);
    Builder(made->body.get()).create(OpKind::Yield, {}, {});
  }

  // A value that the weights' gradients take: made there, made again if that costs nothing, or saved.
  Value* get(Builder& builder, Value* value) {
    if (Value* known = moved_.lookup(value)) return known;
    Op* def = value->def();
    bool isRead = def && def->kind == OpKind::Read && !arrived_.contains(def->var);
    bool isConst = def && def->kind == OpKind::Const;
    if (isRead || isConst)
      return again(builder, value, [&] {
        return builder.create(def->kind, {}, {value->type}, def->attrs, def->var, value->name)
            ->result();
      });
    Variable*& slot = saved_[value];
    if (!slot) {
      slot = saveValue(module_, value);
      slot->type.partial = value->type.partial;
    }
    return again(builder, value, [&] { return builder.read(slot); });
  }
  // Once in a block.
  Value* again(Builder& builder, const Value* value, llvm::function_ref<Value*()> make) {
    Value*& made = again_[{value, builder.block()}];
    if (made) return made;
    made = make();
    made->name = value->name;
    return made;
  }

  void erase(Block& block) {
    for (Op* op : std::vector<Op*>(block.ops.rbegin(), block.ops.rend())) {
      if (op->kind == OpKind::Repeat) erase(*op->body);
      else if (!kept_.contains(op) && op->kind != OpKind::Write) op->erase();
    }
  }

  Module& module_;
  const llvm::DenseSet<const Variable*>& arrived_;
  Function &inputs_, &weights_;
  llvm::DenseSet<const Op*> kept_;
  llvm::DenseMap<const Value*, Value*> moved_;
  llvm::DenseMap<Value*, Variable*> saved_;
  std::map<std::pair<const Value*, const Block*>, Value*> again_;
};

}  // namespace

void StageBuilder::splitBackward(int chunk) {
  Function& inputs = *module_->findFunction(functionName(Work::Backward, chunk));
  inputs.name = functionName(Work::InputGradient, chunk);
  Function& weights = *module_->addFunction(functionName(Work::WeightGradient, chunk));
  llvm::DenseSet<const Variable*> arrived;
  for (const auto& [key, var] : boundaries_) arrived.insert(var);
  BackwardSplit(*module_, arrived, inputs, weights).run();
}

}  // namespace planc
