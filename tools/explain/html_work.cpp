// FLOPs, how evenly ranks share them, and what a step of each stage takes. Tested by tests/unit/html_test.cpp.
#include <algorithm>

#include "tools/explain/html_sections.h"
#include "tools/explain/units.h"

namespace planc::html {
namespace {

void printStages(Out& out, const Report& report) {
  bool hasTimes = llvm::any_of(report.stages, [](auto& stage) { return stage.time.compute > 0; });
  Table table{"In a step, of one rank",
              {{"stage", true},
               {"products and attention"},
               {"of it twice"},
               {"other"},
               {"memory read and written"},
               {"FLOP a byte"}},
              {}};
  if (hasTimes) {
    table.columns.push_back({"computes"});
    table.columns.push_back({"waits for messages"});
  }
  for (const StageBill& stage : report.stages) {
    const RankWork& work = stage.work;
    auto& row = table.rows.emplace_back(std::vector<std::string>{
        escaped(stageText(stage)), flops(work.flops), flops(work.again), flops(work.otherFlops),
        bytes(work.memoryBytes), figure(work.intensity(), countText(work.intensity()))});
    if (!hasTimes) continue;
    row.push_back(seconds(stage.time.compute));
    row.push_back(seconds(stage.time.exposed));
  }
  print(out, table);
}

void printAttention(Out& out, const Report& report) {
  Table table{"Attention whose tokens ranks hold apart",
              {{"dim", true},
               {"over", true},
               {"by", true},
               {"tokens"},
               {"queries of a rank"},
               {"keys at once"},
               {"most pairs, of the mean"}},
              {}};
  for (const DividedAttention& a : report.attention)
    table.rows.push_back({escaped(a.seq), escaped(a.axes),
                          escaped(a.method + (a.isZigzag ? ", zigzag" : "")), count(a.tokens),
                          count(a.queries), count(a.keys),
                          figure(a.meanPairs > 0 ? a.mostPairs / a.meanPairs : 0,
                                 countText(a.meanPairs > 0 ? a.mostPairs / a.meanPairs : 0))});
  print(out, table);
}

void printExperts(Out& out, const Report& report) {
  Table table{"Experts whose rows are sent to them",
              {{"dim", true},
               {"over", true},
               {"experts"},
               {"of a rank"},
               {"rows it packs, at most"},
               {"rows it has room for"}},
              {}};
  for (const SentRows& rows : report.rows)
    table.rows.push_back({escaped(rows.expert), escaped(rows.axes), count(rows.experts),
                          count(rows.own), count(rows.packed), count(rows.room)});
  print(out, table);
}

}  // namespace

void printWork(Out& out, const Report& report) {
  open(out, "work", "Work");
  if (report.modelFlops > 0) {
    std::string text = "The model asks for " + flops(report.modelFlops) + " in a step of " +
                       count(report.tokens) + " tokens; the ranks execute " + flops(report.flops);
    text += report.again > 0 ? ", of it " + flops(report.again) + " (" +
                                   share(report.again / std::max(report.flops, 1.)) +
                                   ") a second time, to save memory."
                             : ", nothing twice.";
    paragraph(out, text);
  }
  printStages(out, report);
  printAttention(out, report);
  printExperts(out, report);
  close(out);
}

}  // namespace planc::html
