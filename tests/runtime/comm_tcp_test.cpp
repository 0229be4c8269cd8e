// Ranks that talk over TCP, as threads and as processes of this machine: every collective against
// plain loops, failures that must end all ranks with the same words, processes that are killed or
// never come; and what the environment says of how a process was started.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <thread>

#include "tests/runtime/comm_cases.h"

namespace planc {
namespace {

using namespace std::chrono_literals;
using Body = std::function<llvm::Error(Communicator&)>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A port that nobody uses now.
int freePort() {
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return ntohs(address.sin_port);
}

// Runs `body` as one rank; how it ended, in words: of its start, or of its body.
std::string runRank(int rank, int size, int port, std::chrono::milliseconds timeout,
                    const Body& body) {
  auto comm = makeTcpCommunicator(rank, size, "127.0.0.1", port, timeout);
  if (!comm) return llvm::toString(comm.takeError());
  return llvm::toString(body(**comm));
}

// As threads of this process; how each rank ended.
std::vector<std::string> runThreads(int size, std::chrono::milliseconds timeout, const Body& body,
                                    std::vector<int> absent = {}) {
  int port = freePort();
  std::vector<std::string> ends(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    if (llvm::is_contained(absent, r)) continue;
    threads.emplace_back([&, r] { ends[size_t(r)] = runRank(r, size, port, timeout, body); });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

// As processes; what each rank's wrote, and whether it came to its end. `stopped`: the last rank stands
// still some day, and is killed when all others have ended.
struct Ended {
  std::string text;
  bool isWhole = false;
};
std::vector<Ended> runProcesses(int size, std::chrono::milliseconds timeout, const Body& body,
                                bool stopped = false) {
  int port = freePort();
  std::vector<pid_t> children;
  std::vector<int> pipes;
  for (int r = 0; r < size; ++r) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_t child = ::fork();
    if (child == 0) {
      std::string text = runRank(r, size, port, timeout, body);
      [[maybe_unused]] ssize_t written = ::write(ends[1], text.data(), text.size());
      ::_exit(0);
    }
    ::close(ends[1]);
    children.push_back(child);
    pipes.push_back(ends[0]);
  }
  std::vector<Ended> all;
  for (size_t r = 0; r < children.size(); ++r) {
    Ended ended;
    char some[512];
    if (stopped && r + 1 == children.size()) ::kill(children[r], SIGKILL);
    for (ssize_t got; (got = ::read(pipes[r], some, sizeof some)) > 0;)
      ended.text.append(some, size_t(got));
    ::close(pipes[r]);
    int status = 0;
    ::waitpid(children[r], &status, 0);
    ended.isWhole = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    all.push_back(ended);
  }
  return all;
}

llvm::Error allReduce(Communicator& comm, int number, int64_t count = 1000) {
  std::vector<float> data(static_cast<size_t>(count));
  Site site{.op = "all_reduce", .tensor = "w", .place = "gpt.plan:12", .number = number};
  return comm.wait(
      comm.start(comm.world(), {.send = data.data(), .recv = data.data(), .count = count}, site));
}

class TcpCollectives : public testing::TestWithParam<int> {};
TEST_P(TcpCollectives, AgreeWithPlainLoops) {
  auto ends = runThreads(GetParam(), 60s, [](Communicator& comm) {
    for (const std::string& failure : checkCollectives(comm, 12007)) ADD_FAILURE() << failure;
    EXPECT_EQ(agreed(comm, [](int) { return ""; }), "");
    int last = comm.size() - 1;
    std::string text = agreed(comm, [&](int r) { return r == last ? "disk full" : ""; });
    EXPECT_EQ(text, last == 0 ? "disk full" : "rank " + std::to_string(last) + ": disk full");
    return llvm::Error::success();
  });
  for (const std::string& end : ends) EXPECT_EQ(end, "");
}
INSTANTIATE_TEST_SUITE_P(Ranks, TcpCollectives, testing::Values(1, 2, 3, 4, 8),
                         testing::PrintToStringParamName());

TEST(TcpProcesses, Work) {
  auto ends = runProcesses(4, 60s, [](Communicator& comm) {
    std::vector<std::string> failures = checkCollectives(comm, 3001);
    return failures.empty() ? llvm::Error::success()
                            : llvm::createStringError(llvm::inconvertibleErrorCode(), failures[0]);
  });
  for (const Ended& end : ends) EXPECT_TRUE(end.isWhole && end.text.empty()) << end.text;
}

// Long messages, in parts: their buffers stay in the ranks' processes.
TEST(TcpProcesses, LongMessages) {
  auto ends = runProcesses(3, 60s, [](Communicator& comm) {
    std::vector<std::string> failures = checkCollectives(comm, 200003);
    return failures.empty() ? llvm::Error::success()
                            : llvm::createStringError(llvm::inconvertibleErrorCode(), failures[0]);
  });
  for (const Ended& end : ends) EXPECT_TRUE(end.isWhole && end.text.empty()) << end.text;
}

// A rank is killed, or stands still, in the middle of one.
TEST(TcpProcesses, OneStopsInALongMessage) {
  for (int signal : {SIGKILL, SIGSTOP}) {
    auto ends = runProcesses(
        3, 1s,
        [&](Communicator& comm) -> llvm::Error {
          if (comm.rank() == 2)
            std::thread([signal] { std::this_thread::sleep_for(100ms), ::raise(signal); }).detach();
          for (int i = 1;; ++i)
            if (llvm::Error error = allReduce(comm, i, 1 << 21)) return error;
        },
        signal == SIGSTOP);
    for (int r : {0, 1}) {
      EXPECT_TRUE(ends[size_t(r)].isWhole);
      EXPECT_EQ(ends[size_t(r)].text, ends[0].text);
      EXPECT_PRED2(contains, ends[size_t(r)].text, "rank 2");
    }
  }
}

// One of these ranks is killed: while others wait for it, and while it waits for others.
TEST(TcpProcesses, OneIsKilled) {
  for (int victim : {0, 2}) {
    for (bool waits : {false, true}) {
      SCOPED_TRACE(testing::Message() << "rank " << victim << (waits ? " waits" : ""));
      auto ends = runProcesses(4, 20s, [&](Communicator& comm) -> llvm::Error {
        if (llvm::Error error = allReduce(comm, 1)) return error;
        if (comm.rank() == victim && !waits) ::raise(SIGKILL);
        std::thread killer;
        if (comm.rank() == victim)
          killer = std::thread([] { std::this_thread::sleep_for(100ms), ::raise(SIGKILL); });
        // With `waits` nobody but the victim is in a message when it dies.
        if (comm.rank() != victim && waits) std::this_thread::sleep_for(400ms);
        llvm::Error error = allReduce(comm, 2);
        if (killer.joinable()) killer.join();
        return error;
      });
      for (int r = 0; r < 4; ++r) {
        const Ended& end = ends[size_t(r)];
        EXPECT_EQ(end.isWhole, r != victim);
        if (r == victim) continue;
        EXPECT_PRED2(contains, end.text, "rank " + std::to_string(victim) + " is gone: ");
        EXPECT_EQ(end.text, ends[victim == 0 ? 1 : 0].text);
      }
    }
  }
}

// Whatever goes wrong, all ranks end with the same words.
void expectEnds(const std::vector<std::string>& ends, const std::string& part, int except = -1) {
  for (size_t r = 0; r < ends.size(); ++r) {
    if (int(r) == except) continue;
    EXPECT_PRED2(contains, ends[r], part) << "rank " << r;
    EXPECT_EQ(ends[r], ends[except == 0 ? 1 : 0]) << "rank " << r;
  }
}

TEST(TcpFailures, ARankFails) {
  for (int culprit : {0, 2}) {
    expectEnds(runThreads(4, 10s,
                          [&](Communicator& comm) {
                            if (comm.rank() == culprit) comm.fail("disk full");
                            return allReduce(comm, 1);
                          }),
               "rank " + std::to_string(culprit) + " failed: disk full");
  }
}

TEST(TcpFailures, CountsDiffer) {
  expectEnds(runThreads(4, 10s,
                        [](Communicator& comm) {
                          return allReduce(comm, 7, comm.rank() == 1 ? 2000 : 1000);
                        }),
             "rank 1 asks for all-reduce (sum) of 2000 f32 in all_reduce 7 of 'w' (gpt.plan:12)");
}

TEST(TcpFailures, ARankLeavesOutAMessage) {
  for (int culprit : {0, 3}) {
    auto ends = runThreads(4, 10s, [&](Communicator& comm) -> llvm::Error {
      comm.setStage("pipe 1");
      for (int i = 1; i <= 3; ++i) {
        if (comm.rank() == culprit && i == 2) continue;
        if (llvm::Error error = allReduce(comm, i)) return error;
      }
      return llvm::Error::success();
    });
    std::string who = "rank " + std::to_string(culprit);
    expectEnds(ends, who + " ended: rank ", culprit);
    expectEnds(ends, "waits for " + who + " in all_reduce 3 of 'w' (gpt.plan:12) on pipe 1",
               culprit);
  }
}

TEST(TcpFailures, ARankStalls) {
  expectEnds(runThreads(3, 500ms,
                        [](Communicator& comm) {
                          if (comm.rank() == 1) std::this_thread::sleep_for(800ms);
                          return allReduce(comm, 4);
                        }),
             "no progress for 500 ms: rank ");
}

TEST(TcpFailures, ATicketLeftBehind) {
  float data[8] = {};
  auto ends = runThreads(2, 10s, [&](Communicator& comm) -> llvm::Error {
    if (comm.rank() == 1) {
      comm.start(comm.world(), {.send = data, .recv = data, .count = 8}, {.op = "all_reduce"});
      return llvm::Error::success();
    }
    if (llvm::Error error = allReduce(comm, 1, 8)) return error;
    return allReduce(comm, 2, 8);
  });
  EXPECT_EQ(ends[0], "rank 1 ended without waiting for all_reduce");
  EXPECT_EQ(ends[1], "");
}

TEST(TcpStart, ARankNeverComes) {
  auto ends = runThreads(5, 700ms, [](Communicator&) { return llvm::Error::success(); }, {1, 3});
  for (size_t r : {0, 2, 4}) {
    EXPECT_PRED2(contains, ends[r], "rank 0 at 127.0.0.1:");
    EXPECT_PRED2(contains, ends[r], ": ranks 1, 3 of 5 did not come to 127.0.0.1:");
    EXPECT_PRED2(contains, ends[r], " within 700 ms; ranks 0, 2, 4 did");
  }
}

TEST(TcpStart, NoRankZero) {
  auto ends = runThreads(2, 300ms, [](Communicator&) { return llvm::Error::success(); }, {0});
  EXPECT_PRED2(contains, ends[1], "rank 1 cannot reach rank 0 at 127.0.0.1:");
  EXPECT_PRED2(contains, ends[1], " within 300 ms: Connection refused");
}

TEST(TcpStart, RanksContradict) {
  struct Case {
    int rank, size;
    const char* text;
  };
  for (const Case& test : {Case{1, 4, "rank 1 was started as one of 4 ranks, rank 0 as one of 3"},
                           Case{2, 3, "there are two processes that say they are rank 2"}}) {
    int port = freePort();
    auto body = [](Communicator& comm) { return comm.barrier(comm.world(), {.op = "barrier"}); };
    std::vector<std::string> ends(3);
    std::vector<std::thread> threads;
    threads.emplace_back([&] { ends[0] = runRank(0, 3, port, 2s, body); });
    threads.emplace_back([&] { ends[1] = runRank(2, 3, port, 2s, body); });
    threads.emplace_back([&] { ends[2] = runRank(test.rank, test.size, port, 2s, body); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_PRED2(contains, ends[0], test.text);
    EXPECT_PRED2(contains, ends[2], test.text);
  }
}

// Whoever else knocks at the port changes nothing.
TEST(TcpStart, Strangers) {
  int port = freePort();
  auto knock = [&](llvm::StringRef words) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(uint16_t(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    while (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      std::this_thread::sleep_for(1ms);
    EXPECT_EQ(::send(fd, words.data(), words.size(), 0), ssize_t(words.size()));
    return fd;
  };
  auto body = [](Communicator& comm) { return comm.barrier(comm.world(), {.op = "barrier"}); };
  std::string ends[2];
  std::thread zero([&] { ends[0] = runRank(0, 2, port, 10s, body); });
  int silent = knock(""), loud = knock("GET / HTTP/1.1\r\nHost: planc\r\n\r\n"), brief = knock("x");
  ::close(brief);
  ends[1] = runRank(1, 2, port, 10s, body);
  zero.join();
  for (int fd : {silent, loud}) ::close(fd);
  EXPECT_EQ(ends[0], "");
  EXPECT_EQ(ends[1], "");
}

// Environments and what they say.
struct LaunchCase {
  std::map<std::string, std::string> environment;
  std::optional<Launch> launch;
  std::string error;
};
TEST(Launch, Environments) {
  using Variables = std::map<std::string, std::string>;
  const Variables torchrun = {{"RANK", "3"},
                              {"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", "1"},
                              {"MASTER_ADDR", "node7"},
                              {"MASTER_PORT", "29500"}};
  const Variables slurm = {{"SLURM_PROCID", "5"},
                           {"SLURM_STEP_NUM_TASKS", "8"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_JOB_ID", "47001"},
                           {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7"}};
  auto with = [](Variables variables, const Variables& more) {
    for (const auto& [name, value] : more) variables[name] = value;
    return variables;
  };
  auto without = [](Variables variables, const char* name) {
    variables.erase(name);
    return variables;
  };
  const LaunchCase cases[] = {
      {{}, std::nullopt, ""},
      {{{"MASTER_ADDR", "node7"}, {"SLURM_STEP_NUM_TASKS", "8"}}, std::nullopt, ""},
      {torchrun, Launch{3, 4, 1, "node7", 29500}, ""},
      {with(torchrun, slurm), Launch{3, 4, 1, "node7", 29500}, ""},
      {with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}), Launch{3, 4, 1, "node7", 29501},
       ""},
      {slurm, Launch{5, 8, 1, "10.0.0.7", 17001}, ""},
      {with(slurm, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "7000"}}), Launch{5, 8, 1, "a", 7000},
       ""},
      {without(torchrun, "RANK"), {}, "the environment has no RANK"},
      {without(torchrun, "WORLD_SIZE"), {}, "the environment has no WORLD_SIZE"},
      {without(torchrun, "MASTER_ADDR"), {}, "the environment has no MASTER_ADDR"},
      {without(torchrun, "MASTER_PORT"), {}, "the environment has no MASTER_PORT"},
      {without(slurm, "SLURM_STEP_NUM_TASKS"), std::nullopt, ""},  // a job's own script
      {without(slurm, "SLURM_LAUNCH_NODE_IPADDR"),
       {},
       "the environment has no SLURM_LAUNCH_NODE_IPADDR"},
      {with(slurm, {{"MASTER_ADDR", "a"}}), {}, "the environment has no MASTER_PORT"},
      {with(torchrun, {{"RANK", "4"}}), {}, "RANK is 4 in the environment, but WORLD_SIZE is 4"},
      {with(torchrun, {{"LOCAL_RANK", "9"}}),
       {},
       "LOCAL_RANK is 9 in the environment, but WORLD_SIZE is 4"},
      {with(torchrun, {{"RANK", "-1"}}),
       {},
       "RANK is '-1' in the environment, not a number from 0 to 1048576"},
      {with(torchrun, {{"WORLD_SIZE", "four"}}),
       {},
       "WORLD_SIZE is 'four' in the environment, not a number from 1 to 1048576"},
      {with(torchrun, {{"MASTER_PORT", "70000"}}),
       {},
       "MASTER_PORT is '70000' in the environment, not a number from 1 to 65535"},
      {with(torchrun, {{"MASTER_ADDR", ""}}), {}, "the environment has no MASTER_ADDR"},
  };
  for (const LaunchCase& test : cases) {
    auto get = [&](const char* name) -> const char* {
      auto found = test.environment.find(name);
      return found == test.environment.end() ? nullptr : found->second.c_str();
    };
    auto launch = launchedAs(get);
    std::string error = launch ? "" : llvm::toString(launch.takeError());
    EXPECT_EQ(error, test.error);
    if (!error.empty()) continue;
    EXPECT_TRUE(*launch == test.launch) << test.error;
  }
}

}  // namespace
}  // namespace planc
