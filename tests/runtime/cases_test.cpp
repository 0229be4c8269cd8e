// Faults that users of other systems reported, where one rank can show them: each with the value
// that is right.
#include "../unit/compile.h"
#include "runtime/interpreter.h"

namespace planc {
namespace {

// Runs IR text for one step and gives a float variable's first element.
double runText(const std::string& text, const std::map<std::string, std::vector<int32_t>>& ints,
               const std::map<std::string, std::vector<float>>& floats, const std::string& result) {
  auto module = test::parse(text);
  if (!module) return std::nan("");
  test::runAll(*module, {"fuse", "memory", "emit"});
  auto device = makeCpuDevice(2);
  auto made = Interpreter::create(*module, *device);
  EXPECT_TRUE(bool(made)) << llvm::toString(made.takeError());
  for (const auto& [name, values] : ints)
    memcpy((*made)->data(*module->findVar(name)), values.data(), values.size() * 4);
  for (const auto& [name, values] : floats)
    memcpy((*made)->data(*module->findVar(name)), values.data(), values.size() * 4);
  for (const Call& call : module->schedule) llvm::cantFail((*made)->run(call, 0, 1));
  return *reinterpret_cast<const float*>((*made)->data(*module->findVar(result)));
}

// Eight positions of which three count, with losses 1, 2 and 6: their mean is 3, whatever is masked;
// and the divisor is that of all microbatches, not the mean of each one's mean.
TEST(Cases, LossIsTheMeanOverValidTokens) {
  // Two classes: the loss of class 0 is log(1 + exp(d)) for logits (0, d).
  auto logit = [](double loss) { return float(std::log(std::exp(loss) - 1)); };
  // Both microbatches have the same logits; the first counts the losses 1 and 2, the second 6. The
  // mean of the microbatches' means would be 3.75.
  std::vector<float> logits{0, logit(1), 0, logit(2), 0, logit(6), 0, 0};
  std::vector<int32_t> targets{0, 0, -1, -1, -1, -1, 0, -1};
  const std::string text = R"(module m model {
  set microbatches = 2
  call @begin
  call @forward(0)
  call @forward(1)
  var @loss : f32[] metric
  var @count : i32[] metric
  var @t : i32[microbatch 2, b 1, s 4] input stack [microbatch] vocab 2
  var @x : f32[b 1, s 4, v 2] weight init const(0.0)
  func @begin {
    %t = read @t : i32[microbatch 2, b 1, s 4]
    %n = count_valid(%t) : i32[]
    write @count(%n)
    zero @loss
  }
  func @forward {
    %t = read @t : i32[b 1, s 4]
    %n = read @count : i32[]
    %x = read @x : f32[b 1, s 4, v 2]
    %l, %lse = cross_entropy(%x, %t, %n) {over = v, scale = 1.0} : f32[], f32[b 1, s 4]
    accum @loss(%l)
  }
})";
  EXPECT_NEAR(runText(text, {{"t", targets}}, {{"x", logits}}, "loss"), 3.0, 1e-6);
}

// Zero head weights over 17 tokens: ln 17, not ln 18 of a padded vocabulary.
TEST(Cases, ZeroHeadGivesTheLogarithmOfTheVocabulary) {
  auto module = test::compileText(R"(
model m() {
  dim batch = 2, seq = 4, model = 8, vocab = 17
  input tokens[batch, seq] : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table[vocab, model]
  weight head [model, vocab] init zeros
  x[batch, seq, model] = table[tokens]
  logits[batch, seq, vocab] = x @ head
  loss cross_entropy(logits, targets)
}
plan p of m {}
)");
  ASSERT_TRUE(module);
  test::runAll(*module);
  auto device = makeCpuDevice(1);
  auto made = Interpreter::create(*module, *device);
  ASSERT_TRUE(bool(made));
  for (const Call& call : module->schedule)
    if (call.function != "update") llvm::cantFail((*made)->run(call, 0, 1));
  float loss = *reinterpret_cast<const float*>((*made)->data(*module->findVar("loss")));
  EXPECT_NEAR(loss, 2.833213, 1e-6);
}

// 1 and then 256 times 1/256, as bf16 gradients: 2 in an f32 gradient. Added in bf16 it would be 1.
TEST(Cases, GradientsOfBf16AddUpInF32) {
  const std::string text = R"(module m model {
  call @forward(0)
  var @w : f32[a 1] weight init const(0.0)
  var @g : f32[a 1] gradient of @w
  func @forward {
    %one = const {value = 1.0} : bf16[a 1]
    accum @g(%one) {first = 1}
    %x = const {value = 0.0} : f32[]
    %y = repeat(%x) {count = 256, dim = microstep} : f32[] body(%c : f32[]) {
      %d = const {value = 0.00390625} : bf16[a 1]
      accum @g(%d)
      yield(%c)
    }
  }
})";
  EXPECT_EQ(runText(text, {}, {}, "g"), 2.0);
}

// What is saved falls strictly from none to some to all of a layer recomputed.
TEST(Cases, ArenaFallsWithRecomputation) {
  std::vector<int64_t> arenas;
  for (const char* recompute : {"none", "silu, rms_norm", "layer"}) {
    auto module = test::compileText(std::string(R"(
import "std/transformer.plan"
model m() {
  dim batch = 2, seq = 16, model = 16, vocab = 32, head = 4, kv = 2, width = 4, ffn = 32
  input tokens[batch, seq] : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table[vocab, model]
  x[batch, seq, model] = table[tokens]
  repeat layer = 8 {
    x = x + attention(norm(x))
    x = x + mlp(norm(x))
  }
  logits[batch, seq, vocab] = norm(x) @ table
  loss cross_entropy(logits, targets)
}
plan p of m { recompute )") + recompute + " }");
    ASSERT_TRUE(module);
    test::runAll(*module);
    arenas.push_back(module->arenaBytes);
  }
  EXPECT_GT(arenas[0], arenas[1]);
  EXPECT_GT(arenas[1], arenas[2]);
}

}  // namespace
}  // namespace planc
