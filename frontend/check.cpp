// Declarations: names, devices, clusters, parameters, statements that stand in a wrong place, and
// what plans override. Bodies of modules are checked where they are lowered, and a plan's settings
// in check_plan.cpp. Tested by tests/frontend/errors/declarations.plan and units.plan.
#include "frontend/check.h"

#include <cmath>
#include <iterator>
#include <set>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"

namespace planc {
namespace {

struct Unit {
  llvm::StringRef name;
  UnitKind kind;
  double factor;
};
constexpr double kKi = 1024.0;
constexpr Unit kUnits[] = {
    {"B", UnitKind::Bytes, 1},
    {"KB", UnitKind::Bytes, 1e3},
    {"MB", UnitKind::Bytes, 1e6},
    {"GB", UnitKind::Bytes, 1e9},
    {"TB", UnitKind::Bytes, 1e12},
    {"KiB", UnitKind::Bytes, kKi},
    {"MiB", UnitKind::Bytes, kKi* kKi},
    {"GiB", UnitKind::Bytes, kKi* kKi* kKi},
    {"TiB", UnitKind::Bytes, kKi* kKi* kKi* kKi},
    {"KB/s", UnitKind::BytesPerSecond, 1e3},
    {"MB/s", UnitKind::BytesPerSecond, 1e6},
    {"GB/s", UnitKind::BytesPerSecond, 1e9},
    {"TB/s", UnitKind::BytesPerSecond, 1e12},
    {"GiB/s", UnitKind::BytesPerSecond, kKi* kKi* kKi},
    {"TiB/s", UnitKind::BytesPerSecond, kKi* kKi* kKi* kKi},
    {"ns", UnitKind::Seconds, 1e-9},
    {"us", UnitKind::Seconds, 1e-6},
    {"ms", UnitKind::Seconds, 1e-3},
    {"s", UnitKind::Seconds, 1},
    {"GFLOP/s", UnitKind::OpsPerSecond, 1e9},
    {"TFLOP/s", UnitKind::OpsPerSecond, 1e12},
    {"PFLOP/s", UnitKind::OpsPerSecond, 1e15},
};

llvm::StringRef describe(UnitKind kind) {
  switch (kind) {
    case UnitKind::None:
      return "a plain number";
    case UnitKind::Bytes:
      return "bytes";
    case UnitKind::BytesPerSecond:
      return "bytes per second";
    case UnitKind::Seconds:
      return "seconds";
    case UnitKind::OpsPerSecond:
      return "operations per second";
  }
  return "";
}

// What a device or a wire may be, in base units: figures made of them stay finite.
std::pair<double, double> rangeOf(UnitKind kind) {
  switch (kind) {
    case UnitKind::None:
      return {0, 0};
    case UnitKind::Bytes:
      return {1, 0x1p60};
    case UnitKind::BytesPerSecond:
      return {1, 1e18};
    case UnitKind::Seconds:
      return {1e-15, 1e6};
    case UnitKind::OpsPerSecond:
      return {1, 1e24};
  }
  return {0, 0};
}

std::vector<std::string> unitsOf(UnitKind kind) {
  std::vector<std::string> names;
  for (const Unit& unit : kUnits)
    if (unit.kind == kind) names.push_back(unit.name.str());
  return names;
}

// What `compute` may name: also formats that plans can't ask for yet, since devices publish them.
constexpr llvm::StringRef kRateElements[] = {"f64", "f32", "tf32", "bf16", "f16", "f8", "i8"};

constexpr llvm::StringRef kBuiltins[] = {
    "attend", "combine",   "concat",     "cross_entropy", "dispatch", "dropout", "exp",
    "gelu",   "gelu_tanh", "layer_norm", "log",           "max",      "mean",    "min",
    "relu",   "rms_norm",  "rope",       "route",         "rsqrt",    "sigmoid", "silu",
    "slice",  "softmax",   "sqrt",       "square",        "sum",      "tanh"};

template <class Map>
std::vector<std::string> keysOf(const Map& map) {
  std::vector<std::string> names;
  for (const auto& [name, declaration] : map) names.push_back(name);
  return names;
}

void suggestFrom(Diagnostic& message, llvm::StringRef word, const std::vector<std::string>& names,
                 llvm::StringRef kind) {
  std::string near = nearest(word, names);
  if (!near.empty()) message.suggest("did you mean '" + near + "'?");
  else if (names.empty()) message.suggest("no " + kind + " is declared");
  else if (names.size() <= 8) message.suggest("declared: " + llvm::join(names, ", "));
}

class FileChecker {
 public:
  FileChecker(const CompileOptions& options, Scope& scope, Diagnostics& diags)
      : options_(options), scope_(scope), diags_(diags) {}

