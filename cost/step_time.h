// Work, and how long a step takes at the least: products and attention at the device's rate, everything
// at the rate of its memory, messages at the least time of their wires (cost/wires.h), and what of them
// compute hides, by running each function of the program once on a clock.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cost/wires.h"
#include "ir/schedule.h"

namespace planc {

// Of one rank in a step.
struct RankWork {
  double flops = 0;        // of products and attention, as executed, recomputation included
  double otherFlops = 0;   // of everything else
  double memoryBytes = 0;  // read and written by ops: operands and results, once each
  // Of `flops`, what is computed a second time for the backward pass.
  double again = 0;

  double intensity() const { return memoryBytes > 0 ? (flops + otherFlops) / memoryBytes : 0; }
};
RankWork workOf(const Module& role);

// What the model asks for in a step on all ranks together: three times the forward pass's products and
// attention (a causal mask halves the pairs), each gradient being as much as the pass itself.
double modelFlops(const Module& model);

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
RoleTime timeOf(const Module& role, Wires& wires, std::vector<Talk>& talks);

// A step of all stages.
struct StepTime {
  double seconds = 0;  // the longest stage's, idle time included
  double bubble = 0;   // of all stages' time, the share in which they wait for each other
  Timeline timeline;   // of the schedule's tasks, in seconds; empty without a pipeline
  std::vector<WorkCosts> chunks;  // seconds of each chunk's tasks
};
// `roles` and `times`: of the stages in order; one without a pipeline.
StepTime stepTime(llvm::ArrayRef<const Module*> roles, llvm::ArrayRef<RoleTime> times);

}  // namespace planc
