// The counter-based generator against published vectors, and the numbers that saved runs rely on: a
// change of any pinned value breaks resuming.
#include "runtime/random.h"

#include <gtest/gtest.h>

#include <set>

namespace planc {
namespace {

TEST(Philox, KnownAnswers) {
  // Random123's kat_vectors for philox4x32-10.
  struct {
    uint64_t key, high, low;
    uint32_t expected[4];
  } cases[] = {
      {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x299f31d0a4093822,
       0x0370734413198a2e,
       0x85a308d3243f6a88,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& c : cases) {
    Philox p = philox(c.key, c.high, c.low);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(p.word[i], c.expected[i]);
  }
}

TEST(RandomKey, SeparatesSeedsAndNames) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (const char* name : {"", "data", "table", "layer.attention.wq", "layer.attention.wk"}) {
      keys.insert(randomKey(seed, name));
    }
  }
  EXPECT_EQ(keys.size(), 500u);
}

TEST(Normal, HasTheMomentsOfANormal) {
  uint64_t key = randomKey(1, "w");
  const int n = 200000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < n; ++i) {
    double x = normalAt(key, uint64_t(i));
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.01);
  EXPECT_NEAR(fourth / n, 3, 0.06);
}

TEST(Uniform, FillsTheOpenInterval) {
  uint64_t key = randomKey(2, "w");
  double least = 1, most = -1, sum = 0;
  for (int i = 0; i < 100000; ++i) {
    double x = uniformAt(key, uint64_t(i));
    least = std::min(least, x);
    most = std::max(most, x);
    sum += x;
  }
  EXPECT_GT(least, -1);
  EXPECT_LT(least, -0.999);
  EXPECT_LT(most, 1);
  EXPECT_GT(most, 0.999);
  EXPECT_NEAR(sum / 100000, 0, 0.01);
  EXPECT_GT(uniformFloat(0), 0.0f);
  EXPECT_LT(uniformFloat(~0u), 1.0f);
}

TEST(Dropout, KeepsTheRightShareAndDependsOnEverything) {
  uint64_t key = randomKey(3, "site");
  int64_t iteration[] = {0, 1};
  uint64_t counters[] = {
      dropoutCounter(1, 0, nullptr, 0),       dropoutCounter(2, 0, nullptr, 0),
      dropoutCounter(1, 1, nullptr, 0),       dropoutCounter(1, 0, iteration, 1),
      dropoutCounter(1, 0, iteration + 1, 1), dropoutCounter(1, 0, iteration, 2),
  };
  EXPECT_EQ(std::set<uint64_t>(std::begin(counters), std::end(counters)).size(), 6u);
  int kept = 0, same = 0;
  for (uint64_t i = 0; i < 100000; ++i) {
    bool first = dropoutKeeps(key, counters[0], i, 0.1f);
    kept += first;
    same += first == dropoutKeeps(key, counters[1], i, 0.1f);
  }
  EXPECT_NEAR(kept / 1e5, 0.9, 0.005);
  EXPECT_NEAR(same / 1e5, 0.82, 0.01);  // 0.9^2 + 0.1^2: independent
  EXPECT_TRUE(dropoutKeeps(key, 0, 0, 0.0f));
}

}  // namespace
}  // namespace planc
