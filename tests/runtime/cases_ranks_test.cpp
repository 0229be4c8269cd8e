// Faults that users of other systems reported, where it takes several ranks to show them. Each test is
// named by its case's number and holds what is right. Those of the command line are
// tests/tools/cases.test; planted faults are verify_test.cpp.
#include <set>

#include "runtime/session.h"
#include "tests/runtime/plans.h"

namespace planc {
namespace {

using test::compilePlanOn;
using test::expectEqual;
using test::kAdamW;
using test::kSequence;
using test::kTensor;
using test::planOf;

void expectPlanEqual(const std::string& model, const std::string& statements) {
  SCOPED_TRACE(model + "\n" + statements);
  expectEqual(compilePlanOn(planOf(model, statements)));
}

// The axes of every sum between ranks of a weight's gradient, in the whole program.
std::vector<Words> reductionsOf(const Module& module, const std::string& weight) {
  std::vector<Words> found;
  for (const auto& function : module.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->kind != OpKind::AllReduce && op->kind != OpKind::ReduceScatter) return;
      for (const Value* operand : op->operands())
        if (const Op* def = operand->def(); def && def->var && def->var->of == "grad." + weight)
          found.push_back(op->attrs.words("axes"));
    });
  return found;
}

TEST(Cases, C01NormsUnderSplitSequences) {
  const char* weights[] = {"norm.scale", "layer.norm.scale", "layer.norm_2.scale"};
  for (bool hasData : {false, true}) {
    std::string grid = hasData ? "grid data 2, tensor 2\n" : "grid tensor 2\n";
    std::string data = hasData ? "split batch over data\n" : "";
    std::string tensor = data + "split head, kv, ffn, vocab over tensor\n";
    std::string sequence = tensor + "split seq over tensor by gather\n";
    expectPlanEqual("dense", grid + sequence + kAdamW);
    test::Compiled split = test::compileSharded(planOf("dense", grid + sequence));
    test::Compiled plain = test::compileSharded(planOf("dense", grid + tensor));
    for (const char* weight : weights) {
      Words all = hasData ? Words{"data", "tensor"} : Words{"tensor"};
      EXPECT_EQ(reductionsOf(*split.program, weight), std::vector<Words>{all}) << weight;
      EXPECT_EQ(reductionsOf(*plain.program, weight),
                hasData ? std::vector<Words>{{"data"}} : std::vector<Words>{})
          << weight;
    }
  }
}

TEST(Cases, C02OneKvHeadOnManyRanks) {
  std::string split = "split head, ffn, vocab over tensor\n" + kAdamW;
  expectPlanEqual("dense(kv = 1)", "grid tensor 2\n" + split);
  expectPlanEqual("dense(kv = 1)", "grid tensor 4\n" + split);
  expectPlanEqual("dense(kv = 2)", "grid tensor 4\n" + split);
  expectPlanEqual("dense(kv = 2)", "grid tensor 4\nsplit seq over tensor by gather\n" + split);
}

TEST(Cases, C03Router) {
  for (const char* grid :
       {"grid data 2\nsplit batch over data\n",
        "grid data 2, tensor 2\nsplit batch over data\nsplit head, kv, ffn, vocab "
        "over tensor\n",
        "grid data 2\nsplit batch over data\nsplit expert over data\n",
        "grid data 4\nsplit batch over data\nsplit expert over data\n",
        "grid expert 4\nsplit batch over expert\nsplit expert over expert\n",
        "grid expert 4\nsplit seq over expert by gather\nsplit expert over expert\n"})
    expectPlanEqual("experts(layers = 2, expert = 8)", grid + kAdamW);
}

// Raw gradients, since AdamW hides a factor.
TEST(Cases, C04ExpertGradientsKeepTheirScale) {
  for (const char* data : {"2", "4"})
    expectPlanEqual("experts", "grid data " + std::string(data) +
                                   "\nsplit batch over data\noptimizer sgd { lr 0.1, clip 0 }\n");
  for (const char* grid : {"grid data 2\nsplit batch, expert over data\n",
                           "grid data 2, expert 2\nsplit batch over data, expert\n"
                           "split expert over expert\n"})
    expectPlanEqual("experts", grid + std::string("optimizer sgd { lr 0.1, clip 0 }\n"));
}

