// The pipeline's schedule over time: all of it, as wide as the page and without labels, where the labelled
// picture is wider; then the labelled picture, which scrolls. Times are seconds where the cluster gives
// rates, else units of a chunk's work. Tested by tests/unit/html_test.cpp.
#include <cmath>
#include <map>

#include "llvm/Support/Format.h"
#include "tools/draw_schedule.h"
#include "tools/explain/html_sections.h"
#include "tools/explain/units.h"

namespace planc::html {
namespace {

// A picture of so many tasks stays below a megabyte.
constexpr size_t kMostTasks = 5000;
// Of more tasks than labels have room for on a page, also the overview; without it above kMostBlocks.
constexpr size_t kLabelledTasks = 24, kMostBlocks = 100000;

struct Clock {
  Timeline timeline;
  std::vector<WorkCosts> costs;  // of each chunk, or one for all
  std::string unit;              // empty: a unit of work
};

Clock clockOf(const Report& report) {
  const StepTime& time = report.time;
  if (time.timeline.length <= 0 || time.chunks.empty())
    return {report.pipeline->timeline(report.costs), {report.costs}, ""};
  // Times from 1 to 1000 on the axis.
  constexpr std::pair<double, const char*> units[] = {
      {1, "s"}, {1e3, "ms"}, {1e6, "µs"}, {1e9, "ns"}};
  auto [factor, unit] = *std::find_if(std::begin(units), std::end(units) - 1, [&](auto& each) {
    return time.timeline.length * each.first >= 1;
  });
  Clock clock{time.timeline, time.chunks, unit};
  clock.timeline.length *= factor;
  for (auto& stage : clock.timeline.starts)
    for (double& start : stage) start *= factor;
  for (double& busy : clock.timeline.busy) busy *= factor;
  for (WorkCosts& chunk : clock.costs)
    chunk = {chunk.forward * factor, chunk.inputGradient * factor, chunk.weightGradient * factor};
  return clock;
}

// A row a stage; a path a kind of task.
void printOverview(Out& out, const PipeSchedule& schedule, const Clock& clock) {
  out << "<div class=\"overview\" role=\"img\" aria-label=\"The whole schedule, a row a stage: "
         "where "
         "it is blank, the stage waits\">\n";
  constexpr double width = 1000;
  double scale = width / clock.timeline.length;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    std::map<Work, std::string> paths;
    for (size_t i = 0; i < schedule.tasks[stage].size(); ++i) {
      const Task& task = schedule.tasks[stage][i];
      const WorkCosts& costs = clock.costs.size() > 1 ? clock.costs[task.chunk] : clock.costs[0];
      double cost = costs.of(task.work);
      if (cost > 0)
        llvm::raw_string_ostream(paths[task.work])
            << llvm::format("M%.2f 0h%.2fv1h-%.2fz", clock.timeline.starts[stage][i] * scale,
                            cost * scale, cost * scale);
    }
    out << "<div class=\"bar\"><span class=\"label\">stage " << stage
        << "</span><svg viewBox=\"0 0 1000 1\" preserveAspectRatio=\"none\" aria-hidden=\"true\">";
    for (const auto& [work, path] : paths)
      out << "<path class=\"whole " << taskClass(work, .7) << "\" d=\"" << path << "\"/>";
    out << "</svg></div>\n";
  }
  out << "</div>\n";
}

std::string timeText(const Clock& clock, double time) {
  return figure(time, shortNumber(std::round(time * 1000) / 1000) +
                          (clock.unit.empty() ? "" : " " + clock.unit));
}

void printTable(Out& out, const Report& report, const Clock& clock) {
  const Stages& stages = *report.pipeline;
  Table table{clock.unit.empty() ? "Units of a chunk's work" : "Times of a step",
              {{"stage", true}, {"busy"}, {"waits for stages"}, {"in flight"}, {"does", true}},
              {}};
  for (size_t i = 0; i < stages.list.size(); ++i) {
    std::string does;
    for (int chunk = 0; chunk < stages.schedule.chunks(); ++chunk)
      if (stages.schedule.stageOf[chunk] == int(i) && !stages.chunks[chunk].empty())
        does += (does.empty() ? "" : "; ") + stages.chunks[chunk];
    table.rows.push_back({"stage " + std::to_string(i), timeText(clock, clock.timeline.busy[i]),
                          timeText(clock, clock.timeline.idle(i)), count(stages.list[i].inFlight),
                          escaped(does)});
  }
  print(out, table);
}

}  // namespace

void printTimeline(Out& out, const Report& report) {
  open(out, "timeline", "The pipeline over time");
  if (!report.pipeline) {
    paragraph(out, "No pipeline: every rank runs the whole model.");
    return close(out);
  }
  const Stages& stages = *report.pipeline;
  Clock clock = clockOf(report);
  size_t tasks = 0;
  for (const auto& list : stages.schedule.tasks) tasks += list.size();
  std::string text = escaped(stages.title()) + ". The stages wait for each other " +
                     share(clock.timeline.bubble()) + " of the time";
  if (!clock.unit.empty())
    text += "; if all chunks took the same, " + share(stages.timeline(report.costs).bubble());
  if (std::optional<double> theory = stages.idleByTheory(report.costs))
    text += "; by theory, " + share(stages.shareOf(*theory, report.costs));
  paragraph(out, text + ".");
  size_t longest = 0;
  for (const auto& list : stages.schedule.tasks) longest = std::max(longest, list.size());
  if (longest > kLabelledTasks && tasks <= kMostBlocks) printOverview(out, stages.schedule, clock);
  PictureOptions options{kMostTasks, clock.unit, true};
  out << "<div class=\"scroll timeline\" role=\"region\" tabindex=\"0\" aria-label=\"Schedule with "
         "labels\">\n"
      << drawPicture(stages.schedule, clock.timeline, clock.costs, stages.title(), options)
      << "</div>\n";
  if (tasks > kMostTasks)
    note(out, "The labelled picture shows the first of " + count(int64_t(tasks)) + " tasks.");
  printTable(out, report, clock);
  close(out);
}

}  // namespace planc::html
