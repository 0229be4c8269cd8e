// Ranks as threads: every collective against plain loops, failures that must end all ranks in time,
// and many more ranks than processors. To be run under the thread sanitizer too (preset `tsan`).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/comm/reduce.h"
#include "runtime/comm_text.h"
#include "tests/runtime/comm_cases.h"

namespace planc {
namespace {

using namespace std::chrono_literals;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Runs `body` as each rank in a thread of its own; its errors fail the rank.
void runRanks(ThreadTeam& team, int ranks, const std::function<llvm::Error(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      std::unique_ptr<Communicator> comm = team.communicator(r);
      if (llvm::Error error = body(*comm)) comm->fail(llvm::toString(std::move(error)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class Collectives : public testing::TestWithParam<int> {};
TEST_P(Collectives, AgreeWithPlainLoops) {
  auto team = makeThreadTeam(GetParam());
  runRanks(*team, GetParam(), [](Communicator& comm) {
    int64_t large = comm.size() > 4 ? 12007 : 70001;
    for (const std::string& failure : checkCollectives(comm, large)) ADD_FAILURE() << failure;
    return llvm::Error::success();
  });
  EXPECT_EQ(team->failure(), "");
}
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(1, 2, 3, 4, 12),
                         testing::PrintToStringParamName());

TEST(Reduce, PassesNansOn) {
  float nan = std::numeric_limits<float>::quiet_NaN(),
        inputs[3][3] = {{nan, 1, 2}, {3, nan, 1}, {5, 4, 9}};
  float output[3];
  void* to = output;
  comm::reduce(Elem::F32, Reduction::Max, {inputs[0], inputs[1], inputs[2]}, to, 0, 3);
  EXPECT_TRUE(std::isnan(output[0]) && std::isnan(output[1]));
  EXPECT_EQ(output[2], 9);
}

TEST(Reduce, RoundsBf16Once) {
  // Rounded after each addition, 1 + 4 * 2^-9 would stay 1.
  Bf16 one = toBf16(1), small = toBf16(1.0F / 512), sum;
  void* to = &sum;
  comm::reduce(Elem::BF16, Reduction::Sum, {&one, &small, &small, &small, &small}, to, 0, 1);
  EXPECT_EQ(toFloat(sum), 1 + 1.0F / 128);
}

TEST(Threads, ManyMoreRanksThanProcessors) {
  static constexpr int kRanks = 64, kSteps = 200;
  auto team = makeThreadTeam(kRanks);
  runRanks(*team, kRanks, [](Communicator& comm) -> llvm::Error {
    int row = comm.rank() / 8 * 8;
    Group& group = comm.group({row, row + 1, row + 2, row + 3, row + 4, row + 5, row + 6, row + 7});
    std::vector<int32_t> large(40000);
    for (int step = 0; step < kSteps; ++step) {
      int32_t one = 1, rank = comm.rank();
      Message sum = {.elem = Elem::I32, .send = &one, .recv = &one, .count = 1};
      Message most = {
          .elem = Elem::I32, .reduction = Reduction::Max, .send = &rank, .recv = &rank, .count = 1};
      Ticket first = comm.start(comm.world(), sum, {.op = "sum"});
      Ticket second = comm.start(group, most, {.op = "max"});
      if (llvm::Error error = comm.wait(second)) return error;
      if (llvm::Error error = comm.wait(first)) return error;
      EXPECT_EQ(one, kRanks);
      EXPECT_EQ(rank, comm.rank() / 8 * 8 + 7);
    }
    large.assign(large.size(), 1);
    if (llvm::Error error = comm.wait(comm.start(
            comm.world(),
            {.elem = Elem::I32, .send = large.data(), .recv = large.data(), .count = 40000},
            {.op = "sum"}))) {
      return error;
    }
    EXPECT_EQ(large.front() + large.back(), 2 * kRanks);
    return llvm::Error::success();
  });
  EXPECT_EQ(team->failure(), "");
}

TEST(Threads, Agree) {
  auto team = makeThreadTeam(5);
  runRanks(*team, 5, [](Communicator& comm) {
    EXPECT_EQ(agreed(comm, [](int) { return ""; }), "");
    EXPECT_EQ(agreed(comm, [](int r) { return r == 3 ? "no such file" : ""; }),
              "rank 3: no such file");
    EXPECT_EQ(agreed(comm,
                     [](int r) {
                       return r == 2 ? "disk full" : r > 2 || r == 0 ? "no such file" : "";
                     }),
              "ranks 0, 3, 4: no such file\nrank 2: disk full");
    EXPECT_EQ(comm.bytesSent(), 0);
    return llvm::Error::success();
  });
  EXPECT_EQ(team->failure(), "");
}

// Failures. Each ends all ranks, in far less than the test's limit.
class Failures : public testing::Test {
 protected:
  static constexpr int kRanks = 4;

  // The message `number` of a step, as rank programs have them: an all-reduce in place.
  static llvm::Error allReduce(Communicator& comm, Group& group, int number, int64_t count = 1000) {
    std::vector<float> data(static_cast<size_t>(count));
    Site site{.op = "all_reduce", .tensor = "w" + std::to_string(number), .number = number};
    site.place = "gpt.plan:" + std::to_string(10 + number);
    return comm.wait(
        comm.start(group, {.send = data.data(), .recv = data.data(), .count = count}, site));
  }

  // Runs `body` as all ranks; all must end with the same error, in time.
  void expectFailure(const std::function<llvm::Error(Communicator&)>& body, int exceptRank = -1) {
    team_ = makeThreadTeam(kRanks, 500ms);
    std::atomic<int> failed = 0;
    auto begin = std::chrono::steady_clock::now();
    runRanks(*team_, kRanks, [&](Communicator& comm) {
      std::string text = llvm::toString(body(comm));
      if (comm.rank() != exceptRank) {
        EXPECT_EQ(text, team_->failure());
      }
      if (!text.empty()) ++failed;
      return llvm::Error::success();
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
    EXPECT_GE(failed, exceptRank < 0 ? kRanks : kRanks - 1);
    EXPECT_TRUE(team_->waitForEnd());
  }

  std::unique_ptr<ThreadTeam> team_;
};

TEST_F(Failures, OneRankLeavesOutAnAllReduce) {
  expectFailure(
      [](Communicator& comm) -> llvm::Error {
        for (int i = 1; i <= 3; ++i) {
          if (comm.rank() == 2 && i == 2) continue;
          if (llvm::Error error = allReduce(comm, comm.world(), i)) return error;
        }
        return llvm::Error::success();
      },
      2);
  EXPECT_PRED2(contains, team_->failure(), "rank 2 ended: rank ");
  EXPECT_PRED2(contains, team_->failure(),
               "waits for rank 2 in all_reduce 3 of 'w3' (gpt.plan:13)");
  EXPECT_PRED2(contains, team_->table(),
               "2     3 all_reduce  w3      gpt.plan:13  nobody: it has ended\n");
}

TEST_F(Failures, OneRankDoublesACount) {
  expectFailure([](Communicator& comm) {
    return allReduce(comm, comm.world(), 1, comm.rank() == 0 ? 2000 : 1000);
  });
  EXPECT_PRED2(contains, team_->failure(), "ranks of one group don't agree: ");
  EXPECT_PRED2(
      contains, team_->failure(),
      "rank 0 asks for all-reduce (sum) of 2000 f32 in all_reduce 1 of 'w1' (gpt.plan:11)");
  EXPECT_PRED2(contains, team_->failure(), "asks for all-reduce (sum) of 1000 f32 in ");
}

TEST_F(Failures, OneRankEnds) {
  expectFailure(
      [](Communicator& comm) -> llvm::Error {
        for (int i = 1; i <= 3; ++i) {
          if (comm.rank() == 3 && i == 2) return llvm::Error::success();
          if (llvm::Error error = allReduce(comm, comm.world(), i)) return error;
        }
        return llvm::Error::success();
      },
      3);
  EXPECT_PRED2(contains, team_->failure(), "rank 3 ended: rank ");
  EXPECT_PRED2(contains, team_->table(),
               "3     1 all_reduce  w1      gpt.plan:11  nobody: it has ended\n");
  EXPECT_PRED2(contains, team_->table(), "2 all_reduce  w2      gpt.plan:12  rank");
}

TEST_F(Failures, OneRankStalls) {
  expectFailure([&](Communicator& comm) {
    if (comm.rank() == 1) {
      while (team_->failure().empty()) std::this_thread::sleep_for(5ms);
    }
    return allReduce(comm, comm.world(), 7);
  });
  EXPECT_PRED2(contains, team_->failure(), "no progress for 500 ms: rank ");
  EXPECT_PRED2(contains, team_->failure(),
               "waits for rank 1 in all_reduce 7 of 'w7' (gpt.plan:17)");
  EXPECT_PRED2(contains, team_->table(), "0     7 all_reduce  w7      gpt.plan:17  rank 1\n");
  EXPECT_PRED2(contains, team_->table(), "nobody: it is running");
}

TEST_F(Failures, ARankThatNeverComesBack) {
  auto team = makeThreadTeam(2, 200ms);
  std::atomic<bool> release = false;
  std::thread stalled([&] {
    auto comm = team->communicator(1);
    while (!release) std::this_thread::sleep_for(1ms);
  });
  std::thread waits([&] {
    auto comm = team->communicator(0);
    EXPECT_NE(llvm::toString(allReduce(*comm, comm->world(), 1)), "");
  });
  EXPECT_FALSE(team->waitForEnd());
  waits.join();
  release = true;
  stalled.join();
  EXPECT_TRUE(team->waitForEnd());
}

TEST_F(Failures, OneRankFails) {
  expectFailure([](Communicator& comm) {
    if (comm.rank() == 2) comm.fail("disk full");
    return allReduce(comm, comm.world(), 1);
  });
  EXPECT_EQ(team_->failure(), "rank 2 failed: disk full");
}

TEST_F(Failures, AllWaitForEachOther) {
  auto begin = std::chrono::steady_clock::now();
  team_ = makeThreadTeam(2);
  runRanks(*team_, 2, [](Communicator& comm) {
    Group &a = comm.group({0, 1}), &b = comm.group({0, 1});
    if (llvm::Error error = allReduce(comm, comm.rank() == 0 ? a : b, 1)) return error;
    return allReduce(comm, comm.rank() == 0 ? b : a, 2);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);  // the time-out is 60 s
  EXPECT_PRED2(contains, team_->failure(),
               "all ranks wait for each other: rank 1 waits for rank 0");
}

TEST_F(Failures, SendsThatCross) {
  // Each sends and waits, and would receive then: nothing is buffered.
  team_ = makeThreadTeam(2);
  runRanks(*team_, 2, [](Communicator& comm) {
    double x = 1, y = 0;
    int other = 1 - comm.rank();
    Message send = {
        .kind = Collective::SendReceive, .elem = Elem::F64, .send = &x, .count = 1, .to = other};
    Message receive = {
        .kind = Collective::SendReceive, .elem = Elem::F64, .recv = &y, .count = 1, .from = other};
    if (llvm::Error error = comm.wait(comm.start(comm.world(), send, {.op = "send"}))) return error;
    return comm.wait(comm.start(comm.world(), receive, {.op = "receive"}));
  });
  EXPECT_PRED2(contains, team_->failure(), "all ranks wait for each other: ");
}

TEST_F(Failures, MessagesThatCannotBeOne) {
  struct Case {
    Message zero, others;
  };
  int64_t counts[] = {1, 2, 3, 4}, zeros[] = {0, 0, 0, 0};
  std::vector<float> from(64), to(64);
  Message base = {.send = from.data(), .recv = to.data(), .count = 8};
  auto with = [&](const std::function<void(Message&)>& change) {
    Case result = {base, base};
    change(result.zero);
    return result;
  };
  std::vector<Case> cases = {
      with([](Message& m) { m.kind = Collective::ReduceScatter; }),
      with([](Message& m) { m.elem = Elem::I32; }),
      with([](Message& m) { m.reduction = Reduction::Max; }),
      with([](Message& m) { m.count = 4; }),
  };
  for (Collective kind : {Collective::ReduceScatter, Collective::AllGather, Collective::AllToAll,
                          Collective::Broadcast}) {
    cases.push_back(with([](Message& m) { m.count = 4; }));
    cases.back().zero.kind = cases.back().others.kind = kind;
  }
  cases.push_back(with([](Message& m) { m.root = 1; }));
  cases.back().zero.kind = cases.back().others.kind = Collective::Broadcast;
  cases.push_back(with([&](Message& m) { m.sendCounts = counts; }));
  cases.back().zero.kind = cases.back().others.kind = Collective::AllToAll;
  cases.back().zero.recvCounts = cases.back().others.sendCounts = cases.back().others.recvCounts =
      zeros;
  for (const Case& c : cases) {
    expectFailure([&](Communicator& comm) {
      return comm.wait(
          comm.start(comm.world(), comm.rank() == 0 ? c.zero : c.others, {.op = "op"}));
    });
    EXPECT_PRED2(contains, team_->failure(), "ranks of one group don't agree: ")
        << int(c.zero.kind);
  }
}

// When the run fails, ranks free their buffers: nobody may use them any more (a sanitizer sees it).
TEST_F(Failures, BuffersAreFreeBehindAnError) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    expectFailure([&](Communicator& comm) -> llvm::Error {
      std::vector<float> large(300000), small(10);
      Site site{.op = "all_reduce"};
      Ticket first = comm.start(
          comm.world(), {.send = large.data(), .recv = large.data(), .count = 300000}, site);
      if (comm.rank() == 1) comm.fail("stop");
      Ticket second =
          comm.start(comm.world(), {.send = small.data(), .recv = small.data(), .count = 10}, site);
      if (llvm::Error error = comm.wait(second)) return error;
      return comm.wait(first);
    });
  }
}

TEST_F(Failures, ATicketLeftBehind) {
  team_ = makeThreadTeam(2, 500ms);
  float data[2][8] = {};
  runRanks(*team_, 2, [&](Communicator& comm) -> llvm::Error {
    if (comm.rank() == 1) return allReduce(comm, comm.world(), 1, 8);
    comm.start(comm.world(), {.send = data[0], .recv = data[1], .count = 8}, {.op = "all_reduce"});
    return llvm::Error::success();
  });
  EXPECT_EQ(team_->failure(), "rank 0 ended without waiting for all_reduce");
}

TEST(Text, RankLists) {
  EXPECT_EQ(comm::rankList({3}), "rank 3");
  EXPECT_EQ(comm::rankList({0, 1}), "ranks 0, 1");
  EXPECT_EQ(comm::rankList({0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7, 8");
}

}  // namespace
}  // namespace planc
