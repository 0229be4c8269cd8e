// `planc explain`, once there is a report.
#pragma once

#include <optional>
#include <string>

#include "tools/command.h"
#include "tools/explain/report.h"

namespace planc {

struct ExplainRequest {
  WorkCosts costs;
  bool isJson = false;
  std::string page;  // where to write it; empty: none is asked for
  std::optional<int64_t> rank;
};

// Writes what is asked for.
Exit show(const Report& report, const ExplainRequest& request);

// That there is no such rank.
std::string noRank(int64_t rank, int64_t ranks);

}  // namespace planc
