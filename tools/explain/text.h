// `planc explain` in a terminal.
#pragma once

#include <string>
#include <vector>

#include "tools/explain/report.h"

namespace planc {

// All of it.
std::string explainText(const Report& report);

// `--rank R`: what one card holds, where it is and whom it talks to.
std::string explainRankText(const Report& report, int64_t rank);

// Columns as wide as they need be; the first `left` of them to the left, others to the right.
std::string columns(const std::vector<std::vector<std::string>>& rows, size_t left = 0);

// `planc dump --schedule`: what each chunk does, the figures, and the drawing.
std::string showSchedule(const Stages& stages, const WorkCosts& costs);

}  // namespace planc