// Losses 1 and 2 count on one rank and 6 on the other: their mean is 3, and the mean of the ranks'
// means 3.75.
TEST(Cases, C05TheDivisorIsAllTokens) {
  auto logit = [](double loss) { return std::log(std::exp(loss) - 1); };
  auto module = test::parse(R"(module m model {
  grid data 2
  split b over data
  call @begin
  call @forward(0)
  var @loss : f64[] metric
  var @count : i32[] metric
  var @t : i32[b 2, s 4] input vocab 2
  var @x : f64[b 2, s 4, v 2] weight init const(0.0)
  func @begin {
    %t = read @t : i32[b 2, s 4]
    %n = count_valid(%t) : i32[]
    write @count(%n)
    zero @loss
  }
  func @forward {
    %t = read @t : i32[b 2, s 4]
    %n = read @count : i32[]
    %x = read @x : f64[b 2, s 4, v 2]
    %l, %lse = cross_entropy(%x, %t, %n) {over = v, scale = 1.0} : f64[], f64[b 2, s 4]
    accum @loss(%l)
  }
})");
  ASSERT_TRUE(module);
  module->settings.set("precision", std::string("f64"));
  test::runAll(*module);
  test::onGoodRanks(2, [&](Communicator& comm) -> llvm::Error {
    auto device = makeCpuDevice(1, Coordinates(module->grid, comm.rank()));
    auto session = Session::create(*module, *device, comm);
    if (!session) return session.takeError();
    std::vector<int32_t> targets{-1, -1, -1, -1};
    std::vector<double> logits(8);
    std::vector<double> losses =
        comm.rank() == 0 ? std::vector<double>{1, 2} : std::vector<double>{6};
    for (size_t i = 0; i < losses.size(); ++i) targets[i] = 0, logits[2 * i + 1] = logit(losses[i]);
    Interpreter& interpreter = (*session)->interpreter();
    memcpy(interpreter.data(*module->findVar("t")), targets.data(), 16);
    memcpy(interpreter.data(*module->findVar("x")), logits.data(), 64);
    for (const Call& call : module->schedule)
      if (call.function != "update")
        if (llvm::Error error = (*session)->run(call)) return error;
    EXPECT_NEAR(*reinterpret_cast<const double*>(interpreter.data(*module->findVar("loss"))), 3,
                1e-12);
    return llvm::Error::success();
  });
  // Whatever is masked where (`verify` masks later positions and samples more), with microbatches.
  expectPlanEqual("dense", "grid data 4\nsplit batch over data\nmicrobatches 2\n" + kAdamW);
}

// Two ranks in zigzag order, so that one has positions 0, 1, 6, 7 and the other 2 to 5; losses 1, 2 and 6
// count at positions 0, 1 and 2.
TEST(Cases, C05TheDivisorIsAllTokensOfAZigzag) {
  auto logit = [](double loss) { return std::log(std::exp(loss) - 1); };
  auto module = test::parse(R"(module m model {
  grid context 2
  split s over context by ring order zigzag
  call @begin
  call @forward(0)
  var @loss : f64[] metric
  var @count : i32[] metric
  var @t : i32[b 1, s 8] input vocab 2
  var @x : f64[b 1, s 8, v 2] weight init const(0.0)
  func @begin {
    %t = read @t : i32[b 1, s 8]
    %n = count_valid(%t) : i32[]
    write @count(%n)
    zero @loss
  }
  func @forward {
    %t = read @t : i32[b 1, s 8]
    %n = read @count : i32[]
    %x = read @x : f64[b 1, s 8, v 2]
    %l, %lse = cross_entropy(%x, %t, %n) {over = v, scale = 1.0} : f64[], f64[b 1, s 8]
    accum @loss(%l)
  }
})");
  ASSERT_TRUE(module);
  module->settings.set("precision", std::string("f64"));
  test::runAll(*module);
  EXPECT_EQ(module->findVar("t")->type.str(), "i32[b 1, s 8/context:zigzag2]");
  test::onGoodRanks(2, [&](Communicator& comm) -> llvm::Error {
    Coordinates rank(module->grid, comm.rank());
    auto device = makeCpuDevice(1, rank);
    auto session = Session::create(*module, *device, comm);
    if (!session) return session.takeError();
    Interpreter& interpreter = (*session)->interpreter();
    const double losses[] = {1, 2, 6};
    auto set = [&](const char* name, auto&& value) {
      const Variable& var = *module->findVar(name);
      test::fill(var.type, rank, interpreter.data(var), value);
    };
    set("t", [](int64_t i) { return i < 3 ? 0 : -1; });
    set("x", [&](int64_t i) { return i % 2 == 1 && i < 6 ? logit(losses[i / 2]) : 0; });
    for (const Call& call : module->schedule)
      if (call.function != "update")
        if (llvm::Error error = (*session)->run(call)) return error;
    EXPECT_NEAR(*reinterpret_cast<const double*>(interpreter.data(*module->findVar("loss"))), 3,
                1e-12);
    return llvm::Error::success();
  });
  // The tokens of a batch over two axes, or over one.
  for (const char* grid :
       {"grid data 2, context 2\nsplit batch over data\nsplit seq over context\n",
        "grid data 4\nsplit batch over data\n"})
    expectPlanEqual("dense", grid + std::string("microbatches 2\n") + kAdamW);
}

