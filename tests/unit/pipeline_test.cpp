// What stages hold, send and add up, counted in their programs.
#include "ir/cost.h"
#include "ir/protocol.h"
#include "ir/schedule.h"
#include "ir/traffic.h"
#include "sharded.h"

namespace planc {
namespace {

Modules stages(const std::string& text) {
  Modules modules;
  modules.push_back(test::compileText(text));
  if (!modules.front()) return {};
  std::vector<std::string> passes;
  for (const PassInfo& pass : allPasses()) passes.push_back(pass.name.str());
  test::runAll(modules, passes);
  return modules;
}

// GPT-2 with a tied head of 64 x 8 = 512 elements.
std::string tied(const std::string& plan, const std::string& layers = "8") {
  return "import \"std/gpt2.plan\"\nplan p of gpt2(layers = " + layers +
         ", seq = 8, batch = 4, model = 8, head = 2, vocab = 64) {\n" + plan + "\n}\n";
}

std::vector<const Op*> all(const Module& module, OpKind kind) {
  std::vector<const Op*> ops;
  for (const auto& function : module.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->kind == kind) ops.push_back(op);
    });
  return ops;
}

int64_t flights(const Module& module, llvm::StringRef slot) {
  const Variable* var = module.findVar(slot);
  return var ? var->flights : -1;
}

// Case C07: one sum of the table's 512 elements between the first and the last stage, once a step.
TEST(Stages, C07TiedTables) {
  for (llvm::StringRef schedule : scheduleNames()) {
    bool isVee = schedule == "zero_bubble_v";
    std::string by = schedule == "interleaved" ? "interleaved(2)" : schedule.str();
    Modules modules =
        stages(tied("grid pipe 4 split layer over pipe by " + by + " microbatches 4"));
    ASSERT_EQ(modules.size(), 4u);
    for (size_t stage = 0; stage < 4; ++stage) {
      const Variable* table = modules[stage]->findVar("table");
      bool holds = stage == 0 || (stage == 3 && !isVee);
      EXPECT_EQ(table != nullptr, holds) << schedule.str() << " stage " << stage;
      if (table) {
        EXPECT_EQ(table->tied, stage == 3);
      }
      int sums = 0;
      for (const Op* op : all(*modules[stage], OpKind::AllReduce))
        if (op->result()->type.elements() == 512) {
          ++sums;
          EXPECT_EQ(op->attrs.words("among"), (Words{"0", "3"}));
          EXPECT_EQ(op->attrs.words("axes"), Words{"pipe"});
        }
      EXPECT_EQ(sums, holds && !isVee ? 1 : 0) << schedule.str() << " stage " << stage;
    }
  }
}

// Case C08: each stage adds up its gradients over data once, behind its last task.
TEST(Stages, C08GradientsAreReducedBehindTheLastTask) {
  for (llvm::StringRef schedule : scheduleNames())
    for (const char* shard : {"", "shard optimizer over data", "shard gradients over data"}) {
      std::string by = schedule == "interleaved" ? "interleaved(2)" : schedule.str();
      Modules modules =
          stages(tied("grid data 2, pipe 2 split batch over data split layer over pipe by " + by +
                      " microbatches 4 " + shard));
      ASSERT_EQ(modules.size(), 2u);
      for (const auto& module : modules) {
        int64_t last = -1, reduce = -1;
        for (size_t i = 0; i < module->schedule.size(); ++i) {
          const Call& call = module->schedule[i];
          if (taskOf(call)) last = int64_t(i);
          if (call.function == "reduce") {
            EXPECT_EQ(reduce, -1);
            reduce = int64_t(i);
          }
        }
        // Between them only a message starts: nothing is waited for.
        EXPECT_GT(reduce, last);
        for (int64_t i = last + 1; i < reduce; ++i)
          EXPECT_EQ(module->schedule[size_t(i)].phase, Phase::Start);
      }
    }
}

// Case C20: what a stage saves is held for as many microbatches as are in flight there.
TEST(Stages, C20SavedValuesAreInFlight) {
  auto check = [](const std::string& by, int64_t microbatches, const std::vector<int64_t>& held) {
    Modules modules = stages(tied("grid pipe 4 split layer over pipe by " + by + " microbatches " +
                                  std::to_string(microbatches)));
    ASSERT_EQ(modules.size(), 4u);
    for (size_t stage = 0; stage < 4; ++stage)
      EXPECT_EQ(flights(*modules[stage], "h"), held[stage]) << by << " stage " << stage;
  };
  check("one_f_one_b", 8, {4, 3, 2, 1});
  check("one_f_one_b", 2, {2, 2, 2, 1});
  check("one_f_one_b", 1, {1, 1, 1, 1});
  check("gpipe", 8, {8, 8, 8, 8});
}

