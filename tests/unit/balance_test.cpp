// How many layers a chunk gets, against all ways to deal them out.
#include <functional>
#include <limits>

#include "ir/cost.h"
#include "llvm/ADT/STLExtras.h"
#include "passes/pipeline.h"
#include "sharded.h"

namespace planc {
namespace {

struct Case {
  int layers, stages;
  const char* more;  // parameters of the model
};

std::unique_ptr<Module> model(const Case& c) {
  return test::sharded(
      "import \"std/llama3.plan\"\nplan p of llama3(layers = " + std::to_string(c.layers) +
      ", model = 32, ffn = 64, head = 4, kv = 4, seq = 16, batch = 2" + c.more +
      ") {\n  grid pipe " + std::to_string(c.stages) +
      "\n  split layer over pipe\n  microbatches 8\n}\n");
}

std::vector<int64_t> dealt(const Module& module, int stages) {
  Diagnostics diags;
  auto schedule = llvm::cantFail(makeSchedule("one_f_one_b", stages, 1, 8));
  std::vector<int64_t> bounds = balance(module, findRepeats(module, diags), schedule), counts;
  for (size_t i = 1; i < bounds.size(); ++i) counts.push_back(bounds[i] - bounds[i - 1]);
  return counts;
}

// The time of the slowest chunk, counted here: a layer's, and for the ends what stands there.
struct Times {
  double front = 0, layer = 0, back = 0;
  explicit Times(const Module& module) {
    bool isBehind = false;
    for (const Op* op : module.findFunction("forward")->body->ops) {
      if (op->kind == OpKind::Repeat) {
        layer = flopsOf(*op->body);
        isBehind = true;
      } else {
        (isBehind ? back : front) += flopsOf(*op);
      }
    }
  }
  double slowest(llvm::ArrayRef<int64_t> counts) const {
    double most = 0;
    for (size_t i = 0; i < counts.size(); ++i)
      most = std::max(most, double(counts[i]) * layer + (i == 0 ? front : 0) +
                                (i + 1 == counts.size() ? back : 0));
    return most;
  }
};

TEST(Balance, TheSlowestIsAsFastAsMayBe) {
  const Case cases[] = {{4, 4, ", vocab = 64"},   {6, 4, ", vocab = 64"},
                        {10, 3, ", vocab = 64"},  {9, 2, ", vocab = 2048"},
                        {8, 4, ", vocab = 1024"}, {9, 4, ", vocab = 4096"},
                        {11, 5, ", vocab = 512"}, {7, 3, ", vocab = 20000"}};
  for (const Case& c : cases) {
    auto module = model(c);
    ASSERT_TRUE(module);
    Times times(*module);
    double best = std::numeric_limits<double>::infinity();
    std::vector<int64_t> counts(size_t(c.stages), 1);
    std::function<void(size_t, int64_t)> deal = [&](size_t chunk, int64_t left) {
      if (chunk + 1 == counts.size()) {
        counts[chunk] = left;
        best = std::min(best, times.slowest(counts));
        return;
      }
      for (counts[chunk] = 1; left - counts[chunk] >= int64_t(counts.size() - chunk) - 1;
           ++counts[chunk])
        deal(chunk + 1, left - counts[chunk]);
    };
    deal(0, c.layers);
    std::vector<int64_t> made = dealt(*module, c.stages);
    EXPECT_NEAR(times.slowest(made) / best, 1, 1e-9) << c.layers << " on " << c.stages << c.more;
    int64_t sum = 0;
    for (int64_t count : made) sum += count;
    EXPECT_EQ(sum, c.layers);
  }
}

// Case C15: no layer is lost, and all chunks are as even as may be.
TEST(Balance, C15LayersThatStagesDoNotDivide) {
  using Counts = std::vector<int64_t>;
  Counts ten = dealt(*model({10, 3, ", vocab = 64"}), 3);
  llvm::sort(ten);
  EXPECT_EQ(ten, (Counts{3, 3, 4}));
  EXPECT_EQ(dealt(*model({6, 4, ", vocab = 64"}), 4).back(), 1);
  EXPECT_EQ(dealt(*model({12, 4, ", vocab = 16"}), 4), (Counts{3, 3, 3, 3}));
}

// A head that costs as much as several layers leaves its stage fewer of them.
TEST(Balance, TheHeadCountsAsLayers) {
  auto module = model({12, 4, ", vocab = 4096"});
  Times times(*module);
  EXPECT_GT(times.back, times.layer);
  std::vector<int64_t> counts = dealt(*module, 4);
  EXPECT_LT(counts.back(), counts[1]);
}

// What is as fast is dealt out by what it holds: earlier stages of 1F1B hold more microbatches.
TEST(Balance, TheFullestIsAsSmallAsMayBe) {
  std::vector<int64_t> counts = dealt(*model({6, 4, ", vocab = 16"}), 4);
  EXPECT_EQ(counts.front(), 1);
}

TEST(Balance, ManyLayersAreFast) {
  auto module = model({2048, 8, ", vocab = 64"});
  auto start = std::chrono::steady_clock::now();
  std::vector<int64_t> counts = dealt(*module, 8);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 2);
  for (int64_t count : counts) EXPECT_NEAR(double(count), 256, 1);
}

}  // namespace
}  // namespace planc
