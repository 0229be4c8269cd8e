// Tested by tests/tools/explain.test.
#include "tools/explain/command.h"

#include "tools/explain/html.h"
#include "tools/explain/json.h"
#include "tools/explain/text.h"

namespace planc {

constexpr llvm::StringLiteral kTool = "planc";

std::string noRank(int64_t rank, int64_t ranks) {
  return "there is no rank " + std::to_string(rank) + ": the grid has ranks 0 to " +
         std::to_string(ranks - 1);
}

Exit show(const Report& report, const ExplainRequest& request) {
  int64_t ranks = report.planx->grid().ranks();
  if (request.rank && (*request.rank < 0 || *request.rank >= ranks))
    return fail(kTool, noRank(*request.rank, ranks));
  std::string text;
  if (!request.page.empty()) text = reportHtml(report);
  else if (request.rank)
    text = request.isJson ? explainRankJson(report, *request.rank)
                          : explainRankText(report, *request.rank);
  else text = request.isJson ? explainJson(report) : explainText(report);
  if (llvm::Error error = writeOutput(request.page.empty() ? "-" : request.page, text))
    return fail(kTool, llvm::toString(std::move(error)));
  return kYes;
}

}  // namespace planc
