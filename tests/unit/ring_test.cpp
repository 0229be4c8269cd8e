// Attention over split tokens: what a ring sends, what it holds, and where its tokens lie (cases of
// other systems by their numbers). That numbers are right is tests/verify's business.
#include <map>

#include "sharded.h"

namespace planc {
namespace {

using test::sharded;

// Three layers, 4 heads of 8 over 2 kv heads, one sequence of 64 tokens in bf16.
std::string model(const std::string& plan, const std::string& attention = "") {
  return R"(import "std/transformer.plan"
model m {
  dim batch = 1, seq = 64, vocab = 32
  dim model = 32, ffn = 64, head = 4, kv = 2, width = 8
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model]
  x[batch, seq, model] = table[tokens]
  repeat layer = 3 {
    x = x + attention(norm(x))" +
         attention + R"()
    x = x + mlp(norm(x))
  }
  logits[batch, seq, vocab] = norm(x) @ table
  loss cross_entropy(logits, targets)
}
plan p of m {)" +
         plan + "\n}\n";
}

std::string ring(int64_t ranks, const std::string& how = "ring", const std::string& more = "") {
  return "grid context " + std::to_string(ranks) + "\nsplit seq over context by " + how + "\n" +
         more;
}

constexpr int64_t kLayers = 3, kKeysAndValues = 2 * 64 * 2 * 8;  // elements of a layer, all ranks

// Elements that a rank passes on round the ring in a step, by function.
std::map<std::string, int64_t> passedOn(const Module& module) {
  std::map<std::string, int64_t> sum;
  for (const Transfer& transfer : trafficOf(module).transfers) {
    if (transfer.op->kind != OpKind::Rotate) continue;
    const Block* block = transfer.op->parent();
    while (block->owner()) block = block->owner()->parent();
    for (const auto& function : module.functions)
      if (function->body.get() == block)
        for (const Value* value : transfer.op->operands())
          sum[function->name] += transfer.times * value->type.elements();
  }
  return sum;
}

TEST(Ring, SendsKeysOnceForwardAndTwiceThatBackward) {
  for (int64_t c : {2, 3, 4, 8, 16}) {
    // 48 tokens for 3 ranks, since a zigzag has two blocks a rank.
    std::string text = model(ring(c, "ring", "precision bf16"));
    int64_t tokens = c == 3 ? 48 : 64;
    if (c == 3) text.replace(text.find("seq = 64"), 8, "seq = 48");
    auto sent = passedOn(*sharded(text, "ring"));
    int64_t forward = kLayers * kKeysAndValues * tokens / 64 * (c - 1) / c;
    EXPECT_EQ(sent["forward"], forward) << c;
    EXPECT_EQ(sent["backward"], 2 * forward) << c;
  }
}

// Recomputed attention needs the blocks once more; a window in order only those that it sees.
TEST(Ring, SendsWhatIsSeen) {
  auto again = passedOn(*sharded(model(ring(4, "ring", "recompute attend")), "ring"));
  EXPECT_EQ(again["backward"], 3 * again["forward"]);
  auto window = [&](int64_t size) {
    return passedOn(
        *sharded(model(ring(8, "ring(contiguous)"), ", window = " + std::to_string(size)), "ring"));
  };
  int64_t hop = kLayers * kKeysAndValues / 8;
  EXPECT_EQ(window(1)["forward"], 0);
  EXPECT_EQ(window(9)["forward"], hop);
  EXPECT_EQ(window(10)["forward"], 2 * hop);
  // Blocks hop by hop; their gradients, but for the last, straight home.
  EXPECT_EQ(window(10)["backward"], 4 * hop);
  EXPECT_EQ(window(64)["forward"], 7 * hop);
}

// Every saved value is cut, so a rank holds 1/c of the activations; the keys of all are on no rank.
TEST(Ring, ActivationsFallWithTheRing) {
  int64_t all = 0;
  for (int64_t c : {1, 2, 4, 8}) {
    auto module = sharded(model(ring(c)), "memory");
    int64_t saved = 0;
    for (const auto& var : module->vars)
      if (var->kind == VarKind::Slot) saved += var->type.bytes();
    if (c == 1) all = saved;
    EXPECT_EQ(saved * c, all) << c;
    for (const auto& function : module->functions)
      walk(*function->body, [&](const Op* op) {
        for (const Value* value : op->results())
          if (value->type.has("kv") && value->type.has("seq")) {
            EXPECT_EQ(value->type.size("seq"), 64 / c) << printOp(*op);
          }
      });
  }
}

TEST(Ring, ArenaFallsWithTheRing) {
  // Long enough for the activations to outweigh all else.
  auto arena = [&](int64_t c) {
    std::string text = model(ring(c));
    text.replace(text.find("seq = 64"), 8, "seq = 8192");
    auto module = sharded(text, "memory");
    int64_t held = 0;
    for (const auto& var : module->vars)
      if (var->kind != VarKind::Slot && var->kind != VarKind::Input) held += var->type.bytes();
    return module->arenaBytes - held;
  };
  int64_t one = arena(1);
  for (int64_t c : {2, 4, 8, 16})
    EXPECT_NEAR(double(arena(c) * c), double(one), 0.12 * double(one)) << c;
}

std::vector<int64_t> positions(int64_t tokens, int64_t ranks, int64_t rank, bool isZigzag = true) {
  Grid grid{{{"context", ranks}}};
  Dim dim{"seq", tokens};
  dim.zigzag = isZigzag ? ranks : 0;
  std::vector<int64_t> list;
  for (const Segment& segment :
       Coordinates(grid, rank).segments(splitDim(dim, Axes{{"context", ranks}})))
    for (int64_t i = 0; i < segment.count; ++i) list.push_back(segment.first + i);
  return list;
}

TEST(RingCases, C24Positions) {
  using List = std::vector<int64_t>;
  EXPECT_EQ(positions(8, 2, 0), (List{0, 1, 6, 7}));
  EXPECT_EQ(positions(8, 2, 1), (List{2, 3, 4, 5}));
  EXPECT_EQ(positions(16, 4, 0), (List{0, 1, 14, 15}));
  EXPECT_EQ(positions(16, 4, 1), (List{2, 3, 12, 13}));
  EXPECT_EQ(positions(16, 4, 2), (List{4, 5, 10, 11}));
  EXPECT_EQ(positions(16, 4, 3), (List{6, 7, 8, 9}));
}

// Pairs of a query and a key that it sees are what attention works on.
int64_t pairs(int64_t tokens, int64_t ranks, int64_t rank, bool isZigzag) {
  int64_t sum = 0;
  for (int64_t position : positions(tokens, ranks, rank, isZigzag)) sum += position + 1;
  return sum;
}

TEST(RingCases, C30ZigzagIsEqualWork) {
  std::vector<int64_t> plain, zigzag;
  for (int64_t rank = 0; rank < 4; ++rank) {
    plain.push_back(pairs(16, 4, rank, false));
    zigzag.push_back(pairs(16, 4, rank, true));
  }
  EXPECT_EQ(plain, (std::vector<int64_t>{10, 26, 42, 58}));
  EXPECT_EQ(zigzag, (std::vector<int64_t>{34, 34, 34, 34}));
  for (int64_t ranks : {2, 3, 8, 64})
    for (int64_t rank = 1; rank < ranks; ++rank)
      EXPECT_EQ(pairs(64 * 2 * ranks, ranks, rank, true), pairs(64 * 2 * ranks, ranks, 0, true));
}

TEST(RingCases, C30ZigzagIsTheDefault) {
  auto zigzagOf = [&](const std::string& plan, const std::string& attention = "") {
    return sharded(model(plan, attention))->findVar("tokens")->type.dims[1].zigzag;
  };
  EXPECT_EQ(zigzagOf("grid context 4\nsplit seq over context"), 4);
  EXPECT_EQ(zigzagOf(ring(4)), 4);
  EXPECT_EQ(zigzagOf(ring(4, "ring(contiguous)")), 0);
  EXPECT_EQ(zigzagOf(ring(4), ", causal = false"), 0);
  EXPECT_EQ(zigzagOf(ring(4, "gather(zigzag)")), 4);
  EXPECT_EQ(zigzagOf(ring(4, "gather")), 0);
  EXPECT_EQ(zigzagOf(ring(2, "heads")), 0);
}

// Keys and values are gathered, or heads are cut instead; queries are cut all the same.
TEST(Ring, OtherMethods) {
  auto times = [&](const Module& module, OpKind kind) {
    return trafficOf(module).total(kind, "context").times;
  };
  auto gather = sharded(model(ring(4, "gather")));
  EXPECT_EQ(times(*gather, OpKind::AllGather), 2 * kLayers);  // kept for the backward pass
  for (const auto& function : gather->functions)
    walk(*function->body, [&](const Op* op) {
      if (op->kind != OpKind::Attend) return;
      EXPECT_EQ(op->operand(0)->type.size("seq"), 16);
      EXPECT_EQ(op->operand(1)->type.size("seq"), 64);
      EXPECT_EQ(op->result()->type.size("seq"), 16);
    });
  auto heads = sharded(model(ring(2, "heads")));
  EXPECT_EQ(times(*heads, OpKind::AllGather), 0);
  EXPECT_EQ(times(*heads, OpKind::AllToAll),
            9 * kLayers);  // q, k, v, a and their gradients, and a again
  for (const auto& function : heads->functions)
    walk(*function->body, [&](const Op* op) {
      if (op->kind != OpKind::Attend) return;
      EXPECT_EQ(op->operand(0)->type.size("seq"), 64);
      EXPECT_EQ(op->operand(0)->type.size("head"), 2);
      EXPECT_EQ(op->operand(1)->type.size("kv"), 1);
    });
}

}  // namespace
}  // namespace planc
