// A plan's statements against the model: the grid, splits of dims over axes, shards, places, and
// the settings that lowering takes over. Method, optimizer and settings tables say what is legal;
// help texts compute the nearest legal numbers. Tested by tests/frontend/errors/plan.plan and
// split.plan.
#include <cmath>
#include <set>

#include "frontend/check.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace planc {
namespace {

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxMicrobatches = 1 << 16;
constexpr int64_t kMaxSeed = int64_t{1} << 53;
constexpr int64_t kMaxSteps = int64_t{1} << 40;

// What a method can split.
enum class MethodKind { Any, Attended, Repeat };
struct Method {
  llvm::StringRef name;
  MethodKind kind;
  llvm::StringRef args;  // described; empty: none
};
constexpr Method kMethods[] = {
    {"gather", MethodKind::Any, ""},
    {"ring", MethodKind::Attended, "zigzag or contiguous"},
    {"heads", MethodKind::Attended, ""},
    {"gpipe", MethodKind::Repeat, ""},
    {"one_f_one_b", MethodKind::Repeat, ""},
    {"interleaved", MethodKind::Repeat, "one whole number from 2, the chunks of a rank"},
    {"zero_bubble", MethodKind::Repeat, ""},
    {"zero_bubble_v", MethodKind::Repeat, ""},
};

// A number of an optimizer. `count` values are wanted; `least` and `most` bound them.
struct Setting {
  llvm::StringRef optimizer, key;
  unsigned count;
  bool isWhole;
  double least, most;
  double fallback;
};
constexpr double kHuge = 1e30;
constexpr Setting kSettings[] = {
    {"adamw", "lr", 1, false, 0, kHuge, 3e-4},
    {"adamw", "warmup", 1, true, 0, double(kMaxSteps), 0},
    {"adamw", "cosine", 1, true, 0, double(kMaxSteps), 0},
    {"adamw", "floor", 1, false, 0, 1, 0.1},
    {"adamw", "betas", 2, false, 0, 1, 0},  // 0.9 0.95, set apart
    {"adamw", "eps", 1, false, 0, kHuge, 1e-8},
    {"adamw", "decay", 1, false, 0, kHuge, 0.1},
    {"adamw", "clip", 1, false, 0, kHuge, 1},
    {"sgd", "lr", 1, false, 0, kHuge, 0.01},
    {"sgd", "warmup", 1, true, 0, double(kMaxSteps), 0},
    {"sgd", "cosine", 1, true, 0, double(kMaxSteps), 0},
    {"sgd", "floor", 1, false, 0, 1, 0.1},
    {"sgd", "momentum", 1, false, 0, 1, 0},
    {"sgd", "decay", 1, false, 0, kHuge, 0},
    {"sgd", "clip", 1, false, 0, kHuge, 0},
};

std::string quoted(llvm::StringRef name) { return "'" + name.str() + "'"; }

// `1, 2 or 4`
std::string either(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

void suggestFrom(Message& message, llvm::StringRef word, const std::vector<std::string>& names,
                 llvm::StringRef otherwise = "") {
  std::string near = nearest(word, names);
  if (!near.empty()) message.suggest("did you mean '" + near + "'?");
  else if (!otherwise.empty()) message.suggest(otherwise);
  else if (!names.empty() && names.size() <= 12) message.suggest("there is " + either(names));
}

// What the text of a model tells about its dims: over which `attend` goes, and which count the
// iterations of a `repeat`.
class DimUses {
 public:
  DimUses(const Scope& scope, const ast::Module& model) : scope_(scope) {
    visit(model);
    while (!pending_.empty()) {
      const ast::Module* module = pending_.back();
      pending_.pop_back();
      visit(*module);
    }
  }
  std::set<std::string> attended, repeated;

 private:
  void visit(const ast::Module& module) {
    if (seen_.insert(&module).second) visit(module.body);
  }
  void visit(const std::vector<ast::Stmt>& body) {
    for (const ast::Stmt& stmt : body) {
      if (auto* assign = std::get_if<ast::Assign>(&stmt.node)) visit(*assign->value);
      if (auto* loss = std::get_if<ast::Loss>(&stmt.node)) visit(*loss->value);
      if (auto* repeat = std::get_if<ast::Repeat>(&stmt.node)) {
        repeated.insert(repeat->dim.text);
        visit(repeat->body);
      }
      if (auto* branch = std::get_if<ast::If>(&stmt.node)) {
        visit(branch->then);
        visit(branch->otherwise);
      }
    }
  }
  void visit(const ast::Expr& expr) {
    if (expr.kind == ast::ExprKind::Call && expr.text == "attend") {
      std::string over = "seq";
      for (const ast::Arg& arg : expr.args)
        if (arg.key.text == "over" && arg.value->kind == ast::ExprKind::Name)
          over = arg.value->text;
      attended.insert(over);
    }
    if (expr.kind == ast::ExprKind::Call)
      if (const ast::Module* module = scope_.module(expr.text)) pending_.push_back(module);
    for (const ast::Arg& arg : expr.args) visit(*arg.value);
  }

  const Scope& scope_;
  std::set<const ast::Module*> seen_;
  std::vector<const ast::Module*> pending_;
};

class PlanChecker {
 public:
  PlanChecker(const ast::Plan& plan, const Scope& scope, const ast::Module& model,
              const DimMap& dims, bool complete, const CompileOptions& options,
              PlanSettings& settings, Diagnostics& diags)
      : plan_(plan),
        scope_(scope),
        dims_(dims),
        complete_(complete),
        options_(options),
        settings_(settings),
        diags_(diags),
        uses_(scope, model) {
    auto at = scope.clusters.find(plan.cluster.text);
    cluster_ = at == scope.clusters.end() ? nullptr : at->second;
  }

  void run() {
    settings_ = {};
    settings_.name = plan_.name.text;
    settings_.gridLoc = plan_.name.loc;
    setDefaults("adamw");
    settings_.optimizer = "adamw";
    for (const ast::PlanStmt& stmt : plan_.body)
      if (auto* grid = std::get_if<ast::Grid>(&stmt.node)) readGrid(*grid, stmt.loc);
    overrideGrid();
    checkRanks();
    for (const ast::PlanStmt& stmt : plan_.body)
      std::visit([&](const auto& node) { check(node, stmt.loc); }, stmt.node);
  }

 private:
  // ---- The grid

  void readGrid(const ast::Grid& grid, Loc loc) {
    if (hasGrid_ || grid.automatic) return;  // `check` reports a second one
    hasGrid_ = true;
    settings_.gridLoc = loc;
    for (const auto& axis : grid.axes) {
      if (axisSize(axis.name.text) != nullptr) {
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
  void overrideGrid() {
    for (const auto& [name, text] : options_.grid) {
      int64_t size = 0;
      if (llvm::StringRef(text).getAsInteger(10, size) || size < 1 || size > kMaxRanks) {
        diags_.report(Loc{}, Diag::GridOption, name, text, kMaxRanks);
        continue;
      }
      auto at = llvm::find_if(settings_.grid, [&](auto& axis) { return axis.first == name; });
      if (at != settings_.grid.end()) at->second = size;
      else if (!hasGrid_) settings_.grid.push_back({name, size});
      else suggestFrom(diags_.report(Loc{}, Diag::GridOptionAxis, name), name, axisNames());
    }
  }

  void checkRanks() {
    for (const auto& [name, size] : settings_.grid)
      settings_.ranks = std::min(saturatingMul(settings_.ranks, size), kMaxRanks + 1);
    if (settings_.ranks > kMaxRanks)
      diags_.report(settings_.gridLoc, Diag::GridTooLarge, kMaxRanks);
    else if (cluster_ != nullptr && settings_.ranks > devicesWithin(cluster_->levels.size()))
      diags_
          .report(settings_.gridLoc, Diag::GridExceedsCluster, settings_.ranks, cluster_->name.text,
                  devicesWithin(cluster_->levels.size()))
          .note(cluster_->name.loc, Diag::DeclaredHere, cluster_->name.text);
  }

  // Devices in one unit of the first `levels` levels.
  int64_t devicesWithin(size_t levels) const {
    double devices = 1;
    for (size_t i = 0; i < levels; ++i) devices *= std::max(1.0, cluster_->levels[i].count.value);
    return int64_t(std::min(devices, 1e15));
  }

  const int64_t* axisSize(llvm::StringRef name) const {
    for (const auto& axis : settings_.grid)
      if (axis.first == name) return &axis.second;
    return nullptr;
  }
  std::vector<std::string> axisNames() const {
    std::vector<std::string> names;
    for (const auto& axis : settings_.grid) names.push_back(axis.first);
    return names;
  }

  // The size of an axis that must exist; null: reported.
  const int64_t* findAxis(const ast::Ident& name) {
    const int64_t* size = axisSize(name.text);
    if (size == nullptr)
      suggestFrom(
          diags_.report(name.loc, Diag::UnknownAxis, name.text), name.text, axisNames(),
          settings_.grid.empty() ? "the plan has no grid; add: grid " + name.text + " 2" : "");
    return size;
  }

  // Whether a name is new to `seen`; reports it with `id` otherwise.
  bool once(std::map<std::string, Loc>& seen, const ast::Ident& name, Diag id) {
    auto [at, isNew] = seen.emplace(name.text, name.loc);
    if (!isNew) diags_.report(name.loc, id, name.text).note(at->second, Diag::GivenHere, name.text);
    return isNew;
  }

  // Reports a statement that may stand once and stands twice.
  void onlyOne(llvm::StringRef keyword, Loc loc) {
    auto [at, isNew] = statements_.emplace(keyword.str(), loc);
    if (!isNew)
      diags_.report(loc, Diag::StatementTwice, keyword, plan_.name.text)
          .note(at->second, Diag::GivenHere, keyword);
  }

  // ---- Splits

  void check(const ast::Grid&, Loc loc) { onlyOne("grid", loc); }

  void check(const ast::Split& split, Loc) {
    std::vector<const ast::Target*> targets;
    std::map<std::string, Loc> axes;
    for (const ast::Target& target : split.targets) {
      bool more = !targets.empty() && !target.scope.text.empty() &&
                  target.axis.loc.column == targets.back()->axis.loc.column &&
                  target.axis.loc.line == targets.back()->axis.loc.line;
      if (!more && !once(axes, target.axis, Diag::AxisTwice)) continue;
      if (findAxis(target.axis) != nullptr) targets.push_back(&target);
      if (!target.scope.text.empty() && target.scope.text != "across")
        findLevel(target.scope, "within");
    }
    for (const ast::Ident& dim : split.dims) {
      once(splitDims_, dim, Diag::DimSplitTwice);
      bool isRepeat = uses_.repeated.count(dim.text) != 0;
      for (const ast::Target& target : split.targets) checkMethod(dim, target, isRepeat);
      auto at = dims_.find(dim.text);
      if (at == dims_.end()) {
        if (complete_) reportUnknownDim(dim);
        continue;
      }
      if (isRepeat) checkStages(dim, at->second, targets);
      else checkDivides(dim, at->second, targets);
    }
  }

  void reportUnknownDim(const ast::Ident& dim) {
    std::vector<std::string> names;
    for (const auto& entry : dims_) names.push_back(entry.first);
    suggestFrom(diags_.report(dim.loc, Diag::UnknownSplitDim, plan_.model.text, dim.text), dim.text,
                names);
  }

  static const Method* findMethod(llvm::StringRef name) {
    for (const Method& method : kMethods)
      if (method.name == name) return &method;
    return nullptr;
  }

  void checkMethod(const ast::Ident& dim, const ast::Target& target, bool isRepeat) {
    if (!target.stages.empty() && !isRepeat)
      diags_.report(target.stages.front().loc, Diag::StagesNotPipeline, dim.text);
    const ast::Ident& name = target.method;
    if (name.text.empty()) return;
    const Method* method = findMethod(name.text);
    if (method == nullptr) {
      std::vector<std::string> names;
      for (const Method& m : kMethods) names.push_back(m.name.str());
      suggestFrom(diags_.report(name.loc, Diag::UnknownMethod, name.text), name.text, names);
      return;
    }
    bool fits = method->kind == MethodKind::Repeat     ? isRepeat
                : method->kind == MethodKind::Attended ? uses_.attended.count(dim.text) != 0
                                                       : !isRepeat;
    if (!fits) {
      llvm::StringRef what = method->kind == MethodKind::Repeat ? "the dim of a 'repeat'"
                             : method->kind == MethodKind::Attended
                                 ? "a dim that 'attend' goes over"
                                 : "dims of tensors";
      std::vector<std::string> names;
      for (const Method& m : kMethods)
        if (isRepeat ? m.kind == MethodKind::Repeat
                     : m.kind == MethodKind::Any ||
                           (m.kind == MethodKind::Attended && uses_.attended.count(dim.text)))
          names.push_back(m.name.str());
      diags_.report(name.loc, Diag::MethodWrongDim, name.text, what, dim.text)
          .suggest("'" + dim.text + "' can be split by " + either(names));
      return;
    }
    if (!argsFit(*method, target))
      diags_.report(target.args.empty() ? name.loc : target.args.front()->loc, Diag::MethodArgs,
                    name.text,
                    method->args.empty() ? llvm::StringRef("no arguments") : method->args);
  }

  static bool argsFit(const Method& method, const ast::Target& target) {
    if (method.name == "interleaved") return chunksOf(target) >= 2;
    if (target.args.empty()) return true;
    if (method.name != "ring" || target.args.size() > 1) return false;
    const ast::Expr& arg = *target.args.front();
    return arg.kind == ast::ExprKind::Name && (arg.text == "zigzag" || arg.text == "contiguous");
  }

  // Stages on each rank; 0: the arguments say something else.
  static int64_t chunksOf(const ast::Target& target) {
    if (target.method.text == "zero_bubble_v") return 2;
    if (target.method.text != "interleaved") return 1;
    if (target.args.size() != 1) return 0;
    const ast::Expr& arg = *target.args.front();
    bool fits = arg.kind == ast::ExprKind::Number && arg.isInteger && arg.number >= 2 &&
                arg.number <= double(kMaxRanks);
    return fits ? int64_t(arg.number) : 0;
  }

  // A ring of n ranks deals 2n blocks to them unless told otherwise; a dim that `attend` goes over
  // is split by a ring unless told otherwise.
  bool isZigzag(const ast::Ident& dim, const ast::Target& target) const {
    if (target.method.text.empty()) return uses_.attended.count(dim.text) != 0;
    return target.method.text == "ring" &&
           (target.args.empty() || target.args.front()->text == "zigzag");
  }

  void checkStages(const ast::Ident& dim, const DimInfo& info,
                   const std::vector<const ast::Target*>& targets) {
    if (targets.empty()) return;
    if (targets.size() > 1) {
      diags_.report(targets[1]->axis.loc, Diag::RepeatAxes, dim.text, targets.size());
      return;
    }
    const ast::Target& target = *targets.front();
    int64_t chunks = chunksOf(target);
    if (chunks == 0) return;
    int64_t ranks = *axisSize(target.axis.text);
    int64_t stages = saturatingMul(ranks, chunks);
    std::string places = chunks == 1 ? std::to_string(ranks)
                                     : std::to_string(stages) + " (" + std::to_string(ranks) +
                                           " ranks with " + std::to_string(chunks) + " each)";
    if (info.size < stages) {
      std::string most = std::to_string(std::max<int64_t>(1, info.size / chunks));
      Message& message = diags_.report(dim.loc, Diag::TooFewLayers, dim.text, info.size, places)
                             .note(info.loc, Diag::DeclaredHere, dim.text);
      message.suggest(info.size < chunks ? "use another method; each stage has at least 1 iteration"
                                         : "use " + target.axis.text + " up to " + most +
                                               "; each stage has at least 1 iteration");
      return;
    }
    if (target.stages.empty()) return;
    double sum = 0;
    for (const ast::Quantity& stage : target.stages) {
      if (!wholeNumber(stage, "stages", 1, info.size, diags_)) return;
      sum += stage.value;
    }
    if (int64_t(target.stages.size()) != stages)
      diags_.report(target.stages.front().loc, Diag::StageCount, target.stages.size(),
                    target.axis.text, places);
    else if (int64_t(sum) != info.size)
      diags_.report(target.stages.front().loc, Diag::StageSum, int64_t(sum), dim.text, info.size)
          .note(info.loc, Diag::DeclaredHere, dim.text);
  }

  // Every axis of a dim must divide what the axes before it leave.
  void checkDivides(const ast::Ident& dim, const DimInfo& info,
                    const std::vector<const ast::Target*>& targets) {
    int64_t product = 1, last = 1;
    std::vector<std::string> parts;
    const ast::Target* previous = nullptr;
    for (const ast::Target* target : targets) {
      if (previous != nullptr && previous->axis.loc.column == target->axis.loc.column &&
          previous->axis.loc.line == target->axis.loc.line)
        continue;  // another method for the same axis
      previous = target;
      last = *axisSize(target->axis.text);
      product = saturatingMul(product, last);
      std::string part = quoted(target->axis.text) + " (" + std::to_string(last) +
                         (last == 1 ? " rank" : " ranks");
      if (isZigzag(dim, *target) && last > 1) {
        product = saturatingMul(product, 2);
        part += ", 2 zigzag blocks each";
      }
      parts.push_back(part + ")");
    }
    if (parts.empty() || info.size % product == 0) return;
    std::string axes = llvm::join(parts, " x ") + (parts.size() == 1 ? " does" : " do");
    Message& message = diags_.report(dim.loc, Diag::DoesNotDivide, dim.text, info.size, axes);
    if (info.loc.known()) message.note(info.loc, Diag::DeclaredHere, dim.text);
    message.suggest(legalSizes(dim, info.size, product, last, previous->axis.text));
  }

  // `use tensor 1, 2 or 4; or make 'kv' 8; or leave ...`
  static std::string legalSizes(const ast::Ident& dim, int64_t size, int64_t product, int64_t last,
                                const std::string& axis) {
    int64_t others = product / last;
    std::vector<int64_t> legal;
    if (size % others == 0)
      for (int64_t n = 1; n <= std::min<int64_t>(size / others, 4096); ++n)
        if (size / others % n == 0) legal.push_back(n);
    // Of many, the six nearest.
    llvm::sort(legal,
               [&](int64_t a, int64_t b) { return std::abs(a - last) < std::abs(b - last); });
    if (legal.size() > 6) legal.resize(6);
    llvm::sort(legal);
    std::vector<std::string> words;
    for (int64_t n : legal) words.push_back(std::to_string(n));
    std::string help;
    if (!words.empty()) help += "use " + axis + " " + either(words) + "; or ";
    if (size > product)
      help += "make '" + dim.text + "' " + std::to_string(size / product * product) + " or " +
              std::to_string((size / product + 1) * product) + "; or ";
    help += "leave '" + dim.text + "' out of the split";
    if (product % size == 0)
      help += ": each " + dim.text + (dim.text == "kv" ? " head" : "") + " is then held by " +
              std::to_string(product / size) + " ranks";
    return help;
  }

  // ---- Shards and places

  void check(const ast::Shard& shard, Loc) {
    std::vector<std::string> kinds = {"optimizer", "gradients", "weights"};
    for (const ast::Ident& what : shard.what) {
      if (!llvm::is_contained(kinds, what.text))
        suggestFrom(diags_.report(what.loc, Diag::ShardWhat, what.text), what.text, kinds);
      else once(sharded_, what, Diag::KeyTwice);
    }
    std::map<std::string, Loc> seen;
    for (const ast::Ident& axis : shard.axes)
      if (once(seen, axis, Diag::AxisTwice)) findAxis(axis);
  }

  // The number of levels up to and with the one named; 0: reported.
  size_t findLevel(const ast::Ident& name, llvm::StringRef keyword) {
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

  void check(const ast::Place& place, Loc) {
    int64_t product = 1;
    std::vector<std::string> names;
    for (const ast::Ident& axis : place.axes) {
      if (!once(placed_, axis, Diag::PlacedTwice)) continue;
      const int64_t* size = findAxis(axis);
      product = saturatingMul(product, size == nullptr ? 1 : *size);
      names.push_back(quoted(axis.text));
    }
    size_t levels = findLevel(place.level, "place");
    if (levels == 0 || product <= devicesWithin(levels)) return;
    diags_
        .report(place.axes.front().loc, Diag::PlaceTooLarge, llvm::join(names, " x "),
                place.level.text, product, devicesWithin(levels))
        .note(cluster_->levels[levels - 1].name.loc, Diag::DeclaredHere, place.level.text);
  }

  // ---- Settings

  void check(const ast::Microbatches& statement, Loc loc) {
    onlyOne("microbatches", loc);
    if (statement.automatic) return;
    settings_.microbatches =
        wholeNumber(statement.count, "microbatches", 1, kMaxMicrobatches, diags_).value_or(1);
  }

  void check(const ast::Seed& statement, Loc loc) {
    onlyOne("seed", loc);
    settings_.seed = wholeNumber(statement.value, "seed", 0, kMaxSeed, diags_).value_or(0);
  }

  std::optional<Elem> floatElem(const ast::Ident& name) {
    std::optional<Elem> elem = elemByName(name.text);
    if (elem && isFloat(*elem)) return elem;
    suggestFrom(diags_.report(name.loc, Diag::UnknownElement, name.text), name.text,
                {"f32", "bf16", "f64"});
    return std::nullopt;
  }

  void check(const ast::Precision& statement, Loc loc) {
    onlyOne("precision", loc);
    std::optional<Elem> elem = floatElem(statement.element);
    if (!elem) return;
    settings_.precision = *elem;
    Elem master = *elem == Elem::F64 ? Elem::F64 : Elem::F32;
    settings_.gradients = master;
    std::map<std::string, Loc> seen;
    for (const auto& entry : statement.entries) {
      if (entry.key.text != "master" && entry.key.text != "gradients") {
        suggestFrom(diags_.report(entry.key.loc, Diag::UnknownKey, "'precision'", entry.key.text),
                    entry.key.text, {"master", "gradients"});
        continue;
      }
      if (!once(seen, entry.key, Diag::KeyTwice)) continue;
      std::optional<Elem> value = floatElem(entry.element);
      if (!value) continue;
      // Sums over microbatches and ranks lose nothing to the master copy, or to bf16 if asked for.
      bool fits = *value == master ||
                  (entry.key.text == "gradients" && *value == Elem::BF16 && master == Elem::F32);
      if (!fits)
        diags_
            .report(entry.element.loc, Diag::PrecisionKind, entry.element.text, entry.key.text,
                    statement.element.text)
            .suggest("use " + name(master).str() +
                     (entry.key.text == "gradients" && master == Elem::F32 ? " or bf16" : ""));
      else if (entry.key.text == "gradients") settings_.gradients = *value;
    }
  }

  void check(const ast::Recompute& statement, Loc loc) {
    onlyOne("recompute", loc);
    std::map<std::string, Loc> seen;
    std::vector<std::string> names = {"none", "auto", "layer"};
    for (llvm::StringRef builtin : builtinNames()) names.push_back(builtin.str());
    for (const ast::Ident& what : statement.what) {
      bool isAlone = what.text == "none" || what.text == "auto";
      if (!llvm::is_contained(names, what.text))
        suggestFrom(diags_.report(what.loc, Diag::RecomputeName, what.text), what.text, names,
                    "there is none, auto, layer and each builtin function, such as attend");
      else if (isAlone && statement.what.size() > 1)
        diags_.report(what.loc, Diag::RecomputeAlone, what.text);
      else if (once(seen, what, Diag::KeyTwice) && !isAlone)
        settings_.recompute.push_back(what.text);
    }
  }

  void setDefaults(llvm::StringRef optimizer) {
    settings_.numbers.clear();
    for (const char* key : {"beta1", "beta2", "eps", "momentum"}) settings_.numbers[key] = 0;
    for (const Setting& setting : kSettings)
      if (setting.optimizer == optimizer && setting.count == 1)
        settings_.numbers[setting.key.str()] = setting.fallback;
    if (optimizer == "adamw") {
      settings_.numbers["beta1"] = 0.9;
      settings_.numbers["beta2"] = 0.95;
    }
  }

  void check(const ast::Optimizer& statement, Loc loc) {
    onlyOne("optimizer", loc);
    llvm::StringRef optimizer = statement.name.text;
    if (optimizer != "adamw" && optimizer != "sgd") {
      suggestFrom(diags_.report(statement.name.loc, Diag::UnknownOptimizer, optimizer), optimizer,
                  {"adamw", "sgd"});
      return;
    }
    settings_.optimizer = optimizer.str();
    setDefaults(optimizer);
    std::map<std::string, Loc> seen;
    for (const auto& entry : statement.entries) {
      const Setting* setting = nullptr;
      std::vector<std::string> names;
      for (const Setting& s : kSettings) {
        if (s.optimizer != optimizer) continue;
        names.push_back(s.key.str());
        if (s.key == entry.key.text) setting = &s;
      }
      if (setting == nullptr)
        suggestFrom(
            diags_.report(entry.key.loc, Diag::UnknownKey, quoted(optimizer), entry.key.text),
            entry.key.text, names);
      else if (once(seen, entry.key, Diag::KeyTwice)) read(*setting, entry);
    }
    double warmup = settings_.numbers["warmup"], cosine = settings_.numbers["cosine"];
    if (cosine > 0 && cosine <= warmup)
      diags_
          .report(seen.count("cosine") ? seen["cosine"] : loc, Diag::CosineBeforeWarmup,
                  printNumber(cosine), printNumber(warmup))
          .suggest("'cosine' is the step at which the learning rate reaches its floor");
  }

  void read(const Setting& setting, const ast::Optimizer::Entry& entry) {
    if (entry.values.size() != setting.count) {
      diags_.report(entry.key.loc, Diag::ValueCount, setting.key,
                    setting.count == 1 ? "1 value" : "2 values", entry.values.size());
      return;
    }
    for (unsigned i = 0; i < setting.count; ++i) {
      std::string key = setting.key == "betas" ? (i == 0 ? "beta1" : "beta2") : setting.key.str();
      settings_.numbers[key] = readNumber(setting, entry.values[i], settings_.numbers[key]);
    }
  }

  // A value in the setting's range; reports others and gives the default.
  double readNumber(const Setting& setting, const ast::Quantity& given, double fallback) {
    if (setting.isWhole)
      return double(
          wholeNumber(given, setting.key, int64_t(setting.least), int64_t(setting.most), diags_)
              .value_or(int64_t(fallback)));
    double value = inBaseUnits(given, UnitKind::None, diags_, setting.key).value_or(fallback);
    // Betas and momentum of 1 would never forget.
    bool isShare = setting.key == "betas" || setting.key == "momentum";
    if (value >= setting.least && value <= setting.most && !(isShare && value >= setting.most))
      return value;
    llvm::StringRef range = setting.most == kHuge ? "at least 0 and at most 1e30"
                            : isShare             ? "at least 0 and less than 1"
                                                  : "from 0 to 1";
    diags_.report(given.loc, Diag::OutOfRange, setting.key, printNumber(value), range);
    return fallback;
  }

  const ast::Plan& plan_;
  const Scope& scope_;
  const DimMap& dims_;
  bool complete_;
  const CompileOptions& options_;
  PlanSettings& settings_;
  Diagnostics& diags_;
  DimUses uses_;
  const ast::Cluster* cluster_ = nullptr;
  bool hasGrid_ = false;
  std::map<std::string, Loc> axisLocs_, splitDims_, sharded_, placed_, statements_;
};

}  // namespace

bool checkPlan(const ast::Plan& plan, const Scope& scope, const DimMap& dims, bool complete,
               const CompileOptions& options, PlanSettings& settings, Diagnostics& diags) {
  const ast::Module* model = scope.module(plan.model.text);
  if (model == nullptr || !model->isModel) return false;  // checkFiles reported it
  unsigned before = diags.errors();
  PlanChecker(plan, scope, *model, dims, complete, options, settings, diags).run();
  return diags.errors() == before;
}

}  // namespace planc
