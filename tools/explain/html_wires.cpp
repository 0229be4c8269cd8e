// What ranks send each other along each axis, over which wires, how long these need at the least, and how
// much of that compute hides. The picture is of the stage whose wires need the most time; the table has
// all. Tested by tests/unit/html_test.cpp.
#include <algorithm>

#include "tools/explain/html_sections.h"
#include "tools/explain/units.h"

namespace planc::html {
namespace {

// A kind of op has one colour on every page.
int colourOf(OpKind kind) {
  constexpr OpKind kinds[] = {OpKind::AllReduce,   OpKind::ReduceScatter, OpKind::AllGather,
                              OpKind::Send,        OpKind::Rotate,        OpKind::AllToAll,
                              OpKind::ExchangeRows};
  auto at = std::find(std::begin(kinds), std::end(kinds), kind);
  return int(at - std::begin(kinds));
}

std::string opText(const Talk& talk) { return info(talk.kind).text.str(); }

std::string axesText(const Talk& talk) { return listText(talk.axes); }

// Messages along the same axes.
struct Line {
  std::string axes;
  std::vector<const Talk*> talks;
  double bytes = 0, seconds = 0;
};

std::vector<Line> linesOf(const StageBill& stage) {
  std::vector<Line> lines;
  for (const Talk& talk : stage.talks) {
    if (talk.bytes <= 0) continue;
    std::string axes = axesText(talk);
    auto at = llvm::find_if(lines, [&](const Line& line) { return line.axes == axes; });
    if (at == lines.end()) at = lines.insert(at, {axes, {}});
    at->talks.push_back(&talk);
    at->bytes += double(talk.bytes);
    at->seconds += talk.seconds;
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.bytes > b.bytes; });
  return lines;
}

std::string levelOf(const Cluster& cluster, const Line& line) {
  size_t level = 0;
  for (const Talk* talk : line.talks) level = std::max(level, talk->reach.level);
  return cluster.levels.empty() ? "" : levelText(cluster, level);
}

Bar barOf(const Cluster& cluster, const Line& line) {
  std::string level = levelOf(cluster, line);
  return {
      escaped(line.axes) + (level.empty() ? "" : "<small>" + escaped(level) + "</small>"), "", {}};
}

void printBytes(Out& out, const Cluster& cluster, llvm::ArrayRef<Line> lines) {
  Chart chart{
      "Bytes that a rank sends in a step along each axis, by kind of message; the same figures "
      "stand in the table",
      {},
      lines.front().bytes};
  for (const Line& line : lines) {
    Bar bar = barOf(cluster, line);
    bar.end = bytes(line.bytes);
    for (const Talk* talk : line.talks)
      bar.pieces.push_back({colourOf(talk->kind), opText(*talk), double(talk->bytes),
                            bytesText(double(talk->bytes)) + " in " + groupedText(talk->calls) +
                                (talk->calls == 1 ? " call" : " calls")});
    chart.bars.push_back(std::move(bar));
  }
  print(out, chart);
}

void printSeconds(Out& out, const Cluster& cluster, llvm::ArrayRef<Line> lines) {
  Chart chart{
      "The least time that the wires need in a step for each axis, and what of it compute "
      "hides; the same figures stand in the table",
      {},
      0};
  for (const Line& line : lines) {
    chart.scale = std::max(chart.scale, line.seconds);
    Bar bar = barOf(cluster, line);
    bar.end = figure(line.seconds, secondsText(line.seconds));
    for (const Talk* talk : line.talks) {
      double hidden = std::min(talk->hidden, talk->seconds);
      bar.pieces.push_back({colourOf(talk->kind), opText(*talk), talk->seconds - hidden,
                            secondsText(talk->seconds - hidden) + " that compute does not hide"});
      bar.pieces.push_back({colourOf(talk->kind), opText(*talk), hidden,
                            secondsText(hidden) + " hidden behind compute", true});
    }
    chart.bars.push_back(std::move(bar));
  }
  print(out, chart);
}

void printLegend(Out& out, llvm::ArrayRef<Line> lines, bool hasHidden) {
  std::vector<LegendEntry> legend;
  for (const Line& line : lines)
    for (const Talk* talk : line.talks)
      if (llvm::none_of(legend, [&](auto& seen) { return seen.text == opText(*talk); }))
        legend.push_back({colourOf(talk->kind), opText(*talk)});
  llvm::sort(legend, [](auto& a, auto& b) { return a.colour < b.colour; });
  if (hasHidden) legend.push_back({3, "hatched: hidden behind compute", true});
  print(out, legend);
}

// `stage`: null where the table is one stage's.
std::vector<std::string> rowOf(const Report& report, const StageBill* stage, const Talk& talk) {
  const Cluster& cluster = report.cluster();
  std::string sent = (talk.isBound ? "≤ " : "") + bytes(talk.bytes);
  std::vector<std::string> row{escaped(axesText(talk)), escaped(opText(talk)), count(talk.calls),
                               sent};
  if (stage) row.insert(row.begin(), escaped(stageText(*stage)));
  if (cluster.levels.empty()) return row;
  row.push_back(escaped(levelText(cluster, talk.reach.level)));
  row.push_back(seconds(talk.seconds));
  row.push_back(seconds(std::min(talk.hidden, talk.seconds)));
  row.push_back(seconds(std::max(0., talk.seconds - talk.hidden)));
  return row;
}

Table tableOf(const Report& report, std::string caption, bool hasStages) {
  Table table{
      std::move(caption), {{"along", true}, {"message", true}, {"calls"}, {"sent by a rank"}}, {}};
  if (hasStages) table.columns.insert(table.columns.begin(), {"stage", true});
  if (report.cluster().levels.empty()) return table;
  table.columns.push_back({"wires", true});
  for (const char* head : {"least time", "hidden", "not hidden"}) table.columns.push_back({head});
  return table;
}

void printTables(Out& out, const Report& report, const StageBill& most) {
  Table first = tableOf(report, "In a step, of a rank of " + stageText(most), false);
  if (report.stages.size() == 1) first.caption = "In a step, of one rank";
  for (const Talk& talk : most.talks) first.rows.push_back(rowOf(report, nullptr, talk));
  print(out, first);
  for (const Talk& talk : most.talks)
    if (talk.isBound)
      note(out, "≤: rows for experts; the data decides how many leave. Spread evenly, " +
                    escaped(axesText(talk)) + " carries " + bytes(talk.evenBytes) + ".");
  if (report.stages.size() == 1) return;
  Table all = tableOf(report, "In a step, of a rank of each stage", true);
  for (const StageBill& stage : report.stages)
    for (const Talk& talk : stage.talks) all.rows.push_back(rowOf(report, &stage, talk));
  out << "<details>\n<summary>All stages</summary>\n";
  print(out, all);
  out << "</details>\n";
}

}  // namespace

void printWires(Out& out, const Report& report) {
  if (report.planx->grid().ranks() == 1) return;
  open(out, "wires", "What ranks send each other");
  const StageBill& most = report.loudestStage();
  std::vector<Line> lines = linesOf(most);
  if (lines.empty()) {
    paragraph(out, "Nothing: no rank sends a byte.");
    return close(out);
  }
  std::string whose =
      most.title.empty() ? "Every rank sends " : "A rank of " + escaped(most.title) + " sends ";
  std::string text = whose + bytes(most.bytesSent()) + " in a step";
  bool hasTimes = most.wireSeconds() > 0;
  if (hasTimes)
    text +=
        "; its messages, one behind the other, need the wires for " + seconds(most.wireSeconds());
  paragraph(out, text + (report.stages.size() > 1 ? ", the most of all stages." : "."));
  out << "<h3>Bytes a step</h3>\n";
  printBytes(out, report.cluster(), lines);
  if (hasTimes) {
    out << "<h3>Time on the wires, at the least</h3>\n";
    printSeconds(out, report.cluster(), lines);
  }
  printLegend(out, lines, hasTimes);
  printTables(out, report, most);
  close(out);
}

}  // namespace planc::html
