// Checks a schedule and says what follows from it, by replaying it in linear time. Its text stands in
// schedule_text.cpp, the schedules in schedules.cpp. Tested by tests/unit/schedule_test.cpp.
#include "ir/schedule.h"

#include <algorithm>

#include "ir/broken.h"
#include "ir/schedule_checks.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {

llvm::StringRef name(Work work) {
  constexpr llvm::StringLiteral kNames[] = {"forward", "backward", "input_gradient",
                                            "weight_gradient"};
  return kNames[size_t(work)];
}

char letter(Work work) { return "FBIW"[size_t(work)]; }

std::string functionName(Work work, int chunk) {
  return (name(work) + "." + llvm::Twine(chunk)).str();
}

std::optional<Task> taskOf(const Call& call) {
  if (call.phase != Phase::Run || call.microbatch < 0) return std::nullopt;
  auto [function, number] = llvm::StringRef(call.function).split('.');
  Task task{Work::Forward, 0, call.microbatch};
  bool isWhole = function.size() == call.function.size();  // without a pipeline
  if (!isWhole && (number.getAsInteger(10, task.chunk) || task.chunk < 0)) return std::nullopt;
  for (Work work : {Work::Forward, Work::Backward, Work::InputGradient, Work::WeightGradient})
    if (function == name(work)) {
      task.work = work;
      return task;
    }
  return std::nullopt;
}

bool PipeSchedule::splitsBackward() const {
  return llvm::any_of(tasks, [](const std::vector<Task>& list) {
    return llvm::any_of(list, [](const Task& task) { return task.work == Work::InputGradient; });
  });
}

std::string PipeSchedule::text(const Task& task) const {
  std::string text = letter(task.work) + std::to_string(task.microbatch);
  for (int chunk = 0; chunk < chunks(); ++chunk)
    if (stageOf[chunk] != chunk) return text + "." + std::to_string(task.chunk);
  return text;
}

double WorkCosts::of(Work work) const {
  switch (work) {
    case Work::Forward:
      return forward;
    case Work::Backward:
      return inputGradient + weightGradient;
    case Work::InputGradient:
      return inputGradient;
    case Work::WeightGradient:
      return weightGradient;
  }
  return 0;
}

// ---- Replay

namespace {

// Runs every stage through its order. A stage that waits is tried again when the stage that it waits
// for gets on, so the time is linear in the number of tasks.
class Replay {
 public:
  std::vector<size_t> at;  // how many of its tasks each stage has done
  Timeline timeline;

  // The costs of each chunk, or one for all.
  Replay(const PipeSchedule& schedule, llvm::ArrayRef<WorkCosts> costs)
      : at(schedule.stages),
        schedule_(schedule),
        costs_(costs),
        back_(schedule.splitsBackward() ? Work::InputGradient : Work::Backward),
        forwards_(schedule.chunks() * schedule.microbatches, kNotYet),
        backwards_(forwards_) {
    timeline.starts.resize(schedule.stages);
    timeline.busy.resize(schedule.stages);
    std::vector<double> free(schedule.stages);
    std::vector<int> ready;
    for (int stage = schedule.stages - 1; stage >= 0; --stage) ready.push_back(stage);
    while (!ready.empty()) {
      int stage = ready.back();
      ready.pop_back();
      const std::vector<Task>& list = schedule.tasks[stage];
      for (; at[stage] < list.size() && !missing(list[at[stage]]); ++at[stage])
        if (int next = work(stage, list[at[stage]], free[stage]); next >= 0) ready.push_back(next);
    }
    for (double end : free) timeline.length = std::max(timeline.length, end);
  }

  // What a task needs and has not been done; nullopt: it can run.
  std::optional<Task> missing(const Task& task) const {
    auto [work, chunk, microbatch] = task;
    auto isDone = [&](const std::vector<double>& ends, int of) {
      return of < 0 || of >= schedule_.chunks() || ends[index(of, task.microbatch)] != kNotYet;
    };
    if (work == Work::WeightGradient) {
      if (!isDone(backwards_, chunk)) return Task{back_, chunk, microbatch};
      return std::nullopt;
    }
    bool isForward = work == Work::Forward;
    int before = isForward ? chunk - 1 : chunk;
    if (!isDone(forwards_, before)) return Task{Work::Forward, before, microbatch};
    if (!isForward && !isDone(backwards_, chunk + 1)) return Task{back_, chunk + 1, microbatch};
    return std::nullopt;
  }

