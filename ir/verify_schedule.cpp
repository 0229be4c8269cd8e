// A replay of one step, in which functions are lists of what they do to variables. Tested by
// tests/unit/verify_schedule_test.cpp.
#include "ir/verify_schedule.h"

#include "ir/broken.h"
#include "ir/text.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

namespace planc {
namespace {

using llvm::Error;
using llvm::Twine;

constexpr int64_t kStep = -1;     // in place of a microbatch: the whole step
constexpr int64_t kNothing = -2;  // nothing of this step

// What an op does to a variable.
struct Touch {
  enum Kind : uint8_t { Read, Write, Add } kind;
  size_t variable;
  const Op* op;
};

struct Uses {
  std::vector<Touch> touches;  // in order; of reads those that no write of the function serves
  bool onlySends = false, onlyReceives = false;
  bool isOfStep = false, isOfMicrobatch = false;
  // Calls that did, by microbatch.
  llvm::DenseMap<int64_t, size_t> ran;
  llvm::DenseMap<int64_t, size_t> started;  // and are not waited for yet

  const Op* add() const {
    for (const Touch& touch : touches)
      if (touch.kind == Touch::Add) return touch.op;
    return nullptr;
  }
};

// One of a variable's copies. Calls are numbered from 1.
struct Copy {
  int64_t holds = kNothing;
  size_t receives = 0;                      // the call that started to, and nobody waited for
  llvm::SmallVector<size_t, 1> sends = {};  // the calls that did
};

struct State {
  const Variable* variable;
  llvm::DenseMap<int64_t, Copy> copies{};  // by number; a file's `flights` may be any number
  // Of what is added to.
  std::vector<size_t> adders = {};  // functions
  size_t added = 0;                 // the last call that did, unless it was read since
};

// Whether what it holds is of one step: the rest is the runtime's, or lives from step to step.
bool isSetInStep(VarKind kind) {
  return kind == VarKind::Slot || kind == VarKind::Gradient || kind == VarKind::Sum ||
         kind == VarKind::Metric;
}

std::string momentText(int64_t microbatch) {
  return microbatch == kStep ? "the whole step" : "microbatch " + std::to_string(microbatch);
}

class Replay {
 public:
  explicit Replay(const Module& module);
  Error run();

 private:
  void collect(const Block& block, size_t function);
  Error repeatsFirst() const;
  Error call(const Call& call);
  Error touch(const Touch& touch);
  Error read(State& state, Copy& copy, const Op& op);
  Error write(State& state, Copy& copy, const Op& op);
  Error add(State& state, Copy& copy, const Op& op);
  Error enter(Uses& uses);
  Error complete(const State& state, const Op& op) const;
  Error end() const;
  // The first microbatch that a function has not run for; kNothing: none.
  int64_t missing(const Uses& uses) const;
  // An error of the call, with the op.
  Error wrong(const Twine& what, const Op& op) const;
  std::string callText(size_t number) const;
  std::string name(size_t function) const { return "'@" + module_.functions[function]->name + "'"; }

