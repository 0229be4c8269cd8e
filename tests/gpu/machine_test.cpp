// Whole programs on the fake machine: a recorded step is the step, whatever its depth it is few calls,
// and what goes wrong between GPUs or on one of them is told with the rank, the op and its line.
#include <mutex>

#include "runtime/cuda/cliques.h"
#include "runtime/session.h"
#include "runtime/talk.h"
#include "tests/gpu/fake.h"
#include "tests/runtime/plans.h"

namespace planc::test {
namespace {

using cuda::fake::Fault;
using cuda::fake::Mode;

const std::string kData = PLANC_SOURCE_DIR "/examples/data/genesis.txt";

struct Machine {
  explicit Machine(Mode mode = Mode::Random, uint64_t seed = 2) {
    auto& options = cuda::fake::options();
    options = {};
    options.mode = mode;
    options.seed = seed;
    options.bytes = int64_t(1) << 26;
  }
  ~Machine() {
    cuda::fake::clearFaults();
    cuda::fake::options() = {};
  }
};

// Runs `body` as each rank on a GPU of its own; what the first that failed said.
std::string onGpus(const Module& program,
                   const std::function<llvm::Error(Session&, Communicator&)>& body,
                   std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  int ranks = int(program.grid.ranks());
  auto team = makeThreadTeam(ranks, timeout);
  std::mutex mutex;
  std::string said;
  std::vector<std::thread> threads;
  auto asRank = [&](int rank) -> llvm::Error {
    auto host = team->communicator(rank);
    auto device = agree(*host, makeCudaDevice(rank, Coordinates(program.grid, rank)));
    if (!device) return device.takeError();
    auto comm = makeNcclCommunicator(*host, **device, timeout);
    if (!comm) return comm.takeError();
    auto session = Session::create(program, **device, **comm);
    if (!session) return session.takeError();
    if (llvm::Error error = (*session)->initialise()) return error;
    return body(**session, **comm);
  };
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::string error = llvm::toString(asRank(rank));
      std::lock_guard lock(mutex);
      if (said.empty()) said = error;
    });
  for (std::thread& thread : threads) thread.join();
  return team->failure().empty() ? said : team->failure();
}

llvm::Error train(Session& session, int64_t steps) {
  auto data = TokenFile::open(kData);
  if (!data) return data.takeError();
  while (session.stepsDone() < steps)
    if (auto record = session.step(*data); !record) return record.takeError();
  return llvm::Error::success();
}

// All weights and moments of all ranks behind some steps, in the ranks' order.
std::string stateAfter(const Module& program, int64_t steps, bool records) {
  std::vector<std::string> states(size_t(program.grid.ranks()));
  EXPECT_EQ("", onGpus(program, [&](Session& session, Communicator& comm) -> llvm::Error {
              session.setRecording(records);
              if (llvm::Error error = train(session, steps)) return error;
              for (const auto& var : program.vars) {
                if (var->kind != VarKind::Weight && var->kind != VarKind::Moment) continue;
                auto bytes = session.interpreter().read(*var);
                if (!bytes) return bytes.takeError();
                states[size_t(comm.rank())].append(bytes->as<char>(), size_t(var->type.bytes()));
              }
              return llvm::Error::success();
            }));
  std::string all;
  for (const std::string& state : states) all += state;
  return all;
}

// Two layers, or more, on all axes that need no counts on the host; dropout, so that the step counts.
std::unique_ptr<Module> plan(int layers = 2, const std::string& more = "microbatches 2\n") {
  Compiled made = compilePlanOn(
      planOf("dense(layers = " + std::to_string(layers) + ", vocab = 256, rate = 0.1)",
             "grid data 2, tensor 2\n" + kSequence + kAdamW + more),
      true);
  return std::move(made.program);
}

TEST(GpuMachine, ARecordedStepIsTheStep) {
  auto program = plan();
  ASSERT_TRUE(program);
  std::string plain, recorded;
  {
    Machine machine(Mode::Eager);
    plain = stateAfter(*program, 5, false);
  }
  ASSERT_FALSE(plain.empty());
  for (Mode mode : cuda::fake::kModes) {
    Machine machine(mode, 3);
    EXPECT_TRUE(stateAfter(*program, 5, true) == plain) << "mode " << int(mode);
  }
  Machine machine(Mode::Random, 4);
  EXPECT_TRUE(stateAfter(*program, 5, false) == plain) << "without a graph";
  // Had the step's number been recorded with it, dropout would be the same in each.
  EXPECT_FALSE(stateAfter(*program, 4, true) == plain);
}

