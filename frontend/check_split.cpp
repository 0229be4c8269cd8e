// A plan's splits: methods against what the model does with a dim, and sizes against the axes that cut
// them. A table says what a method can split; help texts compute the nearest legal sizes. Splits of
// repeats go on in check_pipeline.cpp. Tested by tests/frontend/errors/split.plan and grid.plan.
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
enum class MethodKind { Any, Attended, Experts, Repeat };
struct SplitMethod {
  llvm::StringRef name;
  MethodKind kind;
  llvm::StringRef args;  // described; empty: none
};
constexpr llvm::StringLiteral kOrders = "zigzag or contiguous";
constexpr SplitMethod kMethods[] = {
    {"gather", MethodKind::Any, ""},
    {"ring", MethodKind::Attended, kOrders},
    {"heads", MethodKind::Attended, ""},
    {"dispatch", MethodKind::Experts,
     "one number from 1: how many times its even share of the rows a rank has room for"},
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
  switch (method.kind) {
    case MethodKind::Any:
      return (info.uses & (kIterations | kRouted)) == 0;
    case MethodKind::Attended:
      return (info.uses & kAttended) != 0;
    case MethodKind::Experts:
      return (info.uses & kRouted) != 0;
    case MethodKind::Repeat:
      return (info.uses & kIterations) != 0;
  }
  return false;
}

// What a method takes where it splits this dim: only attention cares for the order of positions.
llvm::StringRef argsOf(const SplitMethod& method, const DimInfo& info) {
  return method.name == "gather" && (info.uses & kAttended) != 0 ? kOrders : method.args;
}

constexpr double kMaxRoom = 1e6;

// How many times its even share of the rows a rank has room for; 0: for all; nothing: no such number.
std::optional<double> roomOf(const ast::Target& target) {
  if (target.method.text != "dispatch" || target.args.empty()) return 0;
  const ast::Expr& arg = *target.args.front();
  bool fits = target.args.size() == 1 && arg.kind == ast::ExprKind::Number && arg.number >= 1 &&
              arg.number <= kMaxRoom;
  return fits ? std::optional<double>(arg.number) : std::nullopt;
}

bool argsFit(const SplitMethod& method, const DimInfo& info, const ast::Target& target) {
  if ((method.name == "schedule") != target.path.loc.known()) return false;
  if (method.name == "interleaved") return chunksOf(target) >= 2;
  if (method.name == "dispatch") return roomOf(target).has_value();
  if (target.args.empty()) return true;
  if (argsOf(method, info) != kOrders || target.args.size() > 1) return false;
  const ast::Expr& arg = *target.args.front();
  return arg.kind == ast::ExprKind::Name && (arg.text == "zigzag" || arg.text == "contiguous");
}

// How modules call the method, or the one that holds where none is given.
llvm::StringRef methodOf(const ast::Target& target, const DimInfo& info) {
  if (target.method.text == "dispatch") return "";
  if (!target.method.text.empty()) return target.method.text;
  return (info.uses & kAttended) != 0 ? "ring" : "";
}

// Whether n ranks are dealt 2n blocks of the dim. A ring does so unless told otherwise or nothing is
// gained: where all keys are seen, all pieces are equal work.
bool isZigzag(const ast::Target& target, const DimInfo& info) {
  llvm::StringRef method = methodOf(target, info);
  if (method != "ring" && method != "gather") return false;
  if (!target.args.empty()) return target.args.front()->text == "zigzag";
  return method == "ring" && (info.uses & kAllSeen) == 0;
}

