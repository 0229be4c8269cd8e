// Units of a cluster's levels, and clusters in IR text and .planx files.
#include "compile.h"

namespace planc {
namespace {

constexpr const char* kPlan = R"(
device chip { memory 16 GiB compute f32 10 TFLOP/s, bf16 20 TFLOP/s hbm 1 TB/s }
cluster pod {
  node 4 of chip { link 100 GB/s, latency 1 us }
  row 3 of node { link 10 GB/s }
}
model m {
  dim batch = 8, seq = 4, vocab = 16, model = 8
  input tokens[batch, seq] : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table[vocab, model]
  x[batch, seq, model] = table[tokens]
  logits[batch, seq, vocab] = x @ table
  loss cross_entropy(logits, targets)
}
plan p of m on pod {
  grid data 2, tensor 2
  split batch over data
  split vocab over tensor
  place tensor within node
}
)";

TEST(Cluster, ModuleHoldsWhatThePlanNames) {
  auto module = test::compileText(kPlan);
  ASSERT_TRUE(module);
  const Cluster& cluster = module->cluster;
  EXPECT_EQ(cluster.name, "pod");
  EXPECT_EQ(cluster.device, "chip");
  EXPECT_EQ(cluster.memory(), int64_t{16} << 30);
  EXPECT_EQ(cluster.hbm(), 1e12);
  EXPECT_EQ(cluster.rate(Elem::BF16), 20e12);
  EXPECT_EQ(cluster.rate(Elem::F64), 0);
  ASSERT_EQ(cluster.levels.size(), 2u);
  EXPECT_EQ(cluster.levels[0].latency(), 1e-6);
  EXPECT_EQ(cluster.levels[1].link(), 10e9);
  EXPECT_EQ(cluster.levels[1].latency(), 0);
  EXPECT_EQ(cluster.devicesWithin(1), 4);
  EXPECT_EQ(cluster.devicesWithin(2), 12);
  EXPECT_EQ(cluster.levelBetween(1, 3), 0u);
  EXPECT_EQ(cluster.levelBetween(3, 4), 1u);
  EXPECT_EQ(cluster.levelBetween(3, 12), 2u);
  EXPECT_EQ(cluster.find("row"), 1u);
  ASSERT_EQ(module->places.size(), 1u);
  EXPECT_EQ(module->places[0].axes, Words{"tensor"});
}

TEST(Cluster, ReadsBackFromTextAndBytes) {
  auto module = test::compileText(kPlan);
  ASSERT_TRUE(module);
  module->places.push_back({{"data"}, "row", {}, /*isScope=*/true});
  std::unique_ptr<Module> copy = cloneModule(*module);
  EXPECT_EQ(copy->cluster, module->cluster);
  ASSERT_EQ(copy->places.size(), 2u);
  EXPECT_FALSE(copy->places[0].isScope);
  EXPECT_TRUE(copy->places[1].isScope);
  std::unique_ptr<Module> read = test::parse(test::print(*module));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->cluster, module->cluster);
  ASSERT_EQ(read->places.size(), 2u);
  EXPECT_EQ(read->places[0].level, "node");
  EXPECT_FALSE(read->places[0].isScope);
  EXPECT_TRUE(read->places[1].isScope);
}

// What no plan could have said, in IR that comes from elsewhere.
TEST(Cluster, WrongFiguresAreNamed) {
  auto module = test::compileText(kPlan);
  ASSERT_TRUE(module);
  EXPECT_EQ(module->cluster.broken(), "");
  auto broken = [&](auto&& change) {
    Cluster cluster = module->cluster;
    change(cluster);
    return cluster.broken();
  };
  EXPECT_EQ(broken([](Cluster& c) { c.levels[1].name = "node"; }), "level 'node' stands twice");
  EXPECT_EQ(broken([](Cluster& c) { c.levels[1].figures.set("link", -1.0); }),
            "level 'row': 'link' is no figure");
  EXPECT_EQ(broken([](Cluster& c) { c.figures.set("memory", std::string("all")); }),
            "device 'chip': 'memory' is no figure");
  EXPECT_EQ(broken([](Cluster& c) { c.figures.set("hbm", 1e300); }),
            "device 'chip': 'hbm' is no figure");
  EXPECT_EQ(broken([](Cluster& c) { c.levels[0].count = int64_t{1} << 40; }),
            "it has too many devices");
  EXPECT_EQ(broken([](Cluster& c) { c.name = ""; }), "levels of no cluster");
  module->cluster.levels[1].name = "node";
  EXPECT_EQ(llvm::toString(verify(*module)), "cluster 'pod': level 'node' stands twice");
}

}  // namespace
}  // namespace planc