  // Every declaration first, so that order does not matter.
  void declare(const ast::File& file, bool isLast) {
    for (const ast::Item& item : file.items) {
      if (auto* d = std::get_if<ast::Device>(&item)) add(scope_.devices, *d);
      if (auto* c = std::get_if<ast::Cluster>(&item)) add(scope_.clusters, *c);
      if (auto* m = std::get_if<ast::Module>(&item)) add(scope_.modules, *m);
      if (auto* p = std::get_if<ast::Plan>(&item)) {
        add(scope_.plans, *p);
        if (isLast) scope_.ownPlans.push_back(p);
      }
    }
  }

  void check(const ast::File& file) {
    for (const ast::Item& item : file.items) {
      if (auto* d = std::get_if<ast::Device>(&item)) checkDevice(*d);
      if (auto* c = std::get_if<ast::Cluster>(&item)) checkCluster(*c);
      if (auto* m = std::get_if<ast::Module>(&item)) checkModule(*m);
      if (auto* p = std::get_if<ast::Plan>(&item)) checkOverrides(*p);
    }
  }

  void checkDefines() {
    for (const auto& [name, value] : options_.defines) {
      std::vector<std::string> names;
      for (const ast::Plan* plan : scope_.ownPlans)
        if (const ast::Module* model = scope_.module(plan->model.text))
          for (const ast::Param& param : model->params) names.push_back(param.name.text);
      if (names.empty() || llvm::is_contained(names, name)) continue;
      suggestFrom(diags_.report(Loc{}, Diag::UnknownDefine, name), name, names, "parameter");
    }
  }

 private:
  template <class Map, class Declaration>
  void add(Map& map, const Declaration& declaration) {
    const ast::Ident& name = declaration.name;
    auto [at, isNew] = map.emplace(name.text, &declaration);
    if (!isNew)
      diags_.report(name.loc, Diag::AlreadyDeclared, name.text)
          .note(at->second->name.loc, Diag::DeclaredHere, name.text);
  }

  // Reports the second use of a key. `seen` maps keys to places.
  bool once(std::map<std::string, Loc>& seen, const std::string& key, Loc loc) {
    auto [at, isNew] = seen.emplace(key, loc);
    if (!isNew) diags_.report(loc, Diag::KeyTwice, key).note(at->second, Diag::GivenHere, key);
    return isNew;
  }

  void checkKey(const ast::Ident& key, llvm::StringRef owner,
                llvm::ArrayRef<std::pair<llvm::StringRef, UnitKind>> known,
                const ast::Quantity& value) {
    std::vector<std::string> names;
    for (const auto& [name, kind] : known) {
      if (name == key.text) {
        std::optional<double> number = inBaseUnits(value, kind, diags_, key.text);
        auto [least, most] = rangeOf(kind);
        if (number && !(*number > 0))
          diags_.report(value.loc, Diag::NotPositive, key.text, printNumber(value.value));
        else if (number && !(*number >= least && *number <= most))
          diags_.report(value.loc, Diag::OutOfRange, key.text,
                        printNumber(value.value) + " " + value.unit,
                        "from " + printNumber(least) + " to " + printNumber(most) + " " +
                            describe(kind).str());
        return;
      }
      names.push_back(name.str());
    }
    std::string near = nearest(key.text, names);
    diags_.report(key.loc, Diag::UnknownKey, owner, key.text)
        .suggest(near.empty() ? "it has " + llvm::join(names, ", ")
                              : "did you mean '" + near + "'?");
  }