  const Module& module_;
  int64_t microbatches_;
  std::vector<Uses> functions_;
  llvm::StringMap<size_t> functionByName_;
  std::vector<State> states_;
  llvm::DenseMap<const Variable*, size_t> stateOf_;
  // The call that runs.
  size_t number_ = 0, function_ = 0;
  int64_t microbatch_ = kStep;
  Phase phase_ = Phase::Run;
};

Replay::Replay(const Module& module)
    : module_(module),
      microbatches_(module.settings.integer("microbatches", 1)),
      functions_(module.functions.size()) {
  for (size_t i = 0; i < functions_.size(); ++i) {
    functionByName_[module.functions[i]->name] = i;
    Uses& uses = functions_[i];
    uses.onlySends = uses.onlyReceives = !module.functions[i]->body->ops.empty();
    collect(*module.functions[i]->body, i);
  }
  for (const Call& call : module.schedule) {
    Uses& uses = functions_[functionByName_.lookup(call.function)];
    (call.microbatch == kStep ? uses.isOfStep : uses.isOfMicrobatch) = true;
  }
}

void Replay::collect(const Block& block, size_t function) {
  Uses& uses = functions_[function];
  for (const Op* op : block.ops) {
    uses.onlySends &= op->kind == OpKind::Read || op->kind == OpKind::Send;
    uses.onlyReceives &= op->kind == OpKind::Receive || op->kind == OpKind::Write;
    if (op->body && op->kind == OpKind::Repeat) collect(*op->body, function);
    if (!op->var || !isSetInStep(op->var->kind)) continue;
    auto [at, isNew] = stateOf_.try_emplace(op->var, states_.size());
    if (isNew) states_.push_back({op->var});
    size_t variable = at->second;
    Touch::Kind kind = op->kind == OpKind::Read                                ? Touch::Read
                       : op->kind == OpKind::Write || op->kind == OpKind::Zero ? Touch::Write
                                                                               : Touch::Add;
    bool isServed = llvm::any_of(uses.touches, [&](const Touch& touch) {
      return touch.variable == variable && (touch.kind == Touch::Write || touch.kind == kind);
    });
    if (isServed && kind != Touch::Add) continue;
    uses.touches.push_back({kind, variable, op});
    std::vector<size_t>& adders = states_[variable].adders;
    if (kind == Touch::Add && !llvm::is_contained(adders, function)) adders.push_back(function);
  }
}

std::string Replay::callText(size_t number) const {
  const Call& call = module_.schedule[number - 1];
  std::string text = "call " + std::to_string(number) + ", '" + planc::name(call.phase).str() +
                     " @" + call.function;
  return text + (call.microbatch >= 0 ? "(" + std::to_string(call.microbatch) + ")'" : "'");
}

Error Replay::wrong(const Twine& what, const Op& op) const {
  return broken(callText(number_) + " " + what + ":" + describe(op));
}

int64_t Replay::missing(const Uses& uses) const {
  if (uses.isOfStep || uses.ran.size() == size_t(microbatches_)) return kNothing;
  int64_t microbatch = 0;
  while (uses.ran.count(microbatch)) ++microbatch;
  return microbatch;
}

// In an iteration that its variable doesn't stack, `first` would overwrite what the one before added.
Error Replay::repeatsFirst() const {
  for (const State& state : states_)
    for (size_t function : state.adders)
      for (const Touch& touch : functions_[function].touches) {
        if (touch.kind != Touch::Add || !touch.op->isFlag("first")) continue;
        for (const std::string& dim : touch.op->parent()->enclosing())
          if (!llvm::is_contained(touch.op->var->stack, dim))
            return broken("in " + name(function) + " each iteration of '" + dim +
                          "' overwrites '@" + touch.op->var->name + "':" + describe(*touch.op));
      }
  return Error::success();
}

// All parts of a sum are there.
Error Replay::complete(const State& state, const Op& op) const {
  for (size_t function : state.adders) {
    const Uses& uses = functions_[function];
    int64_t microbatch = uses.isOfMicrobatch ? missing(uses) : uses.ran.empty() ? kStep : kNothing;
    if (microbatch != kNothing)
      return wrong("reads '@" + state.variable->name + "', to which " + name(function) +
                       " has not added for " + momentText(microbatch),
                   op);
  }
  return Error::success();
}

Error Replay::read(State& state, Copy& copy, const Op& op) {
  const std::string& name = state.variable->name;
  if (copy.receives)
    return wrong("reads '@" + name + "', which " + callText(copy.receives) +
                     " receives and nobody has waited for",
                 op);
  if (state.variable->kind == VarKind::Slot) {
    if (copy.holds == microbatch_ || copy.holds == kStep) return Error::success();
    if (copy.holds == kNothing)
      return wrong("reads '@" + name + "', which nothing has set for " + momentText(microbatch_),
                   op);
    return wrong(
        "reads '@" + name + "' for " + momentText(microbatch_) + ", which holds " +
            momentText(copy.holds) +
            (microbatch_ == kStep ? ""
                                  : " (" + std::to_string(state.variable->flights) + " in flight)"),
        op);
  }
  if (copy.holds == kNothing)
    return wrong("reads '@" + name + "', which nothing has set in this step", op);
  if (microbatch_ != kStep) return Error::success();
  state.added = 0;
  return complete(state, op);
}

Error Replay::write(State& state, Copy& copy, const Op& op) {
  const std::string& name = state.variable->name;
  if (copy.receives)
    return wrong("writes '@" + name + "', which " + callText(copy.receives) +
                     " receives and nobody has waited for",
                 op);
  if (!copy.sends.empty())
    return wrong("writes '@" + name + "', which " + callText(copy.sends.front()) +
                     " sends and nobody has waited for",
                 op);
  if (state.added)
    return wrong("overwrites '@" + name + "', to which " + callText(state.added) + " has added",
                 op);
  copy.holds = microbatch_;
  return Error::success();
}

Error Replay::add(State& state, Copy& copy, const Op& op) {
  if (state.variable->kind == VarKind::Slot) {
    if (Error error = read(state, copy, op)) return error;
    return write(state, copy, op);
  }
  bool overwrites = op.isFlag("first") && microbatch_ <= 0;
  if (overwrites && state.added)
    return wrong("overwrites '@" + state.variable->name + "', to which " + callText(state.added) +
                     " has added",
                 op);
  if (!overwrites && copy.holds == kNothing)
    return wrong("adds to '@" + state.variable->name + "', which nothing has set in this step", op);
  copy.holds = kStep;
  state.added = number_;
  return Error::success();
}

Error Replay::touch(const Touch& touch) {
  State& state = states_[touch.variable];
  int64_t flights = state.variable->flights;
  if (flights > 1 && microbatch_ == kStep)
    return wrong("is for the whole step and touches '@" + state.variable->name + "', which has " +
                     Twine(flights) + " in flight",
                 *touch.op);
  Copy& copy = state.copies[flights > 1 ? microbatch_ % flights : 0];
  if (phase_ == Phase::Wait) {
    if (touch.kind == Touch::Read)
      llvm::erase_value(copy.sends, functions_[function_].started.lookup(microbatch_));
    else copy.receives = 0;
    return Error::success();
  }
  switch (touch.kind) {
    case Touch::Read:
      if (Error error = read(state, copy, *touch.op)) return error;
      if (phase_ == Phase::Start) copy.sends.push_back(number_);
      return Error::success();
    case Touch::Write:
      if (Error error = write(state, copy, *touch.op)) return error;
      if (phase_ == Phase::Start) copy.receives = number_;
      return Error::success();
    case Touch::Add:
      return add(state, copy, *touch.op);
  }
  return Error::success();
}

// What calls of one function are to each other.
Error Replay::enter(Uses& uses) {
  auto wrong = [&](const Twine& what) { return broken(callText(number_) + " " + what); };
  if (uses.isOfStep && uses.isOfMicrobatch)
    return wrong("is one for the whole step, and others are for a microbatch");
  auto started = uses.started.find(microbatch_);
  if (phase_ == Phase::Wait)
    return started != uses.started.end() ? Error::success()
                                         : wrong("waits for what no call has started");
  if (started != uses.started.end())
    return wrong("comes before the wait for " + callText(started->second));
  if (phase_ == Phase::Start) {
    if (!uses.onlySends && !uses.onlyReceives)
      return wrong("starts what does not only send or only receive");
    uses.started[microbatch_] = number_;
  }
  auto [ran, isNew] = uses.ran.try_emplace(microbatch_, number_);
  if (!isNew && microbatch_ == kStep)
    return wrong("runs once more what " + callText(ran->second) + " has run");
  const Op* add = uses.add();
  if (!isNew && add)
    return this->wrong(
        "adds once more to '@" + add->var->name + "' what " + callText(ran->second) + " has added",
        *add);
  return Error::success();
}

Error Replay::call(const Call& call) {
  function_ = functionByName_.lookup(call.function);
  microbatch_ = call.microbatch;
  phase_ = call.phase;
  Uses& uses = functions_[function_];
  if (Error error = enter(uses)) return error;
  for (const Touch& touch : uses.touches)
    if (Error error = this->touch(touch)) return error;
  if (phase_ == Phase::Wait) uses.started.erase(microbatch_);
  return Error::success();
}

Error Replay::end() const {
  for (size_t i = 0; i < functions_.size(); ++i) {
    const Uses& uses = functions_[i];
    if (uses.ran.empty() && !module_.functions[i]->body->ops.empty())
      return broken("no call runs " + name(i) + ":" +
                    describe(*module_.functions[i]->body->ops.front()));
    if (!uses.started.empty()) {
      size_t first = SIZE_MAX;
      for (const auto& [microbatch, number] : uses.started) first = std::min(first, number);
      return broken("no call waits for " + callText(first));
    }
    const Op* add = uses.add();
    int64_t microbatch = add ? missing(uses) : kNothing;
    if (microbatch != kNothing)
      return broken("no call runs " + name(i) + " for " + momentText(microbatch) +
                    ", where it adds to '@" + add->var->name + "':" + describe(*add));
  }
  return Error::success();
}

Error Replay::run() {
  if (Error error = repeatsFirst()) return error;
  for (const Call& call : module_.schedule) {
    ++number_;
    if (Error error = this->call(call)) return error;
  }
  return end();
}

}  // namespace

Error verifySchedule(const Module& module) { return Replay(module).run(); }

}  // namespace planc
