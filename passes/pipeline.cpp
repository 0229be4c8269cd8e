// From one module to one a stage. Everything that a stage's program holds follows from three choices: how
// many iterations each chunk gets, which stage holds which chunk, and in which order a stage works. Tested
// by tests/passes/pipeline.
#include "passes/pipeline.h"

#include "llvm/ADT/STLExtras.h"
#include "passes/passes.h"

namespace planc {
namespace {

llvm::Expected<PipeSchedule> scheduleFor(const Module& module) {
  const Pipeline& pipeline = module.pipeline;
  Axes axes = module.grid.find(pipeline.axis);
  int stages = int(ranksOver(axes)), chunks = int(pipeline.chunks);
  int64_t microbatches = module.settings.integer("microbatches", 1);
  if (!pipeline.order.empty()) return parseSchedule(pipeline.order, stages, chunks, microbatches);
  return makeSchedule(pipeline.schedule, stages, chunks, microbatches);
}

// Where the chunks' iterations begin, as the plan says: only 0 where it says nothing, empty where that
// can't be. The frontend has checked plans; this is for IR text.
std::vector<int64_t> boundsOf(const Pipeline& pipeline, int64_t iterations, int chunks) {
  std::vector<int64_t> bounds{0};
  if (pipeline.counts.empty()) return iterations < chunks ? std::vector<int64_t>() : bounds;
  if (int64_t(pipeline.counts.size()) != chunks) return {};
  for (int64_t count : pipeline.counts) {
    if (count < 1 || count > iterations - bounds.back()) return {};
    bounds.push_back(bounds.back() + count);
  }
  return bounds.back() == iterations ? bounds : std::vector<int64_t>();
}

}  // namespace

// Rows of experts, and who has which, stay in the stage that packs them: a program takes them from no
// message. False: some would cross.
static bool checkRows(const ModelCut& cut, Diagnostics& diags) {
  std::set<uint32_t> lines;  // told once each
  for (const FunctionCut* function : {&cut.forward, &cut.backward})
    for (const auto& takes : function->takes)
      for (const Value* value : takes) {
        const Op* def = value->def();
        bool isRouting = value->type.elem == Elem::I32 && def && def->kind != OpKind::Read;
        if (value->type.grouping().empty() && !isRouting) continue;
        Loc loc = def ? def->loc : value->block()->owner()->loc;
        if (lines.insert(loc.line).second)
          diags.report(loc, Diag::RowsCrossStages)
              .suggest("route, dispatch and combine within one iteration of '" +
                       cut.whole->pipeline.dims.front() + "'");
      }
  return lines.empty();
}

Modules pipeline(std::unique_ptr<Module> module, Diagnostics& diags) {
  Modules stages;
  if (module->pipeline.axis.empty() || !module->where.empty()) {
    stages.push_back(std::move(module));
    return stages;
  }
  if (module->level != Level::Sharded || module->arenaBytes > 0) {
    diags.report({}, Diag::PassOrder, "pipeline",
                 "a module typed by 'shard' and not yet by 'memory'");
    return stages;
  }
  auto schedule = scheduleFor(*module);
  if (!schedule) {
    diags.report(module->pipeline.loc, Diag::ScheduleInvalid, llvm::toString(schedule.takeError()));
    return stages;
  }
  std::vector<CutRepeat> repeats = findRepeats(*module, diags);
  if (repeats.empty()) return stages;
  int64_t iterations = repeats.back().begin + repeats.back().count;
  std::vector<int64_t> bounds = boundsOf(module->pipeline, iterations, schedule->chunks());
  if (bounds.empty()) {
    bool isTold = !module->pipeline.counts.empty();
    diags.report(module->pipeline.loc, Diag::ChunksMisfit, schedule->chunks(), iterations,
                 isTold ? "each at least one, and all of them together"
                        : "each at least one; those that do not reach the loss are gone");
    return stages;
  }
  if (bounds.size() == 1) bounds = balance(*module, repeats, *schedule);
  ModelCut cut = cutModel(*module, std::move(repeats), std::move(bounds), *schedule);
  if (!checkRows(cut, diags)) return stages;
  addStageSums(*module, cut);
  Timeline timeline = timelineOf(*schedule, WorkCosts());
  std::vector<StepMarks> marks;
  for (int stage = 0; stage < schedule->stages; ++stage) marks.emplace_back(cut, *schedule, stage);
  std::set<const Value*> totals;
  for (const StepMarks& mine : marks) totals.insert(mine.totals().begin(), mine.totals().end());
  for (StepMarks& mine : marks) mine.join(totals);
  for (int stage = 0; stage < schedule->stages; ++stage)
    stages.push_back(StageBuilder(cut, *schedule, timeline, marks, stage).make());
  return stages;
}

}  // namespace planc
