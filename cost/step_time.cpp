// A step put together from its parts: ops to functions, functions to a stage's calls, stages along their
// schedule's timeline. Tested by tests/unit/step_time_test.cpp.
#include "cost/step_time.h"

#include <algorithm>

#include "cost/function_time.h"
#include "cost/imbalance.h"
#include "ir/cost.h"
#include "ir/sharding.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

Elem widest(const Op& op) {
  Elem elem = op.operand(0)->type.elem;
  for (const Value* operand : op.operands().take_front(2))
    if (bytesPerElement(operand->type.elem) > bytesPerElement(elem)) elem = operand->type.elem;
  return elem;
}

double over(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

bool sends(const Function& function) {
  return llvm::any_of(function.body->ops, [](const Op* op) { return op->kind == OpKind::Send; });
}

// A stage's calls on a clock of their own: messages to other stages beside what the functions take.
class StageClock {
 public:
  StageClock(const Module& role, const RoleTime& time, MessageTimes& messages)
      : role_(role), time_(time), messages_(messages) {}

  Clock run() {
    for (const Call& call : role_.schedule) {
      const Function& function = *role_.findFunction(call.function);
      if (call.phase == Phase::Run) {
        FunctionTime passed = time_.functions.at(call.function);
        clock_.compute(passed.compute + passed.exposed);
        continue;
      }
      for (const Op* op : function.body->ops)
        if (op->kind == OpKind::Send) message(*op, call);
    }
    return std::move(clock_);
  }
  // Which message of the clock an op's is, one for each microbatch.
  llvm::ArrayRef<std::pair<const Op*, size_t>> ops() const { return ops_; }

 private:
  void message(const Op& op, const Call& call) {
    auto [at, isNew] = numbers_.try_emplace({&op, call.microbatch}, 0);
    if (isNew) {
      MessageTime time = messages_.of(op);
      at->second = clock_.addMessage(time.group, time.level, time.seconds);
      ops_.push_back({&op, at->second});
    }
    call.phase == Phase::Start ? clock_.start(at->second) : clock_.wait(at->second);
  }

  const Module& role_;
  const RoleTime& time_;
  MessageTimes& messages_;
  Clock clock_;
  std::map<std::pair<const Op*, int64_t>, size_t> numbers_;
  std::vector<std::pair<const Op*, size_t>> ops_;
};

// What a stage's tasks take, and what is sent behind them.
void addChunks(const Module& role, const RoleTime& time, std::vector<WorkCosts>& chunks) {
  std::optional<Task> last;
  for (const Call& call : role.schedule) {
    auto known = time.functions.find(call.function);
    if (known == time.functions.end()) continue;
    double seconds = known->second.compute + known->second.exposed;
    if (std::optional<Task> task = taskOf(call)) {
      last = task;
      WorkCosts& costs = chunks[size_t(task->chunk)];
      if (task->work == Work::Forward) costs.forward = seconds;
      else if (task->work == Work::WeightGradient) costs.weightGradient = seconds;
      else costs.inputGradient = seconds;
      continue;
    }
    if (call.phase != Phase::Start || !last || !sends(*role.findFunction(call.function))) continue;
    WorkCosts& costs = chunks[size_t(last->chunk)];
    double& message = last->work == Work::Forward ? costs.forwardMessage : costs.backwardMessage;
    message = std::max(message, seconds);
  }
}

// What a stage does once a step in front of its tasks, and behind them.
std::pair<double, double> aroundTasks(const Module& role, const RoleTime& time) {
  double before = 0, behind = 0;
  bool hasWorked = false;
  for (const Call& call : role.schedule) {
    if (taskOf(call)) hasWorked = true;
    else if (call.phase == Phase::Run) {
      const FunctionTime& passed = time.functions.at(call.function);
      (hasWorked ? behind : before) += passed.compute + passed.exposed;
    }
  }
  return {before, behind};
}

}  // namespace

double secondsOf(const Op& op, const Cluster& cluster) {
  if (op.has(Comm) || op.kind == OpKind::Repeat) return 0;
  double moving = over(memoryBytesOf(op), cluster.hbm());
  if (!isProduct(op)) return moving;
  double flops = flopsOf(op) * (isAttention(op) ? attentionImbalance(op) : 1);
  return std::max(moving, over(flops, cluster.rate(widest(op))));
}

RoleTime timeOf(const Module& role, Wires& wires, std::vector<Talk>& talks) {
  RoleTime time;
  MessageTimes messages(wires, talks);
  std::map<std::string, double> calls;
  for (const Call& call : role.schedule)
    if (call.phase == Phase::Run) ++calls[call.function];
    else calls.try_emplace(call.function, 0);
  std::vector<double> stood(talks.size());
  auto stand = [&](const Op& op, double seconds) {
    if (std::optional<size_t> talk = messages.talkOf(op)) stood[*talk] += seconds;
  };
  for (const auto& [name, times] : calls) {
    FunctionRun run(*role.findFunction(name), messages);
    FunctionTime& passed = time.functions[name] = run.time();
    time.compute += times * passed.compute;
    time.exposed += times * passed.exposed;
    run.eachMessage([&](const Op& op, double seconds) { stand(op, times * seconds); });
  }
  StageClock stage(role, time, messages);
  Clock clock = stage.run();
  time.exposed += clock.stood();
  for (const auto& [op, message] : stage.ops()) stand(*op, clock.stood(message));
  for (size_t i = 0; i < talks.size(); ++i)
    talks[i].hidden = std::max(0.0, talks[i].seconds - stood[i]);
  return time;
}

StepTime stepTime(llvm::ArrayRef<const Module*> roles, llvm::ArrayRef<RoleTime> times) {
  StepTime step;
  std::optional<PipeSchedule> schedule = scheduleOf(roles);
  if (!schedule) {
    for (const RoleTime& time : times)
      step.seconds = std::max(step.seconds, time.compute + time.exposed);
    return step;
  }
  step.chunks.assign(size_t(schedule->chunks()), WorkCosts{0, 0, 0});
  for (auto [role, time] : llvm::zip(roles, times)) addChunks(*role, time, step.chunks);
  step.timeline = timelineOf(*schedule, step.chunks);
  // What stages do before their tasks, they do while they wait for their first one.
  double first = 0, rest = 0;
  for (size_t stage = 0; stage < roles.size(); ++stage) {
    const Task& last = schedule->tasks[stage].back();
    double end = step.timeline.starts[stage].back() + step.chunks[size_t(last.chunk)].of(last.work);
    auto [before, behind] = aroundTasks(*roles[stage], times[stage]);
    first = std::max(first, before - step.timeline.starts[stage].front());
    rest = std::max(rest, end + behind);
  }
  step.seconds = first + rest;
  if (step.seconds > 0) step.bubble = step.timeline.bubble() * step.timeline.length / step.seconds;
  return step;
}

}  // namespace planc
