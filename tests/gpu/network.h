// What ranks of fake GPUs, threads of one process, tell each other: cliques, and the operations
// that have been posted to them. Data moves when the last of those that an operation needs has
// come.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/cuda/gpu.h"
#include "tests/gpu/executor.h"

namespace planc::cuda::fake {

enum class Kind : uint8_t { AllReduce, ReduceScatter, AllGather, Broadcast, Send, Receive };

struct Call {
  Kind kind;
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t count = 0;  // of a rank's piece, where there are pieces
  Elem elem = Elem::F32;
  Reduce reduce = Reduce::Sum;
  int peer = 0;  // the root, or who it is sent to or received from

  bool isCollective() const { return kind != Kind::Send && kind != Kind::Receive; }
  std::string text() const;
};

// What one rank does in one clique at once: all of it is done together.
struct Operation {
  int rank;
  std::vector<Call> calls;
  uint64_t ticket = 0;  // operations of a rank go one after another
  bool isPosted = false;
  size_t left = 0;  // calls
};
using OperationRef = std::shared_ptr<Operation>;

struct Posted {
  OperationRef operation;
  const Call* call;
};

// All members need the network's lock.
struct Club {
  explicit Club(int ranks) : members(size_t(ranks)) {}

  struct Member {
    std::shared_ptr<Core> core;  // null: has not come yet
    uint64_t issued = 0, finished = 0, collectives = 0;
    bool isGone = false;    // aborted, or its messenger has ended
    bool isSilent = false;  // a fault
  };
  std::vector<Member> members;
  std::string failure;  // for all ranks
  bool failsDrivers = false;

  void post(const OperationRef& operation);
  // Why an operation that was posted waits.
  std::string waitsFor(const Operation& operation) const;
  // Whoever waits for someone who is gone waits in vain.
  void noteGone(const Operation& operation);
  void leave(int rank);
  void fail(const std::string& text, bool failsDriver);

  struct Split {
    size_t come = 0;
    std::vector<std::pair<int, int>> wishes;     // by rank: colour, key
    std::vector<std::pair<std::shared_ptr<Club>, int>> made;  // and the rank in it
  };
  std::map<uint64_t, Split> splits;
  std::set<std::pair<int, int>> called;  // who has asked for a message to, or from, whom

 private:
  void runCollective(std::vector<Posted>& calls);
  void matchPairs(int from, int to);

  std::map<uint64_t, std::vector<Posted>> collectives_;  // by number, then by rank
  std::map<std::pair<int, int>, std::deque<Posted>> sends_, receives_;  // by from, to
  std::map<const Call*, uint64_t> numbers_;  // of collectives that were posted
};

struct Network {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::weak_ptr<Club>> clubs;  // by id
  uint64_t ids = 0;
};
Network& network();

}  // namespace planc::cuda::fake
