// A plan's splits: methods against what the model does with a dim, sizes against the axes that cut
// them, and what this version can't compile. A table says what a method can split; help texts compute
// the nearest legal sizes. Splits of repeats go on in check_pipeline.cpp. Tested by
// tests/frontend/errors/split.plan and grid.plan.
#include <numeric>

#include "frontend/check_plan.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace planc {
namespace {

constexpr int64_t kMaxChunks = 1 << 20;
constexpr int64_t kMaxTried = 4096;  // sizes of an axis that a help considers
constexpr size_t kMaxNamed = 6;      // and names: the nearest

// What a method can split.
enum class MethodKind { Any, Attended, Repeat };
struct SplitMethod {
  llvm::StringRef name;
  MethodKind kind;
  llvm::StringRef args;  // described; empty: none
};
constexpr SplitMethod kMethods[] = {
    {"gather", MethodKind::Any, ""},
    {"ring", MethodKind::Attended, "zigzag or contiguous"},
    {"heads", MethodKind::Attended, ""},
    {"gpipe", MethodKind::Repeat, ""},
    {"one_f_one_b", MethodKind::Repeat, ""},
    {"interleaved", MethodKind::Repeat, "one whole number from 2, the chunks of a rank"},
    {"zero_bubble", MethodKind::Repeat, ""},
    {"zero_bubble_v", MethodKind::Repeat, ""},
    {"schedule", MethodKind::Repeat, "the path of a schedule in quotes"},
};

const SplitMethod* findMethod(llvm::StringRef name) {
  for (const SplitMethod& method : kMethods)
    if (method.name == name) return &method;
  return nullptr;
}

bool canSplit(const SplitMethod& method, const DimInfo& info) {
  bool isRepeat = (info.uses & kIterations) != 0;
  if (method.kind == MethodKind::Repeat) return isRepeat;
  return method.kind == MethodKind::Any ? !isRepeat : (info.uses & kAttended) != 0;
}

bool argsFit(const SplitMethod& method, const ast::Target& target) {
  if ((method.name == "schedule") != target.path.loc.known()) return false;
  if (method.name == "interleaved") return chunksOf(target) >= 2;
  if (target.args.empty()) return true;
  if (method.name != "ring" || target.args.size() > 1) return false;
  const ast::Expr& arg = *target.args.front();
  return arg.kind == ast::ExprKind::Name && (arg.text == "zigzag" || arg.text == "contiguous");
}

// The method that holds where none is given.
llvm::StringRef methodOf(const ast::Target& target, const DimInfo& info) {
  if (!target.method.text.empty()) return target.method.text;
  return (info.uses & kAttended) != 0 ? "ring" : "";
}

// A ring of n ranks deals 2n blocks to them unless told otherwise.
bool isZigzag(const ast::Target& target, const DimInfo& info) {
  return methodOf(target, info) == "ring" &&
         (target.args.empty() || target.args.front()->text == "zigzag");
}

}  // namespace

int64_t chunksOf(const ast::Target& target) {
  if (target.method.text == "zero_bubble_v") return 2;
  if (target.method.text != "interleaved") return 1;
  if (target.args.size() != 1) return 0;
  const ast::Expr& arg = *target.args.front();
  bool fits = arg.kind == ast::ExprKind::Number && arg.isInteger && arg.number >= 2 &&
              arg.number <= double(kMaxChunks);
  return fits ? int64_t(arg.number) : 0;
}

void PlanChecker::check(const ast::Split& split, Loc) {
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
    bool isFirst = once(splitDims_, dim, Diag::DimSplitTwice);
    auto at = dims_.find(dim.text);
    if (at == dims_.end()) {
      if (complete_) reportUnknownDim(dim);
      continue;
    }
    const DimInfo& info = at->second;
    for (const ast::Target& target : split.targets) checkMethod(dim, info, target);
    if (!isFirst) continue;
    for (const ast::Target* target : targets) checkSupport(dim, info, *target);
    if (info.uses & kIterations) {
      addRepeat(dim, info, targets);
    } else {
      addCut(dim, info, targets);
      addSplits(dim, targets);
    }
  }
}

void PlanChecker::reportUnknownDim(const ast::Ident& dim) {
  std::vector<std::string> names;
  for (const auto& entry : dims_) names.push_back(entry.first);
  suggestFrom(diags_.report(dim.loc, Diag::UnknownSplitDim, plan_.model.text, dim.text), dim.text,
              names);
}

