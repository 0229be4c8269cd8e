// Splits of repeats: a plan's one pipeline, from the axis whose ranks are its stages to the order in which
// they work. Tested by tests/frontend/errors/pipeline.plan and tests/unit/lower_test.cpp.
#include "frontend/check_plan.h"
#include "frontend/read.h"
#include "ir/schedule.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace planc {
namespace {

std::string numbered(int64_t count, llvm::StringRef what) {
  return std::to_string(count) + " " + what.str() + (count == 1 ? "" : "s");
}

// `'layer' has`, `'dense' and 'layer' together have`
std::string subject(const std::vector<std::string>& dims) {
  if (dims.size() == 1) return quoted(dims.front()) + " has";
  std::vector<std::string> names;
  for (const std::string& dim : dims) names.push_back(quoted(dim));
  std::string last = names.back();
  names.pop_back();
  return llvm::join(names, ", ") + " and " + last + " together have";
}

// What makes two splits of repeats one pipeline. Only one may say how many iterations a stage has.
bool isAlike(const ast::Target& a, const ast::Target& b) {
  auto method = [](const ast::Target& target) {
    return target.method.text.empty() ? "one_f_one_b" : target.method.text;
  };
  return a.axis.text == b.axis.text && method(a) == method(b) && chunksOf(a) == chunksOf(b) &&
         a.path.text == b.path.text && (&a == &b || a.stages.empty() || b.stages.empty());
}

}  // namespace

void PlanChecker::addRepeat(const ast::Ident& dim, const DimInfo& info,
                            const std::vector<const ast::Target*>& targets) {
  if (targets.empty()) return;
  if (targets.size() > 1)
    diags_.report(targets[1]->axis.loc, Diag::RepeatAxes, dim.text, targets.size());
  else if (axisNamed(targets.front()->axis.text)->size > 1)
    cuttings_.push_back({&dim, &info, targets.front()});
}

void PlanChecker::checkPipeline() {
  if (cuttings_.empty()) return;
  const ast::Target* target = cuttings_.front().target;
  const PlanAxis& axis = *axisNamed(target->axis.text);
  Pipeline& pipeline = settings_.pipeline;
  pipeline.axis = axis.name;
  pipeline.loc = cuttings_.front().dim->loc;
  checkOtherUses(axis);
  if (!isOnePipeline()) return;
  llvm::stable_sort(
      cuttings_, [](const Cutting& a, const Cutting& b) { return a.info->order < b.info->order; });
  for (const Cutting& cutting : cuttings_) {
    pipeline.dims.push_back(cutting.dim->text);
    if (!cutting.target->stages.empty()) target = cutting.target;
  }
  pipeline.schedule = target->method.text.empty() ? "one_f_one_b" : target->method.text;
  pipeline.chunks = chunksOf(*target);
  if (pipeline.schedule == "schedule") {
    if (target->path.loc.known() && readOrder(target->path, axis)) checkCounts(*target, axis);
  } else if (llvm::is_contained(scheduleNames(), pipeline.schedule) && pipeline.chunks > 0) {
    if (checkCounts(*target, axis)) checkSchedule(*target, axis);
  }
}

// All repeats that are cut, and no inner ones.
bool PlanChecker::isOnePipeline() {
  bool good = true;
  const Cutting& first = cuttings_.front();
  for (const Cutting& cutting : cuttings_) {
    if (cutting.info->isInner) {
      good = false;
      diags_.report(cutting.dim->loc, Diag::InnerRepeat, cutting.dim->text)
          .note(cutting.info->loc, Diag::DeclaredHere, cutting.dim->text)
          .suggest("split the dim of the outermost 'repeat'");
    } else if (!isAlike(*first.target, *cutting.target)) {
      good = false;
      diags_.report(cutting.dim->loc, Diag::OnePipeline, cutting.dim->text, first.dim->text)
          .note(first.dim->loc, Diag::GivenHere, first.dim->text)
          .suggest("name both in one statement: split " + first.dim->text + ", " +
                   cutting.dim->text + " over " + first.target->axis.text);
    }
  }
  return good;
}

