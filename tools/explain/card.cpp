// Tested by tests/tools/explain.test.
#include "tools/explain/card.h"

#include <map>

#include "ir/traffic.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "tools/explain/text.h"
#include "tools/explain/units.h"

namespace planc {
namespace {

constexpr size_t kRanksShown = 8;
constexpr size_t kHeldShown = 12;

bool isState(VarKind kind) {
  switch (kind) {
    case VarKind::Weight:
    case VarKind::Copy:
    case VarKind::Gradient:
    case VarKind::Moment:
    case VarKind::Sum:
      return true;
    default:
      return false;
  }
}

// `head 4-7 of 32, model 0-511 of 4096`: the dims that are split, in the whole dim's own order.
std::string piecesOf(const Variable& var, const Coordinates& rank) {
  std::vector<std::string> words;
  for (const Dim& dim : var.type.dims) {
    bool isStage = var.piece && &dim == &var.type.dims.front();
    if (!dim.isSplit() && !isStage) continue;
    std::vector<std::string> ranges;
    int64_t all = isStage ? var.piece->all : dim.all();
    auto add = [&](int64_t first, int64_t count) {
      if (count <= 0) return;
      ranges.push_back(std::to_string(first) +
                       (count > 1 ? "-" + std::to_string(first + count - 1) : ""));
    };
    if (isStage) add(var.piece->first, dim.size);
    else
      for (const Segment& segment : rank.segments(dim)) add(segment.first, segment.count);
    words.push_back(dim.name + " " + (ranges.empty() ? "none" : llvm::join(ranges, ", ")) + " of " +
                    std::to_string(all));
  }
  return words.empty() ? "all" : llvm::join(words, "; ");
}

std::string ranksText(const std::vector<int64_t>& ranks, const Cluster& cluster) {
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(kRanksShown, ranks.size()); ++i)
    words.push_back(std::to_string(ranks[i]));
  std::string text = llvm::join(words, ", ");
  if (ranks.size() > kRanksShown) text += ", ... (" + std::to_string(ranks.size()) + ")";
  if (cluster.levels.empty()) return text;
  int64_t devices = cluster.devicesWithin(1);
  std::vector<int64_t> units;
  for (int64_t rank : ranks)
    if (!llvm::is_contained(units, rank / devices)) units.push_back(rank / devices);
  return text +
         (units.size() == 1
              ? " in " + cluster.levels.front().name + " " + std::to_string(units.front())
              : " in " + std::to_string(units.size()) + " " + cluster.levels.front().name + "s");
}

}  // namespace

Card cardOf(const Report& report, int64_t rank) {
  const Planx& planx = *report.planx;
  const Cluster& cluster = report.cluster();
  Card card;
  Coordinates here(planx.grid(), rank);
  for (const GridAxis& axis : planx.grid().axes)
    card.coordinates.push_back({axis.name, here.on(axis.name)});
  for (size_t i = 0; i < cluster.levels.size(); ++i)
    card.units.push_back({cluster.levels[i].name, rank / cluster.devicesWithin(i + 1)});
  card.stage = planx.roleOf(rank);
  const Module& program = *planx.roles[card.stage];
  for (const auto& var : program.vars) {
    if (isState(var->kind))
      card.holds.push_back(
          {var->wholeName(), name(var->kind).str(), piecesOf(*var, here), var->type.bytes()});
  }
  llvm::stable_sort(card.holds, [](auto& a, auto& b) { return a.bytes > b.bytes; });
  std::map<std::pair<Words, OpKind>, std::vector<int64_t>> members;
  for (const Transfer& transfer : trafficOf(program).transfers) {
    Words axes;
    for (const Axis& axis : transfer.axes) axes.push_back(axis.name);
    std::vector<int64_t>& list = members[{axes, transfer.op->kind}];
    for (int64_t member : membersOf(*transfer.op, here))
      if (!llvm::is_contained(list, member)) list.push_back(member);
  }
  for (Talk talk : report.stages[card.stage].talks) {
    talk.bytes = talk.leastBytes = bytesOf(talk, program, rank);
    card.peers.push_back({talk, members[{talk.axes, talk.kind}]});
  }
  return card;
}

std::string explainRankText(const Report& report, int64_t rank) {
  Card card = cardOf(report, rank);
  const Cluster& cluster = report.cluster();
  const StageBill& stage = report.stages[card.stage];
  std::vector<std::string> words;
  for (const auto& [axis, at] : card.coordinates) words.push_back(axis + " " + std::to_string(at));
  std::string text = report.plan + ", rank " + std::to_string(rank) + " of " +
                     std::to_string(report.planx->grid().ranks()) +
                     (words.empty() ? "" : ": " + llvm::join(words, ", ")) + "\n";
  if (cluster.known()) {
    words.clear();
    for (const auto& [level, at] : card.units) words.push_back(level + " " + std::to_string(at));
    text += "  device " + std::to_string(rank % cluster.devicesWithin(1)) + " of " +
            llvm::join(words, ", ") + "\n";
  }
  if (!stage.layers.empty()) text += "  " + stage.title + ": " + stage.layers + "\n";
  const MemoryBill& m = stage.memory;
  text += "\nmemory: " + bytesText(double(m.arena)) + " (" + std::to_string(m.arena) + " bytes)\n";
  std::vector<std::vector<std::string>> rows;
  std::pair<const char*, int64_t> parts[] = {
      {"weights", m.weights},         {"gradients", m.gradients},
      {"optimizer", m.optimizer},     {"inputs", m.inputs},
      {"activations", m.activations}, {"messages", m.messages},
      {"workspace", m.workspace},     {"gaps", m.gaps}};
  for (const auto& [what, bytes] : parts) rows.push_back({what, bytesText(double(bytes)), ""});
  text += columns(rows, 1);
  text += "\nholds\n";
  rows.clear();
  for (size_t i = 0; i < std::min(kHeldShown, card.holds.size()); ++i)
    rows.push_back({card.holds[i].name, card.holds[i].kind, bytesText(double(card.holds[i].bytes)),
                    card.holds[i].pieces});
  if (!rows.empty()) text += columns(rows, 2);
  if (card.holds.size() > kHeldShown)
    text += "  and " + std::to_string(card.holds.size() - kHeldShown) + " more; --json lists all\n";
  if (card.peers.empty()) return text + "\ntalks to nobody\n";
  text += "\ntalks, in a step\n";
  rows = {{"along", "op", "times", "bytes", "with ranks"}};
  for (const Peers& peers : card.peers)
    rows.push_back({llvm::join(peers.talk.axes, ", "), info(peers.talk.kind).text.str(),
                    std::to_string(peers.talk.calls),
                    (peers.talk.isBound ? "<= " : "") + std::to_string(peers.talk.bytes),
                    ranksText(peers.ranks, cluster)});
  return text + columns(rows, 2);
}

}  // namespace planc
