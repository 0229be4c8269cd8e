// Tested by tests/tools/placement.test.
#include "tools/compile.h"

namespace planc {

PassResult compilePlaced(const std::vector<std::unique_ptr<ast::File>>& files,
                         CompileOptions options, const PassOptions& passes, Planx& planx,
                         Diagnostics& diags, std::string& internal) {
  planx.model = compilePlan(files, options, diags);
  if (!planx.model) return PassResult::UserError;
  planx.roles.clear();
  planx.roles.push_back(cloneModule(*planx.model));
  return runPasses(planx.roles, passes, diags, internal);
}

}  // namespace planc
