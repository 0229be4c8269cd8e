// Places. The step is one line of time: @begin, then a microbatch's @forward and @backward, then
// @update (the functions in the schedule's order, each once; what the schedule runs while a saved value
// waits is part of its life). Variables that outlive a step lie at
// the arena's start. Everything else, slots included, is a buffer with a life from first definition
// to last use; values share a buffer where one dies as the next is made in its place, or where a
// `repeat` carries them. Buffers are packed largest first, each at the lowest offset that is free
// during its life; the arena's size is the highest byte used. Tested by tests/passes/memory and
// tests/unit/memory_test.cpp (no two live values overlap, by brute force).
#include "passes/memory.h"

#include <algorithm>

#include "ir/verify.h"
#include "llvm/ADT/STLExtras.h"
#include "passes/passes.h"

namespace planc {
namespace {

constexpr int64_t kAlign = 64;  // a cache line, and the widest vector
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

void MemoryPlan::number(const Block& block) {
  for (const Op* op : block.ops) {
    start_[op] = ++time_;
    if (op->body && op->kind == OpKind::Repeat) {
      number(*op->body);
      ++time_;
    }
    end_[op] = time_;
  }
}

// A use inside a repeat of a value from outside holds until the repeat ends.
int MemoryPlan::useTime(const Op* user, const Block* home) const {
  int time = start_.lookup(user);
  while (user->parent() != home) {
    user = user->parent()->owner();
    time = end_.lookup(user);
  }
  return time;
}

int MemoryPlan::lastUse(const Value* value) const {
  int last = value->def() ? end_.lookup(value->def()) : start_.lookup(value->block()->owner());
  for (const Use& use : value->uses()) last = std::max(last, useTime(use.op, value->block()));
  return last;
}

int MemoryPlan::newBuffer(int64_t bytes, int from, int to) {
  buffers_.push_back({bytes, from, to});
  return int(buffers_.size() - 1);
}

// A swap among carried values (an argument yielded as another) would read what it overwrites: yield
// a copy instead.
void MemoryPlan::copySwappedYields(Block& block) {
  for (Op* op : std::vector<Op*>(block.ops)) {
    if (op->kind != OpKind::Repeat) continue;
    copySwappedYields(*op->body);
    Op* yield = op->body->ops.back();
    for (unsigned i = 0; i < yield->operands().size(); ++i) {
      Value* value = yield->operand(i);
      bool isOtherArg = !value->def() && value->block() == op->body.get() && value->index() != i;
      if (!isOtherArg) continue;
      Builder builder(op->body.get(), op->body->ops.size() - 1);
      builder.loc = op->loc;
      yield->setOperand(i, builder.value(OpKind::Sum, {value}, value->type, {}, value->name));
    }
  }
}

// A collective's result lies where the started one put it.
static const Value* startedValue(const Value* value) {
  const Op* def = value->def();
  return def && def->kind == OpKind::Wait ? def->operand(value->index()) : value;
}

void MemoryPlan::findVariableLives() {
  for (const auto& function : module_.functions)
    walk(*function->body, [&](Op* op) {
      if (op->kind == OpKind::Read) reads_[op->var].push_back(op);
      if (op->kind == OpKind::Write) writes_[op->var].push_back(op);
      if (!op->var || op->var->kind != VarKind::Slot) return;
      // A stacked slot lives while any iteration may touch it: widen to the outermost repeat.
      const Op* outer = op;
      while (outer->parent()->owner()) outer = outer->parent()->owner();
      int from = start_.lookup(outer);
      // What is written may be made in place, so it lives from there.
      if (op->kind == OpKind::Write && outer == op)
        if (const Op* def = startedValue(op->operand(0))->def())
          from = std::min(from, start_.lookup(def));
      int to = end_.lookup(outer);
      if (op->kind == OpKind::Read)
        for (const Use& use : op->result()->uses())
          to = std::max(to, useTime(use.op, op->parent()));
      auto [at, isNew] = slotBuffer_.try_emplace(op->var, -1);
      if (isNew) {
        at->second = newBuffer(saturatingMul(op->var->type.bytes(), op->var->flights), from, to);
      } else {
        Buffer& buffer = buffers_[at->second];
        buffer.from = std::min(buffer.from, from);
        buffer.to = std::max(buffer.to, to);
      }
    });
}

// A slot lives while anything runs between the first and the last call that touches it for a
// microbatch: also functions that stand elsewhere on the line, and, where several microbatches are
// under way, those that touch it, as a whole.
void MemoryPlan::keepBetweenCalls() {
  std::map<const Function*, size_t> numbers;
  std::vector<std::pair<int, int>> lives;  // of each function
  std::map<const Variable*, std::vector<size_t>> users;
  std::vector<size_t> calls;
  for (const Call& call : module_.schedule) {
    const Function* function = module_.findFunction(call.function);
    auto [at, isNew] = numbers.try_emplace(function, numbers.size());
    calls.push_back(at->second);
    if (!isNew) continue;
    lives.push_back(lives_.at(function));
    walk(*function->body, [&, number = at->second](const Op* op) {
      if (!slotBuffer_.count(op->var)) return;
      std::vector<size_t>& list = users[op->var];
      if (list.empty() || list.back() != number) list.push_back(number);
    });
  }
  // What runs meanwhile depends on the users alone, and most slots have the same.
  auto runsMeanwhile = [&](const std::vector<size_t>& list) {
    std::vector<bool> isUser(lives.size()), meanwhile(lives.size());
    for (size_t user : list) isUser[user] = true;
    std::map<int64_t, std::pair<size_t, size_t>> spans;  // of each microbatch, its calls to users
    for (size_t i = 0; i < calls.size(); ++i)
      if (isUser[calls[i]])
        spans.try_emplace(module_.schedule[i].microbatch, i, i).first->second.second = i;
    std::vector<int> change(calls.size() + 1);
    for (const auto& [microbatch, span] : spans) ++change[span.first], --change[span.second + 1];
    int alive = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      alive += change[i];
      if (alive > 1 || (alive == 1 && !isUser[calls[i]])) meanwhile[calls[i]] = true;
    }
    return meanwhile;
  };
  std::map<std::vector<size_t>, std::vector<bool>> known;
  for (auto& [var, buffer] : slotBuffer_) {
    const std::vector<size_t>& list = users[var];
    auto [at, isNew] = known.try_emplace(list);
    if (isNew) at->second = runsMeanwhile(list);
    Buffer& life = buffers_[size_t(buffer)];
    for (size_t function = 0; function < lives.size(); ++function)
      if (at->second[function]) {
        life.from = std::min(life.from, lives[function].first);
        life.to = std::max(life.to, lives[function].second);
      }
  }
}

Place MemoryPlan::slicePlace(const Variable& var, const Block& block) const {
  Place place;
  Words enclosing = block.enclosing();
  Type rest = var.type;
  if (var.flights > 1) place.strides.push_back({"microbatch", rest.bytes(), var.flights});
  for (const std::string& dim : var.stack) {
    bool isMicrobatch = dim == "microbatch" && var.kind == VarKind::Input;
    if (!isMicrobatch && !llvm::is_contained(enclosing, dim)) break;
    rest = rest.without(dim);
    place.strides.push_back({dim, rest.bytes()});
  }
  return place;
}

MemoryPlan::Home MemoryPlan::variableHome(const Variable& var, const Block& block,
                                          const Type& type) const {
  Home home;
  home.var = &var;
  home.place = slicePlace(var, block);
  // The whole stack: only what tells microbatches apart.
  if (type.dims.size() == var.type.dims.size())
    llvm::erase_if(home.place.strides, [](const Stride& stride) { return stride.ring == 0; });
  return home;
}

// That of what is read, which may be the next iteration's slice or one by number.
MemoryPlan::Home MemoryPlan::readHome(const Op& read) const {
  const Type& type = read.result()->type;
  Home home = variableHome(*read.var, *read.parent(), type);
  if (read.isFlag("ahead"))
    home.place.offset = read.parent()->owner()->isFlag("reverse") ? -type.bytes() : type.bytes();
  if (read.attrs.has("index")) home.place.offset = read.attrs.integer("index") * type.bytes();
  return home;
}

// Whether a value can be computed where it is written.
bool MemoryPlan::canForward(const Op& write) const {
  const Value* value = startedValue(write.operand(0));
  const Op* def = value->def();
  const Variable& var = *write.var;
  if (!def || def->parent() != write.parent() || def->kind == OpKind::Read ||
      def->kind == OpKind::Repeat || home_.count(value) || writes_.lookup(&var).size() != 1 ||
      value->type != var.slice(write.parent()->enclosing()))
    return false;
  if (var.kind == VarKind::Slot) return true;
  // A variable's old value must not be needed once the new one is being made; the op that makes it
  // may read it where it lies on it.
  int made = start_.lookup(def);
  auto reads = reads_.find(&var);
  if (reads == reads_.end()) return true;
  for (const Op* read : reads->second) {
    if (read->parent() != write.parent()) {
      // In another function: it runs before or behind all of this one.
      const Block* top = read->parent();
      while (top->owner()) top = top->owner()->parent();
      const Block* mine = write.parent();
      while (mine->owner()) mine = mine->owner()->parent();
      if (top == mine) return false;
      continue;
    }
    for (const Use& use : read->result()->uses()) {
      int time = useTime(use.op, read->parent());
      if (use.op->kind == OpKind::Wait && def->has(InPlace) && def->isFlag("start")) continue;
      if (time > made || (time == made && !(def->has(InPlace) && use.op == def))) return false;
    }
  }
  return true;
}

// Whether two values have the same elements at the same places.
static bool sameLayout(const Type& a, const Type& b) {
  auto isSame = [](const Dim& x, const Dim& y) { return x.name == y.name && x.size == y.size; };
  return a.elem == b.elem &&
         std::equal(a.dims.begin(), a.dims.end(), b.dims.begin(), b.dims.end(), isSame);
}

// When a value is last needed; the wait for a collective that works in place needs only its result.
int MemoryPlan::lastUseBeside(const Value* value, const Op& op) const {
  int last = end_.lookup(value->def());
  for (const Use& use : value->uses()) {
    bool isOwnWait = use.op->kind == OpKind::Wait && use.op->operand(0)->def() == &op;
    if (!isOwnWait) last = std::max(last, useTime(use.op, value->block()));
  }
  return last;
}

// Whether an op reads each element before it writes there; a fused op does unless it ends in a sum.
static bool worksInPlace(const Op& op) {
  if (op.kind != OpKind::Fused) return op.has(InPlace);
  return llvm::none_of(op.body->ops, [](const Op* inner) { return inner->kind == OpKind::Sum; });
}

// Whether of operands and results that are alike it is these two that belong together: with others the
// op is not done when it writes.
static bool belongTogether(const Op& op, const Value& operand, unsigned result) {
  if (op.kind == OpKind::AttendBlock) return &operand == op.operand(3 + result);
  return !op.has(Comm) || &operand == op.operand(result);
}

// The operand on which a result may lie: same layout, dying here, and not shared.
const Value* MemoryPlan::dyingOperand(const Op& op, unsigned resultIndex) const {
  const Value* result = op.results()[resultIndex];
  if (!worksInPlace(op) || op.kind == OpKind::AdamW || op.kind == OpKind::Sgd) return nullptr;
  for (const Value* operand : op.operands()) {
    if (!belongTogether(op, *operand, resultIndex)) continue;
    if (!sameLayout(operand->type, result->type) || !operand->def() ||
        operand->block() != op.parent() || lastUseBeside(operand, op) > start_.lookup(&op) ||
        llvm::count(op.operands(), operand) > 1)
      continue;
    auto home = home_.find(operand);
    if (home == home_.end() || taken_.count(operand)) continue;
    if (!home->second.var) {
      if (home->second.isCarried) continue;
      return operand;
    }
    // A saved value that is read only here may be overwritten, unless a later iteration of a repeat
    // around here reads the same slice again.
    const Variable* var = home->second.var;
    Words enclosing = op.parent()->enclosing();
    bool isOwnSlice = llvm::all_of(
        enclosing, [&](const std::string& dim) { return llvm::is_contained(var->stack, dim); });
    if (var->kind == VarKind::Slot && operand->def()->kind == OpKind::Read && isOwnSlice &&
        reads_.lookup(var).size() == 1)
      return operand;
  }
  return nullptr;
}

void MemoryPlan::placeResult(const Op& op, unsigned i) {
  const Value* result = op.results()[i];
  if (home_.count(result)) return;
  int last = lastUse(result);
  if (const Value* operand = dyingOperand(op, i)) {
    Home home = home_[operand];
    taken_.insert(operand);
    int buffer = home.var ? slotBuffer_.lookup(home.var) : home.buffer;
    buffers_[buffer].to = std::max(buffers_[buffer].to, last);
    home_[result] = home;
    return;
  }
  Home home;
  home.buffer = newBuffer(result->type.bytes(), start_.lookup(&op), last);
  home_[result] = home;
}

// One buffer for a carried value: its argument and its result, and where life allows also its
// initial value and what the body yields.
void MemoryPlan::placeRepeat(Op& op) {
  Op* yield = op.body->ops.back();
  for (unsigned i = 0; i < op.operands().size(); ++i) {
    Value* init = op.operand(i);
    Value* arg = op.body->args()[i];
    int from = start_.lookup(&op);
    int to = std::max(end_.lookup(&op), lastUse(op.result(i)));
    Home home;
    home.isCarried = true;
    auto initHome = home_.find(init);
    bool takesInit = init->def() && init->block() == op.parent() && initHome != home_.end() &&
                     !initHome->second.var && !initHome->second.isCarried && !taken_.count(init) &&
                     lastUse(init) <= end_.lookup(&op) && llvm::count(op.operands(), init) == 1 &&
                     usesInside(init, op) == 0;
    if (takesInit) {
      home.buffer = initHome->second.buffer;
      taken_.insert(init);
      buffers_[home.buffer].to = std::max(buffers_[home.buffer].to, to);
    } else {
      home.buffer = newBuffer(arg->type.bytes(), from, to);
    }
    home_[arg] = home;
    home_[op.result(i)] = home;

    Value* next = yield->operand(i);
    Op* def = next->def();
    if (!def || def->parent() != op.body.get() || def->kind == OpKind::Read ||
        def->kind == OpKind::Repeat || llvm::count(yield->operands(), next) > 1)
      continue;
    bool isSaved =
        llvm::any_of(next->uses(), [](const Use& use) { return use.op->kind == OpKind::Write; });
    int made = start_.lookup(def), argDies = lastUse(arg);
    bool isOnArg = argDies == made && canLieOn(*def, *arg, *next);
    if (!isSaved && (argDies < made || isOnArg)) home_[next] = home;
  }
  block(*op.body);
}

size_t MemoryPlan::usesInside(const Value* value, const Op& repeat) const {
  return size_t(llvm::count_if(value->uses(), [&](const Use& use) { return use.op != &repeat; }) -
                llvm::count_if(value->uses(), [&](const Use& use) {
                  return use.op != &repeat &&
                         useTime(use.op, value->block()) < start_.lookup(&repeat);
                }));
}

bool MemoryPlan::canLieOn(const Op& op, const Value& operand, const Value& result) const {
  return worksInPlace(op) && sameLayout(operand.type, result.type) &&
         belongTogether(op, operand, result.index()) && llvm::count(op.operands(), &operand) == 1;
}

void MemoryPlan::block(Block& block) {
  for (Op* op : block.ops) {
    if (op->kind == OpKind::Repeat) {
      placeRepeat(*op);
      continue;
    }
    if (op->kind == OpKind::Read) {
      home_[op->result()] = readHome(*op);
      continue;
    }
    if (op->kind == OpKind::StageShare && op->operand(0)->uses().size() == 1) {
      // The same value under another type.
      Home home = home_[op->result()] = home_[op->operand(0)];
      taken_.insert(op->operand(0));
      if (home.buffer >= 0) {
        Buffer& buffer = buffers_[size_t(home.buffer)];
        buffer.to = std::max(buffer.to, lastUse(op->result()));
      }
      continue;
    }
    if (op->kind == OpKind::Wait) {
      for (unsigned i = 0; i < op->results().size(); ++i) {
        home_[op->result(i)] = home_[op->operand(i)];
        int buffer = home_[op->operand(i)].buffer;
        if (buffer >= 0)
          buffers_[buffer].to = std::max(buffers_[buffer].to, lastUse(op->result(i)));
      }
      continue;
    }
    // Values that are written somewhere are made there, also those that a wait stands between.
    for (const Value* result : op->results())
      for (const Use& use : writesOf(result))
        if (use.op->kind == OpKind::Write && use.op->parent() == &block && canForward(*use.op))
          home_[result] = variableHome(*use.op->var, block, result->type);
    for (unsigned i = 0; i < op->results().size(); ++i) placeResult(*op, i);
  }
}

// The uses of a value, those behind the wait for it among them.
llvm::SmallVector<Use, 4> MemoryPlan::writesOf(const Value* value) const {
  llvm::SmallVector<Use, 4> uses(value->uses().begin(), value->uses().end());
  for (const Use& use : value->uses())
    if (use.op->kind == OpKind::Wait && use.index < use.op->results().size()) {
      llvm::ArrayRef<Use> more = use.op->result(use.index)->uses();
      uses.append(more.begin(), more.end());
    }
  return uses;
}

// The variable on which this one lies: a rank's sum that @reduce adds up over ranks where it is.
const Variable* MemoryPlan::addedUpInPlace(const Variable& var) const {
  auto writes = writes_.find(&var);
  if (writes == writes_.end() || writes->second.size() != 1) return nullptr;
  const Value* value = startedValue(writes->second[0]->operand(0));
  const Op* read = value->def();
  if (!read || read->kind != OpKind::AllReduce) return nullptr;
  // Over ranks, and over stages.
  while (read && (read->kind == OpKind::AllReduce || read->kind == OpKind::StageShare)) {
    value = startedValue(read->operand(read->kind == OpKind::AllReduce ? value->index() : 0));
    read = value->def();
  }
  bool isWhole = read && read->kind == OpKind::Read && read->var->kind == VarKind::Sum &&
                 sameLayout(read->var->type, var.type) && reads_.lookup(read->var).size() == 1 &&
                 !writes->second[0]->parent()->owner();
  return isWhole ? read->var : nullptr;
}

int64_t MemoryPlan::pack(int64_t base) {
  std::vector<Buffer*> order;
  for (Buffer& buffer : buffers_) {
    buffer.bytes = aligned(buffer.bytes);
    order.push_back(&buffer);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Buffer* a, const Buffer* b) { return a->bytes > b->bytes; });
  int64_t top = base;
  std::vector<const Buffer*> placed, live;
  for (Buffer* buffer : order) {
    live.clear();
    for (const Buffer* other : placed)
      if (other->from <= buffer->to && buffer->from <= other->to) live.push_back(other);
    std::sort(live.begin(), live.end(),
              [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; });
    int64_t offset = base;
    for (const Buffer* other : live) {
      if (other->offset >= offset + buffer->bytes) break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    buffer->offset = offset;
    top = std::max(top, offset + buffer->bytes);
    placed.push_back(buffer);
  }
  return top;
}

void MemoryPlan::run() {
  std::vector<Function*> order;
  for (const Call& call : module_.schedule) {
    Function* function = module_.findFunction(call.function);
    if (function && !llvm::is_contained(order, function)) order.push_back(function);
  }
  for (Function* function : order) {
    copySwappedYields(*function->body);
    int begin = time_ + 1;
    number(*function->body);
    lives_[function] = {begin, time_};
    time_ += 2;
  }
  findVariableLives();
  keepBetweenCalls();
  for (Function* function : order) block(*function->body);

  int64_t base = 0;
  for (const auto& var : module_.vars) {
    if (var->kind == VarKind::Slot || addedUpInPlace(*var)) continue;
    var->place = Place{base, {}};
    base += aligned(var->type.bytes());
  }
  for (const auto& var : module_.vars)
    if (var->kind != VarKind::Slot && !var->place) var->place = addedUpInPlace(*var)->place;
  module_.arenaBytes = pack(base);
  for (const auto& var : module_.vars)
    if (var->kind == VarKind::Slot) {
      auto at = slotBuffer_.find(var.get());
      var->place = Place{at == slotBuffer_.end() ? 0 : buffers_[at->second].offset, {}};
    }
  auto place = [&](Value* value) {
    const Home& home = home_[value];
    if (home.var) {
      value->place = home.place;
      value->place->offset += home.var->place->offset;
    } else {
      value->place = Place{buffers_[home.buffer].offset, {}};
    }
  };
  for (Function* function : order)
    walk(*function->body, [&](Op* op) {
      for (Value* result : op->results())
        if (home_.count(result)) place(result);
      if (op->kind == OpKind::Repeat)
        for (Value* arg : op->body->args()) place(arg);
    });
}

void memory(Module& module, Diagnostics& diags) {
  MemoryPlan(module).run();
  constexpr int64_t kMost = kMaxElements * 8;
  if (module.arenaBytes < 0 || module.arenaBytes > kMost)
    diags.report({}, Diag::ArenaTooLarge, module.arenaBytes, kMost);
}

}  // namespace planc
