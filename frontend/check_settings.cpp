// A plan's settings: microbatches, seed, precision, recompute, optimizer. A table says what numbers an
// optimizer takes. Tested by tests/frontend/errors/plan.plan.
#include "frontend/check_plan.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {

static constexpr int64_t kMaxMicrobatches = 1 << 16;
static constexpr int64_t kMaxSeed = int64_t{1} << 53;
static constexpr int64_t kMaxSteps = int64_t{1} << 40;

// A number of an optimizer. `count` values are wanted; `least` and `most` bound them.
struct OptimizerSetting {
  llvm::StringRef optimizer, key;
  unsigned count;
  bool isWhole;
  double least, most;
  double fallback;
};
static constexpr double kHuge = 1e30;
static constexpr OptimizerSetting kSettings[] = {
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

void PlanChecker::check(const ast::Microbatches& statement, Loc loc) {
  onlyOne("microbatches", loc);
  if (statement.automatic) return;
  settings_.microbatches =
      wholeNumber(statement.count, "microbatches", 1, kMaxMicrobatches, diags_).value_or(1);
}

void PlanChecker::check(const ast::Seed& statement, Loc loc) {
  onlyOne("seed", loc);
  settings_.seed = wholeNumber(statement.value, "seed", 0, kMaxSeed, diags_).value_or(0);
}

std::optional<Elem> PlanChecker::floatElem(const ast::Ident& name) {
  std::optional<Elem> elem = elemByName(name.text);
  if (elem && isFloat(*elem)) return elem;
  suggestFrom(diags_.report(name.loc, Diag::UnknownElement, name.text), name.text,
              {"f32", "bf16", "f64"});
  return std::nullopt;
}

void PlanChecker::check(const ast::Precision& statement, Loc loc) {
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

void PlanChecker::check(const ast::Recompute& statement, Loc loc) {
  onlyOne("recompute", loc);
  std::map<std::string, Loc> seen;
  std::vector<std::string> names = {"none", "auto", "layer", "gather"};
  for (llvm::StringRef builtin : builtinNames()) names.push_back(builtin.str());
  for (const ast::Ident& what : statement.what) {
    bool isAlone = what.text == "none" || what.text == "auto";
    if (!llvm::is_contained(names, what.text))
      suggestFrom(diags_.report(what.loc, Diag::RecomputeName, what.text), what.text, names,
                  "there is none, auto, layer, gather and each builtin function, such as attend");
    else if (isAlone && statement.what.size() > 1)
      diags_.report(what.loc, Diag::RecomputeAlone, what.text);
    else if (once(seen, what, Diag::KeyTwice) && !isAlone) settings_.recompute.push_back(what.text);
  }
}

void PlanChecker::setDefaults(llvm::StringRef optimizer) {
  settings_.numbers.clear();
  for (const char* key : {"beta1", "beta2", "eps", "momentum"}) settings_.numbers[key] = 0;
  for (const OptimizerSetting& setting : kSettings)
    if (setting.optimizer == optimizer && setting.count == 1)
      settings_.numbers[setting.key.str()] = setting.fallback;
  if (optimizer == "adamw") {
    settings_.numbers["beta1"] = 0.9;
    settings_.numbers["beta2"] = 0.95;
  }
}

void PlanChecker::check(const ast::Optimizer& statement, Loc loc) {
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
    const OptimizerSetting* setting = nullptr;
    std::vector<std::string> names;
    for (const OptimizerSetting& s : kSettings) {
      if (s.optimizer != optimizer) continue;
      names.push_back(s.key.str());
      if (s.key == entry.key.text) setting = &s;
    }
    if (setting == nullptr)
      suggestFrom(diags_.report(entry.key.loc, Diag::UnknownKey, quoted(optimizer), entry.key.text),
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

void PlanChecker::read(const OptimizerSetting& setting, const ast::Optimizer::Entry& entry) {
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
double PlanChecker::readNumber(const OptimizerSetting& setting, const ast::Quantity& given,
                               double fallback) {
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

}  // namespace planc
