// The sections of the page, in its order. Each prints itself whole, or a line that says why there is
// nothing to show.
#pragma once

#include "tools/explain/html_parts.h"
#include "tools/explain/report.h"

namespace planc::html {

// An axis as the plan has it: parts of one are joined. Ranks that differ by one on it are `stride` apart.
struct PlanAxis {
  std::string name;
  int64_t size = 1, stride = 1;
};
// In the grid's order, the outermost first.
std::vector<PlanAxis> axesOf(const Grid& grid);
std::string axesText(llvm::ArrayRef<PlanAxis> axes);      // `data 8, pipe 16`
std::string listText(llvm::ArrayRef<std::string> words);  // `data, pipe`
// The name of a level by its number; behind the last: `beyond the cluster`.
std::string levelText(const Cluster& cluster, size_t level);
// `pipe 3`; of a plan without a pipeline, `every rank`.
std::string stageText(const StageBill& stage);

// html_style.cpp
std::string styleSheet(size_t axes);
// From the first coordinate of an axis to the last: a fill and the ink on it, by step.
int rampSteps();
std::string rampFill(int step);
std::string rampInk(int step);

void printHeading(Out& out, const Report& report);    // html_heading.cpp
void printGrid(Out& out, const Report& report);       // html_grid.cpp
void printTimeline(Out& out, const Report& report);   // html_timeline.cpp
void printMemory(Out& out, const Report& report);     // html_memory.cpp
void printWires(Out& out, const Report& report);      // html_wires.cpp
void printWork(Out& out, const Report& report);       // html_work.cpp
void printPlacement(Out& out, const Report& report);  // html_choices.cpp
void printChanges(Out& out, const Report& report);    // html_choices.cpp
void printCeilings(Out& out, const Report& report);   // html_choices.cpp

}  // namespace planc::html