// An axis of stages has nothing else to divide: its ranks run different parts of the model.
void PlanChecker::checkOtherUses(const PlanAxis& axis) {
  auto refuse = [&](Loc loc, const std::string& what) {
    diags_.report(loc, Diag::PipelineAxis, axis.name, what)
        .note(settings_.pipeline.loc, Diag::GivenHere, cuttings_.front().dim->text)
        .suggest("use another axis for '" + what + "'");
  };
  Words parts = partsOf(axis, Extent::All);
  for (const Split& split : settings_.splits)
    if (llvm::any_of(parts, [&](const auto& part) { return llvm::is_contained(split.axes, part); }))
      refuse(split.loc, split.dim);
  for (const Shard& shard : settings_.shards)
    if (llvm::is_contained(shard.axes, axis.name)) refuse(shard.loc, shard.what);
}

// A schedule of the user's own; how many chunks a rank has stands in its text.
bool PlanChecker::readOrder(const ast::Ident& path, const PlanAxis& axis) {
  Pipeline& pipeline = settings_.pipeline;
  std::string text, problem;
  if (!readFile(pathBeside(diags_.paths()[path.loc.file], path.text), text, problem)) {
    diags_.report(path.loc, Diag::CannotRead, path.text, problem);
    return false;
  }
  if (text.size() > kMaxFileBytes) {
    diags_.report(path.loc, Diag::FileTooLarge, kMaxFileBytes >> 20);
    return false;
  }
  auto schedule = parseSchedule(text, int(axis.size), 0, settings_.microbatches);
  if (!schedule) {
    diags_
        .report(path.loc, Diag::BadSchedule, path.text,
                numbered(axis.size, "stage") + (axis.isFromOption ? " by --grid" : ""),
                std::to_string(settings_.microbatches) +
                    (settings_.microbatches == 1 ? " microbatch" : " microbatches"),
                llvm::toString(schedule.takeError()))
        .suggest("it has a line for each stage, and on it F and B (or I and W) of each microbatch");
    return false;
  }
  pipeline.schedule = path.text;
  pipeline.chunks = schedule->chunks() / axis.size;
  pipeline.order = printSchedule(*schedule);
  return true;
}

// Iterations against stages.
bool PlanChecker::checkCounts(const ast::Target& target, const PlanAxis& axis) {
  Pipeline& pipeline = settings_.pipeline;
  int64_t all = 0, chunks = pipeline.chunks, stages = saturatingMul(axis.size, chunks);
  for (const Cutting& cutting : cuttings_) all += cutting.info->iterations;
  std::string each = numbered(chunks, "chunk");
  const ast::Ident& dim = *cuttings_.front().dim;
  const Loc declared = cuttings_.front().info->loc;
  if (all < stages) {
    diags_
        .report(pipeline.loc, Diag::TooFewLayers, subject(pipeline.dims), all,
                pipeline.order.empty() ? pipeline.schedule : quoted(pipeline.schedule), stages,
                rankText(axis), each)
        .note(declared, Diag::DeclaredHere, dim.text)
        .suggest((!pipeline.order.empty() || all < chunks
                      ? "use another method"
                      : "use " + axis.name + " up to " + std::to_string(all / chunks)) +
                 "; each chunk has at least 1 iteration");
    return false;
  }
  double sum = 0;
  for (const ast::Quantity& stage : target.stages) {
    if (!wholeNumber(stage, "stages", 1, all, diags_)) return false;
    sum += stage.value;
    pipeline.counts.push_back(int64_t(stage.value));
  }
  if (target.stages.empty()) return true;
  Loc loc = target.stages.front().loc;
  if (int64_t(target.stages.size()) != stages)
    diags_.report(loc, Diag::StageCount, target.stages.size(), stages, rankText(axis), each);
  else if (int64_t(sum) != all)
    diags_.report(loc, Diag::StageSum, int64_t(sum), subject(pipeline.dims), all)
        .note(declared, Diag::DeclaredHere, dim.text);
  else return true;
  return false;
}

void PlanChecker::checkSchedule(const ast::Target& target, const PlanAxis& axis) {
  const Pipeline& pipeline = settings_.pipeline;
  auto schedule =
      makeSchedule(pipeline.schedule, int(axis.size), int(pipeline.chunks), settings_.microbatches);
  if (schedule) return;
  int64_t most = kMaxTasks / saturatingMul(3, saturatingMul(axis.size, pipeline.chunks));
  diags_
      .report(target.method.loc.known() ? target.method.loc : target.axis.loc, Diag::NoSchedule,
              llvm::toString(schedule.takeError()))
      .suggest(most < axis.size ? "use fewer stages"
                                : "use microbatches up to " + std::to_string(most));
}

}  // namespace planc
