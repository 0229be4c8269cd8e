// Times known by hand, and random programs against a second account of them.
#include "cost/clock.h"

#include <gtest/gtest.h>

#include <random>

namespace planc {
namespace {

TEST(Clock, ComputeHidesMessages) {
  Clock clock;
  size_t a = clock.addMessage("tensor", 0, 3);
  clock.start(a);
  clock.compute(5);
  clock.wait(a);
  EXPECT_EQ(clock.now(), 5);
  EXPECT_EQ(clock.stood(), 0);
  clock.start(a);
  clock.compute(1);
  clock.wait(a);
  EXPECT_EQ(clock.now(), 8);
  EXPECT_EQ(clock.stood(a), 2);
  clock.start(a);
  clock.wait(a);
  EXPECT_EQ(clock.now(), 11);
  EXPECT_EQ(clock.stood(a), 5);
  EXPECT_EQ(clock.sent(a), 9);
  EXPECT_EQ(clock.computed(), 6);
}

TEST(Clock, AGroupAndALevelTakeOneMessageAtATime) {
  auto end = [](const char* group, size_t level) {
    Clock clock;
    size_t a = clock.addMessage("tensor", 0, 3), b = clock.addMessage(group, level, 2);
    clock.start(a);
    clock.start(b);
    clock.wait(b);
    return clock.now();
  };
  EXPECT_EQ(end("tensor", 0), 5);
  EXPECT_EQ(end("tensor", 1), 5);  // the same ranks meet in order
  EXPECT_EQ(end("data", 0), 5);
  EXPECT_EQ(end("data", 1), 2);
}

// Who waits for a message stands still for those before it, too: each counts what it takes of that time.
TEST(Clock, StandsForWhatHasTheWires) {
  Clock clock;
  size_t a = clock.addMessage("data", 0, 3), b = clock.addMessage("tensor", 0, 2);
  clock.start(a);
  clock.compute(1);
  clock.start(b);
  clock.wait(b);
  EXPECT_EQ(clock.now(), 5);
  EXPECT_EQ(clock.stood(a), 2);
  EXPECT_EQ(clock.stood(b), 2);
  clock.wait(a);
  EXPECT_EQ(clock.now(), 5);
}

// Messages of a random program, each moved by hand as far as wires and order allow.
class Account {
 public:
  struct Sent {
    int group, level;
    double begin, end;
  };
  double now = 0, stood = 0;
  std::vector<Sent> sent;

  size_t start(int group, int level, double seconds) {
    double begin = now;
    for (const Sent& s : sent)
      if (s.group == group || s.level == level) begin = std::max(begin, s.end);
    sent.push_back({group, level, begin, begin + seconds});
    return sent.size() - 1;
  }
  void wait(size_t message) {
    stood += std::max(0.0, sent[message].end - now);
    now = std::max(now, sent[message].end);
  }
};

TEST(Clock, RandomPrograms) {
  constexpr int kSeed = 7;
  std::mt19937 random(kSeed);
  auto below = [&](int n) { return int(random() % unsigned(n)); };
  for (int program = 0; program < 2000; ++program) {
    Clock clock;
    Account account;
    struct Kind {
      int group, level, seconds;
      size_t last;
    };
    std::vector<Kind> kinds;
    for (int i = 0; i < 4; ++i) {
      kinds.push_back({below(3), below(2), 1 + below(9), ~size_t{0}});
      clock.addMessage(std::to_string(kinds[i].group), size_t(kinds[i].level), kinds[i].seconds);
    }
    for (int i = 0; i < 30; ++i) {
      int kind = below(4), what = below(3);
      if (what == 0) {
        int seconds = below(6);
        clock.compute(seconds);
        account.now += seconds;
      } else if (what == 1) {
        clock.start(size_t(kind));
        kinds[kind].last = account.start(kinds[kind].group, kinds[kind].level, kinds[kind].seconds);
      } else if (kinds[kind].last != ~size_t{0}) {
        clock.wait(size_t(kind));
        account.wait(kinds[kind].last);
      }
    }
    ASSERT_EQ(clock.now(), account.now) << "seed " << kSeed << ", program " << program;
    ASSERT_EQ(clock.stood(), account.stood);
    double sum = 0;
    for (size_t i = 0; i < 4; ++i) {
      sum += clock.stood(i);
      ASSERT_LE(clock.stood(i), clock.sent(i));  // none hides less than nothing
    }
    ASSERT_EQ(sum, clock.stood());
    ASSERT_EQ(clock.computed() + clock.stood(), clock.now());
  }
}

TEST(Clock, RepeatedRunsAreAsManyRuns) {
  Clock clock;
  size_t a = clock.addMessage("tensor", 0, 3), b = clock.addMessage("data", 1, 100);
  clock.start(b);
  auto once = [&] {
    clock.start(a);
    clock.compute(2);
    clock.wait(a);
  };
  once();
  Clock before = clock;
  once();
  clock.repeat(before, 3);
  EXPECT_EQ(clock.now(), 15);
  EXPECT_EQ(clock.stood(a), 5);
  EXPECT_EQ(clock.sent(a), 15);
  EXPECT_EQ(clock.computed(), 10);
  // What is under way is as far from arriving as it was: 94.
  clock.wait(b);
  EXPECT_EQ(clock.now(), 15 + 94);
  EXPECT_EQ(clock.stood(b), 94);
}

}  // namespace
}  // namespace planc