  void checkDevice(const ast::Device& device) {
    std::map<std::string, Loc> seen;
    for (const auto& entry : device.entries) {
      bool isCompute = entry.key.text == "compute";
      if (isCompute && entry.element.text.empty()) {
        diags_.report(entry.key.loc, Diag::ComputeElement)
            .suggest("write it before the rate: compute bf16 989 TFLOP/s");
        continue;
      }
      if (!isCompute && !entry.element.text.empty()) {
        const std::string key = entry.key.text;
        diags_.report(entry.element.loc, Diag::UnknownKey, "'" + key + "'", entry.element.text)
            .suggest("only 'compute' has a value for each element type");
        continue;
      }
      if (isCompute && !llvm::is_contained(kRateElements, entry.element.text)) {
        diags_.report(entry.element.loc, Diag::UnknownElement, entry.element.text)
            .suggest("rates are for " +
                     llvm::join(std::begin(kRateElements), std::end(kRateElements), ", "));
        continue;
      }
      if (!once(seen, isCompute ? "compute " + entry.element.text : entry.key.text, entry.key.loc))
        continue;
      checkKey(entry.key, "a device",
               {{"memory", UnitKind::Bytes},
                {"compute", UnitKind::OpsPerSecond},
                {"hbm", UnitKind::BytesPerSecond}},
               entry.value);
    }
  }

  void checkCluster(const ast::Cluster& cluster) {
    if (cluster.levels.empty())
      diags_.report(cluster.name.loc, Diag::NoLevels, cluster.name.text)
          .suggest("name what it is made of: node 8 of h100 { link 450 GB/s, latency 1 us }");
    const ast::Cluster::Level* below = nullptr;
    std::map<std::string, Loc> names;
    double devices = 1;
    for (const auto& level : cluster.levels) {
      once(names, level.name.text, level.name.loc);
      std::optional<int64_t> count =
          wholeNumber(level.count, level.name.text, 1, kMaxDevices, diags_);
      devices *= double(count.value_or(1));
      if (below == nullptr) {
        if (scope_.devices.count(level.of.text) == 0)
          suggestFrom(diags_.report(level.of.loc, Diag::UnknownDevice, level.of.text),
                      level.of.text, keysOf(scope_.devices), "device");
      } else if (level.of.text != below->name.text) {
        diags_
            .report(level.of.loc, Diag::LevelOrder, level.name.text, level.of.text,
                    below->name.text)
            .note(below->name.loc, Diag::DeclaredHere, below->name.text)
            .suggest("each level is made of the one above it in the file; the first of a device");
      }
      below = &level;
      std::map<std::string, Loc> seen;
      for (const auto& entry : level.entries)
        if (once(seen, entry.key.text, entry.key.loc))
          checkKey(entry.key, "a level",
                   {{"link", UnitKind::BytesPerSecond}, {"latency", UnitKind::Seconds}},
                   entry.value);
    }
    if (devices > double(kMaxDevices))
      diags_.report(cluster.name.loc, Diag::ClusterTooLarge, cluster.name.text, kMaxDevices);
  }

  void checkModule(const ast::Module& module) {
    if (llvm::is_contained(builtinNames(), module.name.text))
      diags_.report(module.name.loc, Diag::BuiltinName, module.name.text)
          .suggest("give the module another name");
    std::map<std::string, Loc> seen;
    for (const ast::Param& param : module.params) {
      once(seen, param.name.text, param.name.loc);
      if (module.isModel && param.kind == ast::Param::Tensor)
        diags_.report(param.name.loc, Diag::ModelTensorParam, module.name.text, param.name.text)
            .suggest("a model's tensors come from 'input'; its parameters are numbers and words");
    }
    checkStatements(module, module.body);
  }