void PlanChecker::checkMethod(const ast::Ident& dim, const DimInfo& info,
                              const ast::Target& target) {
  if (!target.stages.empty() && (info.uses & kIterations) == 0)
    diags_.report(target.stages.front().loc, Diag::StagesNotPipeline, dim.text);
  const ast::Ident& name = target.method;
  if (name.text.empty()) return;
  const SplitMethod* method = findMethod(name.text);
  if (method == nullptr) {
    std::vector<std::string> names;
    for (const SplitMethod& m : kMethods) names.push_back(m.name.str());
    suggestFrom(diags_.report(name.loc, Diag::UnknownMethod, name.text), name.text, names);
    return;
  }
  // Of a model with errors not every use of a dim is known.
  if (!canSplit(*method, info) && complete_) {
    llvm::StringRef what = method->kind == MethodKind::Repeat     ? "the dim of a 'repeat'"
                           : method->kind == MethodKind::Attended ? "a dim that 'attend' goes over"
                                                                  : "dims of tensors";
    std::vector<std::string> names;
    for (const SplitMethod& m : kMethods)
      if (canSplit(m, info)) names.push_back(m.name.str());
    diags_.report(name.loc, Diag::MethodWrongDim, name.text, what, dim.text)
        .suggest("'" + dim.text + "' can be split by " + either(names));
    return;
  }
  if (!argsFit(*method, target))
    diags_.report(target.path.loc.known() ? target.path.loc
                  : target.args.empty()   ? name.loc
                                          : target.args.front()->loc,
                  Diag::MethodArgs, name.text,
                  method->args.empty() ? llvm::StringRef("no arguments") : method->args);
}

// What the language has and no pass makes yet.
void PlanChecker::checkSupport(const ast::Ident& dim, const DimInfo& info,
                               const ast::Target& target) {
  const PlanAxis& axis = *axisNamed(target.axis.text);
  const SplitMethod* given = findMethod(target.method.text);
  bool isRepeat = (info.uses & kIterations) != 0;
  if (!toCompile_ || axis.size == 1 || isRepeat || (given && !canSplit(*given, info))) return;
  llvm::StringRef method = methodOf(target, info);
  std::string needs, help;
  if (info.uses & kRouted) {
    needs = "experts on several ranks";
    help = "; or leave '" + dim.text + "' out of the split and split the experts' other dims";
  } else if (method == "ring" || method == "heads") {
    needs = quoted(method) +
            (target.method.text.empty() ? ", the default where 'attend' goes over a dim" : "");
    help = "; or split " + dim.text + " over " + axis.name + " by gather";
  } else if (!target.scope.text.empty()) {
    needs = target.scope.text == "across" ? "'across'" : "'within'";
  } else {
    return;
  }
  diags_
      .report(target.axis.loc, Diag::NotYet, dim.text,
              quoted(axis.name) + " (" + rankText(axis) + ")", needs)
      .suggest("use " + axis.name + " 1" + help);
}

// ---- Sizes

int64_t PlanChecker::Cut::blocks(const PlanAxis* axis, int64_t ranks) const {
  int64_t product = 1;
  for (const Part& part : parts)
    product = saturatingMul(product, part.axis != axis ? part.axis->size * part.blocks
                                     : ranks == 1      ? 1
                                                       : ranks * part.blocks);
  return product;
}

std::optional<int64_t> PlanChecker::Cut::misfit(int64_t blocks) const {
  auto fits = [&](int64_t size) {
    return info->isPaddable() ? size >= blocks : size % blocks == 0;
  };
  if (!fits(info->size)) return info->size;
  for (int64_t size : info->others)
    if (!fits(size)) return size;
  return std::nullopt;
}

bool PlanChecker::Cut::has(const PlanAxis* axis) const {
  return llvm::any_of(parts, [&](const Part& part) { return part.axis == axis; });
}

void PlanChecker::addCut(const ast::Ident& dim, const DimInfo& info,
                         const std::vector<const ast::Target*>& targets) {
  Cut cut{&dim, &info, {}};
  for (const ast::Target* target : targets) {
    const PlanAxis* axis = axisNamed(target->axis.text);
    // A second method for an axis cuts nothing more.
    if (axis->size > 1 && !cut.has(axis))
      cut.parts.push_back({axis, isZigzag(*target, info) ? 2 : 1});
  }
  if (!cut.parts.empty()) cuts_.push_back(std::move(cut));
}

