// What the stages of a compiled pipeline are, read from their programs: for `planc dump --schedule` and
// `planc explain`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/planx.h"
#include "ir/schedule.h"

namespace planc {

struct Stage {
  const Module* program;
  std::string layers;      // `layer 0-1, 6-7`; empty: it has none
  int64_t parameters = 0;  // on all ranks of the stage together, tied ones too
  int64_t inFlight = 0;    // chunk activations
  std::string largest = {};  // the largest value that a rank makes or saves, of one microbatch
  int64_t largestBytes = 0;
};

struct Stages {
  const Pipeline* pipeline;
  PipeSchedule schedule;
  std::vector<std::string> chunks;  // what each does: `table, layer 0-1`
  std::vector<Stage> list;
  int64_t parameters = 0;  // of the model: tied ones once

  Timeline timeline(const WorkCosts& chunk) const;
  // What theory says of a stage's idle time; nullopt: nothing.
  std::optional<double> idleByTheory(const WorkCosts& chunk) const;
  // Of a step's time, the share that so much idle time on each stage is.
  double shareOf(double idle, const WorkCosts& chunk) const;
  // `one_f_one_b over 'pipe': 4 stages, 8 microbatches`
  std::string title() const;
};

// nullopt: the plan has no pipeline, or its programs call what is no schedule.
std::optional<Stages> stagesOf(const Planx& planx);

// `--costs F,I,W`: what a chunk's forward, input gradient and weight gradient take.
std::optional<WorkCosts> readCosts(llvm::StringRef text);

// `27.3 %`, `3`, `0.5`.
std::string percent(double share);
std::string shortNumber(double value);

}  // namespace planc