 private:
  static constexpr double kNotYet = -1;

  size_t index(int chunk, int64_t microbatch) const {
    return size_t(chunk * schedule_.microbatches + microbatch);
  }

  // Does a task on a stage that is free from `free` on; gives the other stage that may have waited for
  // it, or -1.
  int work(int stage, const Task& task, double& free) {
    const WorkCosts& costs = costs_[costs_.size() > 1 ? task.chunk : 0];
    double cost = costs.of(task.work), begin = free;
    bool isForward = task.work == Work::Forward, isWeight = task.work == Work::WeightGradient;
    int before = task.chunk + (isForward ? -1 : 1), next = task.chunk + (isForward ? 1 : -1);
    auto isChunk = [&](int chunk) { return chunk >= 0 && chunk < schedule_.chunks(); };
    std::vector<double>& ends = isForward ? forwards_ : backwards_;
    if (!isWeight && isChunk(before)) begin = std::max(begin, ends[index(before, task.microbatch)]);
    timeline.starts[stage].push_back(begin);
    timeline.busy[stage] += cost;
    free = begin + cost;
    if (isWeight) return -1;
    bool isSent = isChunk(next) && schedule_.stageOf[next] != stage;
    double message = isForward ? costs.forwardMessage : costs.backwardMessage;
    ends[index(task.chunk, task.microbatch)] = free + (isSent ? message : 0);
    return isSent ? schedule_.stageOf[next] : -1;
  }

  const PipeSchedule& schedule_;
  llvm::ArrayRef<WorkCosts> costs_;
  Work back_;
  std::vector<double> forwards_, backwards_;  // when each has come to the next chunk's stage
};

// Each task once, on its chunk's stage.
llvm::Error checkTasks(const PipeSchedule& schedule, const StageNames& stageName) {
  int64_t microbatches = schedule.microbatches;
  bool split = schedule.splitsBackward();
  std::vector<uint8_t> seen(schedule.chunks() * microbatches);  // a bit for each Work
  auto bit = [](Work work) { return uint8_t(1u << unsigned(work)); };
  for (int stage = 0; stage < schedule.stages; ++stage)
    for (const Task& task : schedule.tasks[stage]) {
      auto wrong = [&](const llvm::Twine& what) {
        return broken(stageName(stage) + ": '" + schedule.text(task) + "': " + what);
      };
      if (task.microbatch < 0 || task.microbatch >= microbatches)
        return wrong("microbatches are counted from 0 to " + llvm::Twine(microbatches - 1));
      if (task.chunk < 0 || task.chunk >= schedule.chunks())
        return wrong("chunk " + llvm::Twine(task.chunk) + " is none; they are counted from 0 to " +
                     llvm::Twine(schedule.chunks() - 1));
      if (int owner = schedule.stageOf[task.chunk]; owner != stage)
        return wrong("chunk " + llvm::Twine(task.chunk) + " is on " + stageName(owner));
      bool isApart = task.work == Work::InputGradient || task.work == Work::WeightGradient;
      if (split ? task.work == Work::Backward : isApart)
        return wrong(
            "a schedule has both gradients at once (B) or apart (I, then W), not both ways");
      uint8_t& bits = seen[task.chunk * microbatches + task.microbatch];
      if (bits & bit(task.work)) return wrong("it stands there twice");
      bits |= bit(task.work);
    }
  std::vector<Work> all = {Work::Forward, Work::Backward};
  if (split) all = {Work::Forward, Work::InputGradient, Work::WeightGradient};
  for (int chunk = 0; chunk < schedule.chunks(); ++chunk)
    for (int64_t microbatch = 0; microbatch < microbatches; ++microbatch)
      for (Work work : all)
        if (!(seen[chunk * microbatches + microbatch] & bit(work)))
          return broken(stageName(schedule.stageOf[chunk]) + " lacks '" +
                        schedule.text({work, chunk, microbatch}) + "'");
  return llvm::Error::success();
}

// Who waits for whom, from the first stage that stands: only the stages that wait in a circle.
llvm::Error deadlock(const PipeSchedule& schedule, const Replay& replay,
                     const StageNames& stageName) {
  auto stands = [&](int stage) { return replay.at[stage] < schedule.tasks[stage].size(); };
  auto task = [&](int stage) { return schedule.tasks[stage][replay.at[stage]]; };
  int stage = 0;
  while (!stands(stage)) ++stage;
  std::vector<int> chain;
  while (!llvm::is_contained(chain, stage)) {
    chain.push_back(stage);
    stage = schedule.stageOf[replay.missing(task(stage))->chunk];
  }
  std::string text;
  for (auto at = llvm::find(chain, stage); at != chain.end(); ++at) {
    Task needed = *replay.missing(task(*at));
    int owner = schedule.stageOf[needed.chunk];
    text += (text.empty() ? "" : "; ") + stageName(*at) + " stands at '" +
            schedule.text(task(*at)) + "' and waits for '" + schedule.text(needed) + "'" +
            (owner == *at ? ", which comes later there" : " of " + stageName(owner));
  }
  return broken("no stage can go on: " + text);
}

}  // namespace