// Gradients of queries, keys, values and outputs, with few kv heads and many, and where all is seen.
TEST(Cases, C06RingBackward) {
  for (const char* model :
       {"dense", "dense(kv = 1)", "dense(kv = 4)", "dense(causal = false)", "dense(window = 5)"})
    for (const char* how : {"ring", "ring(contiguous)"})
      expectPlanEqual(
          model, "grid context 4\nsplit seq over context by " + std::string(how) + "\n" + kAdamW);
}

TEST(Cases, C08GradientsAreReducedBehindTheLastMicrobatch) {
  std::string grid = "grid data 2\nsplit batch over data\nmicrobatches 4\n" + kAdamW;
  for (const char* shard : {"", "shard optimizer over data\n", "shard gradients over data\n",
                            "shard weights over data\n"}) {
    SCOPED_TRACE(shard);
    test::Compiled plan = compilePlanOn(planOf("dense(layers = 2)", grid + shard));
    expectEqual(plan);
    // Before the last contribution: noticed.
    std::vector<Call>& schedule = plan.program->schedule;
    auto reduce = llvm::find_if(schedule, [](const Call& c) { return c.function == "reduce"; });
    ASSERT_NE(reduce, schedule.end());
    EXPECT_EQ((reduce - 1)->function, "backward");
    EXPECT_EQ((reduce - 1)->microbatch, 3);
    if (std::string(shard) == "shard gradients over data\n" ||
        std::string(shard) == "shard weights over data\n")
      continue;  // @reduce has the loss and small sums only
    std::swap(*reduce, *(reduce - 1));
    VerifyReport report = test::verifyPlan(plan);
    ASSERT_NE(report.first(), nullptr);
    EXPECT_EQ(report.first()->kind, "gradient");
    // Once a step: in @reduce, and nowhere else.
    for (const auto& function : plan.program->functions)
      walk(*function->body, [&](const Op* op) {
        if (op->kind == OpKind::AllReduce || op->kind == OpKind::ReduceScatter) {
          bool isGradient = llvm::any_of(op->operands(), [](const Value* v) {
            return v->def() && v->def()->var && v->def()->var->kind == VarKind::Sum;
          });
          EXPECT_EQ(isGradient && function->name != "reduce", false) << printOp(*op);
        }
      });
  }
}

// A gradient [3] on both ranks, and one of which they hold [4] and [12]: the norm is 13, and 13.3417
// with the first counted twice. The loss is 3 a + b^2 / 2.
TEST(Cases, C09NormCountsACopyOnce) {
  auto module = test::parse(R"(module m model {
  grid tensor 2
  split two over tensor
  set clip = 1.0
  set optimizer = sgd
  set precision = f64
  set gradients = f64
  call @begin
  call @forward(0)
  var @loss : f64[] metric
  var @a : f64[one 1] weight init const(0.0)
  var @b : f64[two 2] weight init const(0.0)
  func @begin {
    zero @loss
  }
  func @forward {
    %a = read @a : f64[one 1]
    %three = const {value = 3.0} : f64[]
    %x = mul(%a, %three) : f64[one 1]
    %s = sum(%x) : f64[]
    %b = read @b : f64[two 2]
    %half = const {value = 0.5} : f64[]
    %q = square(%b) : f64[two 2]
    %y = mul(%q, %half) : f64[two 2]
    %t = sum(%y) : f64[]
    %l = add(%s, %t) : f64[]
    accum @loss(%l)
  }
})");
  ASSERT_TRUE(module);
  test::runAll(*module);
  test::onGoodRanks(2, [&](Communicator& comm) -> llvm::Error {
    auto device = makeCpuDevice(1, Coordinates(module->grid, comm.rank()));
    auto session = Session::create(*module, *device, comm);
    if (!session) return session.takeError();
    auto at = [&](const char* name) {
      return reinterpret_cast<double*>((*session)->interpreter().data(*module->findVar(name)));
    };
    *at("b") = comm.rank() == 0 ? 4 : 12;
    (*session)->beginStep();
    for (const Call& call : module->schedule)
      if (llvm::Error error = (*session)->run(call)) return error;
    EXPECT_NEAR(*at("grad_norm"), 13, 1e-12);
    EXPECT_NEAR(*at("loss"), (16 + 144) / 2.0, 1e-12);
    return llvm::Error::success();
  });
  // In a plan, with clipping that bites.
  expectPlanEqual("dense", "grid data 2, tensor 2\n" + kTensor + kAdamW);
  expectPlanEqual("dense",
                  "grid data 2, tensor 2\n" + kSequence + "shard weights over data\n" + kAdamW);
}