// The same plan on CPUs, in which every step has its number: of dropout, of AdamW, of the data.
TEST(GpuMachine, LossesAreTheCpus) {
  auto program = plan();
  ASSERT_TRUE(program);
  std::vector<double> onCpu, onGpu;
  auto losses = [](Session& session, std::vector<double>& into, bool isFirst) -> llvm::Error {
    auto data = TokenFile::open(kData);
    if (!data) return data.takeError();
    for (int step = 0; step < 5; ++step) {
      auto record = session.step(*data);
      if (!record) return record.takeError();
      if (isFirst) into.push_back(record->loss);
    }
    return llvm::Error::success();
  };
  onGoodRanks(program->grid.ranks(), [&](Communicator& comm) -> llvm::Error {
    auto device = makeCpuDevice(1, Coordinates(program->grid, comm.rank()));
    auto session = Session::create(*program, *device, comm);
    if (!session) return session.takeError();
    if (llvm::Error error = (*session)->initialise()) return error;
    return losses(**session, onCpu, comm.rank() == 0);
  });
  Machine machine(Mode::Newest, 5);
  EXPECT_EQ("", onGpus(*program, [&](Session& session, Communicator& comm) {
              return losses(session, onGpu, comm.rank() == 0);
            }));
  ASSERT_EQ(onGpu.size(), 5u);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(onGpu[i], onCpu[i], 1e-5 * onCpu[i]) << "step " << i;
}

// More than the pinned memory that it goes through.
TEST(GpuMachine, LongCopiesComeThroughWhole) {
  for (Mode mode : cuda::fake::kModes) {
    Machine machine(mode);
    auto device = makeCudaDevice(0);
    ASSERT_TRUE(bool(device));
    std::vector<int32_t> sent(5 << 20), got(sent.size());
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = int32_t(i * 2654435761u);
    int64_t bytes = int64_t(sent.size() * sizeof(int32_t));
    std::byte* at = llvm::cantFail((*device)->allocate(bytes));
    (*device)->write(at, sent.data(), bytes);
    ASSERT_EQ("", llvm::toString((*device)->read(got.data(), at, bytes)));
    EXPECT_TRUE(got == sent) << "mode " << int(mode);
  }
}

TEST(GpuMachine, AReplayIsFewCallsWhateverTheDepth) {
  std::vector<int64_t> calls;
  for (int layers : {2, 6}) {
    auto program = plan(layers, "");
    ASSERT_TRUE(program);
    Machine machine(Mode::Eager);
    std::atomic<int64_t> before = 0, after = 0;
    EXPECT_EQ("", onGpus(*program, [&](Session& session, Communicator& comm) -> llvm::Error {
                if (llvm::Error error = train(session, 3)) return error;
                if (llvm::Error error = comm.barrier(comm.world(), {"before"})) return error;
                before = cuda::fake::enqueued();
                if (llvm::Error error = comm.barrier(comm.world(), {"begin"})) return error;
                if (llvm::Error error = train(session, 4)) return error;
                if (llvm::Error error = comm.barrier(comm.world(), {"after"})) return error;
                after = cuda::fake::enqueued();
                return comm.barrier(comm.world(), {"end"});
              }));
    calls.push_back(after - before);
  }
  EXPECT_EQ(calls[0], calls[1]);
  EXPECT_LE(calls[0], 4 * 12) << "of four ranks";
}

// Of the layer's sums, which are messages of rank 1's GPU that never come.
TEST(GpuMachine, AMessageThatNeverComesIsNamed) {
  auto program = plan(2, "");
  ASSERT_TRUE(program);
  for (bool records : {false, true}) {
    Machine machine;
    cuda::fake::options().hangSeconds = 60;
    std::string said = onGpus(
        *program,
        [&](Session& session, Communicator& comm) -> llvm::Error {
          session.setRecording(records);
          if (llvm::Error error = train(session, 2)) return error;
          if (llvm::Error error = comm.barrier(comm.world(), {"before"})) return error;
          if (comm.rank() == 0) cuda::fake::inject(Fault::Silence, 1, 3);
          if (llvm::Error error = comm.barrier(comm.world(), {"begin"})) return error;
          return train(session, 4);
        },
        std::chrono::seconds(2));
    EXPECT_NE(said.find("no progress for 2 s in "), std::string::npos) << said;
    EXPECT_NE(said.find(".plan:"), std::string::npos) << said;
  }
}

