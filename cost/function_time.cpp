// Ops become steps once, with what they take; then they run on the clock. Iterations of a repeat are alike
// as soon as they find the wires as the one before did: these run once. Tested by
// tests/unit/step_time_test.cpp.
#include "cost/function_time.h"

#include <cmath>

#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

constexpr int64_t kMostIterations = 1024;  // that run one by one while the wires differ
constexpr double kSame = 1e-9;             // of an iteration's time

}  // namespace

std::optional<size_t> MessageTimes::talkOf(const Op& message) const {
  Words axes;
  for (const Axis& axis : groupAxes(message)) axes.push_back(axis.name);
  for (size_t i = 0; i < talks_.size(); ++i)
    if (talks_[i].kind == message.kind && talks_[i].axes == axes) return i;
  return std::nullopt;
}

MessageTime MessageTimes::of(const Op& message) {
  MessageTime time;
  for (const Axis& axis : groupAxes(message)) time.group += axis.name + " ";
  double bytes = double(bytesSent(message));
  if (bytes == 0) return time;
  if (std::optional<size_t> talk = talkOf(message); talk && talks_[*talk].isBound)
    bytes *= double(talks_[*talk].evenBytes) / double(talks_[*talk].bytes);
  const Reach& reach = wires_.reach(message);
  time.level = reach.level;
  time.seconds = wires_.seconds(reach, bytes, 1);
  return time;
}

FunctionRun::FunctionRun(const Function& function, MessageTimes& messages) {
  run(stepsOf(*function.body, messages), false);
}

std::vector<FunctionRun::Step> FunctionRun::stepsOf(const Block& block, MessageTimes& times) {
  std::vector<Step> steps;
  for (const Op* op : block.ops) {
    Step step;
    step.unlessLast = op->isUnlessLast();
    if (op->kind == OpKind::Repeat) {
      step.kind = Step::Repeat;
      step.count = op->attrs.integer("count");
      step.body = stepsOf(*op->body, times);
    } else if (op->has(Comm)) {
      MessageTime time = times.of(*op);
      step.kind = op->isFlag("start") ? Step::Start : Step::Message;
      step.message = started_[op] = clock_.addMessage(time.group, time.level, time.seconds);
      messages_.push_back({op, step.message});
    } else if (op->kind == OpKind::Wait) {
      step.kind = Step::Wait;
      step.message = started_.lookup(op->operand(0)->def());
    } else {
      step.seconds = secondsOf(*op, times.cluster());
      if (step.seconds == 0) continue;
      bool isAlike = !steps.empty() && steps.back().kind == Step::Compute &&
                     steps.back().unlessLast == step.unlessLast;
      if (isAlike) {
        steps.back().seconds += step.seconds;
        continue;
      }
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

void FunctionRun::run(const std::vector<Step>& steps, bool isLast) {
  for (const Step& step : steps) {
    if (isLast && step.unlessLast) continue;
    switch (step.kind) {
      case Step::Compute:
        clock_.compute(step.seconds);
        break;
      case Step::Message:
        clock_.start(step.message);
        clock_.wait(step.message);
        break;
      case Step::Start:
        clock_.start(step.message);
        break;
      case Step::Wait:
        clock_.wait(step.message);
        break;
      case Step::Repeat:
        repeat(step);
        break;
    }
  }
}

void FunctionRun::repeat(const Step& step) {
  std::vector<double> found = clock_.taken();
  for (int64_t i = 0; i < step.count; ++i) {
    bool isLast = i + 1 == step.count;
    Clock before = clock_;
    run(step.body, isLast);
    if (isLast) return;
    std::vector<double> left = clock_.taken();
    double slack = kSame * (clock_.now() - before.now());
    bool isAlike = i >= kMostIterations;
    isAlike |= llvm::all_of(llvm::zip(found, left), [&](const auto& pair) {
      return std::abs(std::get<0>(pair) - std::get<1>(pair)) <= slack;
    });
    found = std::move(left);
    if (!isAlike) continue;
    // All but the last.
    clock_.repeat(before, double(step.count - 2 - i));
    i = step.count - 2;
  }
}

}  // namespace planc