// How axes of one dim nest, the outermost first: a ring's pieces are cut by heads, those gathered.
int nesting(llvm::StringRef how) { return how == "gather" ? 2 : how == "heads" ? 1 : 0; }

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
    if (findAxis(target.axis) == nullptr) continue;
    Extent extent = extentOf(target);
    const ast::Target* other = nullptr;
    for (const ast::Target* before : targets)
      if (before->axis.text == target.axis.text && overlap(extentOf(*before), extent)) other = before;
    if (other != nullptr)
      diags_.report(target.method.loc, Diag::ScopesOverlap, target.axis.text)
          .note(other->method.loc, Diag::GivenHere, other->method.text)
          .suggest("as in: by " + other->method.text + " within LEVEL, " + target.method.text +
                   " across");
    else targets.push_back(&target);
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
    if (info.uses & kIterations) {
      addRepeat(dim, info, targets);
    } else {
      checkOrders(dim, info, targets);
      addCut(dim, info, targets);
      addHeads(dim, info, targets);
      addSplits(dim, info, targets);
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
  if (!target.scope.text.empty() && (info.uses & kIterations) != 0)
    diags_.report(target.scope.loc, Diag::MethodWrongDim,
                  extentOf(target) == Extent::Across ? "across" : "within", "dims of tensors",
                  dim.text);
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
                           : method->kind == MethodKind::Experts  ? "a dim that 'route' goes over"
                           : (info.uses & kRouted) != 0 ? "dims of tensors that are no experts"
                                                        : "dims of tensors";
    std::vector<std::string> names;
    for (const SplitMethod& m : kMethods)
      if (canSplit(m, info)) names.push_back(m.name.str());
    diags_.report(name.loc, Diag::MethodWrongDim, name.text, what, dim.text)
        .suggest("'" + dim.text + "' can be split by " + either(names));
    return;
  }
  if (!argsFit(*method, info, target))
    diags_.report(
        target.path.loc.known() ? target.path.loc
        : target.args.empty()   ? name.loc
                                : target.args.front()->loc,
        Diag::MethodArgs, name.text,
        argsOf(*method, info).empty() ? llvm::StringRef("no arguments") : argsOf(*method, info));
}

// ---- Sizes

int64_t PlanChecker::Cut::blocks(const PlanAxis* axis, int64_t ranks) const {
  int64_t pieces = 1, dealt = 1;
  for (const Part& part : parts) {
    int64_t n = part.ranks(part.axis == axis ? ranks : part.axis->size);
    pieces = saturatingMul(pieces, n);
    if (part.isZigzag && n > 1) dealt = saturatingMul(dealt == 1 ? 2 : dealt, n);
  }
  // A size must be so many pieces, and so many blocks of the zigzag order.
  return saturatingMul(pieces / std::gcd(pieces, dealt), dealt);
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
    Cut::Part part{axisNamed(target->axis.text), isZigzag(*target, info), extentOf(*target)};
    if (part.ranks() > 1) cut.parts.push_back(part);
  }
  if (!cut.parts.empty()) cuts_.push_back(std::move(cut));
}

// Blocks of a zigzag order are dealt from the whole dim, so no pieces in order may lie around them.
void PlanChecker::checkOrders(const ast::Ident& dim, const DimInfo& info,
                              const std::vector<const ast::Target*>& targets) {
  std::vector<const ast::Target*> nested;
  for (const ast::Target* target : targets)
    if (!partsOf(*axisNamed(target->axis.text), extentOf(*target)).empty()) nested.push_back(target);
  llvm::stable_sort(nested, [&](const ast::Target* a, const ast::Target* b) {
    return nesting(methodOf(*a, info)) < nesting(methodOf(*b, info));
  });
  for (size_t i = 1; i < nested.size(); ++i)
    if (isZigzag(*nested[i], info) && !isZigzag(*nested[0], info)) {
      diags_
          .report(nested[i]->axis.loc, Diag::ZigzagInside, dim.text, nested[i]->axis.text,
                  nested[0]->axis.text)
          .suggest("say " + methodOf(*nested[i], info).str() + "(contiguous)");
      return;
    }
}

