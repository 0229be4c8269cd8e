// Memory against the literature's closed forms. What planc does otherwise is named, with its own form: the
// paper's figure and the differences add up to what the programs hold, to the byte.
#include <array>

#include "compile.h"
#include "cost/memory.h"
#include "passes/passes.h"

namespace planc {
namespace {

// A GPT layer as Korthikanti et al. 2022 (arXiv 2205.05198, section 4) assume it: bf16, LayerNorm, an MLP
// four times as wide with GELU, dropout behind both parts and on the attention's weights. `layered`:
// attention as they write it, with its scores in memory; `one`: by the op that never stores them.
std::string gpt(const std::string& attention, int layers, const std::string& plan) {
  return R"(import "std/transformer.plan"
module layered(x[batch, seq, model], rate = 0.1) {
  weight wq, wk, wv [model, head, width]
  weight wo [head, width, model]
  weight bq, bk, bv [head, width] init zeros
  weight bo [model] init zeros
  q[batch, seq, head, width] = x @ wq + bq
  k[batch, seq, head, width] = x @ wk + bk
  v[batch, seq, head, width] = x @ wv + bv
  kt[batch, key, head, width] = slice(k, over = seq, from = 0)
  vt[batch, key, head, width] = slice(v, over = seq, from = 0)
  s[batch, head, seq, key] = q @ kt
  p[batch, head, seq, key] = dropout(softmax(s, over = key), rate)
  a[batch, seq, head, width] = p @ vt
  y[batch, seq, model] = a @ wo
  return dropout(y + bo, rate)
}
module one(x[batch, seq, model], rate = 0.1) {
  return attention(x, bias = true, rotary = false, rate = rate)
}
model gpt(layers = )" +
         std::to_string(layers) + R"() {
  dim batch = 2, seq = 48, vocab = 32, key = 48
  dim model = 128, head = 16, kv = 16, width = 8, ffn = 512
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model]
  x[batch, seq, model] = table[tokens]
  repeat layer = layers {
    x = x + )" +
         attention + R"((layernorm(x))
    x = x + gelu_mlp(layernorm(x), exact = true, rate = 0.1)
  }
  logits[batch, seq, vocab] = layernorm(x) @ table
  loss cross_entropy(logits, targets)
}
plan p of gpt {
  precision bf16
)" + plan +
         "\n}\n";
}
constexpr int64_t b = 2, s = 48, h = 128, a = 16;

MemoryBill billOf(const std::string& text) {
  auto module = test::compileText(text);
  if (!module) return {};
  test::runAll(*module);
  MemoryBill bill = memoryOf(*module);
  bill.fullest = nullptr;  // the module goes
  return bill;
}

// Bytes that a layer saves for the backward pass, of one microbatch: what one layer more takes.
int64_t savedByLayer(const std::string& attention, const std::string& plan) {
  std::array<int64_t, 2> bytes{};
  for (int layers : {2, 3})
    for (const SavedChunk& chunk : billOf(gpt(attention, layers, plan)).saved)
      bytes[size_t(layers - 2)] += chunk.bytes;
  return bytes[1] - bytes[0];
}

struct Difference {
  const char* why;
  int64_t bytes;
};

void expectClosedForm(int64_t measured, int64_t paper, std::initializer_list<Difference> list,
                      const std::string& what) {
  int64_t sum = paper;
  std::string lines;
  for (const Difference& difference : list) {
    sum += difference.bytes;
    lines += std::string("\n  ") + difference.why + ": " + std::to_string(difference.bytes);
  }
  EXPECT_EQ(measured, sum) << what << "\n  the paper: " << paper << lines;
}

std::string tensor(int64_t ranks, bool cutsSequence) {
  std::string text = "grid tensor " + std::to_string(ranks) + "\nsplit head, kv, ffn over tensor\n";
  // They send the pieces again for the backward pass, and keep no whole ones.
  return text + (cutsSequence ? "split seq over tensor by gather\nrecompute gather\n" : "");
}

constexpr const char* kMasks = "masks behind both parts are drawn again, not stored";
constexpr const char* kAttentionMask = "the mask of the attention's weights is drawn again";
constexpr const char* kScales = "each LayerNorm keeps 1/deviation of a token, f32";

// Equations 1, 2 and 4: s b h (34 + 5 a s / h); s b h (10 + 24/t + 5 a s / (h t)); s b h / t (34 + 5 a s / h).
TEST(ClosedForms, ActivationsOfALayer) {
  for (int64_t t : {1, 2, 4, 8}) {
    expectClosedForm(
        savedByLayer("layered", tensor(t, false)),
        10 * s * b * h + 24 * s * b * h / t + 5 * a * s * s * b / t,
        {{kMasks, -2 * s * b * h}, {kAttentionMask, -a * s * s * b / t}, {kScales, 2 * 4 * s * b}},
        "tensor " + std::to_string(t));
    expectClosedForm(savedByLayer("layered", tensor(t, true)),
                     34 * s * b * h / t + 5 * a * s * s * b / t,
                     {{kMasks, -2 * s * b * h / t},
                      {kAttentionMask, -a * s * s * b / t},
                      {kScales, 2 * 4 * s * b / t}},
                     "tensor " + std::to_string(t) + ", sequence cut");
  }
}

