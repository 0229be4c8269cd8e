// A pipeline's schedule over time, in text and as an SVG picture.
#pragma once

#include <string>

#include "ir/schedule.h"

namespace planc {

// Of the text, and of the tasks of a picture.
inline constexpr size_t kDrawColumns = 120;
inline constexpr size_t kMaxDrawnTasks = 50000;

// A row a stage, time from left to right: each task's label, drawn out to its end with `-`; blank where
// the stage stands idle. What is too wide goes on below, in sections of kDrawColumns; of more than four
// sections the first and the last two are shown.
std::string drawText(const PipeSchedule& schedule, const Timeline& timeline,
                     const WorkCosts& costs);

struct PictureOptions {
  size_t mostTasks = kMaxDrawnTasks;  // of more, those that begin first; the title says so
  std::string unit = {};              // of the times; empty: none
  // In a page whose style has the classes ink, soft, page, idle and tick; else it brings its own.
  bool isInPage = false;
};

// The same as a picture. `costs`: of each chunk, or one for all, as timelineOf took them.
std::string drawPicture(const PipeSchedule& schedule, const Timeline& timeline,
                        llvm::ArrayRef<WorkCosts> costs, llvm::StringRef title,
                        const PictureOptions& options = {});
// What fills a task's rectangle: its class, of those that pictureStyle has.
std::string taskClass(Work work, double depth);
std::string pictureStyle();

}  // namespace planc
