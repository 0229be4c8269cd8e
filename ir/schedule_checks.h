// What only the folder's own files share of schedules: errors that call a stage by what the reader
// knows, `stage 2` or `line 5`.
#pragma once

#include <functional>
#include <string>

#include "ir/schedule.h"

namespace planc {

using StageNames = std::function<std::string(int)>;

llvm::Error checkSchedule(const PipeSchedule& schedule, const StageNames& stageName);

}  // namespace planc
