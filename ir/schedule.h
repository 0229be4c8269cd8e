// In which order the stages of a pipeline work: data, one generator a schedule, and what follows from
// it by replaying it: whether it can run at all, when each task runs, how much stands idle and how many
// activations wait. Nothing here knows of ranks or tensors.
//
// The model is cut into consecutive *chunks*; a stage holds one or more of them. A *task* is a chunk's
// work on one microbatch.
//
// Sources: GPipe (Huang et al. 2019, section 2.3); 1F1B (Narayanan et al. 2019, PipeDream, section 3.2);
// interleaving (Narayanan et al. 2021, section 2.2.2); zero bubble (Qi et al. 2024, sections 2 and 3)
// and its V-shaped placement (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/op.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

namespace planc {

// Backward is both gradients at once; schedules that split it run InputGradient, then WeightGradient.
enum class Work : uint8_t { Forward, Backward, InputGradient, WeightGradient };

struct Task {
  Work work = Work::Forward;
  int chunk = 0;  // in the model's order
  int64_t microbatch = 0;
  bool operator==(const Task&) const = default;
};

// What the functions of a stage's program are called: `forward.3` is chunk 3's; without a pipeline
// `forward` and `backward`. `F`, `B`, `I` and `W` in a schedule's text.
llvm::StringRef name(Work work);
char letter(Work work);
std::string functionName(Work work, int chunk);
// What a call of a program's schedule does; nullopt: no task (a message, the optimizer's step).
std::optional<Task> taskOf(const Call& call);

struct PipeSchedule {
  int stages = 1;
  int64_t microbatches = 1;
  std::vector<int> stageOf;              // of each chunk
  std::vector<std::vector<Task>> tasks;  // of each stage, in its order

  int chunks() const { return int(stageOf.size()); }
  bool splitsBackward() const;
  // As a schedule's text has it: `F3`, or `F3.1` where the stage does not say which chunk it is.
  std::string text(const Task& task) const;
};

// Of a whole schedule: more are an error, not a program that no memory holds.
inline constexpr int64_t kMaxTasks = int64_t{1} << 24;

// gpipe, one_f_one_b, interleaved, zero_bubble, zero_bubble_v.
llvm::ArrayRef<llvm::StringRef> scheduleNames();
// `chunks` is how many each stage holds. An error says what the schedule needs (so many microbatches).
llvm::Expected<PipeSchedule> makeSchedule(llvm::StringRef name, int stages, int chunks,
                                          int64_t microbatches);
// A user's schedule. A line a stage, in order, its tasks separated by blanks: a letter, the microbatch
// from 0 and, where a stage holds several chunks, `.` and the chunk: `F0 F1 B0 B1` or `F0.0 F0.3 I0.3 ...`.
// Empty lines and what follows `#` do not count. `chunks` 0: as many as the text has. Errors name the
// line and the task.
llvm::Expected<PipeSchedule> parseSchedule(llvm::StringRef text, int stages, int chunks,
                                           int64_t microbatches);
// In the form that parseSchedule reads.
std::string printSchedule(const PipeSchedule& schedule);

// Each task stands once, on its chunk's stage, every microbatch goes forward and back through every
// chunk, and the stages' orders can be met together. The error names the stages, tasks and what they
// wait for. What makeSchedule and parseSchedule give has been checked.
llvm::Error checkSchedule(const PipeSchedule& schedule);

// How long tasks take, in any unit. Backward counts as InputGradient plus WeightGradient.
struct WorkCosts {
  double forward = 1, inputGradient = 1, weightGradient = 1;
  // What the chunk's results need to another stage, forward and back.
  double forwardMessage = 0, backwardMessage = 0;
  double of(Work work) const;
};

// Each stage works through its order, a task as soon as what it needs is there.
struct Timeline {
  std::vector<std::vector<double>> starts;  // of each stage's tasks
  std::vector<double> busy;                 // of each stage
  double length = 0;                        // when the last task ends

  double idle(size_t stage) const { return length - busy[stage]; }
  // Of all stages' time, the share in which they stand idle.
  double bubble() const;
};
// The costs of each chunk, or one for all.
Timeline timelineOf(const PipeSchedule& schedule, llvm::ArrayRef<WorkCosts> costs);

// What theory says of a schedule's idle time on each stage in units of the costs of a whole stage (all
// its chunks); nullopt where no closed form holds (a user's order, microbatches or costs that don't fit).
std::optional<double> idleByTheory(llvm::StringRef name, int stages, int chunks,
                                   int64_t microbatches, const WorkCosts& stage);

// The most chunk activations that a stage holds at once: from a chunk's forward to the end of its
// backward, or of its weight gradient where that is apart.
std::vector<int64_t> activationsInFlight(const PipeSchedule& schedule);

// What the stage programs' schedules say together, from the programs of all stages in order; nullopt:
// they have no pipeline, or what they call is no schedule that runs.
std::optional<PipeSchedule> scheduleOf(llvm::ArrayRef<const Module*> stages);

}  // namespace planc