// One entry for the axes that split anyhow and one for those `by gather`, in the order in which the
// statement begins them.
void PlanChecker::addSplits(const ast::Ident& dim, const std::vector<const ast::Target*>& targets) {
  std::vector<Split> splits;
  for (const ast::Target* target : targets) {
    const PlanAxis* axis = axisNamed(target->axis.text);
    bool isWeak = target->method.text == "gather";
    auto at = llvm::find_if(splits, [&](const Split& split) { return split.isWeak() == isWeak; });
    if (axis->size == 1) continue;
    if (at == splits.end()) at = splits.insert(at, {.dim = dim.text, .axes = {}, .how = isWeak ? "gather" : "", .loc = dim.loc});
    if (!llvm::is_contained(at->axes, axis->name)) at->axes.push_back(axis->name);
  }
  settings_.splits.insert(settings_.splits.end(), splits.begin(), splits.end());
}

void PlanChecker::checkCuts() {
  for (const Cut& cut : cuts_) {
    const DimInfo& info = *cut.info;
    std::optional<int64_t> size = cut.misfit(cut.blocks());
    if (!size) continue;
    std::vector<std::string> parts;
    for (const Cut::Part& part : cut.parts)
      parts.push_back(quoted(part.axis->name) + " (" + rankText(*part.axis) +
                      (part.blocks == 1 ? ")" : ", 2 zigzag blocks each)"));
    std::string axes = llvm::join(parts, " x ");
    Loc loc = cut.dim->loc;
    llvm::StringRef dim = cut.dim->text;
    Diagnostic& message = info.isPaddable()
                              ? diags_.report(loc, Diag::TooFewElements, dim, *size, axes)
                              : diags_.report(loc, Diag::DoesNotDivide, dim, *size,
                                              axes + (parts.size() == 1 ? " does" : " do"));
    if (info.uses & kSamples)
      message.note(info.loc, Diag::BatchHere, dim, settings_.microbatches, info.size);
    else message.note(info.loc, Diag::DeclaredHere, dim);
    message.suggest(help(cut));
  }
}

// Sizes of an axis that would suit a dim; of these, if there are any, those that suit all dims that
// it splits and the cluster.
std::vector<int64_t> PlanChecker::legalRanks(const Cut& cut, const PlanAxis* axis) const {
  int64_t devices = cluster_ ? devicesWithin(cluster_->levels.size()) : INT64_MAX;
  std::vector<int64_t> legal, best;
  for (int64_t n = 1; n <= kMaxTried && cut.blocks(axis, n) <= cut.info->size; ++n) {
    if (!cut.fits(cut.blocks(axis, n))) continue;
    legal.push_back(n);
    bool suitsAll = saturatingMul(settings_.ranks / axis->size, n) <= devices;
    for (const Cut& other : cuts_)
      suitsAll = suitsAll && (!other.has(axis) || other.fits(other.blocks(axis, n)));
    if (suitsAll) best.push_back(n);
  }
  return best.empty() ? legal : best;
}

// `use tensor 1, 2 or 4; or make 'kv' 8; or leave ...`
std::string PlanChecker::help(const Cut& cut) const {
  std::string text;
  for (const Cut::Part& part : llvm::reverse(cut.parts)) {
    std::vector<int64_t> legal = legalRanks(cut, part.axis);
    if (legal.empty()) continue;
    int64_t now = part.axis->size;
    llvm::sort(legal, [&](int64_t a, int64_t b) { return std::abs(a - now) < std::abs(b - now); });
    if (legal.size() > kMaxNamed) legal.resize(kMaxNamed);
    llvm::sort(legal);
    std::vector<std::string> words;
    for (int64_t n : legal) words.push_back(std::to_string(n));
    text = "use " + part.axis->name + " " +
           (cut.info->isPaddable() ? "up to " + words.back() : either(words)) + "; or ";
    break;
  }
  int64_t size = cut.info->size, blocks = cut.blocks();
  llvm::StringRef dim = cut.dim->text;
  if (size > blocks && cut.info->others.empty())
    text += "make '" + dim.str() + "' " + std::to_string(size / blocks * blocks) + " or " +
            std::to_string((size / blocks + 1) * blocks) + "; or ";
  return text + "leave '" + dim.str() + "' out of the split" + leaveOut(cut);
}

// Kv heads that no split names follow the heads that they serve, as far as they divide.
std::string PlanChecker::leaveOut(const Cut& cut) const {
  auto sameAxes = [&](const Cut& other) {
    return (other.info->uses & kHeads) != 0 && other.parts.size() == cut.parts.size() &&
           llvm::all_of(llvm::zip(cut.parts, other.parts), [](const auto& pair) {
             return std::get<0>(pair).axis == std::get<1>(pair).axis;
           });
  };
  if ((cut.info->uses & kKvHeads) == 0 || llvm::none_of(cuts_, sameAxes)) return "";
  int64_t blocks = cut.blocks();
  return ": each kv head is then held by " +
         std::to_string(blocks / std::gcd(blocks, cut.info->size)) + " ranks";
}

}  // namespace planc
