// Shares of work that are counted one by one.
#include "cost/imbalance.h"

#include "compile.h"
#include "cost/step_time.h"

namespace planc {
namespace {

Planx programs(const std::string& text) {
  Planx planx;
  planx.model = test::compileText(text);
  if (!planx.model) return planx;
  planx.roles.push_back(cloneModule(*planx.model));
  test::runAll(planx.roles);
  return planx;
}

// Each query and key of a causal mask with a window, one by one; `dealt`: the rank of each query.
double counted(const std::vector<int>& dealt, int ranks, int window) {
  std::vector<double> pairs(size_t(ranks), 0.0);
  double sum = 0, most = 0;
  for (size_t query = 0; query < dealt.size(); ++query)
    for (size_t key = 0; key <= query; ++key)
      if (window == 0 || query - key < size_t(window)) ++pairs[size_t(dealt[query])];
  for (double rank : pairs) {
    sum += rank;
    most = std::max(most, rank);
  }
  return most * ranks / sum;
}

TEST(Imbalance, AttentionByItsMask) {
  constexpr int kTokens = 512, kRanks = 4;
  for (int window : {0, 100, 300})
    for (const char* order : {"ring(contiguous)", "ring", "gather"}) {
      SCOPED_TRACE(std::string(order) + " " + std::to_string(window));
      Planx planx = programs(
          "import \"std/transformer.plan\"\nmodel m {\n  dim batch = 1, seq = 512, vocab = 8, "
          "model = 8, "
          "head = 2, kv = 2, width = 4\n  input tokens[batch, seq] : token(vocab)\n"
          "  input targets[batch, seq] : token(vocab)\n  weight table [vocab, model]\n"
          "  x[batch, seq, model] = table[tokens]\n  x = x + attention(x, window = " +
          std::to_string(window) +
          ")\n  logits[batch, seq, vocab] = x @ table\n  loss cross_entropy(logits, targets)\n}\n"
          "plan p of m { grid context 4 split seq over context by " +
          order + " }\n");
      ASSERT_FALSE(planx.roles.empty());
      bool isZigzag = false;
      std::vector<double> found;
      for (const auto& function : planx.roles[0]->functions)
        walk(*function->body, [&](const Op* op) {
          if (op->kind != OpKind::Attend && op->kind != OpKind::AttendBlock &&
              op->kind != OpKind::AttendGrad)
            return;
          for (const Dim& dim : op->operand(0)->type.dims) isZigzag |= dim.zigzag > 0;
          found.push_back(attentionImbalance(*op));
        });
      ASSERT_FALSE(found.empty());
      std::vector<int> dealt;
      for (int token = 0; token < kTokens; ++token) {
        int block = token * 2 * kRanks / kTokens;
        dealt.push_back(!isZigzag ? block / 2 : block < kRanks ? block : 2 * kRanks - 1 - block);
      }
      // Areas leave out half of the diagonal.
      for (double one : found) EXPECT_NEAR(one, counted(dealt, kRanks, window), 0.01);
    }
}

std::string experts(const std::string& statements, const std::string& capacity = "0") {
  return "import \"std/transformer.plan\"\nmodel m {\n  dim batch = 8, seq = 16, vocab = 8, model "
         "= 8, "
         "ffn = 12, expert = 8\n  input tokens[batch, seq] : token(vocab)\n"
         "  input targets[batch, seq] : token(vocab)\n  weight table [vocab, model]\n"
         "  x[batch, seq, model] = table[tokens]\n  repeat layer = 2 { x = x + moe(x, top = 2, "
         "capacity = " +
         capacity +
         ") }\n  logits[batch, seq, vocab] = x @ table\n  loss cross_entropy(logits, targets)\n}\n"
         "plan p of m { " +
         statements + " }\n";
}

// 8 sequences of 16 tokens, each of which chooses 2 of 8 experts: 256 rows.
TEST(Imbalance, RowsOfExperts) {
  struct Case {
    const char* statements;
    const char* capacity;
    Words axes;
    int64_t own;
    double even;
    int64_t most;
  };
  const Case kCases[] = {
      {"", "0", {}, 8, 256, 256},
      {"grid data 4 split batch over data", "0", {}, 8, 64, 64},
      // All rows may choose the experts of one rank.
      {"grid expert 4 split batch over expert split expert over expert",
       "0",
       {"expert"},
       2,
       64,
       256},
      {"grid expert 4 split batch over expert split expert over expert by dispatch(1.5)",
       "0",
       {"expert"},
       2,
       64,
       96},
      {"grid data 2, expert 4 split batch over data, expert split expert over expert",
       "0",
       {"expert"},
       2,
       32,
       128},
      {"grid tensor 4 split expert over tensor", "0", {"tensor"}, 2, 64, 256},
      // An expert takes ceil(1.25 * 16 * 2 / 8) = 5 tokens of a sequence.
      {"", "1.25", {}, 8, 256, 256},
      {"grid tensor 4 split expert over tensor", "1.25", {"tensor"}, 2, 64, 8 * 2 * 5},
      {"grid expert 4 split batch over expert split expert over expert",
       "1.25",
       {"expert"},
       2,
       64,
       8 * 2 * 5},
      {"grid data 2, expert 4 split batch over data, expert split expert over expert",
       "1.25",
       {"expert"},
       2,
       32,
       4 * 2 * 5},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(c.statements) + ", capacity " + c.capacity);
    Planx planx = programs(experts(c.statements, c.capacity));
    ASSERT_FALSE(planx.roles.empty());
    std::vector<ExpertRows> rows = expertRows(planx);
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].expert, "expert");
    EXPECT_EQ(rows[0].axes, c.axes);
    EXPECT_EQ(rows[0].experts, 8);
    EXPECT_EQ(rows[0].own, c.own);
    EXPECT_EQ(rows[0].even, c.even);
    EXPECT_EQ(rows[0].most, c.most);
    EXPECT_DOUBLE_EQ(rows[0].bound(), double(c.most) / c.even);
  }
}

}  // namespace
}  // namespace planc
