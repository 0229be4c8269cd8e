// What lies in the arena of each stage's ranks, beside what a device has. Tested by tests/unit/html_test.cpp.
#include <algorithm>

#include "tools/explain/html_sections.h"
#include "tools/explain/units.h"

namespace planc::html {
namespace {

struct Part {
  const char* name;
  int64_t MemoryBill::*bytes;
};
// In the order in which they are stacked; the number is the colour.
constexpr Part kParts[] = {
    {"weights", &MemoryBill::weights},         {"gradients", &MemoryBill::gradients},
    {"optimizer", &MemoryBill::optimizer},     {"inputs", &MemoryBill::inputs},
    {"activations", &MemoryBill::activations}, {"messages", &MemoryBill::messages},
    {"workspace", &MemoryBill::workspace},     {"gaps", &MemoryBill::gaps},
};
// A limit that is further off than so many times the fullest arena would leave no bars to see.
constexpr double kFarOff = 6;

void printChart(Out& out, const Report& report) {
  double most = double(report.fullestStage().memory.arena);
  double limit = double(report.cluster().memory());
  bool isSeen = limit > 0 && limit < kFarOff * most;
  Chart chart{
      "Memory of a rank of each stage by what it is for; the same figures stand in the table",
      {},
      std::max(most, isSeen ? limit : 0)};
  if (isSeen) {
    chart.line = limit;
    chart.lineText = report.cluster().device + ": " + bytesText(limit);
  }
  for (const StageBill& stage : report.stages) {
    Bar bar{escaped(stageText(stage)), bytes(stage.memory.arena), {}};
    if (!stage.layers.empty()) bar.label += "<small>" + escaped(stage.layers) + "</small>";
    for (size_t i = 0; i < std::size(kParts); ++i) {
      int64_t bytes = stage.memory.*kParts[i].bytes;
      bar.pieces.push_back({int(i), kParts[i].name, double(bytes), bytesText(double(bytes))});
    }
    chart.bars.push_back(std::move(bar));
  }
  print(out, chart);
  std::vector<LegendEntry> legend;
  for (size_t i = 0; i < std::size(kParts); ++i) legend.push_back({int(i), kParts[i].name});
  print(out, legend);
  if (limit > 0 && !isSeen)
    note(out, "A device has " + bytes(int64_t(limit)) + ", far beyond the right end.");
}

void printTable(Out& out, const Report& report) {
  Table table{
      "Of one rank, when its arena is fullest. The arena is what planrun allocates, exactly.",
      {{"stage", true}, {"ranks"}, {"parameters"}, {"in flight"}},
      {},
      report.stages.size() > 1 ? int(report.fullest) : -1};
  for (const Part& part : kParts) table.columns.push_back({part.name});
  table.columns.push_back({"arena, bytes"});
  for (const StageBill& stage : report.stages) {
    auto& row = table.rows.emplace_back(std::vector<std::string>{
        escaped(stageText(stage)), count(stage.ranks),
        figure(stage.parameters, countText(double(stage.parameters))), count(stage.inFlight)});
    for (const Part& part : kParts) row.push_back(bytes(stage.memory.*part.bytes));
    row.push_back(count(stage.memory.arena));
  }
  print(out, table);
}

std::string placeText(const Module& program, const Loc& loc) {
  if (!loc.known() || loc.file >= program.files.size()) return "";
  return "<code>" + escaped(program.files[loc.file]) + ":" + std::to_string(loc.line) + "</code>";
}

void printLargest(Out& out, const Report& report) {
  const StageBill& stage = report.fullestStage();
  Table table{"The largest values of a rank of " +
                  (stage.title.empty() ? "the plan" : stage.title) + " when its arena is fullest",
              {{"value", true}, {"for", true}, {"size"}, {"of the arena"}, {"in the plan", true}},
              {}};
  for (const HeldValue& value : stage.memory.largest)
    table.rows.push_back(
        {escaped(value.name), escaped(value.kind), bytes(value.bytes),
         share(double(value.bytes) / double(std::max<int64_t>(1, stage.memory.arena))),
         placeText(*stage.program, value.loc)});
  print(out, table);
  if (const Op* op = stage.memory.fullest) {
    std::string place = placeText(*stage.program, op->loc);
    note(out, "It is fullest at <code>" + escaped(op->info().text) + "</code>" +
                  (place.empty() ? "" : ", " + place) + ".");
  }
}

void printSaved(Out& out, const Report& report) {
  Table table{
      "Activations saved for the backward pass, of one rank",
      {{"stage", true}, {"chunk"}, {"of a microbatch"}, {"microbatches at once"}, {"together"}},
      {}};
  for (const StageBill& stage : report.stages)
    for (const SavedChunk& chunk : stage.memory.saved)
      table.rows.push_back({escaped(stageText(stage)), count(chunk.chunk), bytes(chunk.bytes),
                            count(chunk.flights),
                            bytes(saturatingMul(chunk.bytes, chunk.flights))});
  if (table.rows.empty()) return;
  out << "<details>\n<summary>Saved activations by chunk</summary>\n";
  print(out, table);
  out << "</details>\n";
}

}  // namespace

void printMemory(Out& out, const Report& report) {
  open(out, "memory", "Memory");
  printChart(out, report);
  printTable(out, report);
  printLargest(out, report);
  printSaved(out, report);
  close(out);
}

}  // namespace planc::html
