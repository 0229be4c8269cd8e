// The page: its head, the sections in order, and what they share. Tested by tests/unit/html_test.cpp and
// tests/tools/report.test.
#include "tools/explain/html.h"

#include "llvm/ADT/StringExtras.h"
#include "tools/draw_schedule.h"
#include "tools/explain/html_sections.h"

namespace planc {
namespace html {

std::vector<PlanAxis> axesOf(const Grid& grid) {
  std::vector<PlanAxis> axes;
  for (const GridAxis& axis : grid.axes) {
    const std::string& name = axis.of.empty() ? axis.name : axis.of;
    if (!axes.empty() && axes.back().name == name) axes.back().size *= axis.size;
    else axes.push_back({name, axis.size});
  }
  int64_t stride = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    axis->stride = stride;
    stride *= axis->size;
  }
  return axes;
}

std::string axesText(llvm::ArrayRef<PlanAxis> axes) {
  std::string text;
  for (const PlanAxis& axis : axes)
    text += (text.empty() ? "" : ", ") + axis.name + " " + std::to_string(axis.size);
  return text;
}

std::string listText(llvm::ArrayRef<std::string> words) { return llvm::join(words, ", "); }

std::string levelText(const Cluster& cluster, size_t level) {
  return level < cluster.levels.size() ? cluster.levels[level].name : "beyond the cluster";
}

std::string stageText(const StageBill& stage) {
  return stage.title.empty() ? "every rank" : stage.title;
}

}  // namespace html

std::string reportHtml(const Report& report) {
  using namespace html;
  std::string text;
  llvm::raw_string_ostream out(text);
  out << "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
         "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>"
      << escaped(report.plan) << ": what the plan costs</title>\n<style>\n"
      << styleSheet(axesOf(report.planx->grid()).size()) << pictureStyle()
      << "</style>\n</head>\n<body>\n<main>\n";
  for (auto* section : {printHeading, printGrid, printMemory, printChanges, printTimeline,
                        printWires, printPlacement, printWork, printCeilings})
    section(out, report);
  out << "</main>\n<footer>Made by <code>planc explain</code> from the programs that the ranks run."
         "</footer>\n</body>\n</html>\n";
  return text;
}

}  // namespace planc