TEST(GpuMachine, ALostRankEndsTheRun) {
  auto program = plan(2, "");
  ASSERT_TRUE(program);
  for (Fault fault : {Fault::Death, Fault::CliqueError}) {
    Machine machine;
    std::string said = onGpus(*program, [&](Session& session, Communicator& comm) -> llvm::Error {
      if (llvm::Error error = train(session, 1)) return error;
      if (llvm::Error error = comm.barrier(comm.world(), {"before"})) return error;
      if (comm.rank() == 0) cuda::fake::inject(fault, 2, 5);
      if (llvm::Error error = comm.barrier(comm.world(), {"begin"})) return error;
      return train(session, 3);
    });
    EXPECT_FALSE(said.empty()) << "fault " << int(fault);
  }
}

TEST(GpuMachine, AFailedLaunchIsNamed) {
  auto program = plan(2, "");
  ASSERT_TRUE(program);
  Machine machine(Mode::Eager);
  std::string said = onGpus(*program, [&](Session& session, Communicator& comm) -> llvm::Error {
    if (llvm::Error error = comm.barrier(comm.world(), {"before"})) return error;
    if (comm.rank() == 0) cuda::fake::inject(Fault::Launch, 0, 20);
    if (llvm::Error error = comm.barrier(comm.world(), {"begin"})) return error;
    return train(session, 1);
  });
  EXPECT_NE(said.find("rank 0 failed"), std::string::npos) << said;
  EXPECT_NE(said.find("launch"), std::string::npos) << said;
  EXPECT_NE(said.find(".plan:"), std::string::npos) << said;
}

TEST(GpuMachine, AnArenaThatDoesNotFitSaysHowMuch) {
  auto program = plan();
  ASSERT_TRUE(program);
  Machine machine;
  cuda::fake::options().bytes = 9 << 20;
  program->arenaBytes = 64 << 20;
  std::string said =
      onGpus(*program, [](Session&, Communicator&) { return llvm::Error::success(); });
  EXPECT_NE(said.find("has no room for an arena of 67108864 bytes"), std::string::npos) << said;
}

TEST(GpuMachine, ThereIsNoSuchGpu) {
  Machine machine;
  cuda::fake::options().gpus = 2;
  auto device = makeCudaDevice(2);
  ASSERT_FALSE(bool(device));
  EXPECT_NE(llvm::toString(device.takeError()).find("2"), std::string::npos);
}

TEST(Cliques, EveryGroupIsInARoundAndNoRankTwice) {
  std::vector<cuda::GroupKey> groups;
  for (int i = 0; i < 8; ++i)
    for (int size : {2, 4}) {
      std::vector<int> row, column;
      for (int k = 0; k < size; ++k) {
        row.push_back(i / size * size + k);
        column.push_back(i % (8 / size) + k * (8 / size));
      }
      for (const auto& members : {row, column})
        for (int number : {0, 1}) groups.push_back({members, number});
    }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  auto again = cuda::readGroups(cuda::writeGroups(groups));
  ASSERT_TRUE(bool(again));
  EXPECT_EQ(*again, groups);
  auto rounds = cuda::roundsOf(groups);
  size_t placed = 0;
  for (const auto& round : rounds) {
    std::set<int> ranks;
    for (const auto& group : round)
      for (int rank : group.members) EXPECT_TRUE(ranks.insert(rank).second);
    placed += round.size();
  }
  EXPECT_EQ(placed, groups.size());
  EXPECT_LE(rounds.size(), 10u);  // every rank is in 8 groups
  auto broken = cuda::readGroups("0 1 x");
  ASSERT_FALSE(bool(broken));
  EXPECT_NE(llvm::toString(broken.takeError()).find("which is no group"), std::string::npos);
}

}  // namespace
}  // namespace planc::test
