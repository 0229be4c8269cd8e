// One generator a schedule, as data, and what theory says of each. Every one gives each chunk's
// microbatches in the order of their numbers, so gradients add up in that order whatever the schedule.
// Tested by tests/unit/schedule_test.cpp.
#include <algorithm>
#include <map>

#include "ir/broken.h"
#include "ir/schedule.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

using Costs = const WorkCosts&;

int64_t roundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

PipeSchedule empty(int stages, int chunks, int64_t microbatches) {
  PipeSchedule schedule{stages, microbatches, {}, {}};
  for (int chunk = 0; chunk < stages * chunks; ++chunk) schedule.stageOf.push_back(chunk % stages);
  schedule.tasks.resize(stages);
  return schedule;
}

// A stage's order in the making: what to do with which chunk; the microbatch is the chunk's next one.
// A rule may count on more microbatches than there are: what is too many is left out, and as tasks of
// one microbatch never wait for another's, the rest still runs.
class Stage {
 public:
  Stage(PipeSchedule& schedule, int stage) : schedule_(schedule), list_(schedule.tasks[stage]) {}
  void add(Work work, int chunk) {
    int64_t microbatch = done_[{work, chunk}]++;
    if (microbatch < schedule_.microbatches) list_.push_back({work, chunk, microbatch});
  }
  int64_t done(Work work, int chunk) { return done_[{work, chunk}]; }

 private:
  PipeSchedule& schedule_;
  std::vector<Task>& list_;
  std::map<std::pair<Work, int>, int64_t> done_;
};

PipeSchedule gpipe(int stages, int, int64_t microbatches) {
  PipeSchedule schedule = empty(stages, 1, microbatches);
  for (int i = 0; i < stages; ++i) {
    Stage stage(schedule, i);
    for (int64_t k = 0; k < microbatches; ++k) stage.add(Work::Forward, i);
    for (int64_t k = 0; k < microbatches; ++k) stage.add(Work::Backward, i);
  }
  return schedule;
}

// As many forwards ahead as stages lie behind, then forward and backward by turns.
PipeSchedule oneForwardOneBackward(int stages, int, int64_t microbatches) {
  PipeSchedule schedule = empty(stages, 1, microbatches);
  for (int i = 0; i < stages; ++i) {
    Stage stage(schedule, i);
    for (int k = 0; k < stages - 1 - i; ++k) stage.add(Work::Forward, i);
    for (int64_t k = 0; k < microbatches; ++k) {
      stage.add(Work::Forward, i);
      stage.add(Work::Backward, i);
    }
  }
  return schedule;
}

// Microbatches go in groups of as many as there are stages: a group through a stage's first chunk, then
// through its second, and so on; backwards the other way round.
PipeSchedule interleaved(int stages, int chunks, int64_t microbatches) {
  PipeSchedule schedule = empty(stages, chunks, microbatches);
  int64_t total = roundUp(microbatches, stages) * chunks;
  for (int i = 0; i < stages; ++i) {
    Stage stage(schedule, i);
    auto chunk = [&](int64_t k) { return int(k / stages % chunks); };
    int64_t ahead = (stages - i - 1) * 2 + (chunks - 1) * int64_t(stages);
    for (int64_t k = 0; k < total + ahead; ++k) {
      if (k < total) stage.add(Work::Forward, chunk(k) * stages + i);
      if (k >= ahead) stage.add(Work::Backward, (chunks - 1 - chunk(k - ahead)) * stages + i);
    }
  }
  return schedule;
}

// ZB-H1. Stage i runs as many forwards ahead as 1F1B and lets i weight gradients lie: they fill the
// time in which it would wait at the end. Ahead and behind, that makes `stages` activations on each.
PipeSchedule zeroBubble(int stages, int, int64_t microbatches) {
  PipeSchedule schedule = empty(stages, 1, microbatches);
  for (int i = 0; i < stages; ++i) {
    Stage stage(schedule, i);
    for (int k = 0; k < stages - i; ++k) stage.add(Work::Forward, i);
    for (int64_t k = 0; k < microbatches + i; ++k) {
      stage.add(Work::InputGradient, i);
      if (k >= i) stage.add(Work::WeightGradient, i);
      stage.add(Work::Forward, i);
    }
  }
  return schedule;
}