// The penalty is of all of a microbatch's tokens, on however many ranks they lie.
TEST(Cases, C10BalanceIsTheMicrobatchs) {
  for (const char* data : {"2", "4"}) {
    test::Compiled plan = compilePlanOn(planOf(
        "experts(balance = 0.01)",
        "grid data " + std::string(data) + "\nsplit batch over data\nmicrobatches 2\n" + kAdamW));
    ASSERT_TRUE(plan.one && plan.program);
    VerifyReport report = test::verifyPlan(plan);
    EXPECT_EQ(report.first(), nullptr) << test::describe(*report.first());
    EXPECT_TRUE(llvm::any_of(report.comparisons, [](const Comparison& c) {
      return c.tensor == "penalty" && c.scale > 0;
    }));
  }
}

// All tokens choose the first two of four experts, which one rank holds: the other takes part with no
// rows, and its experts' gradients are zero, not merely small.
TEST(Cases, C13AnExpertRankWithoutTokens) {
  std::string model = R"(import "std/transformer.plan"
model crowd(layers = 2) {
  dim batch = 4, seq = 16, vocab = 32, model = 16, head = 4, kv = 2, width = 4, ffn = 32
  dim near = 2, far = 2, expert = near + far
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model] init normal(0.1)
  x[batch, seq, model] = table[tokens]
  repeat layer = layers {
    x = x + attention(norm(x))
    weight router_near [model, near] init normal(0.1)
    weight router_far  [model, far] init normal(0.1)
    weight gate, up [expert, model, ffn] init normal(0.1)
    weight down     [expert, ffn, model] init normal(0.1)
    z[batch, seq, model] = norm(x)
    n[batch, seq, near] = z @ router_near
    f[batch, seq, far]  = z @ router_far
    f = f - 50
    s[batch, seq, expert] = concat(n, f)
    r = route(s, 2)
    t[expert, slot, model] = dispatch(z, r)
    h[expert, slot, ffn]   = silu(t @ gate) * (t @ up)
    o[expert, slot, model] = h @ down
    y[batch, seq, model]   = combine(o, r)
    x = x + y
  }
  logits[batch, seq, vocab] = norm(x) @ table
  loss cross_entropy(logits, targets)
}
plan p of crowd {
  grid expert 2
  split batch over expert
  split expert over expert
)" + kAdamW + "}\n";
  test::Compiled plan = compilePlanOn(model);
  expectEqual(plan);
  const Module& module = *plan.program;
  int exchanges = 0;
  for (const auto& function : module.functions)
    walk(*function->body, [&](const Op* op) { exchanges += op->kind == OpKind::ExchangeRows; });
  EXPECT_GE(exchanges,
            4);  // out and home, forward and back: on both ranks, since there is one program
  test::onGoodRanks(2, [&](Communicator& comm) -> llvm::Error {
    auto device = makeCpuDevice(1, Coordinates(module.grid, comm.rank()));
    auto session = Session::create(module, *device, comm);
    if (!session) return session.takeError();
    if (llvm::Error error = (*session)->initialise()) return error;
    Interpreter& interpreter = (*session)->interpreter();
    const Variable& targets = *module.findVar("targets");
    test::fill(targets.type, Coordinates(module.grid, comm.rank()), interpreter.data(targets),
               [](int64_t i) { return i * 7 % 32; });
    for (const Call& call : module.schedule)
      if (call.function != "update")
        if (llvm::Error error = (*session)->run(call)) return error;
    int seen = 0;
    for (const auto& var : module.vars) {
      bool isGradient = var->kind == VarKind::Gradient && var->type.has("expert");
      // Where the rank's own experts' rows begin and end.
      bool isCount =
          var->kind == VarKind::Slot && var->type.has("bound") && !var->type.splitAxes().empty();
      if (!isGradient && !isCount) continue;
      ++seen;
      double largest = 0;
      for (int64_t i = 0; i < var->type.elements(); ++i)
        largest = std::max(largest, std::abs(fetch(var->type.elem, interpreter.data(*var), i)));
      if (comm.rank() == 0) EXPECT_GT(largest, 1e-9) << var->name;
      else EXPECT_EQ(largest, 0) << var->name;
    }
    EXPECT_EQ(seen, 3);
    return llvm::Error::success();
  });
}