// The arena is what the parts add up to: halving the microbatches in flight gives back just their bytes.
TEST(Stages, ArenasCountEveryFlight) {
  auto arena = [](int64_t microbatches, int64_t& saved) {
    Modules modules = stages(tied("grid pipe 4 split layer over pipe by gpipe microbatches " +
                                  std::to_string(microbatches)));
    saved = 0;
    for (const auto& var : modules[1]->vars)
      if (var->kind == VarKind::Slot && !var->stack.empty())
        saved += (var->type.bytes() * var->flights + 63) / 64 * 64;
    return modules[1]->arenaBytes;
  };
  int64_t savedMany, savedFew;
  int64_t many = arena(16, savedMany), few = arena(8, savedFew);
  EXPECT_EQ(savedMany, 2 * savedFew);
  EXPECT_NEAR(double(many - few), double(savedMany - savedFew),
              0.05 * double(savedMany - savedFew));
}

// With sequence parallelism a rank sends its own tokens only, once a microbatch and direction.
TEST(Stages, SendSlices) {
  for (bool isSplit : {false, true}) {
    Modules modules =
        stages(tied(std::string("grid pipe 2, tensor 2 split head, ffn, vocab over tensor ") +
                    (isSplit ? "split seq over tensor by gather " : "") +
                    "split layer over pipe microbatches 4"));
    ASSERT_EQ(modules.size(), 2u);
    for (const auto& module : modules) {
      Traffic::Total sent = trafficOf(*module).total(OpKind::Send);
      EXPECT_EQ(sent.times, 4);
      EXPECT_EQ(sent.bytes, 4 * (4 * 8 * 8 * 4) / (isSplit ? 2 : 1));
    }
  }
}

// Only what changes is handed on: weights, constants and tokens are made where they are used.
TEST(Stages, HandOnWhatIsNeeded) {
  const char* model = R"(
model m {
  dim batch = 2, seq = 4, vocab = 16, model = 8
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model]
  weight how [model]
  x[batch, seq, model] = table[tokens]
  y[batch, seq, model] = relu(x)
  repeat layer = 4 {
    weight w [model, mixed]
    weight v [mixed, model]
    h[batch, seq, mixed] = x @ w
    x = x + h @ v + table[tokens] * how
  }
  logits[batch, seq, vocab] = (x + y) @ table
  loss cross_entropy(logits, targets)
}
plan p of m { grid pipe 4 split layer over pipe microbatches 2 }
)";
  std::string text = model;
  text.insert(text.find("model = 8") + 9, ", mixed = 3");
  Modules modules = stages(text);
  ASSERT_EQ(modules.size(), 4u);
  // Forward x and y, backward their gradients.
  for (size_t stage = 0; stage < 4; ++stage)
    for (const Op* op : all(*modules[stage], OpKind::Send)) EXPECT_EQ(op->operands().size(), 2u);
  EXPECT_EQ(all(*modules[1], OpKind::Send).size(), 2u);
  // The table is on all stages.
  for (const auto& module : modules) {
    EXPECT_TRUE(module->findVar("table"));
    EXPECT_TRUE(module->findVar("tokens"));
  }
}

// Every parameter is held once, and the stages prove to fit, whatever the layers.
TEST(Stages, C15ParametersAreAllThere) {
  for (const char* layers : {"4", "5", "7", "9"}) {
    std::string text = tied("grid pipe 4 split layer over pipe microbatches 3", layers);
    Planx planx;
    planx.model = test::compileText(text);
    int64_t parameters = 0, held = 0;
    for (const auto& var : planx.model->vars)
      if (var->kind == VarKind::Weight) parameters += var->type.elements();
    planx.roles = stages(text);
    for (const auto& module : planx.roles)
      for (const auto& var : module->vars)
        if (var->kind == VarKind::Weight && !var->tied) held += var->type.elements();
    EXPECT_EQ(held, parameters);
    EXPECT_EQ(llvm::toString(checkProtocol(planx)), "");
  }
}

// The gradients of weights on their own do not compute a layer again: what the gradient of the input
// has computed is kept for them.
TEST(Stages, SplitBackwardWithFullRecompute) {
  auto work = [](const std::string& by) {
    Modules modules = stages(
        tied("grid pipe 2 split layer over pipe by " + by + " microbatches 4 recompute layer"));
    double flops = 0;
    for (const auto& module : modules)
      for (const auto& function : module->functions)
        if (taskOf({function->name, 0})) flops += flopsOf(*function->body);
    return flops;
  };
  double plain = work("one_f_one_b");
  EXPECT_GT(plain, 0);
  EXPECT_NEAR(work("zero_bubble") / plain, 1, 0.01);
}

// A weight that a stage's step forgets is a fault of ours that trains on in silence.
TEST(Stages, EveryWeightIsRenewed) {
  std::string text = tied("grid pipe 2 split layer over pipe microbatches 2");
  Planx planx;
  planx.model = test::compileText(text);
  planx.roles = stages(text);
  EXPECT_EQ(llvm::toString(checkFits(planx)), "");
  std::vector<Op*> writes;
  walk(*planx.roles[1]->findFunction("update")->body, [&](Op* op) {
    if (op->kind == OpKind::Write && op->var->name == "layer.attention.wq") writes.push_back(op);
  });
  ASSERT_EQ(writes.size(), 1u);
  writes[0]->erase();
  EXPECT_NE(llvm::toString(checkFits(planx))
                .find("weight 'layer.attention.wq': no function of 'pipe 1' renews it"),
            std::string::npos);
}

}  // namespace
}  // namespace planc
