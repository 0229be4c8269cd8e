// Tested by tests/unit/protocol_test.cpp: a plain run of all ranks agrees with one of these.
#include "ir/roles.h"

#include <map>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

namespace planc {
namespace {

using Told = llvm::StringMap<std::vector<int64_t>>;  // by axis

// The other side of a transfer; with `among` those that take part.
void collect(const Op& op, Told& told) {
  Words axes = op.attrs.words("axes");
  if (axes.empty()) return;
  if (op.kind == OpKind::Send) told[axes[0]].push_back(op.attrs.integer("to", -1));
  if (op.kind == OpKind::Receive) told[axes[0]].push_back(op.attrs.integer("from", -1));
  for (const std::string& word : op.attrs.words("among")) {
    int64_t at;
    if (!llvm::StringRef(word).getAsInteger(10, at)) told[axes[0]].push_back(at);
  }
}

}  // namespace

Ranks ranksToldApart(const Planx& planx) {
  Told named;
  for (const auto& role : planx.roles) {
    for (const auto& [axis, at] : role->where) named[axis].push_back(at);
    for (const auto& function : role->functions)
      walk(*function->body, [&](const Op* op) {
        if (op->has(Comm)) collect(*op, named);
      });
  }
  Ranks ranks;
  ranks.list = {{0, {}, 0}};
  for (const GridAxis& axis : planx.grid().axes) {
    std::vector<int64_t> told = named.lookup(axis.name);
    llvm::erase_if(told, [&](int64_t at) { return at < 0 || at >= axis.size; });
    llvm::sort(told);
    told.erase(std::unique(told.begin(), told.end()), told.end());
    int64_t free = 0;
    while (size_t(free) < told.size() && told[size_t(free)] == free) ++free;
    if (free < axis.size) told.insert(told.begin() + free, free);
    std::vector<Representative> next;
    for (const Representative& rank : ranks.list)
      for (size_t i = 0; i < told.size(); ++i) {
        next.push_back({saturatingMul(rank.rank, axis.size) + told[i], rank.at, 0});
        next.back().at.push_back(i);
      }
    ranks.list = std::move(next);
    ranks.told.push_back(std::move(told));
  }
  for (Representative& rank : ranks.list) rank.role = planx.roleOf(rank.rank);
  return ranks;
}

std::set<std::vector<const Module*>> columns(const Planx& planx, llvm::StringRef axis) {
  const Grid& grid = planx.grid();
  std::map<std::vector<size_t>, std::vector<const Module*>> byPlace;  // by the other coordinates
  for (const Representative& rank : ranksToldApart(planx).list) {
    std::vector<size_t> place = rank.at;
    for (size_t i = 0; i < grid.axes.size(); ++i)
      if (grid.axes[i].name == axis) place[i] = 0;
    byPlace[place].push_back(planx.roles[rank.role].get());
  }
  std::set<std::vector<const Module*>> made;
  for (auto& [place, programs] : byPlace) made.insert(std::move(programs));
  return made;
}

}  // namespace planc
