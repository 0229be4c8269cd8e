// A plan compiled otherwise than it stands: what would make it fit, and what the next doubling of each axis
// costs. Every figure comes from programs compiled for it.
#pragma once

#include "frontend/frontend.h"
#include "tools/explain/report.h"

namespace planc {

// Fills `report.changes` (where the plan does not fit) and `report.ceilings`. `files`, `options` and `diags`
// are those that the report's programs were compiled with and from.
void tryOtherwise(Report& report, const std::vector<std::unique_ptr<ast::File>>& files,
                  const CompileOptions& options, const Diagnostics& diags);

}  // namespace planc
