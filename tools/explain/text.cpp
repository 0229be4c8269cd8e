// Section by section; a section that says nothing of this plan is left out. Tested by
// tests/tools/explain.test and schedule.test.
#include "tools/explain/text.h"

#include <algorithm>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "tools/draw_schedule.h"
#include "tools/explain/units.h"

namespace planc {
namespace {

using Rows = std::vector<std::vector<std::string>>;

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

// `16384 ranks (data 8, pipe 16, context 16, tensor 8)`
std::string gridText(const Grid& grid) {
  if (grid.axes.empty()) return "1 rank";
  std::vector<std::string> words;
  for (const GridAxis& axis : grid.axes)
    words.push_back(axis.name + " " + std::to_string(axis.size));
  return std::to_string(grid.ranks()) + " ranks (" + llvm::join(words, ", ") + ")";
}

std::string heading(const Report& report) {
  std::string text = report.plan + ": " + gridText(report.planx->grid());
  const Cluster& cluster = report.cluster();
  if (cluster.known()) {
    std::vector<std::string> levels;
    for (const ClusterLevel& level : cluster.levels)
      levels.push_back(level.name + " " + std::to_string(level.count));
    text += " on " + cluster.name + " (" + llvm::join(levels, ", ") + " of " + cluster.device + ")";
  }
  text += llvm::formatv("\n  {0} parameters, {1} tokens a step\n", report.parameters, report.tokens)
              .str();
  for (const std::string& axis : idleAxes(report))
    text += "  warning: '" + axis + "' divides nothing: its ranks repeat each other's work\n";
  return text;
}

// ---- Memory

// `in flight x a microbatch's`, of each chunk.
std::string savedText(const MemoryBill& bill, const ByteUnit& unit) {
  std::vector<std::string> words;
  for (const SavedChunk& chunk : bill.saved)
    words.push_back(std::to_string(chunk.flights) + " x " + inUnit(double(chunk.bytes), unit));
  return llvm::join(words, " + ");
}

// The three parts that take the most.
std::string filledBy(const MemoryBill& m) {
  std::vector<std::pair<int64_t, const char*>> parts{
      {m.weights, "weights"},         {m.gradients, "gradients"}, {m.optimizer, "optimizer"},
      {m.activations, "activations"}, {m.messages, "messages"},   {m.workspace, "workspace"}};
  llvm::stable_sort(parts, [](auto& a, auto& b) { return a.first > b.first; });
  std::vector<std::string> words;
  for (size_t i = 0; i < 3 && parts[i].first > 0; ++i)
    words.push_back(std::string(parts[i].second) + " " + bytesText(double(parts[i].first)) + " (" +
                    percent(double(parts[i].first) / double(m.arena)) + ")");
  return llvm::join(words, ", ");
}

std::string verdict(const Report& report) {
  const StageBill& fullest = report.fullestStage();
  std::string where = fullest.title.empty() ? "" : ", that of " + fullest.title;
  std::string text = "memory: the fullest rank" + where + ", allocates " +
                     bytesText(double(fullest.memory.arena)) +
                     llvm::formatv(" ({0} bytes)", fullest.memory.arena).str();
  if (fullest.title.empty())
    text = "memory: each rank allocates " + bytesText(double(fullest.memory.arena)) +
           llvm::formatv(" ({0} bytes)", fullest.memory.arena).str();
  std::optional<bool> fits = report.fits();
  if (!fits) return text + "\n";
  int64_t memory = report.cluster().memory(), free = memory - fullest.memory.arena;
  return text + llvm::formatv("; {0} has {1}: it {2}, {3} {4}\n", report.cluster().device,
                              bytesText(double(memory)), *fits ? "fits" : "does not fit",
                              bytesText(std::abs(double(free))), *fits ? "are left" : "are missing")
                    .str();
}

std::string memoryText(const Report& report) {
  ByteUnit unit = unitFor(double(report.fullestStage().memory.arena));
  Rows rows{{"stage", unit.name.str(), "weights", "gradients", "optimizer", "inputs", "activations",
             "messages", "workspace", "gaps", "activations: in flight x a microbatch's"}};
  for (size_t i = 0; i < report.stages.size(); ++i) {
    const MemoryBill& m = report.stages[i].memory;
    std::vector<std::string> row{report.pipeline ? std::to_string(i) : "all"};
    for (int64_t bytes : {m.arena, m.weights, m.gradients, m.optimizer, m.inputs, m.activations,
                          m.messages, m.workspace, m.gaps})
      row.push_back(inUnit(double(bytes), unit));
    row.push_back(savedText(m, unit));
    rows.push_back(std::move(row));
  }
  std::string text = verdict(report) + columns(rows) +
                     "  most of the fullest: " + filledBy(report.fullestStage().memory) + "\n";
  const MemoryBill& m = report.fullestStage().memory;
  if (!m.largest.empty()) {
    std::vector<std::string> words;
    for (size_t i = 0; i < std::min<size_t>(m.largest.size(), 4); ++i)
      words.push_back(m.largest[i].name + " " + bytesText(double(m.largest[i].bytes)) + " (" +
                      m.largest[i].kind + ")");
    text += "  largest when it is fullest: " + llvm::join(words, ", ") + "\n";
  }
  return text;
}

std::string changesText(const Report& report) {
  if (report.fits() != false) return "";
  if (report.changes.empty()) return "  " + noneFits(report) + "\n";
  std::string text = "  it would fit with\n";
  Rows rows{{"", "arena", "left", "a step"}};
  for (const Change& change : report.changes) {
    double left = double(report.cluster().memory() - change.arena);
    rows.push_back({change.text() + (change.ranks != report.planx->grid().ranks()
                                         ? llvm::formatv(" ({0} ranks)", change.ranks).str()
                                         : ""),
                    bytesText(double(change.arena)), bytesText(left),
                    change.seconds > 0 ? secondsText(change.seconds) : ""});
  }
  return text + columns(rows, 1);
}

// ---- Pipeline

std::string pipelineText(const Report& report) {
  if (!report.pipeline) return "pipeline: none; every rank runs the whole model\n";
  const Stages& stages = *report.pipeline;
  std::string text = "pipeline: " + stages.title() + '\n';
  text += "  idle " + idleText(stages, report.costs) + " (" +
          costsText(stages.schedule, report.costs) + ")\n";
  text += "  parameters " + std::to_string(stages.parameters) + "\n\n";
  Rows rows{{"stage", "parameters", "in flight", "arena bytes", "largest value, bytes", "layers"}};
  for (size_t i = 0; i < stages.list.size(); ++i) {
    const Stage& stage = stages.list[i];
    rows.push_back({std::to_string(i), std::to_string(stage.parameters),
                    std::to_string(stage.inFlight), std::to_string(stage.program->arenaBytes),
                    stage.largest + ", " + std::to_string(stage.largestBytes),
                    stage.layers.empty() ? "none" : stage.layers});
  }
  return text + columns(rows);
}

// ---- Work

std::string shareText(double part, double whole) {
  return whole > 0 ? percent(part / whole) : "none";
}

std::string workText(const Report& report) {
  if (report.flops == 0) return "";
  const StageBill& busiest =
      *std::max_element(report.stages.begin(), report.stages.end(),
                        [](auto& a, auto& b) { return a.work.flops < b.work.flops; });
  std::string text = llvm::formatv(
      "work of a step: the model asks for {0}; ranks execute {1}, of which {2} a second time\n",
      flopsText(report.modelFlops), flopsText(report.flops), shareText(report.again, report.flops));
  text += "  a rank" + (busiest.title.empty() ? "" : " of " + busiest.title) + ": " +
          flopsText(busiest.work.flops) + ", " + bytesText(busiest.work.memoryBytes) +
          " through its memory: " + countText(busiest.work.intensity()) + " FLOP a byte";
  const Cluster& cluster = report.cluster();
  double rate = report.peakRate();
  if (rate > 0 && cluster.hbm() > 0)
    text += "; " + cluster.device + " can " + countText(rate / cluster.hbm());
  text += "\n";
  if (report.time.seconds <= 0) return text;
  double exposed = 0;
  for (const StageBill& stage : report.stages) exposed = std::max(exposed, stage.time.exposed);
  text += "  a step takes at least " + secondsText(report.time.seconds) + ": " +
          (report.pipeline ? percent(report.time.bubble) + " idle between stages, up to " : "") +
          secondsText(exposed) + " waiting for messages";
  if (rate > 0)
    text += llvm::formatv("; at most {0} of the devices' peak is the model's work",
                          percent(report.modelFlops / (report.time.seconds * rate *
                                                       double(report.planx->grid().ranks()))))
                .str();
  return text + "\n";
}

// ---- Messages

std::string talkText(const Report& report) {
  const StageBill& loudest =
      *std::max_element(report.stages.begin(), report.stages.end(),
                        [](auto& a, auto& b) { return a.bytesSent() < b.bytesSent(); });
  if (loudest.talks.empty()) return "";
  const Cluster& cluster = report.cluster();
  bool isTimed = cluster.known();
  std::string text = report.stages.size() > 1 ? "sent by a rank of " + loudest.title +
                                                    " in a step, which sends the most\n"
                                              : "sent by a rank in a step\n";
  Rows rows{{"times", "bytes", "op", "along"}};
  if (isTimed) llvm::append_range(rows.front(), Words{"wires", "at least", "hidden"});
  bool isBound = false;
  for (const Talk& talk : loudest.talks) {
    isBound |= talk.isBound;
    std::vector<std::string> row{std::to_string(talk.calls),
                                 (talk.isBound ? "<= " : "") + std::to_string(talk.bytes),
                                 info(talk.kind).text.str(), llvm::join(talk.axes, ", ")};
    if (isTimed) {
      row.push_back(talk.reach.level < cluster.levels.size() ? cluster.levels[talk.reach.level].name
                                                             : "none");
      row.push_back(secondsText(talk.seconds));
      row.push_back(shareText(talk.hidden, talk.seconds));
    }
    rows.push_back(std::move(row));
  }
  text += columns(rows);
  if (isBound)
    text += "  <=: as many as could go; which experts the rows choose is known when it runs\n";
  return text;
}

// ---- Placement and ceilings

std::string placingText(const Placing& placing, const Cluster& cluster) {
  std::vector<std::string> words;
  for (size_t i = 0; i < placing.bytes.size(); ++i)
    if (placing.bytes[i] > 0)
      words.push_back(cluster.levels[i].name + " " + bytesText(placing.bytes[i]));
  return llvm::join(words, ", ");
}

std::string placementText(const Report& report) {
  if (!report.placement) return "";
  const Placement& placement = *report.placement;
  const Cluster& cluster = report.cluster();
  bool isSearched = areOrdered(placement.chosen.axes.size(), report.planx->grid().ranks());
  std::string text = "placement: axes from the slowest wires to the fastest, ";
  text += isSearched ? "the order in which the wires need the least time\n"
                     : "as written: orders of so many are not searched\n";
  Rows rows{{"order", "", "wires, at least", "sent on the wires by all ranks"}};
  auto add = [&](const std::string& what, const Placing& placing) {
    std::string order = llvm::join(placing.axes, ", ");
    for (auto& row : rows)
      if (row[0] == order) {
        row[1] += "; " + what;
        return;
      }
    rows.push_back({order, what, secondsText(placing.seconds), placingText(placing, cluster)});
  };
  add("chosen", placement.chosen);
  if (placement.written.axes != placement.chosen.axes) add("as written", placement.written);
  if (placement.unbound) add("best without 'place'", *placement.unbound);
  if (placement.runnerUp) add("runner-up", *placement.runnerUp);
  for (const Across& across : placement.across)
    if (across.placing.axes != placement.chosen.axes)
      add("'" + across.axis + "' across " + cluster.levels.front().name + "s", across.placing);
  return text + columns(rows, 2);
}

std::string ceilingsText(const Report& report) {
  if (report.ceilings.empty()) return "";
  int64_t memory = report.cluster().memory();
  Rows rows{{"", "arena", "fits", "sent by a rank", "a rank's work", "idle", "a step"}};
  auto add = [&](const std::string& name, const Ceiling& figures) {
    rows.push_back({name, bytesText(double(figures.arena)), figures.arena <= memory ? "yes" : "no",
                    bytesText(double(figures.bytesSent)), flopsText(figures.flops),
                    figures.bubble > 0 ? percent(figures.bubble) : "",
                    figures.seconds > 0 ? secondsText(figures.seconds) : ""});
  };
  add("as it is", report.asItIs());
  std::string refused;
  bool isBeyond = false;
  for (const Ceiling& ceiling : report.ceilings) {
    std::string name = ceiling.axis + " " + std::to_string(ceiling.next);
    isBeyond |= ceiling.isBeyondCluster;
    if (ceiling.why.empty()) add(name + (ceiling.isBeyondCluster ? " *" : ""), ceiling);
    else refused += "  " + name + ": no: " + ceiling.why + "\n";
  }
  if (memory == 0)
    for (auto& row : rows) row.erase(row.begin() + 2);
  std::string text = "the next doubling of each axis\n";
  if (rows.size() > 2) text += columns(rows, 1);
  if (isBeyond) text += "  *: more ranks than " + report.cluster().name + " has devices\n";
  return text + refused;
}

}  // namespace

std::string columns(const std::vector<std::vector<std::string>>& rows, size_t left) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      std::string blanks(widths[i] - row[i].size(), ' ');
      bool isLast = i + 1 == row.size();
      line += "  " + (i < left || isLast ? row[i] + blanks : blanks + row[i]);
    }
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

std::string explainText(const Report& report) {
  std::string text = heading(report);
  for (const std::string& section :
       {pipelineText(report), memoryText(report) + changesText(report), workText(report),
        betweenText(report.attention, report.rows, report.experts), talkText(report),
        placementText(report), ceilingsText(report)})
    if (!section.empty()) text += "\n" + section;
  return text;
}

}  // namespace planc
