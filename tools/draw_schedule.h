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

// The same as a picture, whole: of at most kMaxDrawnTasks tasks.
std::string drawPicture(const PipeSchedule& schedule, const Timeline& timeline,
                        const WorkCosts& costs, llvm::StringRef title);

}  // namespace planc
