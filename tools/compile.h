// From a plan to its programs, for all commands: frontend, placement, passes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "frontend/frontend.h"
#include "ir/planx.h"
#include "passes/pass_manager.h"

namespace planc {

// Compiles the plan that the options ask for, with the grid's axes in the order for which the wires of its
// cluster need the least time (cost/placement.h), if it has levels to choose from: the plan is compiled as
// it is written, for the bytes of its messages, and again if that is another order, which the model's
// setting `written` then tells. `options.order`, if given, is kept.
// `planx.model` is null after errors that the frontend reported.
PassResult compilePlaced(const std::vector<std::unique_ptr<ast::File>>& files,
                         CompileOptions options, const PassOptions& passes, Planx& planx,
                         Diagnostics& diags, std::string& internal);

// Whether some order of the grid's axes satisfies the plan's `place`; reports the first that can't be met.
bool meetsPlaces(const Planx& planx, Diagnostics& diags);

}  // namespace planc
