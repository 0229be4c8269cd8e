// Schedules of pipelines: figures from the literature and from cases that users reported, the shortest
// orders there are where few enough exist to try them all, and wrong orders with their errors.
#include "ir/schedule.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "gtest/gtest.h"

namespace planc {
namespace {

constexpr WorkCosts kUnits;                 // backward is twice the forward
constexpr WorkCosts kHalves = {1, .5, .5};  // backward takes as long as the forward

PipeSchedule make(llvm::StringRef name, int stages, int64_t microbatches, int chunks = 1) {
  if (name == "zero_bubble_v") chunks = 2;
  llvm::Expected<PipeSchedule> schedule = makeSchedule(name, stages, chunks, microbatches);
  if (schedule) return *schedule;
  ADD_FAILURE() << llvm::toString(schedule.takeError());
  return {stages, microbatches, {0}, std::vector<std::vector<Task>>(stages)};
}

std::string errorOf(llvm::Error error) { return llvm::toString(std::move(error)); }

std::string errorOf(llvm::Expected<PipeSchedule> schedule) {
  return schedule ? "" : llvm::toString(schedule.takeError());
}

void says(const std::string& text, llvm::StringRef what) {
  EXPECT_TRUE(llvm::StringRef(text).contains(what)) << text << "\n  lacks: " << what.str();
}

using Flights = std::vector<int64_t>;

int64_t mostInFlight(const PipeSchedule& schedule) {
  Flights flights = activationsInFlight(schedule);
  return *std::max_element(flights.begin(), flights.end());
}

int64_t forwardsAhead(const std::vector<Task>& tasks) {
  int64_t ahead = 0;
  while (tasks[ahead].work == Work::Forward) ++ahead;
  return ahead;
}

// Calls f(stages, microbatches) for all small numbers of both.
template <class F>
void sweep(F&& f) {
  for (int stages = 1; stages <= 8; ++stages)
    for (int64_t microbatches = 1; microbatches <= 20; ++microbatches) {
      SCOPED_TRACE(std::to_string(stages) + " stages, " + std::to_string(microbatches));
      f(stages, microbatches);
    }
}

TEST(Schedule, FillAndDrainIdleAsTheorySays) {
  sweep([](int p, int64_t m) {
    for (llvm::StringRef name : {"gpipe", "one_f_one_b"}) {
      PipeSchedule schedule = make(name, p, m);
      Timeline time = timelineOf(schedule, kUnits);
      EXPECT_NEAR(time.bubble(), double(p - 1) / double(m + p - 1), 1e-12);
      EXPECT_DOUBLE_EQ(time.idle(p - 1), *idleByTheory(name, p, 1, m, kUnits));
      for (int stage = 0; stage < p; ++stage)
        EXPECT_EQ(activationsInFlight(schedule)[stage],
                  name == "gpipe" ? m : std::min<int64_t>(m, p - stage));
    }
  });
}

// Case C36: the share that stands idle, and when each stage begins.
TEST(Schedule, BubbleOfEightMicrobatchesOnFourStages) {
  EXPECT_DOUBLE_EQ(timelineOf(make("gpipe", 4, 8), kUnits).bubble(), 3. / 11);
  EXPECT_DOUBLE_EQ(timelineOf(make("one_f_one_b", 4, 8), kUnits).bubble(), 3. / 11);
  EXPECT_DOUBLE_EQ(timelineOf(make("interleaved", 4, 8, 2), kUnits).bubble(), 3. / 19);
  for (llvm::StringRef name : scheduleNames()) {
    Timeline time = timelineOf(make(name, 4, 8, name == "interleaved" ? 2 : 1), kUnits);
    for (int stage = 0; stage < 4; ++stage) EXPECT_EQ(time.starts[stage][0], stage) << name.str();
  }
}

// Case C11.
TEST(Schedule, FewerMicrobatchesThanStages) {
  for (llvm::StringRef name : {"gpipe", "one_f_one_b"}) {
    PipeSchedule schedule = make(name, 4, 2);
    Timeline time = timelineOf(schedule, kHalves);
    EXPECT_EQ(time.length, 10);
    EXPECT_DOUBLE_EQ(time.bubble(), .6);
  }
  PipeSchedule schedule = make("one_f_one_b", 4, 2);
  EXPECT_EQ(activationsInFlight(schedule), (Flights{2, 2, 2, 1}));
  // The forwards before a stage's first by turns: without the one that its backward follows.
  std::vector<int64_t> ahead;
  for (int stage = 0; stage < 4; ++stage)
    ahead.push_back(std::min<int64_t>(2, forwardsAhead(schedule.tasks[stage]) - (stage >= 2)));
  EXPECT_EQ(ahead, (Flights{2, 2, 1, 0}));
  for (int64_t m = 1; m <= 3; ++m)
    for (llvm::StringRef name : scheduleNames()) make(name, 4, m, name == "interleaved" ? 2 : 1);
}

// Case C20.
TEST(Schedule, ActivationsInFlight) {
  EXPECT_EQ(activationsInFlight(make("one_f_one_b", 4, 8)), (Flights{4, 3, 2, 1}));
  EXPECT_EQ(activationsInFlight(make("one_f_one_b", 4, 2)), (Flights{2, 2, 2, 1}));
  EXPECT_EQ(activationsInFlight(make("one_f_one_b", 4, 1)), (Flights{1, 1, 1, 1}));
  EXPECT_EQ(activationsInFlight(make("gpipe", 4, 8)), Flights(4, 8));
  EXPECT_EQ(activationsInFlight(make("interleaved", 4, 8, 2)), (Flights{11, 9, 7, 5}));
}

TEST(Schedule, InterleavedTakesAnyMicrobatches) {
  sweep([](int p, int64_t m) {
    for (int v = 2; v <= 4; ++v) {
      PipeSchedule schedule = make("interleaved", p, m, v);
      Timeline time = timelineOf(schedule, kUnits);
      for (int stage = 0; stage < p; ++stage) {
        int64_t ahead = (p - stage - 1) * 2 + (v - 1) * p;
        EXPECT_LE(activationsInFlight(schedule)[stage], std::min(m * v, ahead + 1));
        if (m % p == 0) {
          EXPECT_EQ(forwardsAhead(schedule.tasks[stage]), std::min(m * v, ahead + 1));
        }
      }
      // A whole stage costs v times a chunk.
      WorkCosts whole{1. * v, 1. * v, 1. * v};
      std::optional<double> idle = idleByTheory("interleaved", p, v, m, whole);
      EXPECT_EQ(idle.has_value(), m % p == 0);
      EXPECT_DOUBLE_EQ(time.idle(0), idle.value_or(time.idle(0)));
      // A last group that is not full gains less, but nothing is lost against 1F1B.
      EXPECT_LE(time.idle(0), (p - 1) * 3 * v);
    }
  });
}

// The last stage's gradient comes back after all forwards and backwards; if that is not what counts,
// idle time is: nothing shorter exists.
TEST(Schedule, ZeroBubbleIsAsShortAsCanBeInTheMemoryOf1F1B) {
  sweep([](int p, int64_t m) {
    PipeSchedule schedule = make("zero_bubble", p, m);
    EXPECT_EQ(timelineOf(schedule, kUnits).length,
              std::max<int64_t>(3 * m + p - 1, 2 * (p - 1) + 2 * m + 1));
    EXPECT_LE(mostInFlight(schedule), std::min<int64_t>(p, m));
    for (WorkCosts costs : {kUnits, WorkCosts{2, 2, 1}, WorkCosts{4, 5, 4}, WorkCosts{1, 3, .5}}) {
      std::optional<double> idle = idleByTheory("zero_bubble", p, 1, m, costs);
      EXPECT_EQ(idle.has_value(), m >= p);
      for (int stage = 0; idle && stage < p; ++stage)
        EXPECT_NEAR(timelineOf(schedule, costs).idle(stage), *idle, 1e-9);
    }
  });
  EXPECT_EQ(idleByTheory("zero_bubble", 4, 1, 8, {1, 1, 2}), std::nullopt);
}

TEST(Schedule, ZeroBubbleVHalvesTheBubble) {
  sweep([](int p, int64_t m) {
    PipeSchedule schedule = make("zero_bubble_v", p, m);
    Timeline time = timelineOf(schedule, kUnits);
    EXPECT_LE(mostInFlight(schedule), 2 * std::min<int64_t>(p, m));
    // Below, the last stage's wait and all its tasks; or a microbatch's way, and a weight gradient.
    int64_t least = std::max<int64_t>(6 * m + p - 1, 4 * p + 1);
    EXPECT_GE(time.length, least);
    EXPECT_LE(time.length, m >= 2 * p - 1 ? double(least) : double(least) * 1.2);
    std::optional<double> idle = idleByTheory("zero_bubble_v", p, 2, m, {2, 2, 2});
    EXPECT_EQ(idle.has_value(), m >= 2 * p - 1);
    EXPECT_EQ(time.idle(p - 1), idle.value_or(time.idle(p - 1)));
  });
  Timeline v = timelineOf(make("zero_bubble_v", 4, 8), WorkCosts{.5, .5, .5});
  Timeline h1 = timelineOf(make("zero_bubble", 4, 8), kUnits);
  for (int stage = 0; stage < 4; ++stage) EXPECT_LE(v.idle(stage), h1.idle(stage) / 2);
  EXPECT_EQ(idleByTheory("zero_bubble_v", 4, 2, 8, {1, 2, 1}), std::nullopt);
}

// Case C19.
TEST(Schedule, StagesOfTheV) {
  EXPECT_EQ(make("zero_bubble_v", 4, 8).stageOf, (std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0}));
  EXPECT_EQ(make("interleaved", 4, 8, 2).stageOf, (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
}

// The shortest time in which all orders of unit tasks get through, every task of every stage tried at
// every moment. A stage that could work never waits: to do a task sooner harms none.
int shortest(const std::vector<int>& stageOf, int stages, int microbatches) {
  int chunks = int(stageOf.size()), steps = 2 * chunks;
  // How far each microbatch has come (forwards, then input gradients), then whether each of its weight
  // gradients is done, by chunk.
  using State = std::string;
  auto weight = [&](int k, int chunk) { return microbatches + k * chunks + chunk; };
  auto stageAt = [&](int step) { return stageOf[step < chunks ? step : steps - 1 - step]; };
  std::set<State> now = {State(microbatches * (1 + chunks), 0)};
  State last(microbatches * (1 + chunks), 1);
  std::fill_n(last.begin(), microbatches, steps);
  for (int time = 0;; ++time) {
    if (now.count(last)) return time;
    std::set<State> next;
    for (const State& from : now) {
      std::set<State> partly = {from};
      for (int stage = 0; stage < stages; ++stage) {
        std::set<State> with;
        auto doOne = [&](const State& state, int index) {
          State done = state;
          ++done[index];
          with.insert(done);
        };
        for (const State& state : partly) {
          bool any = false;
          for (int k = 0; k < microbatches; ++k) {
            // Microbatches are alike: they begin in order.
            bool mayBegin = k == 0 || from[k] > 0 || from[k - 1] > 0;
            if (from[k] < steps && stageAt(from[k]) == stage && mayBegin)
              doOne(state, k), any = true;
            for (int chunk = 0; chunk < chunks; ++chunk)
              if (stageOf[chunk] == stage && from[k] > steps - 1 - chunk && !from[weight(k, chunk)])
                doOne(state, weight(k, chunk)), any = true;
          }
          if (!any) with.insert(state);
        }
        partly = std::move(with);
      }
      next.insert(partly.begin(), partly.end());
    }
    now = std::move(next);
  }
}

TEST(Schedule, NoOrderIsShorter) {
  for (auto [p, m] :
       {std::pair(1, 2), {2, 1}, {2, 2}, {2, 3}, {3, 1}, {3, 2}, {3, 3}, {4, 1}, {4, 2}}) {
    SCOPED_TRACE(std::to_string(p) + " stages, " + std::to_string(m));
    for (llvm::StringRef name : {"zero_bubble", "zero_bubble_v"}) {
      if (name == "zero_bubble_v" && p * m > 8) continue;  // too many orders
      PipeSchedule schedule = make(name, p, m);
      EXPECT_EQ(timelineOf(schedule, kUnits).length, shortest(schedule.stageOf, p, m))
          << name.str();
    }
  }
}

// Gradients add up in the order of microbatches, whatever the schedule.
TEST(Schedule, EachChunksMicrobatchesComeInOrder) {
  sweep([](int p, int64_t m) {
    for (llvm::StringRef name : scheduleNames())
      for (const std::vector<Task>& tasks : make(name, p, m, name == "interleaved" ? 3 : 1).tasks) {
        std::map<std::pair<Work, int>, int64_t> next;
        for (const Task& task : tasks)
          ASSERT_EQ(task.microbatch, (next[{task.work, task.chunk}]++)) << name.str();
      }
  });
}

TEST(Schedule, WhatMakeScheduleRefuses) {
  EXPECT_EQ(errorOf(makeSchedule("none", 4, 1, 8)), "there is no schedule 'none'");
  EXPECT_EQ(errorOf(makeSchedule("gpipe", 4, 2, 8)), "gpipe needs 1 chunk on each stage, not 2");
  EXPECT_EQ(errorOf(makeSchedule("interleaved", 4, 1, 8)),
            "interleaved needs at least 2 chunks on each stage, not 1");
  EXPECT_EQ(errorOf(makeSchedule("gpipe", 4, 1, 0)),
            "gpipe needs at least 1 stage and 1 microbatch");
  says(errorOf(makeSchedule("interleaved", 64, 4, 1 << 20)), "more than 16777216 tasks");
  says(errorOf(makeSchedule("gpipe", 1 << 30, 1, int64_t{1} << 62)), "tasks");
}

// ---- Wrong orders

// 1F1B of two stages and two microbatches:  F0 F1 B0 B1  /  F0 B0 F1 B1
PipeSchedule small() { return make("one_f_one_b", 2, 2); }

TEST(ScheduleMutants, MissingTask) {
  PipeSchedule schedule = small();
  schedule.tasks[1].pop_back();
  EXPECT_EQ(errorOf(checkSchedule(schedule)), "stage 1 lacks 'B1'");
}

TEST(ScheduleMutants, TaskTwice) {
  PipeSchedule schedule = small();
  schedule.tasks[0].push_back({Work::Forward, 0, 1});
  EXPECT_EQ(errorOf(checkSchedule(schedule)), "stage 0: 'F1': it stands there twice");
}

TEST(ScheduleMutants, TaskOnAnotherStage) {
  PipeSchedule schedule = make("interleaved", 2, 2, 2);
  std::swap(schedule.tasks[0][1], schedule.tasks[1][1]);
  EXPECT_EQ(errorOf(checkSchedule(schedule)), "stage 0: 'F1.1': chunk 1 is on stage 1");
}

TEST(ScheduleMutants, OutOfRange) {
  PipeSchedule schedule = small();
  schedule.tasks[0][0].microbatch = 2;
  EXPECT_EQ(errorOf(checkSchedule(schedule)),
            "stage 0: 'F2': microbatches are counted from 0 to 1");
  schedule = small();
  schedule.tasks[0][0].chunk = 2;
  says(errorOf(checkSchedule(schedule)), "chunk 2 is none");
  schedule = small();
  schedule.stageOf[1] = 2;
  says(errorOf(checkSchedule(schedule)), "at least one stage");
  schedule = small();
  schedule.microbatches = int64_t{1} << 40;
  says(errorOf(checkSchedule(schedule)), "more than 16777216 tasks");
}

TEST(ScheduleMutants, BackwardBothWays) {
  PipeSchedule schedule = small();
  schedule.tasks[0][2].work = Work::InputGradient;
  says(errorOf(checkSchedule(schedule)), "stage 0: 'B1': a schedule has both");
  schedule.tasks[0][2].work = Work::WeightGradient;
  says(errorOf(checkSchedule(schedule)), "stage 0: 'W0': a schedule has both");
}

TEST(ScheduleMutants, BeforeItsOwnForward) {
  PipeSchedule schedule = small();
  std::swap(schedule.tasks[1][0], schedule.tasks[1][1]);
  EXPECT_EQ(
      errorOf(checkSchedule(schedule)),
      "no stage can go on: stage 1 stands at 'B0' and waits for 'F0', which comes later there");
}

TEST(ScheduleMutants, WeightGradientBeforeTheInputs) {
  PipeSchedule schedule = make("zero_bubble", 2, 2);
  auto& tasks = schedule.tasks[0];  // F0 F1 I0 W0 I1 W1
  std::swap(tasks[2], tasks[3]);
  says(errorOf(checkSchedule(schedule)),
       "stage 0 stands at 'W0' and waits for 'I0', which comes later there");
}

TEST(ScheduleMutants, StagesWaitForEachOther) {
  PipeSchedule schedule = small();
  // Stage 0 wants a gradient before it has sent what stage 1 does first.
  schedule.tasks[0] = {
      {Work::Forward, 0, 0}, {Work::Backward, 0, 0}, {Work::Forward, 0, 1}, {Work::Backward, 0, 1}};
  schedule.tasks[1] = {
      {Work::Forward, 1, 1}, {Work::Backward, 1, 1}, {Work::Forward, 1, 0}, {Work::Backward, 1, 0}};
  EXPECT_EQ(errorOf(checkSchedule(schedule)),
            "no stage can go on: stage 0 stands at 'B0' and waits for 'B0' of stage 1; "
            "stage 1 stands at 'F1' and waits for 'F1' of stage 0");
}

// Any two neighbours that a task of the same microbatch binds must be refused when swapped, and
// nothing else: what checkSchedule lets through is what the timeline can replay.
TEST(ScheduleMutants, EverySwapIsJudgedByItsReplay) {
  for (llvm::StringRef name : scheduleNames()) {
    PipeSchedule schedule = make(name, 3, 4, name == "interleaved" ? 2 : 1);
    int refused = 0;
    for (auto& tasks : schedule.tasks)
      for (size_t i = 0; i < tasks.size(); ++i)
        for (size_t j = i + 1; j < tasks.size(); ++j) {
          std::swap(tasks[i], tasks[j]);
          size_t done = 0, all = 0;
          for (auto& starts : timelineOf(schedule, kUnits).starts) done += starts.size();
          for (auto& list : schedule.tasks) all += list.size();
          bool isGood = errorOf(checkSchedule(schedule)).empty();
          EXPECT_EQ(isGood, done == all);
          refused += !isGood;
          std::swap(tasks[i], tasks[j]);
        }
    EXPECT_GT(refused, 0) << name.str();
  }
}

// ---- Text

TEST(ScheduleText, ReadsWhatItPrints) {
  for (llvm::StringRef name : scheduleNames()) {
    int chunks = name == "interleaved" ? 3 : name == "zero_bubble_v" ? 2 : 1;
    PipeSchedule schedule = make(name, 3, 4, chunks);
    std::string text = printSchedule(schedule);
    for (int given : {chunks, 0}) {
      llvm::Expected<PipeSchedule> read = parseSchedule(text, 3, given, 4);
      ASSERT_TRUE(bool(read)) << errorOf(read.takeError());
      EXPECT_EQ(read->tasks, schedule.tasks);
      EXPECT_EQ(read->stageOf, schedule.stageOf);
    }
  }
}

TEST(ScheduleText, CommentsAndPlacement) {
  auto read = parseSchedule("# backwards\n\nF0.1 B0.1  # the end first\r\n\tF0.0 B0.0\n", 2, 1, 1);
  ASSERT_TRUE(bool(read)) << errorOf(read.takeError());
  EXPECT_EQ(read->stageOf, (std::vector<int>{1, 0}));
  EXPECT_EQ(printSchedule(*read), "F0.1 B0.1\nF0.0 B0.0\n");
}

TEST(ScheduleText, Errors) {
  auto error = [](llvm::StringRef text, int chunks = 1) {
    return errorOf(parseSchedule(text, 2, chunks, 1));
  };
  EXPECT_EQ(error("F0 B0"), "it has 1 line of tasks, and there are 2 stages");
  for (llvm::StringRef word : {"X0", "F", "F-1", "F0.", "F0.x", "F0,1", "F99999999999", "f0"})
    says(error(("F0 B0\n\n" + word).str()),
         ("line 3: '" + word + "': a task is F, B, I or W").str());
  EXPECT_EQ(error("F0.0 B0.0\nF0 B0", 2), "line 2: 'F0': it lacks its chunk; each stage holds 2");
  EXPECT_EQ(error("F0.0 B0.0\nF0.0"),
            "line 2: 'F0.0': chunk 0 is on line 1, and a chunk is on one stage");
  EXPECT_EQ(error("F0.0 B0.0\nF0.2 B0.2"),
            "no line has tasks of chunk 1, and line 2 has some of chunk 2");
  EXPECT_EQ(error("F0.0 F0.1\nF0.2", 0), "line 2 has tasks of 1 chunks, and each stage holds 2");
  EXPECT_EQ(error("#\nF0 B0\nF0"), "line 3 lacks 'B0'");
  EXPECT_EQ(
      error("F0 B0\nB0 F0"),
      "no stage can go on: line 2 stands at 'B0' and waits for 'F0', which comes later there");
}

// ---- Programs

TEST(SchedulePrograms, CallsAreTasks) {
  EXPECT_EQ(functionName(Work::WeightGradient, 3), "weight_gradient.3");
  EXPECT_EQ(taskOf({"weight_gradient.3", 2}), (Task{Work::WeightGradient, 3, 2}));
  EXPECT_EQ(taskOf({"forward", 0}), (Task{Work::Forward, 0, 0}));
  for (const Call& call : {Call{"begin"}, Call{"forward.x", 0}, Call{"forwards.1", 0},
                           Call{"forward.-1", 0}, Call{"send.x.0", 0, Phase::Start},
                           Call{"forward.0", 0, Phase::Start}, Call{"forward.0", -1}})
    EXPECT_EQ(taskOf(call), std::nullopt) << call.function;
}

TEST(SchedulePrograms, TogetherTheyGiveTheSchedule) {
  PipeSchedule schedule = make("zero_bubble_v", 3, 4);
  std::vector<Module> modules(3);
  std::vector<const Module*> list;
  for (int stage = 0; stage < 3; ++stage) {
    Module& module = modules[stage];
    module.pipeline.axis = "pipe";
    module.schedule.push_back({"begin"});
    for (const Task& task : schedule.tasks[stage]) {
      module.schedule.push_back({"receive.x.1", task.microbatch, Phase::Start});
      module.schedule.push_back({functionName(task.work, task.chunk), task.microbatch});
    }
    list.push_back(&module);
  }
  std::optional<PipeSchedule> read = scheduleOf(list);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->tasks, schedule.tasks);
  EXPECT_EQ(read->stageOf, schedule.stageOf);
  EXPECT_EQ(read->microbatches, 4);
  modules[1].schedule.pop_back();
  EXPECT_FALSE(scheduleOf(list));
  modules[1].schedule.push_back({"forward.1", INT64_MAX});
  EXPECT_FALSE(scheduleOf(list));
  modules[0].pipeline.axis = "";
  EXPECT_FALSE(scheduleOf(list));
}

TEST(Schedule, CostsOfEachChunk) {
  std::vector<WorkCosts> costs = {{1, 1, 1}, {4, 4, 4}};  // the second stage is the slow one
  Timeline time = timelineOf(make("one_f_one_b", 2, 4), costs);
  EXPECT_EQ(time.length, 1 + 4 * 12 + 2);
  EXPECT_EQ(time.busy, (std::vector<double>{12, 48}));
}

// A sweep over plans asks for thousands of schedules.
TEST(Schedule, IsFast) {
  auto begin = std::chrono::steady_clock::now();
  make("interleaved", 16, 128, 4);
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), .25);  // 2 ms where nothing else runs, more under sanitizers
}

// Only what goes to another stage takes time in between: in a V the chunks 1 and 2 are neighbours.
TEST(Schedule, MessagesTakeTime) {
  WorkCosts costs{1, 2, 0, 0.5, 0.25};
  auto length = [&](const char* text, int chunks) {
    auto schedule = parseSchedule(text, 2, chunks, 1);
    EXPECT_TRUE(bool(schedule)) << llvm::toString(schedule.takeError());
    return schedule ? timelineOf(*schedule, costs).length : 0;
  };
  EXPECT_DOUBLE_EQ(length("F0 B0\nF0 B0\n", 1), 2 * (1 + 2) + 0.5 + 0.25);
  EXPECT_DOUBLE_EQ(length("F0.0 F0.3 B0.3 B0.0\nF0.1 F0.2 B0.2 B0.1\n", 2), 4 * (1 + 2) + 2 * (0.5 + 0.25));
}

}  // namespace
}  // namespace planc
