// A plan's statements against its model and cluster: the grid, what --grid makes of it, shards and
// places. Splits stand in check_split.cpp, check_scopes.cpp and check_pipeline.cpp, other settings in check_settings.cpp. A size that --grid
// sets has no place in the file: messages stand at the statement it breaks and name the option.
// Tested by tests/frontend/errors/plan.plan and grid.plan.
#include "frontend/check_plan.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace planc {

static constexpr int64_t kMaxRanks = 1 << 20;

std::string quoted(llvm::StringRef name) { return "'" + name.str() + "'"; }

std::string either(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

std::string rankText(const PlanAxis& axis) {
  return std::to_string(axis.size) + (axis.size == 1 ? " rank" : " ranks") +
         (axis.isFromOption ? " by --grid" : "");
}

void suggestFrom(Diagnostic& message, llvm::StringRef word, const std::vector<std::string>& names,
                 llvm::StringRef otherwise) {
  std::string near = nearest(word, names);
  if (!near.empty()) message.suggest("did you mean '" + near + "'?");
  else if (!otherwise.empty()) message.suggest(otherwise);
  else if (!names.empty() && names.size() <= 12) message.suggest("there is " + either(names));
}

PlanChecker::PlanChecker(const ast::Plan& plan, const Scope& scope, const DimMap& dims,
                         bool complete, const CompileOptions& options, PlanSettings& settings,
                         Diagnostics& diags)
    : plan_(plan),
      scope_(scope),
      dims_(dims),
      complete_(complete),
      options_(options),
      settings_(settings),
      diags_(diags) {
  auto at = scope.clusters.find(options.cluster.empty() ? plan.cluster.text : options.cluster);
  cluster_ = at == scope.clusters.end() ? nullptr : at->second;
}

// The grid comes first: all else names its axes.
void PlanChecker::run() {
  settings_ = {};
  settings_.name = plan_.name.text;
  settings_.gridLoc = plan_.name.loc;
  setDefaults("adamw");
  settings_.optimizer = "adamw";
  for (const ast::PlanStmt& stmt : plan_.body)
    if (auto* grid = std::get_if<ast::Grid>(&stmt.node)) readGrid(*grid, stmt.loc);
  overrideGrid();
  changeGrid();
  llvm::stable_sort(settings_.grid, [&](const PlanAxis& a, const PlanAxis& b) {
    const Words& order = options_.order;
    return llvm::find(order, a.name) < llvm::find(order, b.name);
  });
  if (cluster_ != nullptr) settings_.cluster = clusterOf(*cluster_, scope_);
  checkRanks();
  cutAxes();
  for (const ast::PlanStmt& stmt : plan_.body)
    std::visit([&](const auto& node) { check(node, stmt.loc); }, stmt.node);
  change(options_.changes);
  if (settings_.ranks > kMaxRanks) return;
  checkCuts();
  checkPipeline();
}

void PlanChecker::change(const PlanChanges& changes) {
  if (changes.microbatches > 0) settings_.microbatches = changes.microbatches;
  if (changes.recompute) settings_.recompute = *changes.recompute;
  if (!changes.shards.empty()) settings_.shards = changes.shards;
}

// ---- The grid

void PlanChecker::readGrid(const ast::Grid& grid, Loc loc) {
  if (hasGrid_ || grid.automatic) return;  // `check` reports a second one
  hasGrid_ = true;
  settings_.gridLoc = loc;
  for (const auto& axis : grid.axes) {
    if (axisNamed(axis.name.text) != nullptr) {
      diags_.report(axis.name.loc, Diag::AxisDeclaredTwice, axis.name.text)
          .note(axisLocs_[axis.name.text], Diag::DeclaredHere, axis.name.text);
      continue;
    }
    std::optional<int64_t> size = wholeNumber(axis.size, axis.name.text, 1, kMaxRanks, diags_);
    settings_.grid.push_back({axis.name.text, size.value_or(1)});
    axisLocs_[axis.name.text] = axis.name.loc;
  }
}

// --grid sets sizes of the plan's axes; a plan without a grid takes its axes from there.
void PlanChecker::overrideGrid() {
  for (const auto& [name, text] : options_.grid) {
    int64_t size = 0;
    if (llvm::StringRef(text).getAsInteger(10, size) || size < 1 || size > kMaxRanks) {
      diags_.report(Loc{}, Diag::GridOption, name, text, kMaxRanks);
      continue;
    }
    auto at = llvm::find_if(settings_.grid,
                            [name = &name](const PlanAxis& axis) { return axis.name == *name; });
    if (at != settings_.grid.end()) {
      at->isFromOption = at->size != size;
      at->size = size;
    } else if (!hasGrid_) {
      settings_.grid.push_back({name, size, true});
    } else {
      suggestFrom(diags_.report(Loc{}, Diag::GridOptionAxis, name), name, axisNames());
    }
  }
}

// As if the plan said so.
void PlanChecker::changeGrid() {
  for (const auto& [name, size] : options_.changes.grid) {
    auto at = llvm::find_if(settings_.grid,
                            [name = &name](const PlanAxis& axis) { return axis.name == *name; });
    if (at != settings_.grid.end()) *at = {name, std::min(size, kMaxRanks + 1)};
    else if (!hasGrid_) settings_.grid.push_back({name, std::min(size, kMaxRanks + 1)});
  }
}

void PlanChecker::checkRanks() {
  std::vector<const PlanAxis*> axes;
  bool isFromOption = false;
  for (const PlanAxis& axis : settings_.grid) {
    settings_.ranks = std::min(saturatingMul(settings_.ranks, axis.size), kMaxRanks + 1);
    axes.push_back(&axis);
    isFromOption |= axis.isFromOption;
  }
  if (settings_.ranks > kMaxRanks) {
    diags_.report(settings_.gridLoc, Diag::GridTooLarge, kMaxRanks);
    return;
  }
  if (cluster_ == nullptr) return;
  int64_t devices = devicesWithin(cluster_->levels.size());
  if (options_.changes.growCluster && !settings_.cluster.levels.empty())
    while (settings_.ranks > (devices = settings_.cluster.devicesWithin(cluster_->levels.size())))
      settings_.cluster.levels.back().count *= 2;
  if (settings_.ranks > devices)
    diags_
        .report(settings_.gridLoc, Diag::GridExceedsCluster, settings_.ranks,
                isFromOption ? " by --grid" : "", cluster_->name.text, devices)
        .note(cluster_->name.loc, Diag::DeclaredHere, cluster_->name.text)
        .suggest(mostRanks(axes, devices));
}

// Devices in one unit of the first `levels` levels.
int64_t PlanChecker::devicesWithin(size_t levels) const {
  double devices = 1;
  for (size_t i = 0; i < levels; ++i) devices *= std::max(1.0, cluster_->levels[i].count.value);
  return int64_t(std::min(devices, 1e15));
}

const PlanAxis* PlanChecker::axisNamed(llvm::StringRef name) const {
  for (const PlanAxis& axis : settings_.grid)
    if (axis.name == name) return &axis;
  return nullptr;
}

std::vector<std::string> PlanChecker::axisNames() const {
  std::vector<std::string> names;
  for (const PlanAxis& axis : settings_.grid) names.push_back(axis.name);
  return names;
}

const PlanAxis* PlanChecker::findAxis(const ast::Ident& name) {
  const PlanAxis* axis = axisNamed(name.text);
  if (axis == nullptr)
    suggestFrom(
        diags_.report(name.loc, Diag::UnknownAxis, name.text), name.text, axisNames(),
        settings_.grid.empty() ? "the plan has no grid; add: grid " + name.text + " 2" : "");
  return axis;
}

std::string PlanChecker::mostRanks(const std::vector<const PlanAxis*>& axes, int64_t ranks) {
  int64_t product = 1;
  for (const PlanAxis* axis : axes) product = saturatingMul(product, axis->size);
  std::vector<std::string> words;
  for (const PlanAxis* axis : axes)
    if (int64_t most = ranks / (product / axis->size); most >= 1 && axis->size > most)
      words.push_back(axis->name + (most == 1 ? " " : " up to ") + std::to_string(most));
  return "use " + (words.empty() ? "smaller axes: at most " + std::to_string(ranks) + " ranks"
                                 : either(words));
}

// Whether a name is new to `seen`; reports it with `id` otherwise.
bool PlanChecker::once(std::map<std::string, Loc>& seen, const ast::Ident& name, Diag id) {
  auto [at, isNew] = seen.emplace(name.text, name.loc);
  if (!isNew) diags_.report(name.loc, id, name.text).note(at->second, Diag::GivenHere, name.text);
  return isNew;
}

// Reports a statement that may stand once and stands twice.
void PlanChecker::onlyOne(llvm::StringRef keyword, Loc loc) {
  auto [at, isNew] = statements_.emplace(keyword.str(), loc);
  if (!isNew)
    diags_.report(loc, Diag::StatementTwice, keyword, plan_.name.text)
        .note(at->second, Diag::GivenHere, keyword);
}

void PlanChecker::check(const ast::Grid&, Loc loc) { onlyOne("grid", loc); }

// ---- Shards and places

void PlanChecker::check(const ast::Shard& statement, Loc) {
  Words axes;
  std::map<std::string, Loc> seen;
  for (const ast::Ident& name : statement.axes) {
    const PlanAxis* axis = once(seen, name, Diag::AxisTwice) ? findAxis(name) : nullptr;
    if (axis != nullptr && axis->size > 1) axes.push_back(axis->name);
  }
  std::vector<std::string> kinds = {"optimizer", "gradients", "weights"};
  for (const ast::Ident& what : statement.what) {
    if (!llvm::is_contained(kinds, what.text))
      suggestFrom(diags_.report(what.loc, Diag::ShardWhat, what.text), what.text, kinds);
    else if (once(sharded_, what, Diag::KeyTwice) && !axes.empty())
      settings_.shards.push_back({what.text, axes, what.loc});
  }
}

// The number of levels up to and with the one named; 0: reported.
size_t PlanChecker::findLevel(const ast::Ident& name, llvm::StringRef keyword) {
  if (cluster_ == nullptr) {
    if (plan_.cluster.text.empty())
      diags_.report(name.loc, Diag::NoCluster, keyword, plan_.name.text)
          .suggest("write: plan " + plan_.name.text + " of " + plan_.model.text + " on CLUSTER");
    return 0;
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < cluster_->levels.size(); ++i) {
    names.push_back(cluster_->levels[i].name.text);
    if (names.back() == name.text) return i + 1;
  }
  suggestFrom(diags_.report(name.loc, Diag::UnknownLevel, cluster_->name.text, name.text)
                  .note(cluster_->name.loc, Diag::DeclaredHere, cluster_->name.text),
              name.text, names);
  return 0;
}

void PlanChecker::check(const ast::Place& place, Loc) {
  int64_t product = 1;
  std::vector<std::string> names;
  std::vector<const PlanAxis*> axes;
  for (const ast::Ident& name : place.axes) {
    if (!once(placed_, name, Diag::PlacedTwice)) continue;
    const PlanAxis* axis = findAxis(name);
    if (axis == nullptr) continue;
    product = saturatingMul(product, axis->size);
    axes.push_back(axis);
    names.push_back(quoted(name.text) + (axis->isFromOption ? " by --grid" : ""));
  }
  size_t levels = findLevel(place.level, "place");
  if (levels > 0 && !axes.empty()) {
    Within& made = settings_.places.emplace_back();
    for (const PlanAxis* axis : axes)
      if (axis->size > 1) made.axes.push_back(axis->name);
    made.level = place.level.text;
    made.loc = place.axes.front().loc;
    if (made.axes.empty()) settings_.places.pop_back();
  }
  if (levels == 0 || product <= devicesWithin(levels)) return;
  diags_
      .report(place.axes.front().loc, Diag::PlaceTooLarge, llvm::join(names, " x "),
              place.level.text, product, devicesWithin(levels))
      .note(cluster_->levels[levels - 1].name.loc, Diag::DeclaredHere, place.level.text)
      .suggest(mostRanks(axes, devicesWithin(levels)));
}

bool checkPlan(const ast::Plan& plan, const Scope& scope, const DimMap& dims, bool complete,
               const CompileOptions& options, PlanSettings& settings, Diagnostics& diags) {
  const ast::Module* model = scope.module(plan.model.text);
  if (model == nullptr || !model->isModel) return false;  // checkFiles reported it
  unsigned before = diags.errors();
  PlanChecker(plan, scope, dims, complete, options, settings, diags).run();
  return diags.errors() == before;
}

}  // namespace planc
