// How long a step takes at the least: products and attention at the device's rate for their elements,
// everything at the rate of its memory, messages at the least time of their wires (cost/wires.h), and what
// of them compute hides, by running each function of the program once on a clock (cost/clock.h). A figure
// that the cluster does not give bounds nothing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cost/wires.h"
#include "cost/work.h"
#include "ir/schedule.h"

namespace planc {

// Seconds of one run on a device, at the least: its operations over the rate of the widest type that it
// multiplies (f32 as f32, not tf32), its bytes over the memory's, whichever is more (Williams et al. 2009,
// "Roofline"). Of attention, on the rank that has the most pairs; of experts, with even shares. Zero for
// repeats and what goes between ranks.
double secondsOf(const Op& op, const Cluster& cluster);

// A function of a program, run once.
struct FunctionTime {
  double compute = 0;  // seconds
  double exposed = 0;  // seconds in which it waits for messages
};

// Of one role; all zero for a cluster that gives no rates.
struct RoleTime {
  std::map<std::string, FunctionTime> functions;
  double compute = 0, exposed = 0;  // of a step, without waiting for other stages
  // Of each talk, in the order of `talks`: its `hidden` is set.
};
// `talks`: the role's, of the same wires. What goes to another stage is hidden as far as calls compute
// between its start and its wait; a function of such messages alone is all `exposed` in `functions`.
RoleTime timeOf(const Module& role, Wires& wires, std::vector<Talk>& talks);

// A step of all stages.
struct StepTime {
  double seconds = 0;  // the longest stage's, idle time included
  // Of all stages' time in the timeline, the share in which they wait for each other: what messages between
  // stages hold up included.
  double bubble = 0;
  Timeline timeline;              // of the schedule's tasks, in seconds; empty without a pipeline
  std::vector<WorkCosts> chunks;  // seconds of each chunk's tasks, and to send what they make
};
// `roles` and `times`: of the stages in order; one without a pipeline. A stage's step is what it does
// before its first task, its part of the timeline, and what it does behind its last task.
StepTime stepTime(llvm::ArrayRef<const Module*> roles, llvm::ArrayRef<RoleTime> times);

}  // namespace planc
