// What ranks say to each other. A `Communicator` is one rank's view of the others; it belongs to one
// thread. A program's messages are started and waited for apart:
//
//   Group& column = comm.group({0, 2});            // once, when the program is loaded
//   Ticket ticket = comm.start(column, {.kind = Collective::AllReduce, .elem = Elem::F32,
//                                       .send = x, .recv = x, .count = 1024}, site);
//   ... compute something else ...
//   if (llvm::Error error = comm.wait(ticket)) return error;   // the run is over, on all ranks
//
// Buffers (and counts) are contiguous and belong to the message from `start` to the end of `wait`.
// Members of a
// group start its messages in the same order; any number may be under way, and they may be waited
// for in any order. Nothing is buffered: a message is complete only when all its members have
// started it.
//
// Results are the same bits on every rank, in every run and with every backend: a sum adds in the
// order of the group's ranks; of bf16 it is made in f32 and rounded once. The maximum of anything
// and a NaN is a NaN.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/type.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

namespace planc {

namespace comm {
class Far;
}

enum class Collective : uint8_t {
  AllReduce,      // ncclAllReduce, MPI_Allreduce
  ReduceScatter,  // ncclReduceScatter, MPI_Reduce_scatter_block
  AllGather,      // ncclAllGather, MPI_Allgather
  AllToAll,       // MPI_Alltoall, MPI_Alltoallv
  Broadcast,      // ncclBroadcast, MPI_Bcast
  SendReceive,    // grouped ncclSend and ncclRecv, MPI_Sendrecv: both at once or one of them
};
enum class Reduction : uint8_t { Sum, Max };

llvm::StringRef name(Collective kind);
llvm::StringRef name(Reduction reduction);

// What `send` and `recv` hold, in elements, for a group of n ranks:
//
//   AllReduce      count -> count           may be the same buffer
//   ReduceScatter  n * count -> count       recv may be the rank's own chunk of send
//   AllGather      count -> n * count       send may be the rank's own chunk of recv
//   AllToAll       n * count -> n * count   or, with counts, packed chunks of those many elements
//   Broadcast      recv, at the root too    send is not used
//   SendReceive    count -> count           with `to` and `from`; either may be kNobody
//
// Ranks are positions in the group. Only the two ranks of a transfer take part in it; transfers
// from one rank to another are matched in their order, whatever else the group does.
struct Message {
  static constexpr int kNobody = -1;

  Collective kind = Collective::AllReduce;
  Elem elem = Elem::F32;
  Reduction reduction = Reduction::Sum;
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t count = 0;
  llvm::ArrayRef<int64_t> sendCounts = {}, recvCounts = {};  // AllToAll: a count for each rank
  int root = 0;                                              // Broadcast
  int to = kNobody, from = kNobody;                          // SendReceive
  bool isOnDevice = false;                                   // its buffers, where that is not the host
  comm::Far* far = nullptr;  // its buffers, where another process has them: then `send` and `recv` are null
};

// What of the program a message belongs to; for people.
struct Site {
  std::string op = {};      // `all_reduce`, as IR text has it
  std::string tensor = {};  // its name in the plan
  std::string place = {};   // file:line of the plan
  std::string stage = {};   // the communicator's: see setStage
  int64_t number = 0;       // of the operation in the rank's program
  int counter = -1;         // which of the communicator's counters counts it: see Communicator::counter
};

// What a rank's program has sent by one kind of op along the same axes.
struct SentBytes {
  std::string op;  // as IR text has it
  std::vector<std::string> axes;
  int64_t bytes = 0;
};

// Ranks of a sub-grid, in order.
class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;

  llvm::ArrayRef<int> members() const { return members_; }
  int size() const { return int(members_.size()); }
  int position() const { return position_; }  // the own rank's

 protected:
  Group(llvm::ArrayRef<int> members, int rank);

 private:
  llvm::SmallVector<int, 8> members_;
  int position_;
};

// A message under way; wait for each exactly once.
struct Ticket {
  int slot;
};

class Communicator {
 public:
  // The rank has ended. Messages that it has started must have been waited for.
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Whose program this rank runs, where ranks have different ones: `pipe 2`. For people.
  void setStage(std::string stage) { stage_ = std::move(stage); }
  virtual Group& world() = 0;
  // The group of these ranks, the own one among them. All members make it, in the same order as
  // other groups; each call makes a new one, whose messages are ordered apart.
  virtual Group& group(llvm::ArrayRef<int> members) = 0;

  // Together, when all groups are made that programs send messages in: makes what that needs.
  virtual llvm::Error connect() { return llvm::Error::success(); }