// Entries by method and order, nested as they are; in each its axes as the statement has them.
void PlanChecker::addSplits(const ast::Ident& dim, const DimInfo& info,
                            const std::vector<const ast::Target*>& targets) {
  std::vector<Split> splits;
  for (const ast::Target* target : targets) {
    std::string how = methodOf(*target, info).str(),
                order = isZigzag(*target, info) ? "zigzag" : "";
    Words axes = partsOf(*axisNamed(target->axis.text), extentOf(*target));
    if (axes.empty()) continue;
    auto at = llvm::find_if(
        splits, [&](const Split& split) { return split.how == how && split.order == order; });
    if (at == splits.end())
      at = splits.insert(at,
                         {.dim = dim.text, .axes = {}, .how = how, .order = order, .loc = dim.loc});
    at->axes.insert(at->axes.end(), axes.begin(), axes.end());
    at->room = std::max(at->room, roomOf(*target).value_or(0));
  }
  llvm::stable_sort(splits,
                    [](const Split& a, const Split& b) { return nesting(a.how) < nesting(b.how); });
  settings_.splits.insert(settings_.splits.end(), splits.begin(), splits.end());
}

void PlanChecker::addHeads(const ast::Ident& dim, const DimInfo& info,
                           const std::vector<const ast::Target*>& targets) {
  for (const ast::Target* target : targets) {
    Cut::Part part{axisNamed(target->axis.text), false, extentOf(*target)};
    if (target->method.text == "heads" && (info.uses & kAttended) != 0 && part.ranks() > 1)
      headCuts_.push_back({&dim, &info, target->method, part});
  }
}

// Heads are cut by their own splits, and inside of attention further over the axes of `heads`.
void PlanChecker::cutHeads() {
  auto find = [&](llvm::StringRef head, const ast::Ident* attended) {
    return llvm::find_if(
        cuts_, [&](const Cut& cut) { return cut.dim->text == head && cut.attended == attended; });
  };
  for (const HeadCut& more : headCuts_)
    for (const std::string& head : more.info->heads) {
      if (head.empty()) {
        diags_.report(more.method.loc, Diag::NoHeads, more.dim->text);
        continue;
      }
      auto own = find(head, nullptr);
      if (own != cuts_.end() && own->misfit(own->blocks())) continue;  // reported for itself
      auto cut = find(head, more.dim);
      if (cut == cuts_.end()) {
        headNames_.push_back({head, more.method.loc});
        std::vector<Cut::Part> parts;
        if (own != cuts_.end()) parts = own->parts;
        cuts_.push_back({&headNames_.back(), &dims_.at(head), std::move(parts), more.dim});
        cut = std::prev(cuts_.end());
      }
      bool isCutSo = llvm::any_of(cut->parts, [&](const Cut::Part& part) {
        return part.axis == more.part.axis && overlap(part.extent, more.part.extent);
      });
      if (!isCutSo) cut->parts.push_back(more.part);
    }
}

void PlanChecker::checkCuts() {
  cutHeads();
  for (const Cut& cut : cuts_) {
    const DimInfo& info = *cut.info;
    std::optional<int64_t> size = cut.misfit(cut.blocks());
    if (!size) continue;
    std::vector<std::string> parts;
    for (const Cut::Part& part : cut.parts)
      parts.push_back(
          quoted(part.axis->name) + " (" +
          (part.ranks() < part.axis->size ? std::to_string(part.ranks()) + " of " : "") +
          rankText(*part.axis) + (part.isZigzag ? ", 2 zigzag blocks each)" : ")"));
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
    bool isCutEvenly = axis->within == 0 || n % axis->inside(n) == 0;
    if (!isCutEvenly || !cut.fits(cut.blocks(axis, n))) continue;
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
  if (llvm::any_of(cut.parts, [](const Cut::Part& part) { return part.isZigzag; }) &&
      !cut.misfit(blocks / std::gcd<int64_t>(blocks, 2)))
    text += "split it by ring(contiguous); or ";
  if (cut.attended) return text + "split '" + cut.attended->text + "' by ring";
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
