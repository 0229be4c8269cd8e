// Reports whose figures are made up, for tests of what prints them: all different, so that each can be found.
#pragma once

#include "compile.h"
#include "tools/compile.h"
#include "tools/explain/report.h"

namespace planc::test {

// A plan's programs and its report, whose figures stay the compiler's own until invented.
struct ReportOf {
  Planx planx;
  Report report;

  ReportOf(const std::string& path, const CompileOptions& options = {}) {
    Diagnostics diags;
    auto files = readPlan(path, diags, options.cluster);
    std::string internal;
    if (!diags.failed()) compilePlaced(files, options, PassOptions(), planx, diags, internal);
    EXPECT_FALSE(diags.failed()) << path << "\n" << internal << messages(diags);
    if (!diags.failed()) report = reportOf(planx, WorkCosts());
  }
};

// 1, 2, 3, ... times a factor: no two figures are alike.
class Inventor {
 public:
  int64_t bytes() { return next() * 987654321; }
  int64_t count() { return next() * 1009; }
  double seconds() { return double(next()) * 1.2345e-3; }
  double flops() { return double(next()) * 3.21e15; }
  int64_t next() { return ++number_; }

 private:
  int64_t number_ = 0;
};

inline void inventMemory(MemoryBill& bill, const Module& program, Inventor& inventor) {
  int64_t rest = 0;
  for (int64_t* part : {&bill.weights, &bill.gradients, &bill.optimizer, &bill.inputs,
                        &bill.activations, &bill.messages, &bill.workspace, &bill.gaps})
    rest += * part = inventor.bytes() / 100;
  bill.arena = rest;
  bill.saved = {{0, inventor.bytes(), 3}, {1, inventor.bytes(), 2}};
  bill.largest = {{"head.<out>", "workspace", inventor.bytes(), {0, 7, 1}},
                  {"table & \"co\"", "weights", inventor.bytes(), {}}};
  bill.fullest = program.functions.front()->body->ops.front();
}

inline void inventTalks(std::vector<Talk>& talks, const Grid& grid, size_t levels,
                        Inventor& inventor) {
  talks.clear();
  OpKind kinds[] = {OpKind::AllReduce, OpKind::AllGather, OpKind::ExchangeRows, OpKind::Send};
  size_t at = 0;
  for (const GridAxis& axis : grid.axes)
    for (int twice = 0; twice < 2; ++twice, ++at) {
      Talk& talk = talks.emplace_back();
      talk.axes = {axis.name};
      talk.kind = kinds[at % std::size(kinds)];
      talk.calls = inventor.count();
      talk.bytes = talk.evenBytes = inventor.bytes();
      talk.isBound = talk.kind == OpKind::ExchangeRows;
      if (talk.isBound) talk.evenBytes = inventor.bytes() / 7;
      if (levels == 0) continue;
      talk.reach.level = at % levels;
      talk.seconds = inventor.seconds();
      talk.hidden = talk.seconds * .375;
    }
}

inline Placing inventPlacing(const Grid& grid, size_t levels, Inventor& inventor) {
  Placing placing;
  for (const GridAxis& axis : grid.axes) placing.axes.push_back(axis.name);
  std::rotate(placing.axes.begin(), placing.axes.begin() + inventor.next() % placing.axes.size(),
              placing.axes.end());
  placing.seconds = inventor.seconds();
  for (size_t i = 0; i < levels; ++i) placing.bytes.push_back(double(inventor.bytes()));
  return placing;
}

// Every figure that a page shows.
inline void invent(Report& report) {
  Inventor inventor;
  const Grid& grid = report.planx->grid();
  size_t levels = report.cluster().levels.size();
  report.tokens = inventor.count();
  report.parameters = inventor.bytes();
  report.modelFlops = inventor.flops();
  report.flops = inventor.flops();
  report.again = inventor.flops() / 9;
  for (StageBill& stage : report.stages) {
    inventMemory(stage.memory, *stage.program, inventor);
    inventTalks(stage.talks, grid, levels, inventor);
    stage.parameters = inventor.bytes();
    stage.work = {inventor.flops(), inventor.flops() / 10, double(inventor.bytes()),
                  inventor.flops() / 8};
    stage.time.compute = inventor.seconds();
    stage.time.exposed = inventor.seconds();
  }
  report.fullest = report.stages.size() - 1;
  report.time.seconds = inventor.seconds();
  report.time.bubble = .1234;
  if (report.pipeline) {
    WorkCosts chunk{2e-3, 2.5e-3, 1.5e-3};
    report.time.chunks.assign(size_t(report.pipeline->schedule.chunks()), chunk);
    report.time.timeline = report.pipeline->timeline(chunk);
    report.time.bubble = report.time.timeline.bubble();
  }
  if (!grid.axes.empty() && levels > 0) {
    Placement& placement = report.placement.emplace();
    placement.chosen = inventPlacing(grid, levels, inventor);
    placement.written = inventPlacing(grid, levels, inventor);
    placement.runnerUp = inventPlacing(grid, levels, inventor);
    placement.unbound = inventPlacing(grid, levels, inventor);
    for (const GridAxis& axis : grid.axes)
      placement.across.push_back({axis.name, inventPlacing(grid, levels, inventor)});
  }
  report.changes = {
      {{"recompute layer"}, {}, 16, inventor.bytes(), inventor.flops(), inventor.seconds()},
      {{"microbatches 8"},
       {"-D batch=4", "--grid data=4"},
       32,
       inventor.bytes(),
       inventor.flops(),
       0}};
  for (const GridAxis& axis : grid.axes)
    report.ceilings.push_back({axis.name, axis.size, axis.size * 2, "", inventor.bytes(),
                               inventor.bytes(), inventor.flops(), .2, inventor.seconds(), false});
  if (report.ceilings.empty()) return;
  report.ceilings.push_back({"tensor", 8, 16, "'kv' has 8 < 16 & \"no\" more"});
  report.ceilings.push_back({"data", 8, 16, "", inventor.bytes(), inventor.bytes(),
                             inventor.flops(), .25, inventor.seconds(), true});
}

}  // namespace planc::test