// ZB-V's order for as many microbatches as it takes to fill it: 2 * stages - 1.
PipeSchedule steadyV(PipeSchedule schedule) {
  int stages = schedule.stages;
  int64_t total = std::max<int64_t>(schedule.microbatches, 2 * stages - 1);
  for (int i = 0; i < stages; ++i) {
    Stage stage(schedule, i);
    int down = i, up = 2 * stages - 1 - i;  // the stage's chunks
    auto forward = [&](int chunk) { stage.add(Work::Forward, chunk); };
    auto inputs = [&](int chunk) { stage.add(Work::InputGradient, chunk); };
    auto weights = [&](int chunk) { stage.add(Work::WeightGradient, chunk); };
    auto backward = [&](int chunk) { inputs(chunk), weights(chunk); };
    for (int k = 0; k < 2 * (stages - i) - 1; ++k) forward(down);
    for (int k = 0; k < i; ++k) forward(up), forward(down);
    for (int k = 0; k < stages - i; ++k) forward(up), backward(up);
    while (stage.done(Work::Forward, up) < total) {
      if (stage.done(Work::Forward, down) < total) forward(down);
      backward(down);
      forward(up);
      backward(up);
    }
    // The last weight gradients wait until nothing else is left.
    for (int k = 0; k < i; ++k) inputs(down), inputs(up);
    for (int k = 0; k < stages - i; ++k) backward(down);
    for (int chunk : {up, down})
      while (stage.done(Work::WeightGradient, chunk) < total) weights(chunk);
  }
  return schedule;
}

// Too few microbatches to fill the V, nor can they fill a stage's memory: at each unit of time a stage
// does the task that is furthest on of those that are ready, weight gradients last.
PipeSchedule greedyV(PipeSchedule schedule) {
  int stages = schedule.stages, chunks = schedule.chunks();
  int64_t microbatches = schedule.microbatches;
  // What is done of each chunk's before this unit, and with it; microbatches come in order.
  std::vector<int64_t> forwards(chunks), inputs(chunks), weights(chunks);
  int64_t left = 3 * chunks * microbatches;
  while (left > 0) {
    std::vector<int64_t> f = forwards, b = inputs;
    for (int stage = 0; stage < stages; ++stage) {
      int down = stage, up = chunks - 1 - stage;
      auto has = [&](Work work, int chunk) {
        if (work == Work::Forward) return f[chunk] < (chunk == 0 ? microbatches : f[chunk - 1]);
        if (work == Work::InputGradient)
          return b[chunk] < (chunk + 1 == chunks ? f[chunk] : std::min(f[chunk], b[chunk + 1]));
        return weights[chunk] < b[chunk];
      };
      auto does = [&](Work work, int chunk) {
        if (!has(work, chunk)) return false;
        std::vector<int64_t>& done = work == Work::Forward         ? forwards
                                     : work == Work::InputGradient ? inputs
                                                                   : weights;
        schedule.tasks[stage].push_back({work, chunk, done[chunk]++});
        --left;
        return true;
      };
      (void)(does(Work::InputGradient, down) || does(Work::InputGradient, up) ||
             does(Work::Forward, up) || does(Work::Forward, down) ||
             does(Work::WeightGradient, down) || does(Work::WeightGradient, up));
    }
  }
  return schedule;
}

PipeSchedule zeroBubbleV(int stages, int, int64_t microbatches) {
  PipeSchedule schedule = empty(stages, 2, microbatches);
  for (int chunk = stages; chunk < 2 * stages; ++chunk)
    schedule.stageOf[chunk] = 2 * stages - 1 - chunk;
  return microbatches > stages ? steadyV(std::move(schedule)) : greedyV(std::move(schedule));
}

// ---- Theory

using Idle = std::optional<double>;

Idle fillAndDrain(int stages, int, int64_t, Costs c) {
  return (stages - 1) * (c.forward + c.inputGradient + c.weightGradient);
}