TEST(Cases, C14FewerKvHeadsThanRanks) {
  // Not named in the split: ranks hold the kv heads that their heads need.
  expectPlanEqual("dense", "grid tensor 4\nsplit head, ffn, vocab over tensor\n" + kAdamW);
  expectPlanEqual("dense(head = 6, kv = 3)",
                  "grid tensor 2\nsplit head, ffn, vocab over tensor\n" + kAdamW);
}

TEST(Cases, C16VocabularyThatRanksDoNotDivide) {
  for (const char* tensor : {"2", "4"})
    for (const char* sequence : {"", "split seq over tensor by gather\n"}) {
      std::string grid = "grid tensor " + std::string(tensor) +
                         "\nsplit head, ffn, vocab over tensor\n" + sequence + kAdamW;
      // MATCH, and padded rows stay zero: so does `verify` want them.
      expectPlanEqual("dense(vocab = 17)", grid);
      expectPlanEqual("dense(vocab = 17, tied = true)", grid);
      // A head of zeros: the logarithm of 17, not of 18 or 20.
      auto module = test::compileText(planOf("dense(vocab = 17, spread = 0)", grid));
      ASSERT_TRUE(module);
      test::runAll(*module);
      test::onGoodRanks(module->grid.ranks(), [&](Communicator& comm) -> llvm::Error {
        auto device = makeCpuDevice(1, Coordinates(module->grid, comm.rank()));
        auto session = Session::create(*module, *device, comm);
        if (!session) return session.takeError();
        if (llvm::Error error = (*session)->initialise()) return error;
        for (const Call& call : module->schedule)
          if (call.function != "update")
            if (llvm::Error error = (*session)->run(call)) return error;
        const std::byte* loss = (*session)->interpreter().data(*module->findVar("loss"));
        EXPECT_NEAR(fetch(Elem::F32, loss, 0), 2.833213, 1e-6);
        return llvm::Error::success();
      });
    }
}

// One position's logits outweigh all else: 64 x 4096 of them, whole or a quarter each.
TEST(Cases, C21LogitsAreSplit) {
  for (auto [tensor, bytes] : {std::pair{1, 1048576}, {4, 262144}}) {
    auto module = test::compileText(
        planOf("dense(vocab = 4096, seq = 64, batch = 1)",
               "grid tensor " + std::to_string(tensor) + "\nsplit head, ffn, vocab over tensor\n"));
    ASSERT_TRUE(module);
    test::runAll(*module);
    int64_t largest = 0;
    std::string name;
    auto note = [&](const Type& type, const std::string& what) {
      if (type.bytes() > largest) largest = type.bytes(), name = what;
    };
    for (const auto& var : module->vars) note(var->type, var->name);
    for (const auto& function : module->functions)
      walk(*function->body, [&](const Op* op) {
        for (const Value* result : op->results()) note(result->type, result->name);
      });
    EXPECT_EQ(largest, bytes);
    EXPECT_EQ(name, "logits");
  }
}

// The largest difference of the projections' gradients.
double errorOfProjections(const test::Compiled& plan) {
  VerifyOptions options;
  options.bound = 1;
  options.steps = 1;
  double worst = 0;
  for (const Comparison& c : test::verifyPlan(plan, options).comparisons)
    if (c.kind == "gradient" && llvm::StringRef(c.tensor).contains(".attention.w") &&
        !llvm::StringRef(c.tensor).endswith("wo"))
      worst = std::max(worst, c.difference);
  return worst;
}

std::string bf16Ring(int64_t ranks) {
  return planOf("dense(layers = 8, seq = 64, batch = 1)",
                "grid context " + std::to_string(ranks) +
                    "\nsplit seq over context by ring\nprecision bf16\n" + kAdamW);
}

