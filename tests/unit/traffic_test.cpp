// Bytes and times of collectives, against counts by hand.
#include "ir/traffic.h"

#include <gtest/gtest.h>

#include "ranks.h"
#include "sharded.h"

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
  Traffic traffic = trafficOf(module);
  EXPECT_EQ(traffic.total(std::nullopt, "tensor"), (Total{2, 440 + 160}));
  EXPECT_EQ(traffic.total(std::nullopt, "kv"), (Total{1, 440}));
  EXPECT_EQ(traffic.total(OpKind::AllReduce, "data"), (Total{2, 440 + 480}));
}

}  // namespace
}  // namespace planc
