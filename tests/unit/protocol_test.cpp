// The proof that ranks' programs fit together: programs that do pass; each way to spoil the program
// of one rank is told with the right ranks, operations and lines; and for random programs the verdict
// is that of a plain run of all ranks.
#include "ir/protocol.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <random>

#include "compile.h"
#include "ir/traffic.h"
#include "plain_run.h"
#include "ranks.h"

namespace planc {
namespace {

using test::drop;
using test::find;
using Change = std::function<void(Module&)>;

// `base` on all ranks but one, which runs it changed.
Planx spoil(const Module& base, int64_t odd, const Change& change) {
  Planx planx;
  Module& role = *planx.roles.emplace_back(cloneModule(base));
  Coordinates at(base.grid, odd);
  for (const GridAxis& axis : base.grid.axes) role.where.push_back({axis.name, at.on(axis.name)});
  change(role);
  planx.roles.push_back(cloneModule(base));
  return planx;
}

std::string verdict(const Planx& planx) { return llvm::toString(checkProtocol(planx)); }

// Exchanges an op with the next one.
void swapWithNext(Op* op) {
  auto& ops = op->parent()->ops;
  size_t at = op->parent()->indexOf(op);
  std::swap(ops[at], ops[at + 1]);
}

void retype(Op* op, const std::function<void(Type&)>& change) {
  for (Value* value : op->operands()) change(value->type);
  for (Value* value : op->results()) change(value->type);
}

void doubleFirstDim(Type& type) { type.dims[0] = Dim{"batch", type.dims[0].size * 2}; }

struct Case {
  const char* name;
  int64_t odd;
  Change change;
  std::vector<const char*> says;
};

// data 2 x tensor 2: ranks 0, 1 and 2, 3 lie along tensor, 0, 2 and 1, 3 along data.
const Case kCases[] = {
    {"one lacks an all-reduce",
     2,
     [](Module& m) { drop(find(m, "attention")); },
     {"ranks 2 and 3 enter different operations: tensor 'ffn' and 'attention'",
      "rank 2 (data 1, tensor 0), operation 1, microbatch 0, layer 0:\n    %ffn = all_reduce",
      "at ranks.plan:7:9",
      "rank 3 (data 1, tensor 1), operation 1, microbatch 0, layer 0:\n    %attention = all_reduce",
      "at ranks.plan:5:9", "message 1 of the group over tensor, ranks 2, 3"}},
    {"one lacks another kind",
     2,
     [](Module& m) { drop(find(m, "loss")); },
     {"ranks 0 and 2 enter different operations: kind 'all_reduce' and 'all_gather'",
      "rank 0 (data 0, tensor 0), operation 14", "rank 2 (data 1, tensor 0), operation 14",
      "message 2 of the group over data, ranks 0, 2"}},
    {"one lacks the last",
     2,
     [](Module& m) { find(m, "weight")->erase(); },
     {"rank 0 (data 0, tensor 0) waits for ever: rank 2 (data 1, tensor 0) has ended",
      "rank 0 (data 0, tensor 0), operation 15:\n    %weight = all_gather", "at ranks.plan:12:9",
      "waits for rank 2 (data 1, tensor 0): message 3 of the group over data, ranks 0, 2",
      "rank 2 (data 1, tensor 0) has ended after 14 operations"}},
    {"one never enters a group",
     1,
     [](Module& m) { drop(find(m, "attention")), drop(find(m, "ffn")); },
     {"rank 0 (data 0, tensor 0), operation 1, microbatch 0, layer 0:",
      "waits for rank 1 (data 0, tensor 1)"}},
    {"double the count",
     0,
     [](Module& m) { retype(find(m, "attention"), doubleFirstDim); },
     {"ranks 0 and 1 enter different operations: count '2048' and '1024'", "ranks.plan:5:9",
      "group over tensor, ranks 0, 1"}},
    {"another order",
     3,
     [](Module& m) {
       Op* gradient = find(m, "gradient");
       swapWithNext(gradient);
     },
     {"ranks 1 and 3 enter different operations: kind 'reduce_scatter' and 'all_reduce'",
      "ranks.plan:9:9", "ranks.plan:10:9"}},
    {"other axes",
     1,
     [](Module& m) { find(m, "ffn")->attrs.set("axes", Words{"data"}); },
     {"rank 1 (data 0, tensor 1), operation 2, microbatch 0, layer 0:\n    %ffn = all_reduce",
      "axes = [data]", "ranks 1 and 3 enter different operations",
      "rank 3 (data 1, tensor 1), operation 13:\n    %gradient = reduce_scatter",
      "message 1 of the group over data, ranks 1, 3"}},
    {"more axes",
     1,
     [](Module& m) {
       find(m, "loss")->attrs.set("axes", Words{"data", "tensor"});
     },
     {"rank 1 (data 0, tensor 1), operation 14", "group over data, tensor, ranks 0, 1, 2, 3"}},
    {"another dim",
     2,
     [](Module& m) { find(m, "weight")->attrs.set("dim", Words{"hidden"}); },
     {"ranks 0 and 2 enter different operations: dim 'model' and 'hidden'"}},
    {"another element type",
     3,
     [](Module& m) { retype(find(m, "ffn"), [](Type& type) { type.elem = Elem::BF16; }); },
     {"ranks 2 and 3 enter different operations: element type 'f32' and 'bf16'"}},
    {"another reduction",
     0,
     [](Module& m) { find(m, "loss")->attrs.set("reduce", "max"); },
     {"ranks 0 and 2 enter different operations: reduction 'max' and 'sum'"}},
    {"another shape of the same count",
     0,
     [](Module& m) {
       retype(find(m, "ffn"), [](Type& type) { std::swap(type.dims[0], type.dims[1]); });
     },
     {"ranks 0 and 1 enter different operations: shape"}},
    {"another iteration",
     0,
     [](Module& m) { find(m, "attention")->parent()->owner()->attrs.set("count", int64_t{4}); },
     {"ranks 0 and 1 enter different operations: iteration 'microbatch 0, layer 3' and 'microbatch "
      "1, layer 0'",
      "rank 0 (data 0, tensor 0), operation 7", "rank 1 (data 0, tensor 1), operation 7",
      "group over tensor, ranks 0, 1"}},
    {"another microbatch",
     3,
     [](Module& m) { m.schedule.erase(m.schedule.begin()); },
     {"ranks 2 and 3 enter different operations: iteration 'microbatch 0, layer 0' and 'microbatch "
      "1, layer 0'"}},
    {"one leaves out the last iteration",
     2,
     [](Module& m) { find(m, "ffn")->attrs.set("unless_last", int64_t{1}); },
     {"ranks 2 and 3 enter different operations: in the last iteration 'left out' and 'run'",
      "rank 2 (data 1, tensor 0), operation 2, microbatch 0, layer 0:"}},
    {"another slice",
     0,
     [](Module& m) {
       Variable stack;
       stack.type = find(m, "w")->result()->type;
       Op* gather = find(m, "weight");
       Builder b(gather->parent(), 0);
       gather->setOperand(0, b.create(OpKind::Read, {}, {gather->operand(0)->type},
                                      {{"index", int64_t{1}}}, m.addVar(stack))
                                 ->result());
     },
     {"ranks 0 and 2 enter different operations: slice '1' and ''"}},
    {"starts what it never waits for",
     1,
     [](Module& m) {
       Op* attention = find(m, "attention");
       test::defer(attention);
       attention->attrs.set("unless_last", int64_t{1});
     },
     {"rank 1", "the last iteration leaves out one of start and wait"}},
    {"never waited for",
     3,
     [](Module& m) { drop(find(m, "gradient", true)); },
     {"the program of rank 3 (data 1, tensor 1) is not sound: in '@reduce' it starts a message and "
      "waits for it 0 times, not once",
      "%gradient = reduce_scatter", "ranks.plan:9:9"}},
    {"waited for twice",
     3,
     [](Module& m) {
       Op* wait = find(m, "gradient", true);
       Builder b(wait->parent());
       b.create(OpKind::Wait, wait->operands(), {wait->result()->type});
     },
     {"rank 3", "waits for it 2 times"}},
    {"used before the wait",
     0,
     [](Module& m) {
       Op* gradient = find(m, "gradient");
       Builder b(gradient->parent(), gradient->parent()->indexOf(gradient) + 1);
       b.value(OpKind::Exp, {gradient->result()}, gradient->result()->type);
     },
     {"rank 0", "it uses a message before waiting for it", "= exp(%gradient)"}},
    {"waited for in another block",
     0,
     [](Module& m) {
       Op* attention = find(m, "attention");
       attention->attrs.set("start", int64_t{1});
       Builder b(attention->parent(), attention->parent()->indexOf(attention) + 1);
       Op* repeat = b.repeat("again", 2, false, {});
       Builder in(repeat->body.get());
       Op* wait = in.create(OpKind::Wait, {attention->result(), attention->operand(0)},
                            {attention->result()->type}, {}, nullptr, "attention");
       in.create(OpKind::Yield, {}, {});
       Op* use = attention->result()->uses()[0].op;
       use->setOperand(0, wait->result());
     },
     {"rank 0", "in '@forward' it waits for a message in another block than it starts it"}},
    {"waits for what is not started",
     0,
     [](Module& m) { find(m, "gradient")->attrs.erase("start"); },
     {"rank 0", "it waits for what was not started"}},
};

TEST(Protocol, NamesWhatDoesNotFit) {
  auto base = test::rankProgram(test::gridOf({{"data", 2}, {"tensor", 2}}));
  for (const Case& row : kCases) {
    std::string text = verdict(spoil(*base, row.odd, row.change));
    for (const char* part : row.says)
      EXPECT_NE(text.find(part), std::string::npos)
          << row.name << ": lacks \"" << part << "\" in:\n"
          << text;
  }
}

TEST(Protocol, SameProgramsFit) {
  auto base = test::rankProgram(test::gridOf({{"data", 2}, {"tensor", 2}}));
  EXPECT_EQ(verdict(spoil(*base, 2, [](Module&) {})), "");
  Planx one;
  one.roles.push_back(cloneModule(*base));
  EXPECT_EQ(verdict(one), "");
  drop(find(*one.roles[0], "gradient", true));
  EXPECT_NE(verdict(one), "");
}

// All leave out the same; one of them waits elsewhere.
TEST(Protocol, LeftOutByAllFits) {
  auto base = test::rankProgram(test::gridOf({{"data", 2}, {"tensor", 2}}));
  find(*base, "attention")->attrs.set("unless_last", int64_t{1});
  EXPECT_EQ(verdict(spoil(*base, 2, [](Module& m) { test::defer(find(m, "attention")); })), "");
}

TEST(Protocol, AllMovePiecesEquallyFar) {
  auto base = test::rankProgram(test::gridOf({{"data", 2}, {"tensor", 4}}));
  find(*base, "ffn")->kind = OpKind::Rotate;
  EXPECT_EQ(verdict(spoil(*base, 2, [](Module& m) { test::defer(find(m, "ffn")); })), "");
  std::string text =
      verdict(spoil(*base, 2, [](Module& m) { find(m, "ffn")->attrs.set("by", int64_t{-1}); }));
  EXPECT_NE(text.find("enter different operations: places moved '1' and '-1'"), std::string::npos)
      << text;
}

// What a rank does on its own, or how it waits, is nobody else's business.
TEST(Protocol, OwnAffairsFit) {
  auto base = test::rankProgram(test::gridOf({{"data", 2}, {"tensor", 2}, {"alone", 1}}));
  EXPECT_EQ(verdict(spoil(*base, 1, [](Module& m) { test::defer(find(m, "attention")); })), "");
  EXPECT_EQ(verdict(spoil(*base, 1,
                          [](Module& m) {
                            Op* ffn = find(m, "ffn");
                            Builder b(ffn->parent(), 1);
                            test::collective(b, OpKind::AllReduce, {ffn->operand(0)},
                                             {ffn->result()->type}, {"alone"}, "mine", 1);
                          })),
            "");
}

// A role that no rank plays runs nowhere.
TEST(Protocol, UnplayedRolesDoNotMatter) {
  auto base = test::rankProgram(test::gridOf({{"data", 2}, {"tensor", 2}}));
  Planx planx = spoil(*base, 0, [](Module& m) { drop(find(m, "gradient", true)); });
  std::swap(planx.roles[0], planx.roles[1]);
  EXPECT_EQ(verdict(planx), "");
}

// Two messages in crossing order: ranks 0 and 3 sum along tensor first, ranks 1 and 2 along data.
Planx crossing(bool isStarted) {
  Grid grid = test::gridOf({{"data", 2}, {"tensor", 2}});
  Planx planx;
  for (int64_t rank = 0; rank < 4; ++rank) {
    auto module = std::make_unique<Module>();
    module->grid = grid;
    module->files = {"crossing.plan"};
    module->schedule = {{"f", -1}};
    Builder b(module->addFunction("f")->body.get());
    Type type{Elem::F32, {{"a", 4}}};
    Value* x = b.value(OpKind::Const, {}, type);
    bool tensorFirst = rank == 0 || rank == 3;
    std::vector<Op*> ops;
    for (bool isTensor : {tensorFirst, !tensorFirst})
      ops.push_back(test::collective(b, OpKind::AllReduce, {x}, {type},
                                     {isTensor ? "tensor" : "data"}, isTensor ? "t" : "d",
                                     isTensor ? 1 : 2));
    if (isStarted)
      for (Op* op : ops) test::defer(op);
    module->where = {{"data", rank / 2}, {"tensor", rank % 2}};
    planx.roles.push_back(std::move(module));
  }
  return planx;
}

TEST(Protocol, CrossingWaitsAreACircle) {
  EXPECT_EQ(
      verdict(crossing(false)),
      "ranks wait for each other for ever\n"
      "  rank 0 (data 0, tensor 0), operation 1:\n"
      "    %t = all_reduce(%const) {axes = [tensor]} : f32[a 4]\n"
      "    at crossing.plan:1:9\n"
      "    waits for rank 1 (data 0, tensor 1): message 1 of the group over tensor, ranks 0, 1\n"
      "  rank 1 (data 0, tensor 1), operation 1:\n"
      "    %d = all_reduce(%const) {axes = [data]} : f32[a 4]\n"
      "    at crossing.plan:2:9\n"
      "    waits for rank 3 (data 1, tensor 1): message 1 of the group over data, ranks 1, 3\n"
      "  rank 3 (data 1, tensor 1), operation 1:\n"
      "    %t = all_reduce(%const) {axes = [tensor]} : f32[a 4]\n"
      "    at crossing.plan:1:9\n"
      "    waits for rank 2 (data 1, tensor 0): message 1 of the group over tensor, ranks 2, 3\n"
      "  rank 2 (data 1, tensor 0), operation 1:\n"
      "    %d = all_reduce(%const) {axes = [data]} : f32[a 4]\n"
      "    at crossing.plan:2:9\n"
      "    waits for rank 0 (data 0, tensor 0): message 1 of the group over data, ranks 0, 2");
}

TEST(Protocol, CrossingStartsFit) { EXPECT_EQ(verdict(crossing(true)), ""); }

TEST(Protocol, ManyRanksAreFast) {
  auto base = test::rankProgram(
      test::gridOf({{"pod", 4}, {"pipe", 16}, {"data", 32}, {"tensor", 8}}), 1000);
  auto isFast = [&](const Planx& planx) {
    auto start = std::chrono::steady_clock::now();
    std::string text = verdict(planx);
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LT(seconds, 1) << "for " << planx.roles.size() << " roles";
    return text;
  };
  Planx one;
  one.roles.push_back(cloneModule(*base));
  EXPECT_EQ(isFast(one), "");
  Planx stages;  // a role for each place along `pipe`
  for (int64_t stage = 0; stage < 16; ++stage) {
    stages.roles.push_back(cloneModule(*base));
    stages.roles.back()->where = {{"pipe", stage}};
  }
  EXPECT_EQ(isFast(stages), "");
  EXPECT_EQ(isFast(spoil(*base, 5000, [](Module&) {})), "");
  std::string text = isFast(spoil(*base, 5000, [](Module& m) { drop(find(m, "ffn")); }));
  EXPECT_NE(
      text.find(
          "rank 5000 (pod 1, pipe 3, data 17, tensor 0), operation 2, microbatch 0, layer 1:"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("group over tensor, ranks 5000, 5001, 5002,"), std::string::npos) << text;
}

// ---- Compiled plans.

std::unique_ptr<Module> trained() {
  return test::compileText(R"(
import "std/transformer.plan"
model lm(layers = 3) {
  dim batch = 8, seq = 16, vocab = 32
  dim model = 32, head = 4, kv = 2, width = 8, ffn = 64
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model] init normal(0.02)
  x[batch, seq, model] = table[tokens]
  repeat layer = layers {
    x = x + attention(norm(x))
    x = x + mlp(norm(x))
  }
  logits[batch, seq, vocab] = norm(x) @ table
  loss cross_entropy(logits, targets)
}
plan train of lm {
  grid data 2, tensor 2
  split batch over data
  split head, kv, ffn, vocab over tensor
  split seq over tensor by gather
  microbatches 2
}
)");
}

std::unique_ptr<Module> compiled() {
  auto module = trained();
  test::runAll(*module);
  return module;
}

// The residual's collectives: 2 a layer on the way there, 2 on the way back.
TEST(Protocol, CompiledPlanFitsAndSendsNoMore) {
  auto program = compiled();
  Planx one;
  one.roles.push_back(cloneModule(*program));
  EXPECT_EQ(verdict(one), "");
  EXPECT_EQ(verdict(spoil(*program, 2, [](Module&) {})), "");
  std::map<OpKind, int64_t> times;
  for (const Transfer& transfer : trafficOf(*program).transfers)
    if (transfer.op->parent()->owner() && transfer.op->result()->type.has("model"))
      times[transfer.op->kind] += transfer.times;
  int64_t layersAndMicrobatches = 3 * 2;
  EXPECT_EQ(times[OpKind::AllGather], 4 * layersAndMicrobatches);
  EXPECT_EQ(times[OpKind::ReduceScatter], 4 * layersAndMicrobatches);
  EXPECT_EQ(times[OpKind::AllReduce], 0);
}

// The first sum over `tensor` alone; outside of repeats.
Op* firstSum(Module& module) {
  for (Op* op : module.findFunction("forward")->body->ops)
    if (op->kind == OpKind::AllReduce && op->attrs.words("axes") == Words{"tensor"}) return op;
  return nullptr;
}

Op* waitOf(Op* op) { return op->result()->uses()[0].op; }

TEST(Protocol, SpoiledCompiledPlans) {
  auto program = compiled();
  ASSERT_TRUE(firstSum(*program));
  std::string name = firstSum(*program)->result()->name;
  std::string text = verdict(spoil(*program, 2, [](Module& m) {
    Op* sum = firstSum(m);
    if (sum->isFlag("start")) drop(waitOf(sum));
    drop(sum);
  }));
  for (std::string part : {"rank 2 (data 1, tensor 0)", "rank 3 (data 1, tensor 1)", "all_reduce",
                           "plan:", "group over tensor, ranks 2, 3"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  text = verdict(spoil(*program, 0, [](Module& m) {
    Op* sum = firstSum(m);
    retype(sum, [](Type& type) { type.dims[0] = Dim{"batch", type.dims[0].size * 2}; });
  }));
  EXPECT_NE(text.find("ranks 0 and 1 enter different operations: count '128' and '64'"),
            std::string::npos)
      << text;
}

// `planc check` says no to a file whose programs are well-formed one by one.
TEST(Protocol, CheckRefusesAFile) {
  auto program = compiled();
  Planx planx = spoil(*program, 2, [](Module& m) {
    // The sum starts before what goes before it in its group.
    auto& ops = m.findFunction("forward")->body->ops;
    auto sum = llvm::find(ops, firstSum(m));
    auto before = sum;
    do --before;
    while (!(*before)->has(Comm));
    std::rotate(before, sum, sum + 1);
  });
  planx.model = trained();
  std::string path = ::testing::TempDir() + "protocol-" + std::to_string(::getpid()) + ".planx";
  {
    std::error_code error;
    llvm::raw_fd_ostream(path, error) << writePlanx(planx);
  }
  std::string command = PLANC_BINARY_DIR "/planc check " + path + " 2>&1; echo exit $?";
  FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_TRUE(pipe);
  std::string said(4096, 0);
  said.resize(fread(said.data(), 1, said.size(), pipe));
  ::pclose(pipe);
  std::remove(path.c_str());
  EXPECT_NE(said.find("ranks 2 and 3 enter different operations: kind"), std::string::npos) << said;
  EXPECT_NE(said.find("exit 1\n"), std::string::npos) << said;
}

// ---- Against a plain run.

TEST(Protocol, AgreesWithAPlainRun) {
  std::mt19937 random(1);
  auto below = [&](size_t n) { return size_t(random() % n); };
  Grid grid = test::gridOf({{"a", 3}, {"b", 2}, {"c", 2}});
  const Words kAxes[] = {{"a"}, {"b"}, {"a", "c"}, {"b", "c"}, {"a", "b", "c"}};
  int fitting = 0;
  constexpr int kRounds = 400;
  for (int round = 0; round < kRounds; ++round) {
    // A program of a few messages, some of them in a repeat, some started early.
    Module base;
    base.grid = grid;
    base.schedule = {{"f", -1}};
    Builder f(base.addFunction("f")->body.get());
    Type type{Elem::F32, {{"n", 4}}};
    Value* x = f.value(OpKind::Const, {}, type);
    auto fill = [&](Builder& b) {
      for (size_t n = 1 + below(3); n > 0; --n)
        test::collective(b, OpKind::AllReduce, {x}, {type}, kAxes[below(5)],
                         std::string(1, char('p' + below(3))), 1);
    };
    fill(f);
    Op* repeat = f.repeat("r", 2, false, {});
    Builder b(repeat->body.get());
    fill(b);
    for (Op* op : repeat->body->ops)
      if (below(3) == 0) op->attrs.set("unless_last", int64_t{1});
    b.create(OpKind::Yield, {}, {});
    fill(f);
    // Roles: some coordinates run it with an exchange, one message less, or waits that come later.
    Planx planx;
    for (size_t n = 1 + below(2); n > 0; --n) {
      Module& role = *planx.roles.emplace_back(cloneModule(base));
      role.where.push_back({grid.axes[below(3)].name, int64_t(below(2))});
      if (below(2)) role.where.push_back({grid.axes[below(3)].name, int64_t(below(2))});
    }
    planx.roles.push_back(cloneModule(base));
    for (const auto& role : planx.roles) {
      std::vector<Op*> ops;
      walk(*role->functions[0]->body, [&](Op* op) {
        if (op->has(Comm)) ops.push_back(op);
      });
      Op* op = ops[below(ops.size())];
      size_t at = op->parent()->indexOf(op);
      switch (below(5)) {
        case 4:
          if (!op->parent()->owner()) break;
          if (op->isUnlessLast()) op->attrs.erase("unless_last");
          else op->attrs.set("unless_last", int64_t{1});
          break;
        case 0:
          if (at + 1 < op->parent()->ops.size() && op->parent()->ops[at + 1]->has(Comm))
            swapWithNext(op);
          break;
        case 1:
          op->erase();
          break;
        default:
          for (Op* other : ops)
            if (below(2)) test::defer(other);
      }
    }
    bool expected = test::fits(planx);
    fitting += expected;
    std::string text = verdict(planx);
    EXPECT_EQ(text.empty(), expected) << "round " << round << ": " << text;
  }
  EXPECT_GT(fitting, kRounds / 5);
  EXPECT_LT(fitting, kRounds * 4 / 5);
}

// Stages that send to each other, sum among some of them, and do what each does with its neighbours along
// the other axis: messages in an order that can be met, then some of it changed.
TEST(Protocol, AgreesWithAPlainRunOfStages) {
  std::mt19937 random(2);
  auto below = [&](size_t n) { return size_t(random() % n); };
  int fitting = 0;
  constexpr int kRounds = 600;
  constexpr int64_t kStages = 3, kMicrobatches = 4;
  const Type type{Elem::F32, {{"n", 4}}};
  for (int round = 0; round < kRounds; ++round) {
    Planx planx;
    for (int64_t stage = 0; stage < kStages; ++stage) {
      Module& role = *planx.roles.emplace_back(std::make_unique<Module>());
      role.grid = test::gridOf({{"a", 2}, {"pipe", kStages}, {"b", 2}});
      role.where = {{"pipe", stage}};
      role.settings.set("microbatches", kMicrobatches);
      Builder begin(role.addFunction("begin")->body.get());
      Variable slot;
      slot.name = "slot", slot.type = type, slot.kind = VarKind::Slot;
      begin.write(role.addVar(slot), begin.constant(0, type));
      role.schedule = {{"begin", -1}};
      // Work that all do, along the axes that no role names and along `pipe`.
      for (const char* name : {"p", "q"}) {
        Builder b(role.addFunction(name)->body.get());
        test::collective(b, OpKind::AllReduce, {b.constant(0, type)}, {type},
                         {name[0] == 'p' ? "a" : "b"}, name, 1);
      }
      Builder b(role.addFunction("all")->body.get());
      test::collective(b, OpKind::AllReduce, {b.constant(0, type)}, {type}, {"pipe", "b"}, "all",
                       1);
      if (stage != 1) {
        Builder b(role.addFunction("ends")->body.get());
        test::collective(b, OpKind::AllReduce, {b.constant(0, type)}, {type}, {"pipe"}, "ends", 1)
            ->attrs.set("among", Words{"0", "2"});
      }
    }
    // Messages: who sends to whom in which channel; each pair of functions has its own number.
    struct Transfer {
      int64_t from, to, channel;
    };
    std::vector<Transfer> transfers;
    for (size_t n = 1 + below(4); n > 0; --n) {
      int64_t from = int64_t(below(kStages));
      transfers.push_back(
          {from, (from + 1 + int64_t(below(kStages - 1))) % kStages, int64_t(below(2))});
    }
    for (size_t i = 0; i < transfers.size(); ++i) {
      const auto& [from, to, channel] = transfers[i];
      std::string number = std::to_string(i);
      Module &sender = *planx.roles[size_t(from)], &receiver = *planx.roles[size_t(to)];
      Builder s(sender.addFunction("send" + number)->body.get());
      Value* sent = s.read(sender.findVar("slot"));
      sent->name = "m" + number;
      s.create(OpKind::Send, {sent}, {},
               {{"axes", Words{"pipe"}}, {"to", to}, {"channel", channel}});
      Builder r(receiver.addFunction("receive" + number)->body.get());
      r.create(OpKind::Receive, {}, {type},
               {{"axes", Words{"pipe"}}, {"from", from}, {"channel", channel}}, nullptr,
               sent->name);
    }
    // An order of all of them, of which each stage does its part; waits come later or at once.
    std::vector<std::vector<Call>> late(kStages);
    auto call = [&](int64_t stage, const std::string& function, int64_t microbatch) {
      auto& schedule = planx.roles[size_t(stage)]->schedule;
      bool isMessage = function[0] == 's' || function[0] == 'r';
      if (!isMessage) {
        schedule.push_back({function, microbatch});
        return;
      }
      schedule.push_back({function, microbatch, Phase::Start});
      auto& waits = late[size_t(stage)];
      waits.insert(waits.begin() + long(below(waits.size() + 1)),
                   {function, microbatch, Phase::Wait});
      while (!waits.empty() && below(2)) {
        schedule.push_back(waits.back());
        waits.pop_back();
      }
    };
    for (int64_t m = 0; m < kMicrobatches; ++m) {
      for (size_t i = 0; i < transfers.size(); ++i) {
        call(transfers[i].from, "send" + std::to_string(i), m);
        call(transfers[i].to, "receive" + std::to_string(i), m);
        if (below(3) == 0) call(int64_t(below(kStages)), below(2) ? "p" : "q", m);
      }
      if (below(2))
        for (int64_t stage = 0; stage < kStages; ++stage) call(stage, "all", m);
      if (below(2))
        for (int64_t stage : {0, 2}) call(stage, "ends", m);
    }
    for (int64_t stage = 0; stage < kStages; ++stage) {
      auto& role = *planx.roles[size_t(stage)];
      role.schedule.insert(role.schedule.end(), late[size_t(stage)].begin(),
                           late[size_t(stage)].end());
      // What a round doesn't use is not there; a call of "p" and "q" is one a microbatch.
      llvm::erase_if(role.functions, [&](const auto& function) {
        return llvm::none_of(role.schedule,
                             [&](const Call& c) { return c.function == function->name; });
      });
    }
    // Changes: calls of one stage exchanged, a pair of them left out or for another rank, waits later.
    for (size_t n = below(3); n > 0; --n) {
      Module& role = *planx.roles[below(kStages)];
      auto& schedule = role.schedule;
      if (schedule.size() < 4) continue;
      size_t at = 1 + below(schedule.size() - 2);
      switch (below(5)) {
        case 0:
        case 1:
          // A start stays before its wait.
          if (schedule[at].function != schedule[at + 1].function ||
              schedule[at].microbatch != schedule[at + 1].microbatch)
            std::swap(schedule[at], schedule[at + 1]);
          break;
        case 2: {
          Call gone = schedule[at];
          llvm::erase_if(schedule, [&](const Call& c) {
            return c.function == gone.function && c.microbatch == gone.microbatch;
          });
          llvm::erase_if(role.functions, [&](const auto& function) {
            return llvm::none_of(schedule,
                                 [&](const Call& c) { return c.function == function->name; });
          });
          break;
        }
        case 3: {
          Block& body = *role.findFunction(schedule[at].function)->body;
          if (Op* receive = body.ops[0]; receive->kind == OpKind::Receive && below(2)) {
            // Both sides send.
            Builder b(&body);
            Value* sent = b.read(role.findVar("slot"));
            sent->name = receive->result()->name;
            b.create(OpKind::Send, {sent}, {},
                     {{"axes", Words{"pipe"}},
                      {"to", receive->attrs.integer("from")},
                      {"channel", receive->attrs.integer("channel")}});
            receive->erase();
            break;
          }
          walk(body, [&](Op* op) {
            if (op->has(Comm) && op->attrs.has("channel"))
              op->attrs.set("channel", 1 - op->attrs.integer("channel"));
            if (op->attrs.has("among")) op->attrs.erase("among");
          });
          break;
        }
        default:
          if (schedule[at].phase == Phase::Wait)
            std::rotate(schedule.begin() + long(at), schedule.begin() + long(at) + 1,
                        schedule.end());
      }
    }
    bool expected = test::fits(planx);
    fitting += expected;
    std::string text = verdict(planx);
    EXPECT_EQ(text.empty(), expected) << "round " << round << ": " << text;
    // Programs are sound on their own: it is what they are to each other that is wrong.
    EXPECT_EQ(text.find("is not sound"), std::string::npos) << text;
  }
  EXPECT_GT(fitting, kRounds / 5);
  EXPECT_LT(fitting, kRounds * 4 / 5);
}

}  // namespace
}  // namespace planc
