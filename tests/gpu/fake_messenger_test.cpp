// Messages between fake GPUs whose ranks are threads: each kind in every order, and what goes
// wrong.
#include <atomic>
#include <barrier>
#include <thread>

#include "runtime/bf16.h"
#include "tests/gpu/fake_kernels.h"

namespace planc::cuda {
namespace {

using fake::Fault;

struct Rank {
  Gpu gpu;
  std::unique_ptr<Messenger> messenger;
  Clique clique = nullptr;
  int rank, ranks;

  Rank(int rank, int ranks) : gpu(rank), rank(rank), ranks(ranks) {
    messenger = llvm::cantFail(makeMessenger(*gpu.driver));
  }
  Messenger* operator->() { return messenger.get(); }
  std::string finish() {
    gpu->record(gpu.event, gpu.b);
    for (;;) {
      if (gpu->isDone(gpu.event)) return "";
      std::string error = llvm::toString(gpu->error());
      if (error.empty()) error = llvm::toString(messenger->error(clique));
      if (!error.empty()) return error;
    }
  }
  // Numbers that tell the rank, in memory that belongs to the rank.
  int32_t* numbers(int64_t n, int32_t first) {
    int32_t* x = gpu.memory(n);
    std::vector<int32_t> values(static_cast<size_t>(n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = first + int32_t(i);
    gpu.write(x, values);
    return x;
  }
};

// Each rank a thread; all in one clique.
template <class Body>
void onRanks(int ranks, Body&& body) {
  Messenger::Id id;
  {
    Gpu gpu;
    id = llvm::cantFail(llvm::cantFail(makeMessenger(*gpu.driver))->makeId());
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      Rank rank(r, ranks);
      auto clique = rank->join(id, ranks, r);
      if (!clique) {
        ADD_FAILURE() << llvm::toString(clique.takeError());
        return;
      }
      rank.clique = *clique;
      body(rank);
    });
  for (auto& thread : threads) thread.join();
}

class FakeMessages : public testing::Test {
 protected:
  void SetUp() override { before_ = fake::options(); }
  void TearDown() override {
    fake::options() = before_;
    fake::clearFaults();
  }

