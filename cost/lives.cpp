// A value is held from its op to its last use; a use inside a repeat that it comes from outside of counts
// until the repeat ends. A carried value is held as long as its repeat runs. A slot is held from where its
// value is made to its last use, and through all that runs between the first and the last call that
// touches it for a microbatch. Tested by tests/unit/memory_bill_test.cpp (against a run that marks bytes).
#include "cost/lives.h"

#include <algorithm>
#include <map>

#include "ir/schedule.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

// Who touches a slot, for what it is to count as.
struct Touch {
  bool inForward = false;   // by a forward task
  bool byGradient = false;  // read by a task behind the forward one
  bool bySameOnly = true;   // by one function alone
  bool byMessage = false;   // sent, or received
  int chunk = 0;            // whose task touches it first
  const Function* first = nullptr;

  void add(const Function& function, const std::optional<Task>& task, bool isMessage, bool isRead) {
    if (first == nullptr) first = &function;
    bySameOnly &= first == &function;
    byMessage |= isMessage;
    if (!task) return;
    if (!inForward && !byGradient) chunk = task->chunk;
    if (task->work == Work::Forward) inForward = true;
    else byGradient |= isRead;
  }
  Holding holding() const {
    if (inForward && byGradient) return Holding::Activations;
    if (byMessage) return Holding::Communication;
    return bySameOnly ? Holding::Workspace : Holding::Activations;
  }
};

bool passesMessages(const Function& function) {
  return llvm::any_of(function.body->ops, [](const Op* op) {
    return op->kind == OpKind::Send || op->kind == OpKind::Receive;
  });
}

// Of a variable that outlives the step.
Holding holdingOf(const Variable& state, const Module& role) {
  switch (state.kind) {
    case VarKind::Weight:
    case VarKind::Copy:
      return Holding::Weights;
    case VarKind::Gradient:
      return Holding::Gradients;
    case VarKind::Sum: {
      // Of a gradient; or of a metric, which is no weight's.
      const Variable* of = role.findVar(state.of);
      return of && of->kind == VarKind::Metric ? Holding::Inputs : Holding::Gradients;
    }
    case VarKind::Moment:
      return Holding::Optimizer;
    default:
      return Holding::Inputs;
  }
}

const Value* yielded(const Op& repeat, unsigned i) { return repeat.body->ops.back()->operand(i); }

// What messages bring, also where a repeat carries it from one iteration to the next.
Holding holdingOf(const Value* value) {
  for (int depth = 0; depth < 8; ++depth) {
    const Op* def = value->def();
    if (def && def->kind != OpKind::Repeat)
      return def->has(Comm) || def->kind == OpKind::Wait ? Holding::Communication
                                                         : Holding::Workspace;
    const Op& repeat = def ? *def : *value->block()->owner();
    const Value* next = yielded(repeat, value->index());
    bool isOnlyPassed = !next->def() && next->block() == repeat.body.get();
    value = isOnlyPassed ? repeat.operand(next->index()) : next;
  }
  return Holding::Workspace;
}

class Walk {
 public:
  explicit Walk(const Module& role) : role_(role) {}

  Lives run() {
    lives_.moments.push_back(nullptr);  // the state alone
    for (const Call& call : role_.schedule) {
      const Function* function = role_.findFunction(call.function);
      if (function == nullptr) continue;
      auto [at, isNew] = numbers_.try_emplace(function, functions_.size());
      calls_.push_back({at->second, call.microbatch});
      if (isNew) functions_.push_back({function, 0, 0});
    }
    for (Run& run : functions_) {
      run.from = now() + 1;
      number(*run.function->body);
      run.to = now();
    }
    for (size_t i = 0; i < functions_.size(); ++i) {
      const Function& function = *functions_[i].function;
      here_ = {i, &function, taskOf({function.name, 0}), passesMessages(function)};
      block(*function.body);
    }
    addVariables();
    return std::move(lives_);
  }

 private:
  struct Span {
    int from = 0, to = 0;
  };
  struct Run {
    const Function* function;
    int from, to;
  };
  struct Slot {
    Touch touch;
    int from = INT32_MAX, to = -1;
    std::vector<size_t> users;  // functions
  };
  struct Called {
    size_t function;
    int64_t microbatch;
  };

  // The function that is walked.
  struct Here {
    size_t number = 0;
    const Function* function = nullptr;
    std::optional<Task> task;
    bool isMessage = false;
  };

  int now() const { return int(lives_.moments.size()) - 1; }

  void number(const Block& block) {
    for (const Op* op : block.ops) {
      lives_.moments.push_back(op);
      int from = now();
      if (op->kind == OpKind::Repeat) {
        number(*op->body);
        lives_.moments.push_back(op);
      }
      spans_[op] = {from, now()};
    }
  }

  // When a use of what belongs to `home` is over.
  int useEnd(const Op* user, const Block* home) const {
    if (user->parent() == home) return spans_.lookup(user).from;
    while (user->parent() != home) user = user->parent()->owner();
    return spans_.lookup(user).to;
  }
  int lastUse(const Value* value, int made) const {
    for (const Use& use : value->uses()) made = std::max(made, useEnd(use.op, value->block()));
    return made;
  }

  // How many bytes a place reaches over, in all iterations and microbatches.
  int64_t reach(const Value& value) const {
    int64_t bytes = value.type.bytes();
    for (const Stride& stride : value.place->strides) {
      int64_t count = stride.ring;
      for (const Op* owner = value.block()->owner(); count == 0 && owner != nullptr;
           owner = owner->parent()->owner())
        if (owner->attrs.word("dim") == stride.dim) count = owner->attrs.integer("count");
      if (count == 0) count = role_.settings.integer("microbatches", 1);
      bytes = saturatingAdd(bytes, saturatingMul(std::max<int64_t>(stride.bytes, 0), count - 1));
    }
    return bytes;
  }

