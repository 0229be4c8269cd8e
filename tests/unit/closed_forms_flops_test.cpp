// Operations of whole models against what the literature counts: 6 a parameter that multiplies and token
// (Kaplan et al. 2020, section 2.1), and for attention 12 layers x heads x width x keys a token, of which a
// causal mask leaves half (Chowdhery et al. 2022, PaLM, appendix B). Norms, biases and tables do not
// multiply; of experts a token meets `top`.
#include "cost/work.h"

#include "compile.h"
#include "ir/cost.h"

namespace planc {
namespace {

// What one token meets in the model: parameters that multiply, and widths of attention's pairs.
struct Form {
  double layers, parameters, head;  // of a layer; of the head behind all
  double keyWidth, valueWidth;      // of all heads of a layer together
  double seq, tokens;
  double skipped = 0;  // of a layer: the last product, whose result no gradient needs

  double matrices() const { return 2 * tokens * (layers * parameters + head); }
  double attention() const { return 2 * tokens * layers * (keyWidth + valueWidth) * seq / 2; }
  // Scores again, and four products: three by keys' width, two by values'.
  double attentionBack() const {
    return 2 * tokens * layers * (3 * keyWidth + 2 * valueWidth) * seq / 2;
  }
  double model() const { return 3 * (matrices() + attention()); }
  double executed() const { return 3 * matrices() + attention() + attentionBack(); }
  double again() const { return 2 * tokens * layers * (parameters - skipped) + attention(); }
};

Form llama(double layers, double model, double ffn, double heads, double kv, double width,
           double vocab, double seq, double tokens) {
  return {layers,        model * width * 2 * (heads + kv) + 3 * model * ffn,
          model * vocab, heads * width,
          heads * width, seq,
          tokens,        model * ffn};
}

Form gpt2(double layers, double model, double vocab, double seq, double tokens) {
  return {layers, 12 * model * model, model * vocab, model, model, seq, tokens, 4 * model * model};
}

// Routers multiply; the rows that come home are needed for the gradients of gates, so no product is left out.
Form mixtral(double layers, double model, double ffn, double heads, double kv, double width,
             double experts, double top, double vocab, double seq, double tokens) {
  Form form = llama(layers, model, ffn, heads, kv, width, vocab, seq, tokens);
  form.parameters += (top - 1) * 3 * model * ffn + model * experts;
  form.skipped = 0;
  return form;
}

double modelOf(const std::string& text) {
  auto module = test::compileText(text);
  return module ? modelFlops(*module) : 0;
}

// Of all ranks together.
RankWork executed(const std::string& text) {
  Modules modules;
  modules.push_back(test::compileText(text));
  if (!modules.front()) return {};
  double ranks = double(modules.front()->grid.ranks());
  test::runAll(modules);
  RankWork all;
  for (const auto& role : modules) {
    RankWork work = workOf(*role);
    double times = ranks / double(modules.size());
    all.flops += times * work.flops;
    all.again += times * work.again;
  }
  return all;
}

std::string plan(const std::string& model, const std::string& sizes,
                 const std::string& statements) {
  std::string file = model.substr(0, model.find("_8b"));
  file = file.substr(0, file.find("_405b"));
  return "import \"std/" + file + ".plan\"\nplan p of " + model + "(" + sizes + ") {\n" +
         statements + "\n}\n";
}

constexpr double kExact = 1e-12;  // doubles add up many terms
void expectSame(double made, double form) { EXPECT_NEAR(made / form, 1, kExact); }

TEST(ClosedForms, ModelsOfTheLiterature) {
  expectSame(modelOf(plan("llama3_8b", "seq = 8192, batch = 4", "microbatches 3")),
             llama(32, 4096, 14336, 32, 8, 128, 128256, 8192, 3 * 4 * 8192).model());
  expectSame(modelOf(plan("llama3_405b", "seq = 8192, batch = 2", "microbatches 5")),
             llama(126, 16384, 53248, 128, 8, 128, 128256, 8192, 5 * 2 * 8192).model());
  // A tied head multiplies once; positions are added.
  expectSame(modelOf(plan("gpt2", "batch = 8", "microbatches 2")),
             gpt2(12, 768, 50257, 1024, 2 * 8 * 1024).model());
  expectSame(modelOf(plan("mixtral", "batch = 2", "")),
             mixtral(32, 4096, 14336, 32, 8, 128, 8, 2, 32000, 4096, 2 * 4096).model());
}

// GPT-3 by the formula of Narayanan et al. 2021, appendix, without its recomputation and with a causal mask,
// which halves the term s / 6h: 72 B s l h^2 (1 + s / 12h + V / 12lh).
TEST(ClosedForms, Gpt3ByMegatronsFormula) {
  double b = 4, s = 2048, l = 96, h = 12288, v = 51200;
  double flops = 72 * b * s * l * h * h * (1 + s / (12 * h) + v / (12 * l * h));
  std::string sizes = "layers = 96, head = 96, model = 12288, vocab = 51200, seq = 2048, batch = 4";
  expectSame(modelOf(plan("gpt2", sizes, "")), flops);
}

// 671B parameters, of which 37B meet a token (DeepSeek-AI 2024, section 1); the table is looked up.
TEST(ClosedForms, DeepSeekV3) {
  double heads = 128, model = 7168, tokens = 4096;
  double attention = model * 1536 + 1536 * heads * (128 + 64) + model * (512 + 64) +
                     512 * heads * (128 + 128) + heads * 128 * model;
  double dense = 3 * model * 18432, experts = (8 + 1) * 3 * model * 2048 + model * 256;
  double active = 61 * attention + 3 * dense + 58 * experts + model * 129280;
  EXPECT_NEAR(active, 37e9, 1e9);
  double pairs = 61 * heads * (192 + 128) * 4096 / 2;
  expectSame(modelOf(plan("deepseek_v3", "", "")), 6 * tokens * (active + pairs));
}

// From the parameters that the module holds, not from a formula of sizes.
TEST(ClosedForms, SixTimesParametersTimesTokens) {
  for (const char* tied : {"false", "true"}) {
    auto module =
        test::compileText(plan("llama3", std::string("layers = 3, seq = 256, tied = ") + tied, ""));
    ASSERT_TRUE(module);
    bool isTied = tied[0] == 't';
    double parameters = 0;
    for (const auto& var : module->vars) {
      bool isScale = llvm::StringRef(var->name).endswith("scale");
      bool multiplies =
          var->kind == VarKind::Weight && !isScale && (isTied || var->name != "table");
      if (multiplies) parameters += double(var->type.elements());
    }
    expectSame(modelFlops(*module), 6 * parameters * 256 + 12 * 3 * 32 * 128 * 256.0 * 256 / 2);
  }
}

struct Small {
  const char* model;
  const char* sizes;
  Form form;  // of one microbatch
};

const Small kSmall[] = {
    {"llama3",
     "layers = 4, model = 64, ffn = 96, head = 4, kv = 2, vocab = 128, seq = 32, batch = 8",
     llama(4, 64, 96, 4, 2, 16, 128, 32, 8 * 32)},
    {"gpt2", "layers = 4, model = 64, head = 4, vocab = 128, seq = 32, batch = 8",
     gpt2(4, 64, 128, 32, 8 * 32)},
    {"mixtral",
     "layers = 4, model = 64, ffn = 96, head = 4, kv = 2, width = 16, expert = 8, top = 2, "
     "vocab = 128, seq = 32, batch = 8",
     mixtral(4, 64, 96, 4, 2, 16, 8, 2, 128, 32, 8 * 32)},
};

// One rank does what the model asks for, and in attention's backward pass the scores again.
TEST(ClosedForms, ExecutedOnOneRank) {
  for (const Small& small : kSmall)
    for (const char* precision : {"", "precision bf16"}) {
      SCOPED_TRACE(std::string(small.model) + " " + precision);
      RankWork work =
          executed(plan(small.model, small.sizes, std::string("microbatches 3 ") + precision));
      expectSame(work.flops, 3 * small.form.executed());
      EXPECT_EQ(work.again, 0);
      expectSame(modelOf(plan(small.model, small.sizes, "microbatches 3")), 3 * small.form.model());
    }
}

// A layer's forward pass is done again, but for what no gradient needs: in all 8 operations a parameter and
// token instead of 6, less 2 for the last product of each layer and for the head.
TEST(ClosedForms, Recomputed) {
  for (const Small& small : kSmall) {
    SCOPED_TRACE(small.model);
    RankWork work = executed(plan(small.model, small.sizes, "microbatches 3 recompute layer"));
    expectSame(work.again, 3 * small.form.again());
    expectSame(work.flops, 3 * (small.form.executed() + small.form.again()));
    RankWork attend = executed(plan(small.model, small.sizes, "recompute attend"));
    expectSame(attend.again, small.form.attention());
    expectSame(attend.flops, small.form.executed() + small.form.attention());
  }
}

// Work is divided, not lost nor doubled.
TEST(ClosedForms, AllRanksDoWhatOneDoes) {
  struct Divided {
    const char* statements;
    bool needsExperts = false;
  };
  const Divided kDivided[] = {
      {"grid data 4 split batch over data"},
      {"grid data 4 split batch over data shard weights over data"},
      {"grid tensor 2 split head, kv, ffn, vocab over tensor split seq over tensor by gather"},
      {"grid pipe 2 split layer over pipe by one_f_one_b"},
      {"grid pipe 2 split layer over pipe by interleaved(2)"},
      {"grid pipe 2 split layer over pipe by zero_bubble"},
      {"grid context 4 split seq over context by ring"},
      {"grid context 4 split seq over context by gather"},
      {"grid context 2 split seq over context by heads"},
      {"grid expert 4 split batch, expert over expert", true},
      {"grid data 2, expert 4 split batch over data, expert split expert over expert", true},
      {"grid data 2, pipe 2, context 2, tensor 2 split batch over data "
       "split head, kv, ffn, vocab over tensor split seq over context by ring, tensor by gather "
       "split layer over pipe by one_f_one_b shard optimizer over data"},
  };
  for (const Small& small : kSmall)
    for (const Divided& divided : kDivided)
      for (const char* recompute : {"", "recompute layer"}) {
        bool hasExperts = std::string(small.model) == "mixtral";
        if (divided.needsExperts && !hasExperts) continue;
        SCOPED_TRACE(std::string(small.model) + ": " + divided.statements + " " + recompute);
        RankWork work =
            executed(plan(small.model, small.sizes,
                          std::string("microbatches 2 ") + recompute + " " + divided.statements));
        double again = *recompute ? small.form.again() : 0;
        EXPECT_NEAR(work.flops / (2 * (small.form.executed() + again)), 1, kExact);
        EXPECT_NEAR(work.again, 2 * again, kExact * again);
      }
}

// What ranks do alike counts on each: without sequence parallelism all ranks along `tensor` score the same
// tokens for the router. Its product, with two gradients, is done twice on two of them.
TEST(ClosedForms, ARouterIsReplicatedUnderTensor) {
  const Small& small = kSmall[2];
  RankWork work = executed(
      plan(small.model, small.sizes, "grid tensor 2 split head, kv, ffn, vocab over tensor"));
  double router = 6 * 4 * 64 * 8 * small.form.tokens;
  expectSame(work.flops, small.form.executed() + router);
}

}  // namespace
}  // namespace planc