  void checkStatements(const ast::Module& module, const std::vector<ast::Stmt>& body) {
    const std::string& name = module.name.text;
    for (const ast::Stmt& stmt : body) {
      if (!module.isModel && std::holds_alternative<ast::InputDecl>(stmt.node))
        diags_.report(stmt.loc, Diag::InputInModule, name)
            .suggest("a module's tensors are parameters: module " + name +
                     "(x[batch, seq, model])");
      if (!module.isModel && std::holds_alternative<ast::Loss>(stmt.node))
        diags_.report(stmt.loc, Diag::LossInModule, name)
            .suggest("return the value, and let the model say 'loss'");
      if (auto* assign = std::get_if<ast::Assign>(&stmt.node))
        if (assign->isReturn && module.isModel)
          diags_.report(stmt.loc, Diag::ReturnInModel, name).suggest("a model ends in 'loss'");
      if (auto* repeat = std::get_if<ast::Repeat>(&stmt.node))
        checkStatements(module, repeat->body);
      if (auto* branch = std::get_if<ast::If>(&stmt.node)) {
        checkStatements(module, branch->then);
        checkStatements(module, branch->otherwise);
      }
    }
  }

  void checkOverrides(const ast::Plan& plan) {
    if (!plan.cluster.text.empty() && scope_.clusters.count(plan.cluster.text) == 0)
      suggestFrom(diags_.report(plan.cluster.loc, Diag::UnknownCluster, plan.cluster.text),
                  plan.cluster.text, keysOf(scope_.clusters), "cluster");
    const ast::Module* model = scope_.module(plan.model.text);
    if (model == nullptr) {
      suggestFrom(diags_.report(plan.model.loc, Diag::UnknownModel, plan.model.text),
                  plan.model.text, scope_.moduleNames(true), "model");
      return;
    }
    if (!model->isModel) {
      diags_.report(plan.model.loc, Diag::ModuleNotModel, plan.model.text)
          .note(model->name.loc, Diag::DeclaredHere, plan.model.text)
          .suggest("a plan trains a 'model', which has inputs and a loss");
      return;
    }
    std::vector<std::string> names;
    for (const ast::Param& param : model->params) names.push_back(param.name.text);
    std::map<std::string, Loc> seen;
    for (const ast::Arg& arg : plan.args) {
      if (arg.key.text.empty())
        diags_.report(arg.value->loc, Diag::OverrideUnnamed, plan.model.text)
            .suggest(names.empty() ? "it has no parameters"
                                   : "write its name: " + names.front() + " = ...");
      else if (!llvm::is_contained(names, arg.key.text))
        suggestFrom(
            diags_.report(arg.key.loc, Diag::UnknownParameter, plan.model.text, arg.key.text)
                .note(model->name.loc, Diag::DeclaredHere, plan.model.text),
            arg.key.text, names, "parameter");
      else once(seen, arg.key.text, arg.key.loc);
    }
  }

