// `planc explain --json`: docs/explain.md documents the schema.
#pragma once

#include <string>

#include "tools/explain/report.h"

namespace planc {

inline constexpr int kExplainSchema = 1;

std::string explainJson(const Report& report);
std::string explainRankJson(const Report& report, int64_t rank);

}  // namespace planc