  void hold(const Value* value, int from, int to) {
    if (!value->place) return;
    int64_t begin = value->place->offset;
    add({holdingOf(value), begin, saturatingAdd(begin, reach(*value)), from, to, nullptr, value,
         0});
  }
  void add(const Life& life) {
    if (life.end > life.begin) lives_.list.push_back(life);
  }

  void block(const Block& block) {
    for (const Op* op : block.ops) {
      Span span = spans_.lookup(op);
      if (op->var != nullptr && op->var->kind == VarKind::Slot) useSlot(*op);
      // What is read lies in its variable.
      if (op->kind == OpKind::Read) continue;
      if (op->kind == OpKind::Repeat) {
        for (const Value* arg : op->body->args()) hold(arg, span.from, span.to);
        this->block(*op->body);
      }
      for (const Value* result : op->results()) hold(result, span.to, lastUse(result, span.to));
    }
  }

  void useSlot(const Op& op) {
    Slot& slot = slots_[op.var];
    slot.touch.add(*here_.function, here_.task, here_.isMessage, op.kind == OpKind::Read);
    const Op* outer = &op;
    while (outer->parent()->owner() != nullptr) outer = outer->parent()->owner();
    // In a repeat any iteration may touch any slice.
    Span span = spans_.lookup(outer);
    if (outer == &op && op.kind == OpKind::Write) span.from = madeThere(op);
    if (outer == &op && op.kind == OpKind::Read) span.to = lastUse(op.result(), span.to);
    slot.from = std::min(slot.from, span.from);
    slot.to = std::max(slot.to, span.to);
    if (slot.users.empty() || slot.users.back() != here_.number) slot.users.push_back(here_.number);
  }

  // When what a slot is set to comes to lie there: as it is made, or as it is copied.
  int madeThere(const Op& write) const {
    const Value* value = write.operand(0);
    if (const Op* def = value->def(); def && def->kind == OpKind::Wait)
      value = def->operand(value->index());
    bool isThere = value->def() && value->place && write.var->place &&
                   value->place->offset == write.var->place->offset;
    return spans_.lookup(isThere ? value->def() : &write).from;
  }

  void addVariables() {
    // Which functions a slot is held through depends on who touches it, and most slots have the same.
    std::map<std::vector<size_t>, std::vector<size_t>> known;
    for (const auto& var : role_.vars) {
      if (!var->place) continue;
      int64_t begin = var->place->offset, bytes = var->type.bytes();
      if (var->kind != VarKind::Slot) {
        add({holdingOf(*var, role_), begin, saturatingAdd(begin, bytes), 0, now(), var.get(),
             nullptr, 0});
        continue;
      }
      auto at = slots_.find(var.get());
      if (at == slots_.end()) continue;
      Slot& slot = at->second;
      auto [through, isNew] = known.try_emplace(slot.users);
      if (isNew) through->second = heldThrough(slot.users);
      for (size_t function : through->second) {
        slot.from = std::min(slot.from, functions_[function].from);
        slot.to = std::max(slot.to, functions_[function].to);
      }
      bytes = saturatingMul(bytes, var->flights);
      add({slot.touch.holding(), begin, saturatingAdd(begin, bytes), slot.from, slot.to, var.get(),
           nullptr, slot.touch.chunk});
    }
  }

  // The functions during all of which a microbatch's value waits: those that do not touch it, and
  // those that do so for another microbatch.
  std::vector<size_t> heldThrough(const std::vector<size_t>& users) const {
    std::map<int64_t, std::pair<size_t, size_t>> spans;  // of calls, by microbatch
    for (size_t i = 0; i < calls_.size(); ++i)
      if (llvm::is_contained(users, calls_[i].function))
        spans.try_emplace(calls_[i].microbatch, i, i).first->second.second = i;
    std::vector<int> change(calls_.size() + 1);
    for (const auto& [microbatch, span] : spans) ++change[span.first], --change[span.second + 1];
    std::vector<size_t> through;
    int waiting = 0;
    for (size_t i = 0; i < calls_.size(); ++i) {
      waiting += change[i];
      size_t function = calls_[i].function;
      int own = llvm::is_contained(users, function) ? 1 : 0;
      if (waiting > own && !llvm::is_contained(through, function)) through.push_back(function);
    }
    return through;
  }

  const Module& role_;
  Lives lives_;
  Here here_;
  std::vector<Run> functions_;
  std::vector<Called> calls_;
  llvm::DenseMap<const Function*, size_t> numbers_;
  llvm::DenseMap<const Op*, Span> spans_;
  llvm::DenseMap<const Variable*, Slot> slots_;
};

}  // namespace

llvm::StringRef name(Holding holding) {
  constexpr llvm::StringLiteral names[] = {"weights",     "gradients",     "optimizer", "inputs",
                                           "activations", "messages", "workspace"};
  return names[size_t(holding)];
}

std::string Life::name() const {
  if (var != nullptr) return var->name;
  if (!value->name.empty()) return value->name;
  return (value->def() ? value->def() : value->block()->owner())->info().text.str();
}

Loc Life::loc() const {
  if (var != nullptr) return var->loc;
  const Op* op = value->def() ? value->def() : value->block()->owner();
  return op ? op->loc : Loc{};
}

Lives livesOf(const Module& role) { return Walk(role).run(); }

}  // namespace planc