  // Never blocks. What is wrong, `wait` says.
  Ticket start(Group& group, const Message& message, const Site& site);
  // Until the message is complete and its buffers are free. An error means that the run is over: it
  // is the same on all ranks, all later waits return it, and no buffer of this rank is in use.
  virtual llvm::Error wait(Ticket ticket) = 0;
  // This rank can't go on: ends the run on all ranks. Behind it no buffer of this rank is in use.
  virtual void fail(llvm::StringRef why) = 0;
  // The same, with the message that can't be.
  void failIn(const Site& site, const llvm::Twine& why);
  // Why the run is over, if this rank has heard so by now; else empty. `wait` says it too.
  virtual std::string failure() { return ""; }

  // Waits until all members have come here.
  llvm::Error barrier(Group& group, const Site& site);
  // Success if all ranks of the world bring success; else, on all of them, an error that says which
  // ranks failed and why.
  llvm::Error agree(llvm::Error mine);

  // What this rank's started messages sent, in bytes, as it is usually counted for n ranks:
  // all-reduce 2 (n - 1) / n of the tensor; reduce-scatter and all-gather (n - 1) / n of the larger
  // side; all-to-all and transfers what leaves the rank; broadcast the tensor, at the root.
  int64_t bytesSent() const { return bytesSent_; }
  // The same by what of a program sends it; what ranks tell each other beside it is in none of these. A
  // counter is made when it is first asked for, and its number is for Site::counter.
  int counter(llvm::StringRef op, llvm::ArrayRef<std::string> axes);
  llvm::ArrayRef<SentBytes> sent() const { return sent_; }
  // What was started once is sent again by a recording: that much more, by counter.
  void countAgain(llvm::ArrayRef<SentBytes> sent);

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  virtual Ticket begin(Group& group, const Message& message, const Site& site) = 0;

 private:
  Ticket enter(Group& group, const Message& message, Site site);

  int rank_, size_;
  std::string stage_;
  int64_t bytesSent_ = 0;
  std::vector<SentBytes> sent_;
};

constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(60);

// Ranks that are threads of this process. A run ends on all of them when one says `fail`, when
// members ask for different messages, when a rank has ended that others wait for, when all wait for
// each other, or when one has waited for `timeout` for ranks to start its message.
class ThreadTeam {
 public:
  virtual ~ThreadTeam() = default;
  ThreadTeam(const ThreadTeam&) = delete;

  // For the thread that is this rank; one for each rank.
  virtual std::unique_ptr<Communicator> communicator(int rank) = 0;
  // Ends the run on all ranks, for a reason outside of them; from any thread.
  virtual void fail(std::string why) = 0;
  // Why the run ended; empty while it goes well.
  virtual std::string failure() const = 0;
  // A line a rank: its operation and which ranks it waits for; when the run failed, as of then.
  virtual std::string table() const = 0;
  // Waits until all ranks have ended. False when the run has failed and a rank has not ended
  // `timeout` later: nothing but the end of the process stops its thread.
  virtual bool waitForEnd() = 0;

 protected:
  ThreadTeam() = default;
};

std::unique_ptr<ThreadTeam> makeThreadTeam(int ranks,
                                           std::chrono::milliseconds timeout = kDefaultTimeout);

// This process's rank among those that `mpirun` started. MPI can't hand an error to ranks that don't
// wait for it: what ends a run prints the rank, its operation and place, and aborts all processes.
llvm::Expected<std::unique_ptr<Communicator>> makeMpiCommunicator(
    std::chrono::milliseconds timeout = kDefaultTimeout);

// This process's rank among `size` processes that were started by themselves and talk over TCP:
// rank 0 waits at host:port for all others. All come within `timeout`, or it is an error on all
// that did, which says who. Then a run ends on all ranks as with a ThreadTeam, and when a process
// is gone.
llvm::Expected<std::unique_ptr<Communicator>> makeTcpCommunicator(
    int rank, int size, const std::string& host, int port,
    std::chrono::milliseconds timeout = kDefaultTimeout);

// How this process was started as one of several.
struct Launch {
  int rank = 0, size = 1;
  int localRank = 0;  // among those of its machine
  std::string host;   // where rank 0 is
  int port = 0;
  bool operator==(const Launch&) const = default;
};
// What the environment says, in torchrun's words (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT), or Slurm's (SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NUM_TASKS; with MASTER_ADDR and
// MASTER_PORT or else SLURM_LAUNCH_NODE_IPADDR and a port made of SLURM_JOB_ID). Nothing: it was
// started alone.
using Environment = llvm::function_ref<const char*(const char* name)>;
llvm::Expected<std::optional<Launch>> launchedAs(Environment get = std::getenv);

class Device;
// Messages of programs go between the GPUs (`device` is this rank's, from makeCudaDevice) by NCCL,
// and what ranks tell each other through `host`. Together.
llvm::Expected<std::unique_ptr<Communicator>> makeNcclCommunicator(
    Communicator& host, Device& device, std::chrono::milliseconds timeout = kDefaultTimeout);

}  // namespace planc