Idle interleavedIdle(int stages, int chunks, int64_t microbatches, Costs c) {
  if (microbatches % stages != 0) return std::nullopt;
  return *fillAndDrain(stages, chunks, microbatches, c) / chunks;
}

// Weight gradients fill gaps that are no shorter than they are.
Idle zeroBubbleIdle(int stages, int, int64_t microbatches, Costs c) {
  if (microbatches < stages || c.weightGradient > std::min(c.forward, c.inputGradient))
    return std::nullopt;
  return (stages - 1) * (c.forward + c.inputGradient - c.weightGradient);
}

// The last stage waits for its first microbatch, and so do the others at one time or another.
Idle zeroBubbleVIdle(int stages, int chunks, int64_t microbatches, Costs c) {
  if (microbatches < 2 * stages - 1 || c.forward != c.inputGradient ||
      c.forward != c.weightGradient)
    return std::nullopt;
  return (stages - 1) * c.forward / chunks;
}

struct Rule {
  llvm::StringLiteral name;
  int leastChunks, mostChunks;  // on each stage
  PipeSchedule (*make)(int stages, int chunks, int64_t microbatches);
  Idle (*idle)(int stages, int chunks, int64_t microbatches, Costs costs);
};
constexpr Rule kRules[] = {
    {"gpipe", 1, 1, gpipe, fillAndDrain},
    {"one_f_one_b", 1, 1, oneForwardOneBackward, fillAndDrain},
    {"interleaved", 2, int(kMaxTasks), interleaved, interleavedIdle},
    {"zero_bubble", 1, 1, zeroBubble, zeroBubbleIdle},
    {"zero_bubble_v", 2, 2, zeroBubbleV, zeroBubbleVIdle},
};

const Rule* findRule(llvm::StringRef name) {
  const Rule* rule = llvm::find_if(kRules, [&](const Rule& r) { return r.name == name; });
  return rule == std::end(kRules) ? nullptr : rule;
}

}  // namespace

llvm::ArrayRef<llvm::StringRef> scheduleNames() {
  static const std::vector<llvm::StringRef> names = [] {
    std::vector<llvm::StringRef> list;
    for (const Rule& rule : kRules) list.push_back(rule.name);
    return list;
  }();
  return names;
}

llvm::Expected<PipeSchedule> makeSchedule(llvm::StringRef name, int stages, int chunks,
                                          int64_t microbatches) {
  const Rule* rule = findRule(name);
  if (rule == nullptr) return broken("there is no schedule '" + name + "'");
  if (stages < 1 || microbatches < 1)
    return broken(name + " needs at least 1 stage and 1 microbatch");
  if (chunks < rule->leastChunks || chunks > rule->mostChunks)
    return broken(name + " needs " + (rule->leastChunks == rule->mostChunks ? "" : "at least ") +
                  llvm::Twine(rule->leastChunks) + (rule->leastChunks == 1 ? " chunk" : " chunks") +
                  " on each stage, not " + llvm::Twine(chunks));
  // Rules work through a group of `stages` microbatches even where fewer are left.
  int64_t tasks = saturatingMul(3, saturatingMul(stages, chunks));
  if (saturatingMul(tasks, std::max<int64_t>(stages, microbatches)) > kMaxTasks)
    return broken(name + " with " + llvm::Twine(stages) + " stages, " + llvm::Twine(chunks) +
                  (chunks == 1 ? " chunk" : " chunks") + " on each and " +
                  llvm::Twine(microbatches) +
                  (microbatches == 1 ? " microbatch" : " microbatches") + " takes more than " +
                  llvm::Twine(kMaxTasks) + " tasks to plan");
  PipeSchedule schedule = rule->make(stages, chunks, microbatches);
  if (llvm::Error error = checkSchedule(schedule)) return error;
  return schedule;
}

std::optional<double> idleByTheory(llvm::StringRef name, int stages, int chunks,
                                   int64_t microbatches, const WorkCosts& stage) {
  const Rule* rule = findRule(name);
  return rule ? rule->idle(stages, chunks, microbatches, stage) : std::nullopt;
}

}  // namespace planc
