// Gradients against central differences, in double precision by the reference: every element of
// every weight of a tiny model per builtin. The reference shares nothing with autodiff: it only runs
// what it is given.
#include "compile.h"
#include "models.h"
#include "runtime/reference.h"

namespace planc {
namespace {

// Tokens and targets, some of which are masked; for each microbatch others.
void fillInputs(const Module& module, Reference& reference) {
  for (const auto& var : module.vars) {
    if (var->kind != VarKind::Input) continue;
    Array& data = reference.var(var->name);
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = double((i * 7 + (var->follows.empty() ? 3 : 5) + i / 5) % size_t(var->vocab));
      if (!var->follows.empty() && i % 5 == 4) data[i] = -1;
    }
  }
}

double lossOf(const Module& module, Reference& reference) {
  for (const Call& call : module.schedule) {
    if (call.function == "backward") continue;
    RunContext context;
    context.seed = 5;
    context.microbatch = std::max<int64_t>(call.microbatch, 0);
    reference.run(*module.findFunction(call.function), context);
  }
  return reference.var("loss")[0];
}

class Gradient : public testing::TestWithParam<test::TinyModel> {};

TEST_P(Gradient, MatchesFiniteDifferences) {
  const test::TinyModel& row = GetParam();
  auto module = test::compileModel(row, "precision f64\nseed 5\nmicrobatches 2");
  ASSERT_TRUE(module);
  test::runAll(*module, {"autodiff", "recompute"});
  Reference reference(*module);
  fillInputs(*module, reference);
  for (const Call& call : module->schedule) {
    RunContext context;
    context.seed = 5;
    context.microbatch = std::max<int64_t>(call.microbatch, 0);
    reference.run(*module->findFunction(call.function), context);
  }
  Reference probe = reference;
  for (const auto& var : module->vars) {
    if (var->kind != VarKind::Gradient) continue;
    // A bias of routing has the loads for a gradient: of 2 microbatches of 12 tokens, 2 choices each.
    if (module->findVar(var->of)->balance > 0) {
      const Array& load = reference.var(var->name);
      for (size_t i = 0; i < load.size(); i += 4)
        EXPECT_EQ(load[i] + load[i + 1] + load[i + 2] + load[i + 3], 48) << var->of;
      continue;
    }
    const Array& gradient = reference.var(var->name);
    Array& weight = probe.var(var->of);
    double largest = 1e-3, worst = 0;
    for (double g : gradient) largest = std::max(largest, std::abs(g));
    for (size_t i = 0; i < weight.size(); ++i) {
      const double h = 1e-5, before = weight[i];
      weight[i] = before + h;
      double up = lossOf(*module, probe);
      weight[i] = before - h;
      double down = lossOf(*module, probe);
      weight[i] = before;
      worst = std::max(worst, std::abs((up - down) / (2 * h) - gradient[i]));
    }
    EXPECT_LT(worst / largest, 2e-6) << var->of;
  }
}

// By Wang et al. 2024, algorithm 1: up where an expert has less than the mean load, down where it has
// more, and still where it has just that.
TEST(Balanced, ABiasMovesTowardsEvenLoads) {
  auto module = test::parse(R"(module m model {
  set clip = 1.0
  set lr = 0.1
  call @forward(0)
  var @w : f32[a 3] weight init const(0.5)
  var @grad.w : f32[a 3] gradient of @w
  var @b : f32[layer 3, e 3] weight stack [layer] init const(2.0) balanced(0.25)
  var @grad.b : f32[layer 3, e 3] gradient of @b stack [layer]
  func @forward {
  }
})");
  ASSERT_TRUE(module);
  test::runAll(*module, {"optimizer"});
  Reference reference(*module);
  reference.var("step") = {1};
  reference.var("grad.w") = {3, 0, 4};
  // Means 2, 10/3 and 7: the last in loads that no third is a number for.
  reference.var("grad.b") = {4, 0, 2, 3, 3, 4, 7, 7, 7};
  reference.run(*module->findFunction("update"), {});
  EXPECT_EQ(reference.var("b"), (Array{1.75, 2.25, 2, 2.25, 2.25, 1.75, 2, 2, 2}));
  EXPECT_EQ(reference.var("grad_norm"), Array{5});
}

INSTANTIATE_TEST_SUITE_P(Builtins, Gradient, testing::ValuesIn(test::kModels),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace planc
