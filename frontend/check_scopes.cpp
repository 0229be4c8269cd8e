// `within LEVEL` and `across`: an axis whose ranks lie in several units of a cluster's level is cut in two,
// and splits name the parts. Devices are numbered as ranks are, so the axes behind it in the grid lie
// closer together than its own ranks. Tested by tests/frontend/errors/scopes.plan and
// tests/unit/lower_test.cpp.
#include "frontend/check_plan.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {

constexpr int64_t kMaxTried = 4096;  // sizes of an axis that a help considers
constexpr size_t kMaxNamed = 6;      // and names: the nearest

Extent extentOf(const ast::Target& target) {
  if (target.scope.text.empty()) return Extent::All;
  return target.scope.text == "across" ? Extent::Across : Extent::Within;
}

// Before statements are checked: all that splits say of an axis belongs together.
void PlanChecker::cutAxes() {
  std::map<std::string, std::vector<const ast::Target*>> scoped;
  for (const ast::PlanStmt& stmt : plan_.body)
    if (auto* split = std::get_if<ast::Split>(&stmt.node))
      for (const ast::Target& target : split->targets)
        if (extentOf(target) != Extent::All) scoped[target.axis.text].push_back(&target);
  for (PlanAxis& axis : settings_.grid) {
    if (auto at = scoped.find(axis.name); at != scoped.end()) cutAxis(axis, at->second);
    if (axis.size == 1) continue;
    settings_.layout.axes.push_back({axis.name, axis.size});
    if (axis.within > 0) settings_.layout.cut(axis.name, {axis.size / axis.inside(axis.size)});
  }
}

void PlanChecker::cutAxis(PlanAxis& axis, const std::vector<const ast::Target*>& scoped) {
  const ast::Ident* level = nullptr;
  for (const ast::Target* target : scoped) {
    if (extentOf(*target) != Extent::Within) continue;
    if (level == nullptr) {
      level = &target->scope;
    } else if (level->text != target->scope.text) {
      diags_
          .report(target->scope.loc, Diag::ScopeLevels, axis.name, level->text, target->scope.text)
          .note(level->loc, Diag::GivenHere, level->text);
      return;
    }
  }
  if (level == nullptr) {
    diags_.report(scoped.front()->scope.loc, Diag::ScopeNoLevel, axis.name)
        .suggest("write: METHOD within LEVEL, " + scoped.front()->method.text + " across");
    return;
  }
  size_t levels = findLevel(*level, "within");
  if (levels == 0) return;
  if (axis.size > 1)
    settings_.places.push_back({{axis.name}, level->text, level->loc, /*isScope=*/true});
  int64_t devices = devicesWithin(levels), behind = 1;
  for (auto at = settings_.grid.rbegin(); at->name != axis.name; ++at)
    behind = saturatingMul(behind, at->size);
  int64_t most = std::max<int64_t>(devices / behind, 1);
  // Units must have as many of its ranks each, one behind the other, or one unit all there are.
  auto fits = [&](int64_t ranks) {
    int64_t inside = std::min(ranks, most);
    return ranks == 1 || devices < behind ||
           saturatingMul(settings_.ranks / axis.size, ranks) <= devices ||
           (ranks % inside == 0 && devices % (inside * behind) == 0);
  };
  if (fits(axis.size)) {
    axis.within = most;
    return;
  }
  std::vector<int64_t> legal;
  for (int64_t n = 1; n <= kMaxTried; ++n)
    if (fits(n)) legal.push_back(n);
  llvm::sort(legal, [&](int64_t a, int64_t b) {
    return std::abs(a - axis.size) < std::abs(b - axis.size);
  });
  if (legal.size() > kMaxNamed) legal.resize(kMaxNamed);
  llvm::sort(legal);
  std::vector<std::string> words;
  for (int64_t n : legal) words.push_back(std::to_string(n));
  diags_
      .report(level->loc, Diag::ScopeMisfit, quoted(axis.name) + " (" + rankText(axis) + ")",
              level->text, devices, behind)
      .note(cluster_->levels[levels - 1].name.loc, Diag::DeclaredHere, level->text)
      .suggest("use " + axis.name + " " + either(words));
}

// The names of an axis's parts in the layout.
Words PlanChecker::partsOf(const PlanAxis& axis, Extent extent) const {
  Words names;
  for (const Axis& part : settings_.layout.find(axis.name)) names.push_back(part.name);
  if (extent == Extent::All || names.empty()) return names;
  if (axis.within == 0) return {};  // reported
  if (names.size() == 2) return {extent == Extent::Across ? names[0] : names[1]};
  // All of it lies within, or each rank in a unit of its own.
  return (extent == Extent::Within) == (axis.inside(axis.size) > 1) ? names : Words();
}

int64_t PlanChecker::Cut::Part::ranks(int64_t ofAxis) const {
  if (extent == Extent::All) return ofAxis;
  if (axis->within == 0) return 1;  // reported
  int64_t inside = axis->inside(ofAxis);
  return extent == Extent::Within ? inside : ofAxis / inside;
}

}  // namespace planc
