// All that `planc explain` says of a plan: figures from the emitted programs, gathered once; text.h, json.h
// and html.h print them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cost/imbalance.h"
#include "cost/memory.h"
#include "cost/placement.h"
#include "cost/step_time.h"
#include "cost/wires.h"
#include "tools/explain/ranks.h"
#include "tools/stages.h"

namespace planc {

// The ranks that run one program: a stage of the pipeline; without one, all.
struct StageBill {
  const Module* program = nullptr;
  std::string title;  // `pipe 3`; empty without a pipeline
  std::string layers;
  int64_t ranks = 0;       // so many run it
  int64_t parameters = 0;  // on all of them together, tied ones too
  int64_t inFlight = 1;    // chunk activations at once
  MemoryBill memory;
  std::vector<Talk> talks;
  RankWork work;
  RoleTime time;

  int64_t bytesSent() const;
  double wireSeconds() const;
};

// A plan otherwise than it stands.
struct Change {
  std::vector<std::string> statements;  // of the plan: `recompute layer`
  std::vector<std::string> arguments;   // of the command line: `--grid data=4,tensor=16`
  int64_t ranks = 1;
  int64_t arena = 0;   // of the fullest rank
  double flops = 0;    // in a step, of a rank of the stage that computes the most
  double seconds = 0;  // of a step; 0: the cluster gives no rates

  std::string text() const;  // all of it
};

// The next doubling of an axis, all else as it is.
struct Ceiling {
  std::string axis;
  int64_t ranks = 1, next = 2;
  std::string why;        // it is not legal: the compiler's own words; empty: it is
  int64_t arena = 0;      // of the fullest rank
  int64_t bytesSent = 0;  // in a step, of a rank of the stage that sends the most
  double flops = 0;       // in a step, of a rank of the stage that computes the most
  double bubble = 0;
  double seconds = 0;  // of a step; 0: the cluster gives no rates
  // More ranks than it has devices: figures are for one with more of its outermost units.
  bool isBeyondCluster = false;
};

struct Report {
  std::string plan;
  const Planx* planx = nullptr;
  WorkCosts costs;  // of a chunk's tasks, for the schedule's idle time in units
  std::optional<Stages> pipeline;
  std::vector<StageBill> stages;                // in the pipeline's order
  size_t fullest = 0;                           // the stage whose ranks have the largest arena
  int64_t parameters = 0;                       // of the model, tied ones once
  int64_t tokens = 0;                           // of a step, on all ranks
  double modelFlops = 0, flops = 0, again = 0;  // of a step, all ranks together; executed; twice
  StepTime time;
  std::optional<Placement> placement;
  std::vector<DividedAttention> attention;
  std::vector<SentRows> rows;
  std::vector<ExpertRows> experts;
  std::vector<Change> changes;    // that make it fit, the cheapest first; empty where it fits
  size_t tried = 0;               // so many, alone and together; of a compiled program none can be
  std::optional<Change> nearest;  // where none of those tried fits: the one with the smallest arena
  std::vector<Ceiling> ceilings;  // in the grid's order

  const Cluster& cluster() const { return planx->roles.front()->cluster; }
  const StageBill& fullestStage() const { return stages[fullest]; }
  // Whose ranks send the most bytes in a step.
  const StageBill& loudestStage() const;
  // Whether the fullest rank's arena fits a device; nullopt: the plan names no cluster, or it gives none.
  std::optional<bool> fits() const;
  // Operations/s of a device in the plan's precision; 0: the cluster gives none.
  double peakRate() const;
  // The plan's own figures, as ceilings have them.
  Ceiling asItIs() const;
};

// Axes of the grid that divide nothing: their ranks repeat each other's work.
Words idleAxes(const Report& report);

// Where no change makes it fit: what was tried, and the nearest.
std::string noneFits(const Report& report);

// Without changes and ceilings, which need the compiler (what_if.h). Keeps pointers into `planx`.
// `searches`: for the placement; false: there is none in the report, and axes lie as they are numbered.
Report reportOf(const Planx& planx, const WorkCosts& costs, bool searches = true);

}  // namespace planc
