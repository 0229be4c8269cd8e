// Plans otherwise than they stand: other orders of the axes, changes that would make it fit, and the next
// doubling of each axis. Tested by tests/unit/html_test.cpp.
#include <algorithm>

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "tools/explain/html_sections.h"
#include "tools/explain/units.h"

namespace planc::html {
namespace {

struct Order {
  std::string what;  // markup
  const Placing* placing;
};

std::vector<Order> ordersOf(const Placement& placement, const Cluster& cluster) {
  std::vector<Order> orders{{"chosen", &placement.chosen}};
  if (placement.runnerUp) orders.push_back({"runner-up", &*placement.runnerUp});
  orders.push_back({"as written", &placement.written});
  if (placement.unbound)
    orders.push_back({"without the plan's <code>place</code>", &*placement.unbound});
  for (const Across& across : placement.across)
    orders.push_back(
        {escaped(across.axis + " across " + levelText(cluster, 0) + "s"), &across.placing});
  return orders;
}

std::string orderText(const Placing& placing) {
  return "<span class=\"order\">" + escaped(llvm::join(placing.axes, " · ")) + "</span>";
}

// Seconds of a step; the cluster may give no rates.
std::string stepText(double time) { return time > 0 ? seconds(time) : "not known"; }

std::string fitText(const Cluster& cluster, int64_t arena) {
  if (cluster.memory() <= 0) return "not known";
  int64_t left = cluster.memory() - arena;
  return left >= 0 ? "✓ " + bytes(left) + " to spare" : "✗ " + bytes(-left) + " too much";
}

}  // namespace

void printPlacement(Out& out, const Report& report) {
  if (report.planx->grid().ranks() == 1) return;
  open(out, "placement", "Which axes lie close together");
  if (!report.placement) {
    paragraph(out, "There is nothing to order: no cluster of several levels, or one axis.");
    return close(out);
  }
  const Placement& placement = *report.placement;
  const Cluster& cluster = report.cluster();
  paragraph(out,
            "Orders of the grid's axes, the outermost first and the last on the fastest wires, and "
            "the least time of a step's messages, one behind the other, of the stage where "
            "that is most. The axes lie in the chosen order.");
  Chart chart{
      "Least time on the wires in a step by order of the axes; the same figures stand in the "
      "table",
      {},
      0};
  Table table{"Bytes are those that all ranks together send in a step over a level's wires",
              {{"order", true}, {"axes", true}, {"time on the wires"}, {"of the chosen"}},
              {},
              0};
  for (const ClusterLevel& level : cluster.levels) table.columns.push_back({"over " + level.name});
  for (const Order& order : ordersOf(placement, cluster)) {
    const Placing& placing = *order.placing;
    double ratio = placement.chosen.seconds > 0 ? placing.seconds / placement.chosen.seconds : 0;
    chart.scale = std::max(chart.scale, placing.seconds);
    chart.bars.push_back(
        {order.what,
         seconds(placing.seconds),
         {{order.placing == &placement.chosen ? 0 : 7, llvm::join(placing.axes, " · "),
           placing.seconds, secondsText(placing.seconds)}}});
    auto& row = table.rows.emplace_back(std::vector<std::string>{
        order.what, orderText(placing), seconds(placing.seconds),
        ratio > 0 ? figure(ratio, llvm::formatv("× {0:f3}", ratio).str()) : ""});
    for (size_t level = 0; level < cluster.levels.size(); ++level)
      row.push_back(level < placing.bytes.size() ? bytes(placing.bytes[level]) : "");
  }
  print(out, chart);
  print(out, table);
  for (const Within& within : report.planx->roles.front()->places)
    note(out, "The plan says <code>place " + escaped(listText(within.axes)) + " within " +
                  escaped(within.level) + "</code>.");
  close(out);
}

void printChanges(Out& out, const Report& report) {
  if (report.fits() != false) return;
  open(out, "changes", "What would make it fit");
  Table table{"The cheapest first; each compiled, so the figures are exact",
              {{"change", true},
               {"ranks"},
               {"arena of the fullest rank"},
               {"arena, bytes"},
               {"against a device", true},
               {"work of a rank"},
               {"a step"}},
              {}};
  std::vector<Change> changes = report.changes;
  if (changes.empty()) {
    paragraph(out, escaped(noneFits(report)) + ".");
    table.caption = "The nearest of what was tried";
    if (report.nearest) changes.push_back(*report.nearest);
  }
  for (const Change& change : changes)
    table.rows.push_back({"<code>" + escaped(change.text()) + "</code>", count(change.ranks),
                          bytes(change.arena), count(change.arena),
                          fitText(report.cluster(), change.arena), flops(change.flops),
                          stepText(change.seconds)});
  print(out, table);
  close(out);
}

void printCeilings(Out& out, const Report& report) {
  if (report.ceilings.empty()) return;
  open(out, "ceilings", "The next doubling of each axis");
  Table table{"All else as it is; the first row is the plan as it stands",
              {{"axis", true},
               {"ranks"},
               {"arena of the fullest rank"},
               {"against a device", true},
               {"sent by a rank"},
               {"work of a rank"},
               {"bubble"},
               {"a step"}},
              {}};
  Ceiling now = report.asItIs();
  table.rows.push_back({"as it stands", "", bytes(now.arena), fitText(report.cluster(), now.arena),
                        bytes(now.bytesSent), flops(now.flops), share(now.bubble),
                        stepText(now.seconds)});
  std::string refused;
  bool isBeyond = false;
  for (const Ceiling& ceiling : report.ceilings) {
    std::string axis = escaped(ceiling.axis);
    std::string sizes = count(ceiling.ranks) + " → " + count(ceiling.next);
    if (!ceiling.why.empty()) {
      refused += "<li><b>" + axis + " " + sizes + "</b>: " + escaped(ceiling.why) + "</li>\n";
      continue;
    }
    isBeyond |= ceiling.isBeyondCluster;
    table.rows.push_back({axis, sizes + (ceiling.isBeyondCluster ? " *" : ""), bytes(ceiling.arena),
                          fitText(report.cluster(), ceiling.arena), bytes(ceiling.bytesSent),
                          flops(ceiling.flops), share(ceiling.bubble), stepText(ceiling.seconds)});
  }
  print(out, table);
  if (isBeyond)
    note(out,
         "* More ranks than the cluster has devices: as if it had more of its outermost units.");
  if (!refused.empty())
    out << "<h3>Not legal</h3>\n<ul class=\"reasons\">\n" << refused << "</ul>\n";
  close(out);
}

}  // namespace planc::html
