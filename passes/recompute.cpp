// Trades memory for work: a slot whose value the plan wants computed again is dropped, and its read
// in @backward becomes a copy of the op that made it, on values that are saved (or made again in
// turn, within a layer recomputed whole). Dropout draws the same mask: its key does not know which
// function it runs in. Tested by tests/passes/recompute and tests/unit/gradient_test.cpp.
#include "ir/cost.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "passes/autodiff.h"
#include "passes/dead_ops.h"
#include "passes/passes.h"

namespace planc {
namespace {

// The plan speaks of builtins, the IR of ops; the first one is there wherever the builtin is.
Words opNames(llvm::StringRef builtin) {
  return llvm::StringSwitch<Words>(builtin)
      .Cases("rms_norm", "layer_norm", {"norm"})
      .Case("route", {"route", "admit", "pack"})
      .Default({builtin.str()});
}

class Recompute {
 public:
  explicit Recompute(Module& module) : module_(module) {
    for (const std::string& word : module.settings.words("recompute")) {
      if (word == "layer") layer_ = true;
      else if (word != "gather")  // about casts between ranks, which come later
        for (const std::string& name : opNames(word)) ops_.push_back(name);
    }
  }

  void run(Diagnostics& diags) {
    for (const std::string& name : ops_) {
      bool found = name == "none" || name == "auto" || name == "admit" || name == "pack";
      walk(*module_.findFunction("forward")->body,
           [&](const Op* op) { found |= op->info().text == name; });
      if (!found) diags.report({}, Diag::UnknownRecompute, name);
    }
    walk(*module_.findFunction("forward")->body, [&](Op* op) {
      if (op->kind != OpKind::Write || op->var->kind != VarKind::Slot) return;
      source_[op->var] = op->operand(0);
      slot_[op->operand(0)] = op->var;
    });
    walk(*module_.findFunction("backward")->body, [&](Op* op) {
      if (op->kind == OpKind::Read && op->var->kind == VarKind::Slot && isDropped(op->var))
        reads_.push_back(op);
    });
    for (Op* read : reads_) {
      Block* block = read->parent();
      Builder builder(block, block->indexOf(read));
      builder.loc = read->loc;
      Value* again = compute(source_.lookup(read->var), builder);
      read->result()->replaceAllUsesWith(again);
      read->erase();
    }
    dropUnreadSlots();
    eraseDeadOps(module_);
  }

 private:
  bool isDropped(const Variable* var) const {
    const Value* value = source_.lookup(var);
    if (!value || !value->def() || var->output) return false;
    if (layer_ && !value->block()->enclosing().empty()) return true;
    return llvm::is_contained(ops_, value->def()->info().text);
  }

  // The forward's value at a place in @backward.
  Value* compute(Value* value, Builder& builder) {
    // At the depth of repeats where the forward made it: once for all inner iterations, and a
    // dropout's key counts the repeats around it.
    size_t depth = value->block()->enclosing().size();
    Op* around = nullptr;
    Block* block = builder.block();
    while (block->enclosing().size() > depth) {
      around = block->owner();
      block = around->parent();
    }
    if (around) {
      Builder outer(block, block->indexOf(around));
      outer.loc = builder.loc;
      return compute(value, outer);
    }
    Value*& known = known_[{value, builder.block()}];
    if (known && !isBefore(known, builder)) known = nullptr;
    if (known) return known;
    Op* def = value->def();
    Variable* slot = slot_.lookup(value);
    bool isRead = def && def->kind == OpKind::Read;
    bool again = def && !isRead && def->kind != OpKind::Repeat &&
                 (slot ? isDropped(slot)
                       : def->kind == OpKind::Const || isWeightCast(*def) ||
                             (layer_ && !value->block()->enclosing().empty()) ||
                             llvm::is_contained(ops_, def->info().text));
    if (isRead) {
      Op* read = builder.create(OpKind::Read, {}, {value->type}, {}, def->var, value->name);
      return known_[{value, builder.block()}] = read->result();
    }
    if (!again) {
      if (!slot) {
        slot = saveValue(module_, value);
        slot_[value] = slot;
        source_[slot] = value;
      }
      Op* read = builder.create(OpKind::Read, {}, {value->type}, {}, slot, value->name);
      return known_[{value, builder.block()}] = read->result();
    }
    llvm::SmallVector<Value*, 4> operands;
    for (Value* operand : def->operands()) operands.push_back(compute(operand, builder));
    Op* copy = builder.copy(*def, operands);
    if (isProduct(*copy)) copy->attrs.set("again", int64_t{1});
    for (Value* result : def->results())
      known_[{result, builder.block()}] = copy->result(result->index());
    return known_[{value, builder.block()}];
  }

  static bool isWeightCast(const Op& op) {
    const Op* read = op.kind == OpKind::Cast ? op.operand(0)->def() : nullptr;
    return read && read->kind == OpKind::Read && read->var->kind == VarKind::Weight;
  }

  // A copy serves only what comes behind it.
  static bool isBefore(const Value* value, const Builder& builder) {
    return builder.block()->indexOf(value->def()) < builder.position();
  }

  void dropUnreadSlots() {
    llvm::DenseSet<const Variable*> read;
    for (const auto& function : module_.functions)
      walk(*function->body, [&](Op* op) {
        if (op->kind == OpKind::Read) read.insert(op->var);
      });
    std::vector<Op*> dead;
    walk(*module_.findFunction("forward")->body, [&](Op* op) {
      if (op->kind == OpKind::Write && op->var->kind == VarKind::Slot && !read.contains(op->var))
        dead.push_back(op);
    });
    for (Op* op : dead) op->erase();
    module_.eraseVars(
        [&](const Variable& var) { return var.kind == VarKind::Slot && !read.contains(&var); });
  }

  Module& module_;
  bool layer_ = false;
  std::vector<std::string> ops_;
  llvm::DenseMap<const Variable*, Value*> source_;  // what a slot saves
  llvm::DenseMap<const Value*, Variable*> slot_;
  std::vector<Op*> reads_;
  llvm::DenseMap<std::pair<const Value*, const Block*>, Value*> known_;
};

}  // namespace

void recompute(Module& module, Diagnostics& diags) {
  if (module.settings.words("recompute").empty() || !module.findFunction("forward") ||
      !module.findFunction("backward"))
    return;
  Recompute(module).run(diags);
}

}  // namespace planc