// Of a bf16 plan on a ring, against one rank in f64.
double errorOfRing(int64_t ranks) {
  test::Compiled plan = compilePlanOn(bf16Ring(ranks), true);
  plan.one = test::compileSharded(bf16Ring(ranks)).one;
  return errorOfProjections(plan);
}

// Against one rank that rounds as the ranks do. Nothing is fused, since a chain in registers rounds less.
double errorOfRingAlone(int64_t ranks, const test::Spoil& spoil = nullptr) {
  const std::vector<std::string> rest{"overlap", "memory", "emit"};
  test::Compiled plan = test::compileSharded(bf16Ring(ranks), true);
  plan.one = cloneForOneRank(*test::compileText(bf16Ring(ranks)));
  test::runAll(*plan.one,
               {"autodiff", "recompute", "precision", "optimizer", "shard", "collectives"});
  test::runAll(*plan.one, rest);
  if (spoil) spoil(*plan.program);
  test::runAll(*plan.program, rest);
  return errorOfProjections(plan);
}

// What a block leaves, rounded to 16 bits before the next one is folded in.
void roundTheRunningOutput(Module& module) {
  int rounded = 0;
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      if (op->kind != OpKind::AttendBlock) return;
      Value* made = op->result();
      std::vector<Use> uses(made->uses());
      Builder b(op->parent(), op->parent()->indexOf(op) + 1);
      Value* half = b.value(OpKind::Cast, {made}, made->type.withElem(Elem::BF16));
      Value* again = b.value(OpKind::Cast, {half}, made->type);
      for (const Use& use : uses) use.op->setOperand(use.index, again);
      ++rounded;
    });
  EXPECT_GT(rounded, 0);
}

TEST(Cases, C22RingsKeepRunningResultsInF32) {
  double alone = errorOfRing(1);
  EXPECT_GT(alone, 1e-4);
  for (int64_t ranks : {2, 4, 8}) {
    EXPECT_LE(errorOfRing(ranks), 2 * alone) << ranks;
    EXPECT_LE(errorOfRingAlone(ranks), alone / 20) << ranks;
    EXPECT_GT(errorOfRingAlone(ranks, roundTheRunningOutput), alone / 20) << ranks;
  }
}

// Sums over microbatches and over ranks are f32 in a bf16 plan.
TEST(Cases, C23GradientsOfBf16AddUpInF32) {
  auto plan = compilePlanOn(planOf("dense",
                                   "grid data 4\nsplit batch over data\nmicrobatches 16\n"
                                   "precision bf16\n" +
                                       kAdamW),
                            true);
  ASSERT_TRUE(plan.program);
  for (const auto& var : plan.program->vars)
    if (var->kind == VarKind::Sum || var->kind == VarKind::Gradient) {
      EXPECT_EQ(var->type.elem, Elem::F32) << var->name;
    }
  VerifyOptions options;
  options.bound = 3e-2;
  options.steps = 1;
  VerifyReport report = test::verifyPlan(plan, options);
  EXPECT_EQ(report.first(), nullptr) << test::describe(*report.first());
  bool isNormSeen = false;
  for (const Comparison& c : report.comparisons)
    if (c.tensor == "grad_norm") {
      isNormSeen = true;
      EXPECT_LE(c.difference, 1e-6);
    }
  EXPECT_TRUE(isNormSeen);
}

// A mask is of the seed, the step, the place in the plan and the element's place in the whole tensor.
TEST(Cases, C25MasksAreTheSameOnEveryGrid) {
  std::string tensor = "split head, kv, ffn, vocab over tensor\n";
  std::string sequence = tensor + "split seq over tensor by gather\n";
  for (const std::string& statements :
       {"grid tensor 2\n" + tensor, "grid tensor 2\n" + sequence,
        "grid data 2, tensor 2\nsplit batch over data\n" + tensor,
        "grid data 2, tensor 2\nsplit batch over data\nrecompute layer\n" + sequence,
        std::string("grid data 2\nsplit batch over data\nmicrobatches 2\nrecompute layer\n")})
    expectPlanEqual("dense(rate = 0.1)", statements + kAdamW);
}

// Ten steps, in f64 and in f32.
TEST(Cases, C26DifferencesAreNoise) {
  std::string text = planOf("dense", "grid data 2, tensor 2\n" + kSequence + kAdamW);
  VerifyOptions options;
  options.steps = 10;
  expectEqual(compilePlanOn(text), options);
  options.bound = 1e-4;
  expectEqual(compilePlanOn(text, true), options);
}

}  // namespace
}  // namespace planc
