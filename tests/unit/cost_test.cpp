// Operations against closed forms.
#include "ir/cost.h"

#include "sharded.h"

namespace planc {
namespace {

const Op* find(const Module& module, OpKind kind) {
  const Op* found = nullptr;
  walk(*module.findFunction("forward")->body, [&](const Op* op) {
    if (!found && op->kind == kind) found = op;
  });
  return found;
}

TEST(Cost, ProductsAndAttention) {
  auto module = test::compileText(test::dense("microbatches 1"));
  ASSERT_TRUE(module);
  const Op* product = find(*module, OpKind::Einsum);
  ASSERT_TRUE(product);
  int64_t names = 1;
  for (const Dim& dim : product->operand(0)->type.dims) names *= dim.size;
  for (const Dim& dim : product->operand(1)->type.dims)
    if (!product->operand(0)->type.has(dim.name)) names *= dim.size;
  EXPECT_EQ(flopsOf(*product), double(2 * names));

  // Causal: half of all pairs; a pair costs a product for its score and one for its value.
  const Op* attend = find(*module, OpKind::Attend);
  ASSERT_TRUE(attend);
  const Type& q = attend->operand(0)->type;
  EXPECT_EQ(flopsOf(*attend), double(2 * 2 * q.elements() * q.size("seq") / 2));
}

// 2 operations a parameter and token, but for the table, which is looked up and multiplied by once.
TEST(Cost, AModelIsTwiceItsParameters) {
  auto module = test::compileText(R"(import "std/llama3.plan"
plan p of llama3_8b(seq = 128) {})");
  ASSERT_TRUE(module);
  double parameters = 0;
  for (const auto& var : module->vars)
    if (var->kind == VarKind::Weight && var->name != "table")
      parameters += double(var->type.elements());
  double flops = flopsOf(*module->findFunction("forward")->body);
  EXPECT_NEAR(flops / (2 * parameters * 128), 1, 0.02);
}

TEST(Cost, RepeatsCountTheirIterations) {
  auto flops = [](const char* layers) {
    auto module =
        test::compileText(std::string("import \"std/llama3.plan\"\nplan p of llama3(layers = ") +
                          layers + ", seq = 64) {}");
    return flopsOf(*module->findFunction("forward")->body);
  };
  EXPECT_DOUBLE_EQ(flops("5") - flops("4"), flops("2") - flops("1"));
}

}  // namespace
}  // namespace planc