 private:
  fake::Options before_;
};

using Ints = std::vector<int32_t>;

TEST_F(FakeMessages, Collectives) {
  inAllOrders([] {
    onRanks(3, [](Rank& r) {
      Gpu& gpu = r.gpu;
      int32_t *x = r.numbers(6, 10 * r.rank), *y = gpu.memory(18);
      // The stream of messages starts behind the writes.
      auto done = [&](const int32_t* at, int64_t n) {
        EXPECT_EQ(r.finish(), "");
        return gpu.read(at, n);
      };
      r->allReduce(r.clique, x, y, 6, Elem::I32, Reduce::Sum, gpu.b);
      EXPECT_EQ(done(y, 6), (Ints{30, 33, 36, 39, 42, 45}));
      r->allReduce(r.clique, x, y, 6, Elem::I32, Reduce::Max, gpu.b);
      EXPECT_EQ(done(y, 6), (Ints{20, 21, 22, 23, 24, 25}));
      r->reduceScatter(r.clique, x, y, 2, Elem::I32, Reduce::Sum, gpu.b);
      EXPECT_EQ(done(y, 2), (Ints{30 + 6 * r.rank, 33 + 6 * r.rank}));
      r->allGather(r.clique, x, y, 2, Elem::I32, gpu.b);
      EXPECT_EQ(done(y, 6), (Ints{0, 1, 10, 11, 20, 21}));
      // In place.
      r->allGather(r.clique, y + 2 * r.rank, y, 2, Elem::I32, gpu.b);
      EXPECT_EQ(done(y, 6), (Ints{0, 1, 10, 11, 20, 21}));
      r->reduceScatter(r.clique, y, y + 2 * r.rank, 2, Elem::I32, Reduce::Sum, gpu.b);
      EXPECT_EQ(done(y + 2 * r.rank, 2), (Ints{30 * r.rank, 30 * r.rank + 3}));
      r->allReduce(r.clique, x, x, 6, Elem::I32, Reduce::Sum, gpu.b);
      EXPECT_EQ(done(x, 2), (Ints{30, 33}));
      int32_t* z = r.numbers(2, r.rank);
      r->broadcast(r.clique, z, 2, Elem::I32, 2, gpu.b);
      EXPECT_EQ(done(z, 2), (Ints{2, 3}));
    });
  });
}

TEST_F(FakeMessages, Elements) {
  onRanks(2, [](Rank& r) {
    Gpu& gpu = r.gpu;
    auto sum = [&](auto mine, Elem elem) {
      auto* x = gpu.memory<decltype(mine)>(1);
      gpu.write(x, std::vector{mine});
      r->allReduce(r.clique, x, x, 1, elem, Reduce::Sum, gpu.b);
      EXPECT_EQ(r.finish(), "");
      return gpu.read(x, 1)[0];
    };
    EXPECT_EQ(sum(1.5f, Elem::F32), 3.0f);
    EXPECT_EQ(sum(1e-20 + r.rank, Elem::F64), 1 + 1e-20 + 1e-20);
    EXPECT_EQ(sum(toBf16(r.rank == 0 ? 1.0f : 1 / 256.0f).bits, Elem::BF16), toBf16(1).bits);
  });
}

TEST_F(FakeMessages, Pairs) {
  inAllOrders([] {
    onRanks(4, [](Rank& r) {
      Gpu& gpu = r.gpu;
      int32_t *x = r.numbers(4, 10 * r.rank), *y = gpu.memory(8);
      int next = (r.rank + 1) % 4, last = (r.rank + 3) % 4;
      // Around a ring, twice at once: in order between two ranks.
      r->begin();
      r->send(r.clique, x, 2, Elem::I32, next, gpu.b);
      r->send(r.clique, x + 2, 1, Elem::I32, next, gpu.b);
      r->receive(r.clique, y, 2, Elem::I32, last, gpu.b);
      r->receive(r.clique, y + 2, 1, Elem::I32, last, gpu.b);
      r->end();
      EXPECT_EQ(r.finish(), "");
      EXPECT_EQ(gpu.read(y, 3), (Ints{10 * last, 10 * last + 1, 10 * last + 2}));
      // One after another: from rank 0 to the last.
      if (r.rank > 0) r->receive(r.clique, x, 1, Elem::I32, r.rank - 1, gpu.b);
      gpu.step(gpu.b, x, 1, 1);
      if (r.rank < 3) r->send(r.clique, x, 1, Elem::I32, r.rank + 1, gpu.b);
      EXPECT_EQ(r.finish(), "");
      EXPECT_EQ(gpu.read(x, 1)[0], r.rank + 1);
      // All to all, and to itself.
      r->begin();
      for (int other = 0; other < 4; ++other) {
        r->send(r.clique, x, 1, Elem::I32, other, gpu.b);
        r->receive(r.clique, y + other, 1, Elem::I32, other, gpu.b);
      }
      r->end();
      EXPECT_EQ(r.finish(), "");
      EXPECT_EQ(gpu.read(y, 4), (Ints{1, 2, 3, 4}));
    });
  });
}

TEST_F(FakeMessages, Splits) {
  onRanks(6, [](Rank& r) {
    // Ranks 0 2 4 in turned order, 1 3, and 5 alone in none.
    int colour = r.rank == 5 ? Messenger::kNone : r.rank % 2;
    auto part = r->split(r.clique, colour, r.rank % 2 == 0 ? -r.rank : r.rank);
    ASSERT_TRUE(bool(part)) << llvm::toString(part.takeError());
    EXPECT_EQ(*part == nullptr, r.rank == 5);
    int32_t *x = r.numbers(1, r.rank), *y = r.gpu.memory(3);
    if (*part != nullptr) {
      r->allGather(*part, x, y, 1, Elem::I32, r.gpu.b);
      EXPECT_EQ(r.finish(), "");
      EXPECT_EQ(r.gpu.read(y, 3), r.rank % 2 == 0 ? (Ints{4, 2, 0}) : (Ints{1, 3, 0}));
    }
    // The whole goes on, beside its parts.
    r->allReduce(r.clique, x, y, 1, Elem::I32, Reduce::Sum, r.gpu.a);
    EXPECT_EQ(r.finish(), "");
    EXPECT_EQ(r.gpu.read(y, 1)[0], 15);
  });
}

// Compute and messages on two streams.
TEST_F(FakeMessages, AMissingWaitIsSeen) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "what is missing here is a data race";
#endif
  auto run = [](bool waitsBefore, bool waitsBehind) {
    std::atomic<int> wrong = 0;
    onRanks(2, [&](Rank& r) {
      Gpu& gpu = r.gpu;
      int32_t *x = r.numbers(1, 0), *y = gpu.memory(1);
      Event ready = gpu->makeEvent(), come = gpu->makeEvent();
      gpu.step(gpu.a, x, 0, 1 + r.rank);
      gpu->record(ready, gpu.a);
      if (waitsBefore) gpu->wait(gpu.b, ready);
      r->allReduce(r.clique, x, x, 1, Elem::I32, Reduce::Sum, gpu.b);
      gpu->record(come, gpu.b);
      if (waitsBehind) gpu->wait(gpu.a, come);
      gpu.move(gpu.a, y, x);
      EXPECT_EQ(gpu.finish(gpu.a), "");
      EXPECT_EQ(r.finish(), "");
      wrong += gpu.read(y, 1)[0] != 3;
    });
    return wrong > 0;
  };
  int before = 0, behind = 0;
  inAllOrders([&] {
    EXPECT_FALSE(run(true, true));
    before += run(false, true);
    behind += run(true, false);
  });
  EXPECT_GE(before, 8);
  EXPECT_GE(behind, 12);
}

TEST_F(FakeMessages, InGraphs) {
  inAllOrders([] {
    onRanks(3, [](Rank& r) {
      Gpu& gpu = r.gpu;
      int32_t* x = r.numbers(1, r.rank);
      Event ready = gpu->makeEvent(), come = gpu->makeEvent();
      gpu->beginGraph(gpu.a);
      gpu.step(gpu.a, x, 1, 1);
      gpu->record(ready, gpu.a);
      gpu->wait(gpu.b, ready);
      r->allReduce(r.clique, x, x, 1, Elem::I32, Reduce::Max, gpu.b);
      gpu->record(come, gpu.b);
      gpu->wait(gpu.a, come);
      gpu.step(gpu.a, x, 2, r.rank);
      Graph graph = llvm::cantFail(gpu->endGraph(gpu.a));
      EXPECT_EQ(gpu->nodes(graph), 3);
      for (int i = 0; i < 3; ++i) gpu->launch(gpu.a, graph);
      EXPECT_EQ(gpu.finish(gpu.a), "");
      EXPECT_EQ(gpu.read(x, 1)[0], (((2 + 1) * 2 + 2 + 1) * 2 + 2 + 1) * 2 + r.rank);
    });
  });
}

// A GPU goes on while its host waits for something else.
TEST_F(FakeMessages, HostsMayWaitForEachOther) {
  std::barrier meeting(2);
  onRanks(2, [&](Rank& r) {
    int32_t* x = r.numbers(1, 1);
    r->allReduce(r.clique, x, x, 1, Elem::I32, Reduce::Sum, r.gpu.b);
    if (r.rank == 0) meeting.arrive_and_wait();
    EXPECT_EQ(r.finish(), "");
    if (r.rank == 1) meeting.arrive_and_wait();
  });
}

// --- what goes wrong ---

using Body = std::function<void(Rank&, int32_t* x)>;

// The errors of all ranks.
std::vector<std::string> errorsOf(int ranks, const Body& body, double hangSeconds = 0.3) {
  fake::options().hangSeconds = hangSeconds;
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  onRanks(ranks, [&](Rank& r) {
    int32_t* x = r.numbers(16, r.rank);
    body(r, x);
    errors[size_t(r.rank)] = r.finish();
    r->abort(r.clique);
  });
  return errors;
}

TEST_F(FakeMessages, RanksThatDisagree) {
  auto one = [](Rank& r, int32_t* x, int64_t count, Elem elem, Reduce reduce) {
    r->allReduce(r.clique, x, x, count, elem, reduce, r.gpu.b);
  };
  const Body bodies[] = {
      [&](Rank& r, int32_t* x) { one(r, x, 2 + r.rank, Elem::I32, Reduce::Sum); },
      [&](Rank& r, int32_t* x) { one(r, x, 2, r.rank ? Elem::F32 : Elem::I32, Reduce::Sum); },
      [&](Rank& r, int32_t* x) { one(r, x, 2, Elem::I32, r.rank ? Reduce::Max : Reduce::Sum); },
      [&](Rank& r, int32_t* x) {
        if (r.rank == 0) return one(r, x, 2, Elem::I32, Reduce::Sum);
        r->allGather(r.clique, x, x + 4, 2, Elem::I32, r.gpu.b);
      },
      [](Rank& r, int32_t* x) { r->broadcast(r.clique, x, 1, Elem::I32, r.rank, r.gpu.b); },
      [](Rank& r, int32_t* x) {
        if (r.rank == 0) return r->send(r.clique, x, 2, Elem::I32, 1, r.gpu.b);
        r->receive(r.clique, x, 3, Elem::I32, 0, r.gpu.b);
      },
  };
  for (const Body& body : bodies)
    for (const std::string& error : errorsOf(2, body, 60)) {
      EXPECT_HAS(error, " where rank ");
      EXPECT_HAS(error, " does ");
    }
}

TEST_F(FakeMessages, Hangs) {
  // A rank that never sends.
  auto errors = errorsOf(3, [](Rank& r, int32_t* x) {
    r.gpu->at("all_reduce (line 7)");
    if (r.rank != 1) r->allReduce(r.clique, x, x, 2, Elem::I32, Reduce::Sum, r.gpu.b);
    while (r.rank == 1 && !r->error(r.clique)) std::this_thread::yield();
  });
  EXPECT_HAS(errors[0], "no GPU does anything: on rank ");
  EXPECT_HAS(errors[0], "all-reduce of 2 i32 waits for rank 1");
  EXPECT_HAS(errors[0] + errors[2], "all_reduce (line 7): ");
  // Two that send first, and are no group.
  errors = errorsOf(2, [](Rank& r, int32_t* x) {
    r->send(r.clique, x, 1, Elem::I32, 1 - r.rank, r.gpu.b);
    r->receive(r.clique, x, 1, Elem::I32, 1 - r.rank, r.gpu.b);
  });
  EXPECT_HAS(errors[0], "send of 1 i32 to rank ");
  // Two collectives in different order on two cliques, each waiting for the other.
  errors = errorsOf(2, [](Rank& r, int32_t* x) {
    Clique other = llvm::cantFail(r->split(r.clique, 0, r.rank));
    for (int i : {r.rank, 1 - r.rank})
      r->allReduce(i == 0 ? r.clique : other, x, x, 1, Elem::I32, Reduce::Sum, r.gpu.b);
  });
  EXPECT_HAS(errors[0] + errors[1], "all-reduce of 1 i32 waits for rank ");
}

TEST_F(FakeMessages, RanksThatAreGone) {
  auto reduceTwice = [](Rank& r, int32_t* x) {
    for (int i = 0; i < 2; ++i)
      r->allReduce(r.clique, x, x, 2, Elem::I32, Reduce::Sum, r.gpu.b);
  };
  fake::inject(Fault::Death, 2, 2);
  auto errors = errorsOf(3, reduceTwice, 60);
  EXPECT_HAS(errors[0], "rank 2 is lost");
  EXPECT_HAS(errors[1], "rank 2 is lost");
  EXPECT_HAS(errors[2], " is lost");

  fake::inject(Fault::Silence, 1, 2);
  errors = errorsOf(3, reduceTwice);
  EXPECT_HAS(errors[0], "all-reduce of 2 i32 waits for rank 1");
  EXPECT_HAS(errors[2], "all-reduce of 2 i32 waits for rank 1");

  fake::inject(Fault::CliqueError, 1, 2);
  for (const std::string& error : errorsOf(3, reduceTwice, 60))
    EXPECT_HAS(error, "an error, as a test wants it");

  // One that gives up.
  errors = errorsOf(3, [&](Rank& r, int32_t* x) {
    if (r.rank == 1) return r->abort(r.clique);
    reduceTwice(r, x);
  }, 60);
  EXPECT_HAS(errors[0], "rank 1 is gone, for which all-reduce of 2 i32 waits");
}

TEST_F(FakeMessages, AbortEndsWhatIsUnderWay) {
  onRanks(2, [](Rank& r) {
    int32_t* x = r.numbers(1, 1);
    if (r.rank == 1) return;
    r->receive(r.clique, x, 1, Elem::I32, 1, r.gpu.b);
    r->abort(r.clique);
    EXPECT_EQ(r.finish().find("abort"), std::string::npos);
    r->send(r.clique, x, 1, Elem::I32, 1, r.gpu.b);
    EXPECT_HAS(llvm::toString(r.gpu->error()), "in a clique that was aborted");
  });
}

TEST_F(FakeMessages, CallsThatAreNone) {
  using Try = std::function<void(Rank&, int32_t*)>;
  const std::pair<Try, const char*> tries[] = {
      {[](Rank& r, int32_t* x) { r->send(r.clique, x, 1, Elem::I32, 1, r.gpu.b); },
       "send of 1 i32 to rank 1: there is no such call"},
      {[](Rank& r, int32_t* x) {
         r->allReduce(r.clique, x, x + 15, 2, Elem::I32, Reduce::Sum, r.gpu.b);
       },
       "its memory is not in one allocation"},
      {[](Rank& r, int32_t* x) {
         r->allReduce(r.clique, x, x + 1, 2, Elem::I32, Reduce::Sum, r.gpu.b);
       },
       "what it sends and what it receives overlap"},
      {[](Rank& r, int32_t*) {
         auto* pinned = *r.gpu->allocateHost(4);
         r->broadcast(r.clique, pinned, 1, Elem::I32, 0, r.gpu.b);
       },
       "its memory is not in one allocation"},
      {[](Rank& r, int32_t* x) { r->enroll(r.clique, x, 17 * 4); }, "enrolls memory"},
  };
  for (const auto& [attempt, text] : tries)
    onRanks(1, [&, &attempt = attempt, &text = text](Rank& r) {
      attempt(r, r.gpu.memory(16));
      EXPECT_HAS(llvm::toString(r.gpu->error()), text);
    });
}

TEST_F(FakeMessages, Joining) {
  fake::options().hangSeconds = 0.2;
  Rank first(0, 2);
  Messenger::Id id = llvm::cantFail(first->makeId());
  auto alone = first->join(id, 2, 0);
  ASSERT_FALSE(bool(alone));
  EXPECT_EQ(llvm::toString(alone.takeError()), "not all 2 ranks joined the clique");
  id = llvm::cantFail(first->makeId());
  fake::options().hangSeconds = 60;
  std::thread other([&] {
    Rank twin(0, 2);
    auto made = twin->join(id, 2, 1);
    if (made) return;
    EXPECT_EQ(llvm::toString(made.takeError()), "two ranks of a clique are on GPU 0");
  });
  auto made = first->join(id, 2, 0);
  if (!made) llvm::consumeError(made.takeError());
  other.join();
}

}  // namespace
}  // namespace planc::cuda
