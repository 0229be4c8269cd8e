// What is asked first: does it fit, how long is a step, what stands idle. Tested by tests/unit/html_test.cpp.
#include <algorithm>

#include "tools/explain/html_sections.h"
#include "tools/explain/units.h"

namespace planc::html {
namespace {

struct Tile {
  std::string name, value, more;  // markup but for the name
};

// What fills a rank most: `activations, 41.0 %`; empty where nothing is known but the whole.
std::string fillsMost(const MemoryBill& bill) {
  std::pair<int64_t, llvm::StringRef> parts[] = {
      {bill.weights, "weights"},         {bill.gradients, "gradients"},
      {bill.optimizer, "optimizer"},     {bill.inputs, "inputs"},
      {bill.activations, "activations"}, {bill.messages, "buffers of messages"},
      {bill.workspace, "workspace"},     {bill.gaps, "gaps"}};
  auto most = *std::max_element(std::begin(parts), std::end(parts),
                                [](auto& a, auto& b) { return a.first < b.first; });
  if (most.first <= 0 || bill.arena <= 0) return "";
  return most.second.str() + ", " + bytes(most.first) + " (" +
         share(double(most.first) / double(bill.arena)) + ")";
}

void printVerdict(Out& out, const Report& report) {
  const StageBill& stage = report.fullestStage();
  const MemoryBill& bill = stage.memory;
  const Cluster& cluster = report.cluster();
  std::optional<bool> fits = report.fits();
  std::string filled = fillsMost(bill);
  if (!filled.empty()) filled = " What fills it most: " + filled + ".";
  std::string whose =
      stage.title.empty() ? "Every rank" : "The fullest ranks, of " + escaped(stage.title) + ",";
  std::string verb = stage.title.empty() ? " allocates " : " allocate ";
  if (!fits) {
    out << "<p class=\"verdict\"><b>"
        << (cluster.known() ? "The cluster gives no device's memory"
                            : "No cluster is named: whether it fits is not known")
        << "</b>" << whose << verb << bytes(bill.arena) << "." << filled << "</p>\n";
    return;
  }
  int64_t left = cluster.memory() - bill.arena;
  out << "<p class=\"verdict " << (*fits ? "yes" : "no") << "\"><b>"
      << (*fits ? "✓ Fits, with " + bytes(left) + " to spare"
                : "✗ Does not fit: " + bytes(-left) + " too much")
      << "</b>" << whose << verb << bytes(bill.arena) << "; a device (" << escaped(cluster.device)
      << ") has " << bytes(cluster.memory()) << "." << filled << "</p>\n";
}

std::vector<Tile> tilesOf(const Report& report) {
  std::vector<Tile> tiles;
  int64_t ranks = report.planx->grid().ranks();
  const StepTime& time = report.time;
  if (time.seconds > 0) {
    tiles.push_back({"a step, at the least", seconds(time.seconds),
                     rateText(double(report.tokens) / time.seconds, "token/s") + " at most"});
  }
  if (report.pipeline)
    tiles.push_back(
        {"bubble",
         share(time.seconds > 0 ? time.bubble : report.pipeline->timeline(report.costs).bubble()),
         "stages wait for each other"});
  const StageBill& fullest = report.fullestStage();
  std::optional<bool> fits = report.fits();
  tiles.push_back({"memory of the fullest rank", bytes(fullest.memory.arena),
                   fits ? share(double(fullest.memory.arena) / double(report.cluster().memory())) +
                              " of a device"
                        : groupedText(fullest.memory.arena) + " bytes"});
  auto talker = std::max_element(report.stages.begin(), report.stages.end(),
                                 [](auto& a, auto& b) { return a.bytesSent() < b.bytesSent(); });
  if (ranks > 1)
    tiles.push_back(
        {"sent by a rank in a step", bytes(talker->bytesSent()),
         talker->title.empty() ? "every rank" : "at most, by " + escaped(talker->title)});
  if (report.modelFlops > 0)
    tiles.push_back({"the model's work in a step", flops(report.modelFlops),
                     flops(report.flops) + " executed"});
  if (double peak = report.peakRate() * double(ranks); peak > 0 && time.seconds > 0)
    tiles.push_back({"of the devices' peak, at most",
                     share(report.modelFlops / (time.seconds * peak)), "is the model's work"});
  tiles.push_back({"parameters", figure(report.parameters, countText(double(report.parameters))),
                   groupedText(report.parameters)});
  tiles.push_back({"tokens a step", figure(report.tokens, countText(double(report.tokens))),
                   groupedText(report.tokens)});
  return tiles;
}

}  // namespace

void printHeading(Out& out, const Report& report) {
  const Cluster& cluster = report.cluster();
  const Grid& grid = report.planx->grid();
  int64_t ranks = grid.ranks();
  out << "<header>\n<p class=\"eyebrow\">What a plan costs</p>\n<h1>" << escaped(report.plan)
      << "</h1>\n<p class=\"sub\">";
  if (!report.planx->model->files.empty())
    out << "<code>" << escaped(report.planx->model->files.front()) << "</code> · ";
  out << count(ranks) << (ranks == 1 ? " rank" : " ranks");
  if (!grid.axes.empty()) out << ": " << escaped(axesText(axesOf(grid)));
  out << " · "
      << (cluster.known()
              ? "cluster <code>" + escaped(cluster.name) + "</code> of " + escaped(cluster.device)
              : "no cluster")
      << "</p>\n";
  printVerdict(out, report);
  out << "<dl class=\"tiles\">\n";
  for (const Tile& tile : tilesOf(report))
    out << "<div><dt>" << escaped(tile.name) << "</dt><dd>" << tile.value << "<small>" << tile.more
        << "</small></dd></div>\n";
  out << "</dl>\n</header>\n";
}

}  // namespace planc::html
