// Tested by tests/unit/draw_test.cpp and tests/tools/schedule.test.
#include "tools/stages.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

namespace planc {
namespace {

using Range = std::pair<int64_t, int64_t>;  // the first and the last
using Layers = std::map<std::string, std::vector<Range>>;

// `layer 0-1, 6-7`: ranges behind each other are one.
std::string layersText(Layers layers) {
  std::vector<std::string> dims;
  for (auto& [dim, ranges] : layers) {
    llvm::sort(ranges);
    std::vector<Range> joined;
    for (Range range : ranges)
      if (!joined.empty() && joined.back().second + 1 == range.first)
        joined.back().second = range.second;
      else joined.push_back(range);
    std::vector<std::string> words;
    for (auto [first, last] : joined)
      words.push_back(std::to_string(first) + (last > first ? "-" + std::to_string(last) : ""));
    dims.push_back(dim + " " + llvm::join(words, ", "));
  }
  return llvm::join(dims, "; ");
}

// What stands outside of repeats by its weights, the iterations of repeats, the loss: in the order of a
// chunk's forward pass.
std::string describe(const Module& program, const Function& forward, Layers& layers) {
  std::vector<std::string> words;
  auto add = [&](std::string word) {
    if (!llvm::is_contained(words, word)) words.push_back(std::move(word));
  };
  for (const Op* op : forward.body->ops) {
    if (op->kind == OpKind::Repeat) {
      int64_t first = op->attrs.integer("first"), count = op->attrs.integer("count");
      Range range{first, first + count - 1};
      std::string dim = op->attrs.word("dim");
      layers[dim].push_back(range);
      add(layersText({{dim, {range}}}));
    }
    const Variable* var = op->var;
    if (var == nullptr) continue;
    if (var->kind == VarKind::Copy) var = program.findVar(var->of);
    if (var != nullptr && var->kind == VarKind::Weight && var->stack.empty())
      add(var->name + (var->tied ? " (tied)" : ""));
    if (op->var->name == "loss" || op->var->of == "loss") add("loss");
  }
  return llvm::join(words, ", ");
}

// The largest of what its tasks make; what they save under the variable's name.
void findLargest(Stage& stage) {
  auto consider = [&](const std::string& name, int64_t bytes) {
    if (bytes <= stage.largestBytes || name.empty()) return;
    stage.largest = name;
    stage.largestBytes = bytes;
  };
  for (const auto& var : stage.program->vars)
    if (var->kind == VarKind::Slot && var->stack.empty()) consider(var->name, var->type.bytes());
  for (const auto& function : stage.program->functions)
    if (taskOf({function->name, 0}))
      walk(*function->body, [&](const Op* op) {
        if (op->kind == OpKind::Read) return;
        for (const Value* result : op->results()) consider(result->name, result->type.bytes());
      });
}

}  // namespace

Timeline Stages::timeline(const WorkCosts& chunk) const { return timelineOf(schedule, chunk); }

std::optional<double> Stages::idleByTheory(const WorkCosts& chunk) const {
  int chunks = schedule.chunks() / schedule.stages;
  WorkCosts whole{chunk.forward * chunks, chunk.inputGradient * chunks,
                  chunk.weightGradient * chunks};
  if (!pipeline->order.empty()) return std::nullopt;
  return planc::idleByTheory(pipeline->schedule, schedule.stages, chunks, schedule.microbatches,
                             whole);
}

double Stages::shareOf(double idle, const WorkCosts& chunk) const {
  double chunks = double(schedule.chunks()) / schedule.stages;
  double busy = double(schedule.microbatches) * chunks *
                (chunk.forward + chunk.inputGradient + chunk.weightGradient);
  return busy + idle > 0 ? idle / (busy + idle) : 0;
}

std::string Stages::title() const {
  int64_t each = schedule.chunks() / schedule.stages;
  return pipeline->schedule + " over '" + pipeline->axis + "': " + std::to_string(schedule.stages) +
         " stages" + (each > 1 ? ", " + std::to_string(each) + " chunks on each" : "") + ", " +
         std::to_string(schedule.microbatches) +
         (schedule.microbatches == 1 ? " microbatch" : " microbatches");
}

std::optional<Stages> stagesOf(const Planx& planx) {
  const Pipeline& pipeline = planx.roles.front()->pipeline;
  Axes axes = planx.grid().find(pipeline.axis);
  if (pipeline.axis.empty() || axes.empty()) return std::nullopt;
  Stages stages{&pipeline, {}, {}, {}, 0};
  std::vector<const Module*> programs;
  for (int64_t rank : Coordinates(planx.grid(), 0).group(axes)) {
    programs.push_back(&planx.program(rank));
    stages.list.push_back({programs.back(), ""});
  }
  std::optional<PipeSchedule> schedule = scheduleOf(programs);
  if (!schedule) return std::nullopt;
  stages.schedule = std::move(*schedule);
  std::vector<int64_t> inFlight = activationsInFlight(stages.schedule);
  std::vector<Layers> layers(programs.size());
  for (int chunk = 0; chunk < stages.schedule.chunks(); ++chunk) {
    int stage = stages.schedule.stageOf[chunk];
    const Function* forward = programs[stage]->findFunction(functionName(Work::Forward, chunk));
    stages.chunks.push_back(forward ? describe(*programs[stage], *forward, layers[stage]) : "");
  }
  for (size_t stage = 0; stage < programs.size(); ++stage) {
    stages.list[stage].layers = layersText(layers[stage]);
    stages.list[stage].inFlight = inFlight[stage];
    findLargest(stages.list[stage]);
    for (const auto& var : programs[stage]->vars) {
      if (var->kind != VarKind::Weight) continue;
      int64_t count = var->type.whole().elements();
      stages.list[stage].parameters = saturatingAdd(stages.list[stage].parameters, count);
      if (!var->tied) stages.parameters = saturatingAdd(stages.parameters, count);
    }
  }
  return stages;
}

std::optional<WorkCosts> readCosts(llvm::StringRef text) {
  llvm::SmallVector<llvm::StringRef, 3> words;
  text.split(words, ',');
  double numbers[3];
  if (words.size() != 3) return std::nullopt;
  for (size_t i = 0; i < 3; ++i)
    if (words[i].getAsDouble(numbers[i]) || !(numbers[i] >= 0 && numbers[i] <= 1e6))
      return std::nullopt;
  WorkCosts costs{numbers[0], numbers[1], numbers[2]};
  if (costs.forward + costs.inputGradient + costs.weightGradient <= 0) return std::nullopt;
  return costs;
}

std::string percent(double share) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.1f %%", 100 * share);
  return text;
}

std::string shortNumber(double value) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.6g", value);
  return text;
}

}  // namespace planc