llvm::Error checkSchedule(const PipeSchedule& schedule, const StageNames& stageName) {
  bool hasStages = schedule.stages >= 1 && schedule.tasks.size() == size_t(schedule.stages);
  for (int stage : schedule.stageOf) hasStages &= stage >= 0 && stage < schedule.stages;
  if (!hasStages || schedule.stageOf.empty() || schedule.microbatches < 1)
    return broken(
        "a schedule has at least one stage, chunk and microbatch, and a list for each stage");
  if (schedule.microbatches > kMaxTasks / (2 * schedule.chunks()))
    return broken(llvm::Twine(schedule.chunks()) + " chunks and " +
                  llvm::Twine(schedule.microbatches) + " microbatches are more than " +
                  llvm::Twine(kMaxTasks) + " tasks");
  if (llvm::Error error = checkTasks(schedule, stageName)) return error;
  Replay replay(schedule, WorkCosts());
  for (int stage = 0; stage < schedule.stages; ++stage)
    if (replay.at[stage] < schedule.tasks[stage].size())
      return deadlock(schedule, replay, stageName);
  return llvm::Error::success();
}

llvm::Error checkSchedule(const PipeSchedule& schedule) {
  return checkSchedule(schedule, [](int stage) { return "stage " + std::to_string(stage); });
}

// ---- What follows

double Timeline::bubble() const {
  double sum = 0;
  for (double time : busy) sum += time;
  double all = length * double(busy.size());
  return all > 0 ? 1 - sum / all : 0;
}

Timeline timelineOf(const PipeSchedule& schedule, llvm::ArrayRef<WorkCosts> costs) {
  return std::move(Replay(schedule, costs).timeline);
}

std::vector<int64_t> activationsInFlight(const PipeSchedule& schedule) {
  std::vector<int64_t> most(schedule.stages);
  Work last = schedule.splitsBackward() ? Work::WeightGradient : Work::Backward;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    int64_t now = 0;
    for (const Task& task : schedule.tasks[stage]) {
      if (task.work == Work::Forward) most[stage] = std::max(most[stage], ++now);
      if (task.work == last) --now;
    }
  }
  return most;
}

std::optional<PipeSchedule> scheduleOf(llvm::ArrayRef<const Module*> stages) {
  if (stages.empty() || stages.front()->pipeline.axis.empty()) return std::nullopt;
  PipeSchedule schedule;
  schedule.stages = int(stages.size());
  schedule.tasks.resize(stages.size());
  for (size_t stage = 0; stage < stages.size(); ++stage)
    for (const Call& call : stages[stage]->schedule) {
      std::optional<Task> task = taskOf(call);
      if (!task) continue;
      if (task->microbatch >= kMaxTasks || task->chunk >= kMaxTasks) return std::nullopt;
      schedule.microbatches = std::max(schedule.microbatches, task->microbatch + 1);
      if (task->chunk >= schedule.chunks()) schedule.stageOf.resize(task->chunk + 1, -1);
      schedule.stageOf[task->chunk] = int(stage);
      schedule.tasks[stage].push_back(*task);
    }
  if (llvm::Error error = checkSchedule(schedule)) {
    llvm::consumeError(std::move(error));
    return std::nullopt;
  }
  return schedule;
}

}  // namespace planc
