// Drawings of schedules: what stands where, in text and in pictures.
#include "tools/draw_schedule.h"

#include "gtest/gtest.h"
#include "tools/stages.h"

namespace planc {
namespace {

constexpr WorkCosts kUnits;

std::string draw(llvm::StringRef name, int stages, int64_t microbatches,
                 const WorkCosts& costs = kUnits, int chunks = 1) {
  PipeSchedule schedule = llvm::cantFail(makeSchedule(name, stages, chunks, microbatches));
  return drawText(schedule, timelineOf(schedule, costs), costs);
}

TEST(DrawText, ARowAStage) {
  EXPECT_EQ(draw("one_f_one_b", 2, 2),
            "time     0              5\n"
            "stage 0 |F0-F1-      B0----   B1----\n"
            "stage 1 |   F0-B0----F1-B1----\n");
}

// A backward that takes no time is not drawn; tasks of very different times keep to the page.
TEST(DrawText, Costs) {
  EXPECT_EQ(draw("gpipe", 1, 2, {1, 0, 0}),
            "time     0\n"
            "stage 0 |F0-F1-\n");
  EXPECT_EQ(draw("gpipe", 1, 1, {1, 0, 100}),
            "time     0           50\n"
            "stage 0 |B0----------------------\n");
}

// Wide drawings go on below; of the middle of very wide ones only the times are told.
TEST(DrawText, Sections) {
  for (int64_t microbatches : {20, 40, 2000}) {
    std::string text = draw("gpipe", 2, microbatches);
    llvm::SmallVector<llvm::StringRef, 0> lines;
    llvm::StringRef(text).split(lines, '\n');
    int sections = 0;
    for (llvm::StringRef line : lines) {
      EXPECT_LE(line.size(), kDrawColumns);
      sections += line.startswith("time");
    }
    EXPECT_EQ(sections, microbatches == 20 ? 3 : 4) << text;
    EXPECT_EQ(llvm::StringRef(text).contains("is left out"), microbatches > 20) << text;
    EXPECT_TRUE(llvm::StringRef(text).contains("B" + std::to_string(microbatches - 1) + "-"));
  }
}

// All tasks are there, each label whole, where nothing is left out.
TEST(DrawText, EveryLabel) {
  PipeSchedule schedule = llvm::cantFail(makeSchedule("zero_bubble_v", 3, 2, 5));
  std::string text = draw("zero_bubble_v", 3, 5, kUnits, 2);
  for (const auto& tasks : schedule.tasks)
    for (const Task& task : tasks)
      EXPECT_TRUE(llvm::StringRef(text).contains(schedule.text(task) + "-")) << text;
}

TEST(DrawPicture, ARectangleATask) {
  PipeSchedule schedule = llvm::cantFail(makeSchedule("zero_bubble", 3, 1, 4));
  std::string svg = drawPicture(schedule, timelineOf(schedule, kUnits), kUnits, "a <b> & \"c\"");
  llvm::StringRef text = svg;
  EXPECT_TRUE(text.startswith("<svg ") && text.endswith("</svg>\n"));
  EXPECT_TRUE(text.contains("a &lt;b&gt; &amp; &quot;c&quot;"));
  // 3 x 12 tasks, a row's ground each, the page and three entries of the legend.
  EXPECT_EQ(text.count("<rect"), 36u + 3 + 1 + 3);
  for (llvm::StringRef label : {">F3<", ">I0<", ">W3<", ">stage 2<"})
    EXPECT_TRUE(text.contains(label)) << label.str();
}

TEST(Costs, ThreeNumbers) {
  EXPECT_EQ(readCosts("1,2,0.5")->inputGradient, 2);
  for (llvm::StringRef text :
       {"", "1", "1,1", "1,1,1,1", "1,x,1", "-1,1,1", "0,0,0", "nan,1,1", "1e300,1,1", "inf,1,1"})
    EXPECT_FALSE(readCosts(text)) << text.str();
}

}  // namespace
}  // namespace planc
