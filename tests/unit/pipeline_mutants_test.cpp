// Programs of a pipeline's stages, broken in the ways in which others' pipelines broke: each mutant is
// refused, in words that name what is wrong.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "ir/protocol.h"
#include "ir/verify.h"
#include "stages.h"

namespace planc {
namespace {

std::string held(const Planx& planx) { return llvm::toString(checkFits(planx)); }
std::string proved(const Planx& planx) { return llvm::toString(checkProtocol(planx)); }

void expectSays(const std::string& text, const std::string& name,
                llvm::ArrayRef<const char*> says) {
  EXPECT_NE(text, "") << name << " is not refused";
  for (const char* part : says)
    EXPECT_NE(text.find(part), std::string::npos) << name << ": lacks \"" << part << "\" in:\n"
                                                  << text;
}

// ---- What mutants are made with.

using Calls = std::vector<Call>;

Calls::iterator at(Module& stage, const Call& call) {
  auto found = llvm::find(stage.schedule, call);
  EXPECT_NE(found, stage.schedule.end()) << call.function << " " << call.microbatch;
  return found;
}
void remove(Module& stage, const Call& call) { stage.schedule.erase(at(stage, call)); }
void insert(Module& stage, const Call& before, const Call& call) {
  stage.schedule.insert(at(stage, before), call);
}
void move(Module& stage, const Call& call, const Call& before) {
  remove(stage, call);
  insert(stage, before, call);
}
void swap(Module& stage, const Call& a, const Call& b) { std::swap(*at(stage, a), *at(stage, b)); }

Call run(std::string function, int64_t microbatch = -1) {
  return {std::move(function), microbatch};
}
Call start(std::string function, int64_t microbatch) {
  return {std::move(function), microbatch, Phase::Start};
}
Call wait(std::string function, int64_t microbatch) {
  return {std::move(function), microbatch, Phase::Wait};
}

// The only op of a kind in a function.
Op* op(Module& stage, llvm::StringRef function, OpKind kind) {
  for (Op* op : stage.findFunction(function)->body->ops)
    if (op->kind == kind) return op;
  return nullptr;
}
Op* sumAmong(Module& stage) {
  for (Op* op : stage.findFunction("reduce")->body->ops)
    if (op->attrs.has("among")) return op;
  return nullptr;
}

struct Mutant {
  const char* name;
  std::function<void(Modules&)> change;
  std::vector<const char*> says;
  test::StagesOptions options = {};
};

void expectRefused(llvm::ArrayRef<Mutant> mutants, std::string (*verdict)(const Planx&)) {
  for (const Mutant& mutant : mutants) {
    Planx planx = test::stages(mutant.options);
    ASSERT_EQ(verdict(planx), "") << mutant.name;
    mutant.change(planx.roles);
    expectSays(verdict(planx), mutant.name, mutant.says);
  }
}

// ---- Programs that fit.

TEST(Pipeline, StagesFit) {
  for (int stages : {2, 3, 4})
    for (int chunks : {1, 2, 3})
      for (bool isAhead : {false, true})
        for (int microbatches : {1, 2, 7, 12}) {
          if (chunks > 1 && microbatches % stages != 0) continue;
          Planx planx = test::stages({.stages = stages,
                                      .chunks = chunks,
                                      .microbatches = microbatches,
                                      .collectives = 1,
                                      .isAhead = isAhead});
          EXPECT_EQ(held(planx) + proved(planx), "")
              << stages << " stages, " << chunks << " chunks, " << isAhead << ", " << microbatches
              << " microbatches";
        }
}

// Llama 3 405B's size: 16 stages, 128 layers, thousands of calls a stage.
TEST(Pipeline, ManyCallsAreFast) {
  for (int chunks : {1, 2, 4}) {
    Planx planx = test::stages({.stages = 16,
                                .chunks = chunks,
                                .microbatches = 128,
                                .layers = 8 / chunks,
                                .collectives = 16,
                                .isAhead = true});
    auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(held(planx) + proved(planx), "");
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LT(seconds, 0.7) << chunks << " chunks";
  }
}

// A stage's sums along `tensor` are not run, but still counted.
TEST(Pipeline, OperationsAreCounted) {
  Planx planx = test::stages({.stages = 2, .microbatches = 2, .layers = 3, .collectives = 5});
  op(*planx.roles[1], "receive.x.1", OpKind::Receive)->loc.line = 77;
  expectSays(proved(planx), "another place",
             {"place in the plan 'stages.plan:12:3' and 'stages.plan:77:3'",
              // Its layers' sums forward, then the message.
              "rank 0 (pipe 0, data 0, tensor 0), operation 16, microbatch 0:",
              "rank 4 (pipe 1, data 0, tensor 0), operation 1, microbatch 0:"});
  Block& layer = *op(*planx.roles[0], "forward.0", OpKind::Repeat)->body;
  (*llvm::find_if(layer.ops, [](Op* op) {
    return op->kind == OpKind::AllReduce;
  }))->attrs.set("unless_last", int64_t{1});
  expectSays(proved(planx), "one left out in the last layer",
             {"rank 0 (pipe 0, data 0, tensor 0), operation 15,"});
}

// All of an axis are one group, listed or not.
TEST(Pipeline, SumsAmongAll) {
  Planx planx = test::stages({});
  op(*planx.roles[1], "update", OpKind::AllReduce)->attrs.set("among", Words{"0", "1", "2", "3"});
  EXPECT_EQ(proved(planx), "");
}

// Two weights of one shape need two sums.
TEST(Pipeline, EachTiedWeightIsSummed) {
  Planx planx = test::stages({});
  Variable other = *planx.model->findVar("table");
  other.name = "other";
  planx.model->addVar(other);
  for (size_t stage : {0, 3}) {
    other.tied = stage != 0;
    Variable* mine = planx.roles[stage]->addVar(other);
    Builder update(planx.roles[stage]->findFunction("update")->body.get());
    update.write(mine, update.read(mine));
  }
  std::string says = "': 'pipe' 0, 3 hold it, but 'pipe 0' does not sum its gradient among them";
  expectSays(held(planx), "one sum", {says.c_str()});
  for (size_t stage : {0, 3}) {
    Op* sum = sumAmong(*planx.roles[stage]);
    sum->addOperand(sum->operand(0));
    sum->addResult(sum->result()->type, "other");
  }
  EXPECT_EQ(held(planx), "");
  for (size_t stage : {0, 3}) sumAmong(*planx.roles[stage])->operand(0)->type.dims[0].size = 8;
  expectSays(held(planx), "sums of another shape", {says.c_str()});
}

// ---- Messages between stages.

TEST(Pipeline, VariableSequenceLengthChangesP2pCounts) {
  auto retype = [](Modules& stages, const std::function<void(Value&)>& change) {
    change(*op(*stages[1], "receive.x.1", OpKind::Receive)->result());
  };
  expectRefused(
      {{"resized",
        [&](Modules& stages) { retype(stages, [](Value& v) { v.type.dims[1].size *= 2; }); },
        {"ranks 0 and 4 enter different operations: count '16' and '32'",
         "rank 0 (pipe 0, data 0, tensor 0), operation 1, microbatch 0:\n    send(%x)",
         "at stages.plan:12:3",
         "rank 4 (pipe 1, data 0, tensor 0), operation 1, microbatch 0:\n    %x = receive",
         "both are message 1 of channel 2 between ranks 0, 4"}},
       {"of another shape",
        [&](Modules& stages) {
          retype(stages, [](Value& v) { std::swap(v.type.dims[0], v.type.dims[1]); });
        },
        {"shape 'f32[batch 8/data, model 4]' and 'f32[model 4, batch 8/data]'"}},
       {"of another element type",
        [&](Modules& stages) { retype(stages, [](Value& v) { v.type.elem = Elem::BF16; }); },
        {"element type 'f32' and 'bf16'"}},
       {"another tensor",
        [&](Modules& stages) { retype(stages, [](Value& v) { v.name = "y"; }); },
        {"tensor 'x' and 'y'"}}},
      proved);
}

TEST(Pipeline, ScheduleWithNoPartnerForAQueuedMessage) {
  expectRefused(
      {{"one more",
        [](Modules& stages) {
          insert(*stages[0], run("reduce"), start("send.x.0", 5));
          insert(*stages[0], run("reduce"), wait("send.x.0", 5));
        },
        {"rank 0 (pipe 0, data 0, tensor 0) waits for ever: rank 4 (pipe 1, data 0, tensor 0) "
         "starts 6 of "
         "such messages in all",
         "send(%x) {axes = [pipe], channel = 2, to = 1}", "at stages.plan:12:3",
         "is message 7 of channel 2 between ranks 0, 4"}},
       {"dropped",
        [](Modules& stages) {
          remove(*stages[0], start("send.x.0", 3));
          remove(*stages[0], wait("send.x.0", 3));
        },
        {"ranks 0 and 4 enter different operations: iteration 'microbatch 4' and 'microbatch 3'",
         "message 4 of channel 2 between ranks 0, 4"}},
       {"the last dropped",
        [](Modules& stages) {
          remove(*stages[0], start("send.x.0", 5));
          remove(*stages[0], wait("send.x.0", 5));
        },
        {"rank 4 (pipe 1, data 0, tensor 0) waits for ever: rank 0 (pipe 0, data 0, tensor 0) "
         "starts 5 of "
         "such messages in all",
         "microbatch 5", "= receive {axes = [pipe], channel = 2, from = 0}",
         "is message 6 of channel 2 between ranks 0, 4"}},
       {"sent to another stage",
        [](Modules& stages) {
          op(*stages[0], "send.x.0", OpKind::Send)->attrs.set("to", int64_t{2});
        },
        {"waits for ever: rank", "starts 0 of such messages in all",
         "channel 2 between ranks 0, 8"}},
       {"received from another stage",
        [](Modules& stages) {
          op(*stages[1], "receive.x.1", OpKind::Receive)->attrs.set("from", int64_t{3});
        },
        {"rank 0 (pipe 0, data 0, tensor 0) waits for ever: rank 4 (pipe 1, data 0, tensor 0) "
         "starts 0 of such",
         "channel 2 between ranks 0, 4"}},
       {"in another channel",
        [](Modules& stages) {
          op(*stages[0], "send.x.0", OpKind::Send)->attrs.set("channel", int64_t{9});
        },
        {"starts 0 of such messages in all", "channel 9 between ranks 0, 4"}},
       {"both send",
        [](Modules& stages) {
          Op* send = op(*stages[1], "send.dx.1", OpKind::Send);
          send->attrs.set("channel", int64_t{2});
        },
        {"ranks 0 and 4 both send to each other", "message "}}},
      proved);
}

// The other side is told apart from those that run the same, even when no role names it.
TEST(Pipeline, SentToOneOfMany) {
  Diagnostics diags;
  Planx planx;
  planx.roles = parseModules(diags.addFile("two.ir", R"(module first sharded at pipe 0 {
  grid pipe 4
  call @begin
  start @send(0)
  wait @send(0)
  var @x : f32[a 4] slot
  func @begin {
    %x = const {value = 1.0} : f32[a 4]
    write @x(%x)
  }
  func @send {
    %x = read @x : f32[a 4]
    send(%x) {axes = [pipe], to = 3}
  }
}
module rest sharded {
  grid pipe 4
}
)"),
                             diags);
  ASSERT_EQ(planx.roles.size(), 2u);
  expectSays(proved(planx), "no partner",
             {"rank 0 (pipe 0) waits for ever: rank 3 (pipe 3) has ended",
              "channel 0 between ranks 0, 3"});
}

TEST(Pipeline, MessagesOfAChannelKeepTheirOrder) {
  auto earlier = [](Modules& stages) {
    move(*stages[1], start("receive.x.1", 1), start("receive.x.1", 0));
  };
  expectRefused(
      {{"received in another order",
        earlier,
        {"ranks 0 and 4 enter different operations: iteration 'microbatch 0' and 'microbatch 1'",
         "message 1 of channel 2 between ranks 0, 4"}}},
      proved);
  Planx planx = test::stages({});
  // What each message takes with it: the same on both sides is an order like another.
  earlier(planx.roles);
  move(*planx.roles[0], run("forward.0", 1), run("forward.0", 0));
  move(*planx.roles[0], start("send.x.0", 1), start("send.x.0", 0));
  EXPECT_EQ(proved(planx), "");
}

// ---- Orders that cannot be met.

TEST(Pipeline, EachStageWaitsForTheOther) {
  expectRefused(
      {{"the gradient before the activation",
        [](Modules& stages) {
          Module& stage = *stages[0];
          move(stage, start("receive.dx.0", 0), start("send.x.0", 0));
          move(stage, wait("receive.dx.0", 0), start("send.x.0", 0));
        },
        {"ranks wait for each other for ever", "rank 0 (pipe 0, data 0, tensor 0)",
         "waits for rank 4 (pipe 1, data 0, tensor 0): message 1 of channel 3 between ranks 0, 4",
         "waits for rank 0 (pipe 0, data 0, tensor 0): message 1 of channel 2 between ranks 0, "
         "4"}}},
      proved);
}

// Stage 1 takes its second chunk's input before it has sent its first chunk's output, from which that is
// made.
TEST(Pipeline, InterleavedPpOrderMismatch) {
  expectRefused(
      {{"the later chunk first",
        [](Modules& stages) {
          Module& stage = *stages[1];
          move(stage, start("receive.x.3", 0), start("receive.x.1", 0));
          move(stage, wait("receive.x.3", 0), start("receive.x.1", 0));
        },
        {"ranks wait for each other for ever", "message 1 of channel 6 between ranks 0, 4",
         "message 1 of channel 4 between ranks 0, 4"},
        {.stages = 2, .chunks = 2, .microbatches = 4}}},
      proved);
}

// ---- Memory.

TEST(Pipeline, WgradStashGrowsPerMicrobatch) {
  auto flights = [](int64_t stage, const char* name, int64_t change) {
    return [=](Modules& stages) { stages[size_t(stage)]->findVar(name)->flights += change; };
  };
  expectRefused(
      {{"a copy too few",
        flights(0, "saved.0", -1),
        {"the program of rank 0 (pipe 0, data 0, tensor 0) is not sound", "'call @backward.0(0)'",
         "reads '@saved.0' for microbatch 0, which holds microbatch 3 (3 in flight)"}},
       {"a copy too few between stages",
        flights(1, "x.out.1", -1),
        {"'call @forward.1(1)' writes '@x.out.1', which call",
         "'start @send.x.1(0)' sends and nobody has waited for"}},
       {"backwards put off",
        [](Modules& stages) { move(*stages[0], run("backward.0", 0), run("backward.0", 1)); },
        {"reads '@saved.0' for microbatch 0, which holds microbatch 4 (4 in flight)"}}},
      proved);
}

TEST(Pipeline, CallsOutOfOrder) {
  expectRefused(
      {{"backward before forward",
        [](Modules& stages) { swap(*stages[3], run("forward.3", 0), run("backward.3", 0)); },
        {"the program of rank 12 (pipe 3, data 0, tensor 0) is not sound", "'call @backward.3(0)'",
         "reads '@saved.3', which nothing has set for microbatch 0", "%x = read @saved.3"}},
       {"forward before its input",
        [](Modules& stages) { swap(*stages[1], run("forward.1", 2), run("forward.1", 1)); },
        {"'call @forward.1(2)' reads '@x.in.1' for microbatch 2, which holds microbatch 0"}},
       {"sent before it is made",
        [](Modules& stages) { swap(*stages[0], run("forward.0", 2), start("send.x.0", 2)); },
        {"'start @send.x.0(2)' reads '@x.out.0' for microbatch 2, which holds microbatch 0"}},
       {"not waited for",
        [](Modules& stages) { remove(*stages[1], wait("receive.x.1", 2)); },
        {"'call @forward.1(2)' reads '@x.in.1', which call",
         "'start @receive.x.1(2)' receives and nobody has waited for"}},
       {"received into what is read",
        [](Modules& stages) { stages[1]->findVar("x.in.1")->flights = 1; },
        {"'call @forward.1(0)' reads '@x.in.1', which call",
         "'start @receive.x.1(1)' receives and nobody has waited for"},
        {.isAhead = true}},
       {"sent and not waited for",
        [](Modules& stages) { remove(*stages[0], wait("send.x.0", 5)); },
        {"no call waits for call", "'start @send.x.0(5)'"}}},
      proved);
}

TEST(Pipeline, SumsLackNothing) {
  expectRefused(
      {{"summed before the last backward",
        [](Modules& stages) { move(*stages[0], run("reduce"), run("backward.0", 5)); },
        {"'call @reduce' reads '@sum.table', to which '@backward.0' has not added for microbatch 5",
         "= read @sum.table"}},
       {"a microbatch left out",
        [](Modules& stages) {
          for (auto& stage : stages)
            llvm::erase_if(stage->schedule, [](const Call& call) { return call.microbatch == 3; });
        },
        {"has not added for microbatch 3"}},
       {"a microbatch twice",
        [](Modules& stages) { insert(*stages[2], run("backward.2", 4), run("backward.2", 3)); },
        {"'call @backward.2(3)' adds once more to '@sum.w.2' what call",
         "'call @backward.2(3)' has added"}},
       {"not the first overwrites",
        [](Modules& stages) { swap(*stages[3], run("backward.3", 0), run("backward.3", 1)); },
        {"'call @backward.3(1)' reads '@saved.3'"}}},
      proved);
}

TEST(Pipeline, FewerMicrobatchesThanStages) {
  EXPECT_EQ(proved(test::stages({.stages = 4, .microbatches = 2})), "");
  Planx planx = test::stages({.stages = 4, .microbatches = 4});
  for (auto& stage : planx.roles) stage->settings.set("microbatches", int64_t{3});
  expectSays(llvm::toString(verify(*planx.roles[0])), "more calls than microbatches",
             {"the schedule calls '@forward.0' for microbatch 3 of 3"});
  for (auto& stage : planx.roles) stage->settings.set("microbatches", int64_t{5});
  expectSays(proved(planx), "fewer calls than microbatches", {"has not added for microbatch 4"});
}

// ---- Who holds what.

TEST(Pipeline, LayersSilentlyDropped) {
  auto piece = [](int64_t stage, const std::function<void(Variable&)>& change) {
    return [=](Modules& stages) {
      change(*stages[size_t(stage)]->findVar("w." + std::to_string(stage)));
    };
  };
  expectRefused({{"one in the middle",
                  piece(1,
                        [](Variable& w) {
                          w.type.dims[0] = Dim{"layer", 1};
                        }),
                  {"weight 'w': no program holds 'layer' 3"}},
                 {"the last ones",
                  piece(3,
                        [](Variable& w) {
                          w.type.dims[0] = Dim{"layer", 1};
                        }),
                  {"weight 'w': no program holds 'layer' 7"}},
                 {"a stage's",
                  [](Modules& stages) { stages[2]->findVar("w.2")->kind = VarKind::Moment; },
                  {"weight 'w': no program holds 'layer' 4 to 5"}},
                 {"held twice",
                  piece(2, [](Variable& w) { w.piece->first = 3; }),
                  {"weight 'w': 'pipe 1' and 'pipe 2' both hold 'layer' 3"}},
                 {"of a shorter model",
                  piece(0, [](Variable& w) { w.piece->all = 7; }),
                  {"the program's 'w.0' is not the model's"}},
                 {"of another weight",
                  piece(0, [](Variable& w) { w.piece->of = "v"; }),
                  {"the program's 'w.0' is not the model's"}},
                 {"for all stages",
                  [](Modules& stages) { stages[0]->where.clear(); },
                  {"the program's 'w.0' is a stage's, but no stage's program holds it"}},
                 {"a weight of no stage",
                  [](Modules& stages) {
                    for (auto& stage : stages)
                      if (Variable* table = stage->findVar("table")) table->kind = VarKind::Moment;
                  },
                  {"weight 'table': no program holds it"}}},
                held);
}

TEST(Pipeline, TiedEmbeddingGradientLost) {
  auto both = [](const std::function<void(Op*)>& change) {
    return [=](Modules& stages) {
      for (int64_t stage : {0, 3}) change(sumAmong(*stages[size_t(stage)]));
    };
  };
  expectRefused(
      {{"neither sums",
        both([](Op* sum) {
          sum->result()->replaceAllUsesWith(sum->operand(0));
          sum->erase();
        }),
        {"weight 'table': 'pipe' 0, 3 hold it, but 'pipe 0' does not sum its gradient among them"}},
       {"among others",
        both([](Op* sum) {
          sum->attrs.set("among", Words{"0", "2"});
        }),
        {"weight 'table': 'pipe' 0, 3 hold it"}},
       {"along another axis",
        both([](Op* sum) { sum->attrs.set("axes", Words{"data"}); }),
        {"weight 'table': 'pipe' 0, 3 hold it"}},
       {"two of them speak for it",
        [](Modules& stages) { stages[3]->findVar("table")->tied = false; },
        {"weight 'table': 'pipe 0' and 'pipe 3' both hold it, and neither is marked as tied"}},
       {"none does",
        [](Modules& stages) { stages[0]->findVar("table")->tied = true; },
        {"weight 'table': no program holds it"}}},
      held);
  expectRefused(
      {{"one does not sum",
        [](Modules& stages) {
          Op* sum = sumAmong(*stages[3]);
          sum->result()->replaceAllUsesWith(sum->operand(0));
          sum->erase();
        },
        {"rank 0 (pipe 0, data 0, tensor 0) waits for ever: rank 12 (pipe 3, data 0, tensor 0) "
         "starts 0 of such",
         "message 1 of the group over pipe, ranks 0, 12", "among = [\"0\", \"3\"]"}},
       {"among one more",
        both([](Op* sum) {
          sum->attrs.set("among", Words{"0", "2", "3"});
        }),
        {"waits for ever: rank 8 (pipe 2, data 0, tensor 0) starts 0 of such messages in all",
         "message 1 of the group over pipe, ranks 0, 8, 12"}},
       {"one sums among others",
        [](Modules& stages) {
          sumAmong(*stages[0])->attrs.set("among", Words{"0", "2"});
        },
        {"starts 0 of such messages in all", "message 1 of the group over pipe, ranks 0, 8"}},
       {"one is not among them",
        [](Modules& stages) {
          sumAmong(*stages[0])->attrs.set("among", Words{"1", "3"});
        },
        {"the program of rank 0 (pipe 0, data 0, tensor 0) is not sound: it is not among the ranks "
         "of its message",
         "%table = all_reduce"}},
       {"one sums among all",
        [](Modules& stages) { sumAmong(*stages[0])->attrs.erase("among"); },
        {"ranks 0 and 8 enter different operations: count '4' and '1'",
         "group over pipe, ranks 0, 4, 8, 12"}}},
      proved);
}

// A message is between two coordinates, and its program stands at one of them.
TEST(Pipeline, MessagesOfNoStage) {
  struct Row {
    std::function<void(Module&)> change;
    const char* says;
  };
  for (const Row& row : {
           Row{[](Module& m) { op(m, "send.x.0", OpKind::Send)->attrs.set("to", int64_t{0}); },
               "is for its own rank"},
           Row{[](Module& m) { op(m, "send.x.0", OpKind::Send)->attrs.set("to", int64_t{4}); },
               "the grid has no 'pipe' 4"},
           Row{[](Module& m) {
                 m.where = {{"data", 0}};
               },
               "is in a program that all of 'pipe' run"},
           Row{[](Module& m) {
                 op(m, "send.x.0", OpKind::Send)->attrs.set("axes", Words{"pipe", "data"});
               },
               "goes along 2 axes, not one"},
       }) {
    Planx planx = test::stages({});
    row.change(*planx.roles[0]);
    expectSays(llvm::toString(verify(*planx.roles[0])), row.says, {row.says});
  }
}

}  // namespace
}  // namespace planc
