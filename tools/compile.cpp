// The order of axes is computed from the programs of the plan as it is written, so a plan whose axes change
// places is compiled twice. Tested by tests/unit/placed_plans_test.cpp and tests/tools/placement.test.
#include "tools/compile.h"

#include "cost/placement.h"
#include "llvm/ADT/StringExtras.h"

namespace planc {
namespace {

using Files = std::vector<std::unique_ptr<ast::File>>;

PassResult lower(Planx& planx, const PassOptions& passes, Diagnostics& diags,
                 std::string& internal) {
  planx.roles.clear();
  planx.roles.push_back(cloneModule(*planx.model));
  return runPasses(planx.roles, passes, diags, internal);
}

// Whether programs made under these options are whole, and nothing was shown on the way.
bool isPlain(const PassOptions& passes) {
  return passes.passes.empty() && passes.bisect < 0 && passes.dumpAfter.empty() &&
         passes.dumpDir.empty() && !passes.time;
}

void report(const Broken& broken, const Module& model, Diagnostics& diags) {
  const Within& place = *broken.place;
  int64_t devices = model.cluster.devicesWithin(model.cluster.find(place.level) + 1);
  std::vector<std::string> names;
  for (const std::string& axis : place.axes) names.push_back("'" + axis + "'");
  std::string axes = llvm::join(names, " x ");
  if (size_t count = writtenOrder(model).size(); !areOrdered(count, model.grid.ranks())) {
    diags.report(place.loc, Diag::PlaceAsWritten, count, axes, place.level, devices)
        .suggest("write them last in 'grid'; of fewer axes the compiler finds the order");
    return;
  }
  Diagnostic& message = diags.report(place.loc, Diag::PlaceUnmet, axes, place.level, devices);
  if (broken.with != nullptr) message.note(broken.with->loc, Diag::PlaceClash);
  std::string smaller;
  if (broken.most > 0) smaller = "use " + broken.axis + " up to " + std::to_string(broken.most);
  std::string without = broken.with == nullptr ? "leave it out" : "leave one of them out";
  message.suggest(smaller.empty() ? without : smaller + ", or " + without);
}

}  // namespace

bool meetsPlaces(const Planx& planx, Diagnostics& diags) {
  if (planx.roles.front()->places.empty()) return true;
  Broken broken;
  placementOf(planx, &broken);
  if (broken.place != nullptr) report(broken, *planx.model, diags);
  return broken.place == nullptr;
}

PassResult compilePlaced(const Files& files, CompileOptions options, const PassOptions& passes,
                         Planx& planx, Diagnostics& diags, std::string& internal) {
  Diagnostics written = diags;  // of the plan as it is written
  planx.model = compilePlan(files, options, written);
  bool isOrdered = planx.model && options.order.empty() && hasOrders(*planx.model);
  if (!isOrdered) {
    diags = std::move(written);
    return planx.model ? lower(planx, passes, diags, internal) : PassResult::UserError;
  }
  PassOptions unseen;
  unseen.verify = false;
  bool isKept = isPlain(passes);
  PassResult result = lower(planx, isKept ? passes : unseen, written, internal);
  Words order = writtenOrder(*planx.model);
  if (result == PassResult::Ok) {
    Broken broken;
    std::optional<Placement> placement = placementOf(planx, &broken);
    if (broken.place != nullptr) {
      diags = std::move(written);
      report(broken, *planx.model, diags);
      return PassResult::UserError;
    }
    if (placement) options.order = placement->chosen.axes;
  }
  bool isAsWritten = options.order.empty() || options.order == order;
  if (isKept && isAsWritten) {
    diags = std::move(written);
    return result;
  }
  planx.model = compilePlan(files, options, diags);
  if (!planx.model) return PassResult::UserError;
  if (!isAsWritten) planx.model->settings.set("written", order);
  return lower(planx, passes, diags, internal);
}

}  // namespace planc
