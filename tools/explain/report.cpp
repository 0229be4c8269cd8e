// Tested by tests/tools/explain.test.
#include "tools/explain/report.h"

#include <algorithm>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "tools/explain/units.h"

namespace planc {
namespace {

StageBill billOf(const Planx& planx, const Module& program, Wires& wires) {
  StageBill bill;
  bill.program = &program;
  bill.ranks = planx.grid().ranks() / int64_t(planx.roles.size());
  for (const auto& [axis, at] : program.where)
    bill.title += (bill.title.empty() ? "" : ", ") + axis + " " + std::to_string(at);
  bill.memory = memoryOf(program);
  bill.talks = talksOf(program, wires);
  bill.work = workOf(program);
  bill.time = timeOf(program, wires, bill.talks);
  return bill;
}

}  // namespace

std::string Change::text() const {
  std::vector<std::string> parts = statements;
  llvm::append_range(parts, arguments);
  return llvm::join(parts, "; ");
}

int64_t StageBill::bytesSent() const {
  int64_t bytes = 0;
  for (const Talk& talk : talks)
    bytes = saturatingAdd(bytes, talk.isBound ? talk.evenBytes : talk.bytes);
  return bytes;
}

double StageBill::wireSeconds() const {
  double seconds = 0;
  for (const Talk& talk : talks) seconds += talk.seconds;
  return seconds;
}

std::optional<bool> Report::fits() const {
  if (cluster().memory() == 0) return std::nullopt;
  return fullestStage().memory.arena <= cluster().memory();
}

const StageBill& Report::loudestStage() const {
  return *std::max_element(stages.begin(), stages.end(),
                           [](auto& a, auto& b) { return a.bytesSent() < b.bytesSent(); });
}

Ceiling Report::asItIs() const {
  Ceiling made;
  made.arena = fullestStage().memory.arena;
  made.bubble = time.bubble;
  made.seconds = time.seconds;
  for (const StageBill& stage : stages) {
    made.bytesSent = std::max(made.bytesSent, stage.bytesSent());
    made.flops = std::max(made.flops, stage.work.flops);
  }
  return made;
}

double Report::peakRate() const {
  std::optional<Elem> elem = elemByName(planx->model->settings.word("precision"));
  return elem ? cluster().rate(*elem) : 0;
}

Words idleAxes(const Report& report) {
  const Module& program = *report.planx->roles.front();
  Words used{program.pipeline.axis}, idle;
  for (const Split& split : program.splits) llvm::append_range(used, split.axes);
  for (const Shard& shard : program.shards) llvm::append_range(used, shard.axes);
  for (const GridAxis& axis : program.grid.axes)
    if (const std::string& whole = axis.of.empty() ? axis.name : axis.of;
        !llvm::is_contained(used, axis.name) && !llvm::is_contained(used, whole))
      idle.push_back(axis.name);
  return idle;
}

std::string noneFits(const Report& report) {
  if (report.tried == 0)
    return "what would make it fit is told of a plan, not of a compiled program";
  std::string text = llvm::formatv(
      "none of {0} changes tried makes it fit: recomputation, ZeRO's stages, an axis doubled, "
      "smaller "
      "microbatches, up to three together",
      report.tried);
  if (!report.nearest) return text;
  return text + "; the nearest is " + report.nearest->text() + ", with " +
         bytesText(double(report.nearest->arena));
}

Report reportOf(const Planx& planx, const WorkCosts& costs, bool searches) {
  Report report;
  report.plan = planx.model->name;
  report.planx = &planx;
  report.costs = costs;
  report.pipeline = stagesOf(planx);
  if (searches) report.placement = placementOf(planx);
  // Programs that were compiled in another order than the best, to be looked at, differ in nothing else.
  Grid grid = planx.grid();
  if (report.placement) grid = inOrder(grid, report.placement->chosen.axes);
  Wires wires(planx.roles.front()->cluster, grid);
  std::vector<const Module*> programs;
  std::vector<RoleTime> times;
  for (const auto& role : planx.roles) {
    StageBill& bill = report.stages.emplace_back(billOf(planx, *role, wires));
    programs.push_back(role.get());
    times.push_back(bill.time);
    report.flops += bill.work.flops * double(bill.ranks);
    report.again += bill.work.again * double(bill.ranks);
    for (const auto& var : role->vars) {
      if (var->kind != VarKind::Weight) continue;
      int64_t count = var->type.whole().elements();
      bill.parameters = saturatingAdd(bill.parameters, count);
      if (!var->tied) report.parameters = saturatingAdd(report.parameters, count);
    }
  }
  for (size_t i = 0; report.pipeline && i < report.stages.size(); ++i) {
    const Stage& stage = report.pipeline->list[i];
    report.stages[i].layers = stage.layers;
    report.stages[i].inFlight = stage.inFlight;
  }
  for (size_t i = 0; i < report.stages.size(); ++i)
    if (report.stages[i].memory.arena > report.fullestStage().memory.arena) report.fullest = i;
  for (const auto& var : planx.model->vars)
    if (var->kind == VarKind::Input && var->documents.empty() && var->follows.empty())
      report.tokens = std::max(report.tokens, var->type.whole().elements());
  report.modelFlops = modelFlops(*planx.model);
  report.time = stepTime(programs, times);
  report.attention = dividedAttention(planx);
  report.rows = sentRows(planx);
  report.experts = expertRows(planx);
  return report;
}

}  // namespace planc
