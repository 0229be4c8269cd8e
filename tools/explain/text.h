// What a compiled plan costs, before it runs: `planc explain`.
#pragma once

#include <string>
#include <vector>

#include "ir/planx.h"
#include "ir/schedule.h"

namespace planc {

struct Stages;

// `costs`: what a chunk's tasks take, for the idle time.
std::string explainText(const Planx& planx, const WorkCosts& costs);
std::string explainJson(const Planx& planx, const WorkCosts& costs);

// Columns as wide as they need be; numbers to the right.
std::string columns(const std::vector<std::vector<std::string>>& rows);

// `planc dump --schedule`: what each chunk does, the figures, and the drawing.
std::string showSchedule(const Stages& stages, const WorkCosts& costs);

}  // namespace planc