  const CompileOptions& options_;
  Scope& scope_;
  Diagnostics& diags_;
};

}  // namespace

const ast::Module* Scope::module(llvm::StringRef name) const {
  auto at = modules.find(name.str());
  return at == modules.end() ? nullptr : at->second;
}

std::vector<std::string> Scope::moduleNames(bool models) const {
  std::vector<std::string> names;
  for (const auto& [name, module] : modules)
    if (module->isModel == models) names.push_back(name);
  return names;
}

llvm::ArrayRef<llvm::StringRef> builtinNames() { return kBuiltins; }

std::string printNumber(double value) {
  std::string text;
  llvm::raw_string_ostream out(text);
  if (std::abs(value) < 1e15 && value == std::floor(value)) out << int64_t(value);
  else out << llvm::format("%g", value);
  return out.str();
}

std::optional<double> inBaseUnits(const ast::Quantity& quantity, UnitKind kind, Diagnostics& diags,
                                  llvm::StringRef what) {
  if (quantity.unit.empty()) {
    if (kind == UnitKind::None) return quantity.value;
    diags.report(quantity.loc, Diag::NoUnit, what, describe(kind))
        .suggest("units: " + llvm::join(unitsOf(kind), ", "));
    return std::nullopt;
  }
  for (const Unit& unit : kUnits)
    if (unit.kind == kind && unit.name == quantity.unit) return quantity.value * unit.factor;
  if (kind == UnitKind::None) {
    diags.report(quantity.loc, Diag::UnitNotWanted, what, quantity.unit)
        .suggest("leave the unit out");
    return std::nullopt;
  }
  std::string near = nearest(quantity.unit, unitsOf(kind));
  for (const std::string& name : unitsOf(kind))
    if (llvm::StringRef(name).equals_insensitive(quantity.unit)) near = name;
  Diagnostic& message = diags.report(quantity.loc, Diag::WrongUnit, quantity.unit, describe(kind));
  bool isOther = llvm::any_of(kUnits, [&](const Unit& u) { return u.name == quantity.unit; });
  message.suggest(near.empty() || isOther ? "units: " + llvm::join(unitsOf(kind), ", ")
                                          : "did you mean '" + near + "'?");
  return std::nullopt;
}

std::optional<int64_t> wholeNumber(const ast::Quantity& quantity, llvm::StringRef what,
                                   int64_t least, int64_t most, Diagnostics& diags) {
  std::optional<double> value = inBaseUnits(quantity, UnitKind::None, diags, what);
  if (!value) return std::nullopt;
  if (*value != std::floor(*value)) {
    diags.report(quantity.loc, Diag::NotWhole, what, printNumber(*value));
    return std::nullopt;
  }
  if (*value < double(least) || *value > double(most)) {
    diags.report(quantity.loc, Diag::OutOfRange, what, printNumber(*value),
                 "from " + std::to_string(least) + " to " + std::to_string(most));
    return std::nullopt;
  }
  return int64_t(*value);
}

bool checkFiles(const std::vector<std::unique_ptr<ast::File>>& files, const CompileOptions& options,
                Scope& scope, Diagnostics& diags) {
  unsigned before = diags.errors();
  FileChecker checker(options, scope, diags);
  for (const auto& file : files) checker.declare(*file, file == files.back());
  for (const auto& file : files) checker.check(*file);
  checker.checkDefines();
  return diags.errors() == before;
}

Cluster clusterOf(const ast::Cluster& declared, const Scope& scope) {
  Cluster cluster;
  cluster.name = declared.name.text;
  if (declared.levels.empty()) return {};
  cluster.device = declared.levels.front().of.text;
  auto set = [&](Attrs& figures, llvm::StringRef key, const ast::Quantity& value) {
    for (const Unit& unit : kUnits)
      if (unit.name == value.unit) figures.set(key, value.value * unit.factor);
  };
  if (auto device = scope.devices.find(cluster.device); device != scope.devices.end())
    for (const auto& entry : device->second->entries)
      set(cluster.figures, entry.key.text == "compute" ? entry.element.text : entry.key.text,
          entry.value);
  for (const auto& level : declared.levels) {
    ClusterLevel& made = cluster.levels.emplace_back();
    made.name = level.name.text;
    made.count = std::max<int64_t>(1, int64_t(level.count.value));
    for (const auto& entry : level.entries) set(made.figures, entry.key.text, entry.value);
  }
  return cluster;
}

const ast::Plan* choosePlan(const Scope& scope, const CompileOptions& options, Diagnostics& diags) {
  if (!options.cluster.empty() && scope.clusters.count(options.cluster) == 0) {
    suggestFrom(diags.report(Loc{}, Diag::UnknownCluster, options.cluster), options.cluster,
                keysOf(scope.clusters), "cluster");
    return nullptr;
  }
  std::vector<std::string> names;
  for (const ast::Plan* plan : scope.ownPlans) names.push_back(plan->name.text);
  if (!options.plan.empty()) {
    auto at = scope.plans.find(options.plan);
    if (at != scope.plans.end()) return at->second;
    suggestFrom(diags.report(Loc{}, Diag::UnknownPlan, options.plan), options.plan, names, "plan");
    return nullptr;
  }
  if (names.size() == 1) return scope.ownPlans.front();
  if (names.empty()) diags.report(Loc{}, Diag::NoPlan).suggest("add one: plan NAME of MODEL { }");
  else
    diags.report(Loc{}, Diag::SeveralPlans, names.size(), llvm::join(names, ", "))
        .suggest("choose one with --plan");
  return nullptr;
}

}  // namespace planc
