// Bytes and times of collectives, against counts by hand.
#include "ir/traffic.h"

#include <gtest/gtest.h>

#include "ranks.h"
#include "sharded.h"
#include "stages.h"

namespace planc {
namespace {

using Total = Traffic::Total;

TEST(Traffic, CountsAStep) {
  auto module = test::rankProgram(test::gridOf({{"data", 2}, {"tensor", 4}}));
  Traffic traffic = trafficOf(*module);
  // 3 layers, 2 microbatches, 2 a layer; 8 x 128 floats, of which 2 * 3/4 are sent.
  int64_t residual = 8 * 128 * 4 * 2 * 3 / 4;
  EXPECT_EQ(traffic.total(OpKind::AllReduce, "tensor"), (Total{12, 12 * residual}));
  // The loss: 4 bytes.
  EXPECT_EQ(traffic.total(OpKind::AllReduce, "data"), (Total{1, 4}));
  int64_t weight = 128 * 256 * 4;
  EXPECT_EQ(traffic.total(OpKind::ReduceScatter), (Total{1, weight / 2}));
  EXPECT_EQ(traffic.total(OpKind::AllGather, "data"), (Total{1, weight / 2}));
  EXPECT_EQ(traffic.total(OpKind::AllGather, "tensor"), Total());
  EXPECT_EQ(traffic.total(), (Total{15, 12 * residual + 4 + weight}));
  ASSERT_EQ(traffic.transfers.size(), 5u);
  EXPECT_EQ(traffic.transfers[0].op, test::find(*module, "attention"));
  EXPECT_EQ(traffic.transfers[0].times, 6);
  EXPECT_EQ(traffic.transfers[0].bytes, residual);
}

TEST(Traffic, WhatIsNotCalledIsNotCounted) {
  auto module = test::rankProgram(test::gridOf({{"data", 2}, {"tensor", 4}}));
  module->schedule = {{"update", -1}};
  EXPECT_EQ(trafficOf(*module).total().times, 1);
}

// Three layers, but only two run it; in each of two microbatches.
TEST(Traffic, LeftOutInTheLastIteration) {
  auto module = test::rankProgram(test::gridOf({{"data", 2}, {"tensor", 4}}));
  Op* attention = test::find(*module, "attention");
  attention->attrs.set("unless_last", int64_t{1});
  EXPECT_EQ(trafficOf(*module).transfers[0].times, 4);
  EXPECT_EQ(trafficOf(*module).total(OpKind::AllReduce, "tensor").times, 10);
}

// ZeRO-3: each layer's weights once there and once back, in both microbatches, also where the layer is
// computed again; and so does what lies outside of layers.
TEST(Traffic, ShardedWeightsAreGatheredTwiceALayer) {
  for (const char* recompute : {"none", "layer"}) {
    auto module =
        test::sharded(test::dense(std::string(test::kTensor) +
                                  "shard weights over data microbatches 2 recompute " + recompute),
                      "emit");
    std::map<std::string, int64_t> times;
    for (const Transfer& transfer : trafficOf(*module).transfers)
      for (const Value* operand : transfer.op->operands())
        if (const Op* read = operand->def(); read && read->kind == OpKind::Read)
          if (read->var->kind == VarKind::Weight) times[read->var->name] += transfer.times;
    for (const char* weight : {"wq", "wk", "wv", "wo"})
      EXPECT_EQ(times["layer.attention." + std::string(weight)], 4 * 2 * 2) << recompute;
    EXPECT_EQ(times["layer.mlp.down"], 4 * 2 * 2) << recompute;
    EXPECT_EQ(times["output"], 2 * 2) << recompute;
  }
}

TEST(Traffic, AxesTogetherAndInParts) {
  Module module;
  module.grid.axes = {{"data", 2}, {"kv", 2, "tensor"}, {"rest", 3, "tensor"}};
  Builder b(module.addFunction("f")->body.get());
  module.schedule = {{"f", -1}};
  Type type{Elem::BF16, {{"a", 120}}};
  Value* x = b.value(OpKind::Const, {}, type);
  Value* y = b.value(OpKind::Const, {}, type);
  auto add = [&](OpKind kind, llvm::ArrayRef<Value*> operands, Words axes) {
    llvm::SmallVector<Type, 2> results(operands.size(), type);
    return bytesSent(*test::collective(b, kind, operands, results, std::move(axes), "r", 1));
  };
  EXPECT_EQ(add(OpKind::AllReduce, {x}, {"data", "kv", "rest"}), 2 * 11 * 240 / 12);
  EXPECT_EQ(add(OpKind::AllToAll, {x}, {"rest"}), 240 * 2 / 3);
  EXPECT_EQ(add(OpKind::AllReduce, {x, y}, {"data"}), 2 * 240);
  EXPECT_EQ(add(OpKind::AllReduce, {x}, {}), 0);
  EXPECT_EQ(add(OpKind::Rotate, {x, y}, {"rest"}), 2 * 240);
  Traffic traffic = trafficOf(module);
  EXPECT_EQ(traffic.total(std::nullopt, "tensor"), (Total{3, 440 + 160 + 480}));
  EXPECT_EQ(traffic.total(std::nullopt, "kv"), (Total{1, 440}));
  EXPECT_EQ(traffic.total(OpKind::AllReduce, "data"), (Total{2, 440 + 480}));
}

// As many rows as the tokens' side has, there and back.
TEST(Traffic, RowsToExperts) {
  Module module;
  module.grid.axes = {{"expert", 4}};
  Axes axes = module.grid.find("expert");
  Builder b(module.addFunction("f")->body.get());
  auto rows = [&](llvm::ArrayRef<Axis> experts, int64_t slots) {
    return Type{Elem::F32, {splitDim({"e", 8}, experts), {"slot", slots, "e"}, {"m", 3}}};
  };
  Type tokens = rows({}, 10), own = rows(axes, 40);
  auto counts = [&](bool isCut) {
    return b.value(OpKind::Const, {},
                   Type{Elem::I32, {splitDim({"part", 4}, isCut ? axes : Axes())}});
  };
  auto exchange = [&](Type from, Type to, bool isHome) {
    Op* op = b.create(OpKind::ExchangeRows,
                      {b.value(OpKind::Const, {}, from), counts(!isHome), counts(isHome)},
                      {to, own}, {{"axes", Words{"expert"}}});
    if (isHome) op->attrs.set("home", int64_t{1});
    return bytesSent(*op);
  };
  EXPECT_EQ(exchange(tokens, own, false), 10 * 3 * 4);
  EXPECT_EQ(exchange(own, tokens, true), 10 * 3 * 4);
}

// A stage in the middle sends each microbatch's activation on and its gradient back; what it receives
// another counts. A sum among two stages of four: each sends what it would with one other.
TEST(Traffic, StagesOfAPipeline) {
  Planx planx = test::stages({.stages = 4, .microbatches = 6});
  int64_t x = 8 / 2 * 4 * 4, table = 4 * 4;
  auto total = [&](size_t stage, std::optional<OpKind> kind) {
    return trafficOf(*planx.roles[stage]).total(kind, "pipe");
  };
  EXPECT_EQ(total(0, OpKind::Send), (Total{6, 6 * x}));
  EXPECT_EQ(total(1, OpKind::Send), (Total{12, 12 * x}));
  EXPECT_EQ(total(3, OpKind::Send), (Total{6, 6 * x}));
  EXPECT_EQ(total(1, OpKind::Receive), (Total{12, 0}));
  // The norm's sum over the four stages, 4 bytes; the table's gradient between the first and the last.
  EXPECT_EQ(total(0, OpKind::AllReduce), (Total{2, 2 * 3 * 4 / 4 + table}));
  EXPECT_EQ(total(1, OpKind::AllReduce), (Total{1, 2 * 3 * 4 / 4}));
  EXPECT_EQ(total(1, std::nullopt), (Total{25, 12 * x + 6}));
  EXPECT_EQ(trafficOf(*planx.roles[1]).total(OpKind::Send, "data"), Total());
}

// Who meets: of a message its two sides, of a sum among some those, on the rank's own other coordinates.
TEST(Traffic, MembersOfMessagesBetweenStages) {
  Planx planx = test::stages({.stages = 4});
  const Module& stage = *planx.roles[1];
  Coordinates rank(stage.grid, 6);  // pipe 1, data 1, tensor 0
  auto members = [&](const Module& module, llvm::StringRef function, OpKind kind, const Coordinates& at) {
    std::vector<std::vector<int64_t>> found;
    for (const Op* op : module.findFunction(function)->body->ops)
      if (op->kind == kind) found.push_back(membersOf(*op, at));
    return found;
  };
  using Found = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(members(stage, "send.x.1", OpKind::Send, rank), (Found{{6, 10}}));
  EXPECT_EQ(members(stage, "receive.x.1", OpKind::Receive, rank), (Found{{2, 6}}));
  EXPECT_EQ(members(stage, "update", OpKind::AllReduce, rank), (Found{{2, 6, 10, 14}}));
  Coordinates last(stage.grid, 15);
  Found found = members(*planx.roles[3], "reduce", OpKind::AllReduce, last);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[1], (std::vector<int64_t>{3, 15}));
}

}  // namespace
}  // namespace planc
