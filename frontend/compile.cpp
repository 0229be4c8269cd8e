// Compiling: pick the plan, gather its overrides, learn the sizes of its model's dims, check the
// plan against them, then lower. The model is lowered twice: once to learn the dims (what it
// reports is thrown away), once under the plan's settings. Tested by tests/unit/lower_test.cpp.
#include "frontend/check.h"
#include "frontend/frontend.h"
#include "frontend/lower.h"

namespace planc {

// The plan's arguments, by position or name, then those of -D that its model knows.
static std::vector<Override> overridesOf(const ast::Module& model, const ast::Plan* plan,
                                         const CompileOptions& options) {
  std::vector<Override> result;
  size_t next = 0;
  if (plan)
    for (const ast::Arg& arg : plan->args) {
      if (!arg.key.text.empty()) result.push_back({arg.key.text, arg.value.get(), ""});
      else if (next < model.params.size())
        result.push_back({model.params[next++].name.text, arg.value.get(), ""});
    }
  for (const auto& [name, value] : options.defines) result.push_back({name, nullptr, value});
  return result;
}

static void setPlan(Module& module, const PlanSettings& settings) {
  Attrs& attrs = module.settings;
  attrs.set("seed", settings.seed);
  attrs.set("microbatches", settings.microbatches);
  attrs.set("precision", name(settings.precision).str());
  attrs.set("gradients", name(settings.gradients).str());
  attrs.set("recompute", settings.recompute);
  attrs.set("optimizer", settings.optimizer);
  for (const auto& [key, value] : settings.numbers) attrs.set(key, value);
  module.grid = settings.layout;
  module.splits = settings.splits;
  module.shards = settings.shards;
  module.pipeline = settings.pipeline;
  module.cluster = settings.cluster;
  module.places = settings.places;
}

// Reports every error of a plan and its model. Null when there is one.
static std::unique_ptr<Module> lowerPlan(const ast::Plan& plan, const Scope& scope,
                                         const CompileOptions& options, Diagnostics& diags) {
  const ast::Module* model = scope.module(plan.model.text);
  if (!model || !model->isModel) return nullptr;  // checkFiles reported it
  std::vector<Override> overrides = overridesOf(*model, &plan, options);
  DimMap dims;
  Diagnostics ignored;
  lowerModel(*model, overrides, PlanSettings(), scope, dims, ignored);
  PlanSettings settings;
  bool good = checkPlan(plan, scope, dims, !ignored.failed(), options, settings, diags);
  auto module = lowerModel(*model, overrides, settings, scope, dims, diags);
  if (!good || !module) return nullptr;
  setPlan(*module, settings);
  module->files = diags.paths();
  return module;
}

std::unique_ptr<Module> compilePlan(const std::vector<std::unique_ptr<ast::File>>& files,
                                    const CompileOptions& options, Diagnostics& diags) {
  Scope scope;
  if (!checkFiles(files, options, scope, diags)) {
    // Declarations are wrong; what the models themselves get wrong is still worth telling.
    checkPlans(files, options, diags);
    return nullptr;
  }
  const ast::Plan* plan = choosePlan(scope, options, diags);
  if (!plan) return nullptr;
  return lowerPlan(*plan, scope, options, diags);
}

bool checkPlans(const std::vector<std::unique_ptr<ast::File>>& files, const CompileOptions& options,
                Diagnostics& diags) {
  Scope scope;
  unsigned errors = diags.errors();
  checkFiles(files, options, scope, diags);
  std::vector<const ast::Plan*> plans = scope.ownPlans;
  if (!options.plan.empty()) {
    const ast::Plan* plan = choosePlan(scope, options, diags);
    plans.clear();
    if (plan) plans.push_back(plan);
  }
  std::set<const ast::Module*> done;
  for (const ast::Plan* plan : plans) {
    lowerPlan(*plan, scope, options, diags);
    done.insert(scope.module(plan->model.text));
  }
  // Models that no plan uses, when their parameters have values of their own.
  if (options.plan.empty() && !files.empty())
    for (const ast::Item& item : files.back()->items) {
      const auto* model = std::get_if<ast::Module>(&item);
      if (!model || !model->isModel || done.count(model)) continue;
      bool ready = true;
      for (const ast::Param& param : model->params) ready &= param.fallback != nullptr;
      DimMap dims;
      if (ready) lowerModel(*model, {}, PlanSettings(), scope, dims, diags);
    }
  return diags.errors() == errors;
}

}  // namespace planc
