// The pipeline, then what goes between ranks (tools/explain/ranks.h). Tested by tests/tools/explain.test and schedule.test.
#include "tools/explain/text.h"

#include <algorithm>

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"
#include "tools/draw_schedule.h"
#include "tools/explain/ranks.h"
#include "tools/stages.h"

namespace planc {
namespace {

std::string costsText(const PipeSchedule& schedule, const WorkCosts& costs) {
  std::string each = schedule.chunks() > schedule.stages ? " of a chunk" : "";
  if (schedule.splitsBackward())
    return llvm::formatv("F, I and W{0} take {1}, {2} and {3}", each, shortNumber(costs.forward),
                         shortNumber(costs.inputGradient), shortNumber(costs.weightGradient));
  return llvm::formatv("F and B{0} take {1} and {2}", each, shortNumber(costs.forward),
                       shortNumber(costs.of(Work::Backward)));
}

// Counted from the schedule, beside what theory says.
std::string idleText(const Stages& stages, const WorkCosts& costs) {
  Timeline timeline = stages.timeline(costs);
  std::string text = llvm::formatv("{0}: {1} of {2} on each stage", percent(timeline.bubble()),
                                   shortNumber(timeline.idle(0)), shortNumber(timeline.length));
  std::optional<double> theory = stages.idleByTheory(costs);
  if (!theory) return text + "; no closed form holds";
  return text + llvm::formatv("; by theory {0}: {1}", percent(stages.shareOf(*theory, costs)),
                              shortNumber(*theory))
                    .str();
}

}  // namespace

std::string columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line +=
          "  " + (i + 1 < row.size() ? std::string(widths[i] - row[i].size(), ' ') : "") + row[i];
    text += llvm::StringRef(line).rtrim().str() + '\n';
  }
  return text;
}

std::string showSchedule(const Stages& stages, const WorkCosts& costs) {
  const PipeSchedule& schedule = stages.schedule;
  std::string text = stages.title() + '\n';
  for (int chunk = 0; chunk < schedule.chunks(); ++chunk)
    text += llvm::formatv("  chunk {0} on stage {1}: {2}\n", chunk, schedule.stageOf[chunk],
                          stages.chunks[chunk].empty() ? "nothing" : stages.chunks[chunk])
                .str();
  text += "idle " + idleText(stages, costs) + '\n';
  text += "activations in flight on each stage:";
  for (const Stage& stage : stages.list) text += " " + std::to_string(stage.inFlight);
  text += "\n" + costsText(schedule, costs) + "\n\n";
  return text + drawText(schedule, stages.timeline(costs), costs);
}

std::string explainText(const Planx& planx, const WorkCosts& costs) {
  std::optional<Stages> stages = stagesOf(planx);
  std::vector<std::vector<std::string>> rows;
  if (!stages) {
    std::string text = "pipeline: none; every rank runs the whole model\n";
    text +=
        llvm::formatv("  arena of each rank: {0} bytes\n", planx.roles.front()->arenaBytes).str();
    return text + explainRanksText(planx);
  }
  std::string text = "pipeline: " + stages->title() + '\n';
  text += "  idle " + idleText(*stages, costs) + " (" + costsText(stages->schedule, costs) + ")\n";
  text += "  parameters " + std::to_string(stages->parameters) + "\n\n";
  rows.push_back(
      {"stage", "parameters", "in flight", "arena bytes", "largest value, bytes", "layers"});
  for (size_t i = 0; i < stages->list.size(); ++i) {
    const Stage& stage = stages->list[i];
    rows.push_back({std::to_string(i), std::to_string(stage.parameters),
                    std::to_string(stage.inFlight), std::to_string(stage.program->arenaBytes),
                    stage.largest + ", " + std::to_string(stage.largestBytes),
                    stage.layers.empty() ? "none" : stage.layers});
  }
  std::string ranks = explainRanksText(planx);
  return text + columns(rows) + (ranks.empty() ? "" : "\n") + ranks;
}

std::string explainJson(const Planx& planx, const WorkCosts& costs) {
  namespace json = llvm::json;
  json::Object root;
  if (std::optional<Stages> stages = stagesOf(planx)) {
    Timeline timeline = stages->timeline(costs);
    std::optional<double> theory = stages->idleByTheory(costs);
    const PipeSchedule& schedule = stages->schedule;
    json::Array list, chunks;
    for (const Stage& stage : stages->list)
      list.push_back(json::Object{{"layers", stage.layers},
                                  {"parameters", stage.parameters},
                                  {"activations_in_flight", stage.inFlight},
                                  {"arena_bytes", stage.program->arenaBytes},
                                  {"largest_value", stage.largest},
                                  {"largest_value_bytes", stage.largestBytes}});
    for (int chunk = 0; chunk < schedule.chunks(); ++chunk)
      chunks.push_back(
          json::Object{{"stage", schedule.stageOf[chunk]}, {"does", stages->chunks[chunk]}});
    json::Value share = nullptr;
    if (theory) share = stages->shareOf(*theory, costs);
    root["pipeline"] = json::Object{
        {"axis", stages->pipeline->axis},
        {"schedule", stages->pipeline->schedule},
        {"microbatches", schedule.microbatches},
        {"costs", json::Array{costs.forward, costs.inputGradient, costs.weightGradient}},
        {"idle_share", timeline.bubble()},
        {"idle_share_by_theory", std::move(share)},
        {"parameters", stages->parameters},
        {"chunks", std::move(chunks)},
        {"stages", std::move(list)}};
  } else {
    root["pipeline"] = nullptr;
    root["arena_bytes"] = planx.roles.front()->arenaBytes;
  }
  explainRanksJson(planx, root);
  std::string text;
  llvm::raw_string_ostream(text) << llvm::formatv("{0:2}\n", json::Value(std::move(root)));
  return text;
}

}  // namespace planc