// What ranks gather of a cut sequence is kept as a whole, unless the plan says otherwise.
TEST(ClosedForms, GatheredInputsAreKept) {
  for (int64_t t : {2, 4, 8}) {
    std::string plan = tensor(t, true);
    plan.erase(plan.find("recompute"));
    expectClosedForm(
        savedByLayer("layered", plan), 34 * s * b * h / t + 5 * a * s * s * b / t,
        {{kMasks, -2 * s * b * h / t},
         {kAttentionMask, -a * s * s * b / t},
         {kScales, 2 * 4 * s * b / t},
         {"the inputs of both parts are whole on each rank", 2 * 2 * (s * b * h - s * b * h / t)}},
        "tensor " + std::to_string(t));
  }
}

// Section 5: without what has a s in it, 34 s b h / t. planc's `attend` is that by itself; with
// `recompute attend` its result is not kept either.
TEST(ClosedForms, SelectiveRecomputation) {
  for (int64_t t : {1, 2, 4, 8})
    for (bool cuts : {false, true}) {
      int64_t paper = cuts ? 34 * s * b * h / t : 10 * s * b * h + 24 * s * b * h / t;
      int64_t pieces = cuts ? t : 1;
      std::string plan = tensor(t, cuts);
      expectClosedForm(savedByLayer("one", plan), paper,
                       {{kMasks, -2 * s * b * h / pieces},
                        {kScales, 2 * 4 * s * b / pieces},
                        {"log-sum-exp of each query's scores, f32", 4 * a * s * b / t}},
                       "attend, " + plan);
      size_t recompute = plan.find("recompute gather");
      plan = recompute == std::string::npos
                 ? plan + "recompute attend\n"
                 : plan.substr(0, recompute) + "recompute attend, gather\n";
      expectClosedForm(savedByLayer("one", plan), paper,
                       {{kMasks, -2 * s * b * h / pieces},
                        {kScales, 2 * 4 * s * b / pieces},
                        {"the input of the projection is made again", -2 * s * b * h / t}},
                       plan);
    }
}

// 2 s b h: the layer's input; cut as the residual stream is.
TEST(ClosedForms, FullRecomputation) {
  for (int64_t t : {1, 2, 4, 8}) {
    std::string plan = tensor(t, false) + "recompute layer\n";
    expectClosedForm(savedByLayer("layered", plan), 2 * s * b * h, {}, plan);
    expectClosedForm(savedByLayer("one", plan), 2 * s * b * h, {}, plan);
    plan = tensor(t, true);
    plan = plan.substr(0, plan.find("recompute")) + "recompute layer\n";
    expectClosedForm(savedByLayer("one", plan), 2 * s * b * h / t, {}, plan);
  }
}

// ZeRO (Rajbhandari et al. 2020, sections 3.1 and 5, figure 1): a parameter takes 2 bytes of weights, 2 of
// gradients and K = 12 of optimizer state: an f32 master and two moments, which stand apart here.
// Dims that 8 divides: nothing is padded.
constexpr const char* kZeroModel = R"(import "std/transformer.plan"
model lm(layers = 2) {
  dim batch = 8, seq = 8, vocab = 64, model = 64, head = 8, kv = 8, width = 8, ffn = 128
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model]
  x[batch, seq, model] = table[tokens]
  repeat layer = layers {
    x = x + attention(norm(x))
    x = x + mlp(norm(x))
  }
  weight output [model, vocab]
  logits[batch, seq, vocab] = norm(x) @ output
  loss cross_entropy(logits, targets)
}
)";

MemoryBill zeroBill(const std::string& shard, const std::string& gradients, int64_t ranks) {
  return billOf(kZeroModel + ("plan p of lm { grid data " + std::to_string(ranks)) +
                " split batch over data " + shard + " precision bf16 { master f32, gradients " +
                gradients + " } }\n");
}

int64_t parametersOf() {
  auto module = test::compileText(std::string(kZeroModel) + "plan p of lm { seed 1 }\n");
  int64_t count = 0;
  for (const auto& var : module->vars)
    if (var->kind == VarKind::Weight) count += var->type.elements();
  return count;
}

// With gradients in bf16 16 bytes a parameter; with planc's default, f32, 18.
TEST(ClosedForms, ZeroStages) {
  const int64_t parameters = parametersOf();
  for (int64_t n : {2, 4, 8})
    for (const auto& [gradients, g] : {std::pair<const char*, int64_t>{"bf16", 2}, {"f32", 4}}) {
      const int64_t piece = parameters / n;
      auto expectBill = [&](const char* shard, int64_t weights, int64_t sums, int64_t moments) {
        MemoryBill bill = zeroBill(shard, gradients, n);
        std::string what =
            std::string(shard) + ", " + gradients + ", " + std::to_string(n) + " ranks";
        EXPECT_EQ(bill.weights, weights) << what;
        EXPECT_EQ(bill.gradients, sums) << what;
        EXPECT_EQ(bill.optimizer, moments) << what;
      };
      // 2 + 2 + 12: copies and masters, gradients, moments.
      expectBill("", 6 * parameters, g * parameters, 8 * parameters);
      // 2 + 2 + 12/N; the reduced piece of the gradient lies beside what the rank has added up.
      expectBill("shard optimizer over data", 2 * parameters + 4 * piece,
                 g * parameters + g * piece, 8 * piece);
      // 2 + (2 + 12)/N.
      expectBill("shard gradients over data", 2 * parameters + 4 * piece, g * piece, 8 * piece);
      // (2 + 2 + 12)/N.
      expectBill("shard weights over data", 6 * piece, g * piece, 8 * piece);
    }
}

}  // namespace
}  // namespace planc
