// Ranks as MPI processes. What only moves data is MPI's non-blocking collectives. Reductions are our
// own, of sends and receives: each rank gets its chunk of the tensor from all others, reduces it in
// rank order, and (all-reduce) sends the result to all, segment by segment. So results are the same
// bits on all ranks and as with threads, whatever algorithm the library would have chosen, and sums
// of bf16 are rounded once, which a pairwise MPI_Op can't do. Small all-reduces gather all operands
// instead and reduce everything everywhere, which takes one exchange.
//
// MPI moves data only while we call it, so a rank that waits for one message drives all that it has
// started. Tested by tests/runtime/comm_mpi_test.cpp under mpirun; bench/mpi_comm.cpp compares the
// speed with the library's own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>

#include <climits>
#include <deque>
#include <thread>
#include <vector>

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"
#include "runtime/comm/reduce.h"
#include "runtime/comm_text.h"

namespace planc {
namespace {

using comm::describe;
using Clock = std::chrono::steady_clock;

// Tags of a group's messages. Transfers are matched in order; each reduction has a tag of its own,
// by its number in the group, since reductions that are under way together advance in any order.
constexpr int kTransferTag = 0, kRollCallTag = 1, kFirstTag = 2, kTags = 16384;

// An all-reduce up to this many bytes gathers all operands.
constexpr int64_t kGatherBytes = 4096;
// A segment of a reduction's chunk, and what all chunks' segments take at most, in bytes.
constexpr int64_t kSegmentBytes = 512 * 1024, kScratchBytes = 8 << 20;

struct MpiGroup : Group {
  MpiGroup(llvm::ArrayRef<int> members, int rank) : Group(members, rank) {}
  MPI_Comm comm = MPI_COMM_NULL;
  int reductions = 0;  // started
};

// A started message.
struct Slot {
  bool used = false, complete = false;
  MpiGroup* group = nullptr;
  Message message;
  Site site;
  std::vector<MPI_Request> requests;  // of the present step
  // Of reductions: the next segment, the length of each, the tag of all; and what came from the
  // others to be reduced.
  int64_t segment = 0, segmentLength = 0;  // elements; 0: all operands are gathered
  int tag = 0;
  std::vector<std::byte> scratch;
  std::vector<int> counts;  // all-to-all: as MPI wants them, alive until it is complete
};

bool isReduction(const Message& message) {
  return message.kind == Collective::AllReduce || message.kind == Collective::ReduceScatter;
}

MPI_Datatype datatype(Elem elem) {
  switch (elem) {
    case Elem::F32:
      return MPI_FLOAT;
    case Elem::BF16:
      return MPI_UINT16_T;  // only ever moved
    case Elem::F64:
      return MPI_DOUBLE;
    case Elem::I32:
      break;
  }
  return MPI_INT32_T;
}

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(int rank, int size, bool finalizes, std::chrono::milliseconds timeout)
      : Communicator(rank, size),
        finalizes_(finalizes),
        timeout_(timeout),
        world_(range(size), rank) {
    check(MPI_Comm_dup(MPI_COMM_WORLD, &world_.comm), Site{.op = "making the world"});
    MPI_Comm_set_errhandler(world_.comm, MPI_ERRORS_RETURN);
  }
  ~MpiCommunicator() override;

  Group& world() override { return world_; }
  Group& group(llvm::ArrayRef<int> members) override;
  llvm::Error wait(Ticket ticket) override;
  void fail(llvm::StringRef why) override { abort("failed: " + why.str()); }

 protected:
  Ticket begin(Group& group, const Message& message, const Site& site) override;

 private:
  static std::vector<int> range(int size) {
    std::vector<int> all(static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) all[size_t(r)] = r;
    return all;
  }

  [[noreturn]] void abort(const std::string& why);
  void check(int code, const Site& site, const std::string& what = "");
  // Drives all messages until `done`; ends the run if nothing moves for that long. The group and site
  // are what the rank waits for.
  void driveUntil(llvm::function_ref<bool()> done, const Group& group, const Site& site,
                  std::chrono::milliseconds timeout);
  bool drive(Slot& slot);  // whether it moved on

  void startMove(Slot& slot);
  void startAllToAll(Slot& slot);
  void startReduction(Slot& slot);
  bool continueReduction(Slot& slot);
  void exchange(Slot& slot);
  void send(Slot& slot, const void* data, int64_t count, int to, int tag);
  void receive(Slot& slot, void* data, int64_t count, int from, int tag);
  MPI_Request* request(Slot& slot) {
    slot.requests.push_back(MPI_REQUEST_NULL);
    return &slot.requests.back();
  }
  int count(const Slot& slot, int64_t elements);

  bool finalizes_;
  std::chrono::milliseconds timeout_;
  MpiGroup world_;
  std::deque<MpiGroup> groups_;
  std::deque<Slot> slots_;
  std::vector<MPI_Status> statuses_;  // of `drive`
};

void MpiCommunicator::abort(const std::string& why) {
  llvm::errs() << "planrun: rank " + std::to_string(rank()) + " " + why + "\n";
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

void MpiCommunicator::check(int code, const Site& site, const std::string& what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  abort("failed in " + describe(site) + (what.empty() ? "" : ", " + what) + ": " +
        std::string(text, size_t(length)));
}

int MpiCommunicator::count(const Slot& slot, int64_t elements) {
  if (elements > INT_MAX) {
    abort("failed in " + describe(slot.site) + ": MPI moves at most " + std::to_string(INT_MAX) +
          " elements at once, and this is " + std::to_string(elements));
  }
  return int(elements);
}

Group& MpiCommunicator::group(llvm::ArrayRef<int> members) {
  Site site{.op = "making the group of " + comm::rankList(members)};
  MpiGroup& made = groups_.emplace_back(members, rank());
  // A roll call first, since making an MPI communicator blocks without a time-out: the first member
  // hears from all others, then answers them. Lists are as long as the world.
  bool leads = made.position() == 0;
  llvm::ArrayRef<int> peers = leads ? members.drop_front() : members.take_front();
  std::vector<int> own(members.begin(), members.end());
  own.resize(size_t(size()), -1);
  std::vector<std::vector<int>> heard(peers.size(), own);
  for (bool sends : {!leads, leads}) {
    std::vector<MPI_Request> requests(peers.size());
    for (size_t i = 0; i < peers.size(); ++i) {
      check(sends ? MPI_Isend(own.data(), size(), MPI_INT, peers[i], kRollCallTag, world_.comm,
                              &requests[i])
                  : MPI_Irecv(heard[i].data(), size(), MPI_INT, peers[i], kRollCallTag, world_.comm,
                              &requests[i]),
            site);
    }
    auto done = [&] {
      int all = 0;
      check(MPI_Testall(int(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE), site);
      return all != 0;
    };
    driveUntil(done, made, site, timeout_);
  }
  for (size_t i = 0; i < peers.size(); ++i) {
    if (heard[i] == own) continue;
    abort("failed in " + describe(site) + ": rank " + std::to_string(peers[i]) +
          " makes another group");
  }
  MPI_Group all, part;
  check(MPI_Comm_group(world_.comm, &all), site);
  check(MPI_Group_incl(all, int(members.size()), own.data(), &part), site);
  check(MPI_Comm_create_group(world_.comm, part, kRollCallTag, &made.comm), site);
  MPI_Comm_set_errhandler(made.comm, MPI_ERRORS_RETURN);
  MPI_Group_free(&part);
  MPI_Group_free(&all);
  return made;
}

Ticket MpiCommunicator::begin(Group& group, const Message& message, const Site& site) {
  size_t index = 0;
  while (index < slots_.size() && slots_[index].used) ++index;
  if (index == slots_.size()) slots_.emplace_back();
  Slot& slot = slots_[index];
  slot.used = true;
  slot.complete = false;
  slot.group = static_cast<MpiGroup*>(&group);
  slot.message = message;
  slot.site = site;
  slot.requests.clear();
  if (isReduction(message)) startReduction(slot);
  else startMove(slot);
  return {int(index)};
}

void MpiCommunicator::send(Slot& slot, const void* data, int64_t elements, int to, int tag) {
  check(MPI_Isend(data, count(slot, elements), datatype(slot.message.elem), to, tag,
                  slot.group->comm, request(slot)),
        slot.site);
}

void MpiCommunicator::receive(Slot& slot, void* data, int64_t elements, int from, int tag) {
  check(MPI_Irecv(data, count(slot, elements), datatype(slot.message.elem), from, tag,
                  slot.group->comm, request(slot)),
        slot.site);
}

void MpiCommunicator::startMove(Slot& slot) {
  const Message& m = slot.message;
  MPI_Datatype type = datatype(m.elem);
  MPI_Comm comm = slot.group->comm;
  switch (m.kind) {
    case Collective::AllGather: {
      const void* own = static_cast<const std::byte*>(m.recv) +
                        slot.group->position() * m.count * bytesPerElement(m.elem);
      int n = count(slot, m.count);
      check(MPI_Iallgather(m.send == own ? MPI_IN_PLACE : m.send, n, type, m.recv, n, type, comm,
                           request(slot)),
            slot.site);
      break;
    }
    case Collective::AllToAll:
      startAllToAll(slot);
      break;
    case Collective::Broadcast:
      check(MPI_Ibcast(m.recv, count(slot, m.count), type, m.root, comm, request(slot)), slot.site);
      break;
    default:
      if (m.from != Message::kNobody) receive(slot, m.recv, m.count, m.from, kTransferTag);
      if (m.to != Message::kNobody) send(slot, m.send, m.count, m.to, kTransferTag);
  }
}

void MpiCommunicator::startAllToAll(Slot& slot) {
  const Message& m = slot.message;
  MPI_Datatype type = datatype(m.elem);
  if (m.sendCounts.empty()) {
    int n = count(slot, m.count);
    check(MPI_Ialltoall(m.send, n, type, m.recv, n, type, slot.group->comm, request(slot)),
          slot.site);
    return;
  }
  // Send counts and where they begin, then those of what is received.
  size_t n = size_t(slot.group->size());
  slot.counts.assign(4 * n, 0);
  for (int side = 0; side < 2; ++side) {
    int64_t begin = 0;
    for (size_t i = 0; i < n; ++i) {
      int64_t elements = side == 0 ? m.sendCounts[i] : m.recvCounts[i];
      slot.counts[size_t(2 * side) * n + i] = count(slot, elements);
      slot.counts[size_t(2 * side + 1) * n + i] = count(slot, begin);
      begin += elements;
    }
  }
  int* counts = slot.counts.data();
  check(MPI_Ialltoallv(m.send, counts, counts + n, type, m.recv, counts + 2 * n, counts + 3 * n,
                       type, slot.group->comm, request(slot)),
        slot.site);
}

// Of a reduction's chunks: rank q of the group reduces the elements [begin, begin + length) of segment
// `segment` of its chunk; `begin` counts from the beginning of `send`.
struct Part {
  int64_t begin, length;
};
Part part(const Slot& slot, int q, int64_t segment) {
  const Message& m = slot.message;
  int64_t n = slot.group->size();
  bool whole = m.kind == Collective::ReduceScatter;
  int64_t chunk = whole ? m.count : (m.count + n - 1) / n, total = whole ? n * m.count : m.count;
  int64_t end = std::min((q + 1) * chunk, total);
  int64_t begin = std::min(q * chunk + segment * slot.segmentLength, end);
  return {begin, std::min(slot.segmentLength, end - begin)};
}

void MpiCommunicator::startReduction(Slot& slot) {
  MpiGroup& group = *slot.group;
  const Message& m = slot.message;
  int64_t n = group.size(), width = bytesPerElement(m.elem);
  if (m.kind == Collective::AllReduce && m.count * width <= kGatherBytes) {
    slot.segmentLength = 0;
    slot.scratch.resize(size_t(n * m.count * width));
    check(MPI_Iallgather(m.send, int(m.count), datatype(m.elem), slot.scratch.data(), int(m.count),
                         datatype(m.elem), group.comm, request(slot)),
          slot.site);
    return;
  }
  slot.tag = kFirstTag + group.reductions++ % kTags;
  slot.segment = 0;
  slot.segmentLength = std::min(kSegmentBytes, kScratchBytes / n) / width;
  slot.scratch.resize(size_t(n * slot.segmentLength * width));
  exchange(slot);
}

// Sends each rank the present segment of its chunk, and receives the own one's from all.
void MpiCommunicator::exchange(Slot& slot) {
  const Message& m = slot.message;
  int n = slot.group->size(), own = slot.group->position();
  int64_t width = bytesPerElement(m.elem);
  for (int k = 1; k < n; ++k) {
    int from = (own + n - k) % n, to = (own + k) % n;
    if (int64_t length = part(slot, own, slot.segment).length) {
      receive(slot, slot.scratch.data() + from * slot.segmentLength * width, length, from,
              slot.tag);
    }
    if (Part theirs = part(slot, to, slot.segment); theirs.length > 0) {
      send(slot, static_cast<const std::byte*>(m.send) + theirs.begin * width, theirs.length, to,
           slot.tag);
    }
  }
}

// The present exchange is complete, and so is sending results of the segment before. Returns whether
// the message is.
bool MpiCommunicator::continueReduction(Slot& slot) {
  const Message& m = slot.message;
  int n = slot.group->size(), own = slot.group->position();
  int64_t width = bytesPerElement(m.elem);
  llvm::SmallVector<const void*, 8> inputs;
  if (slot.segmentLength == 0) {
    for (int q = 0; q < n; ++q) inputs.push_back(slot.scratch.data() + q * m.count * width);
    comm::reduce(m.elem, m.reduction, inputs, m.recv, 0, m.count);
    return true;
  }
  if (part(slot, 0, slot.segment).length == 0) return true;  // the first chunk is the longest
  Part mine = part(slot, own, slot.segment);
  auto* recv = static_cast<std::byte*>(m.recv);
  const std::byte* send = static_cast<const std::byte*>(m.send) + mine.begin * width;
  std::byte* result = recv + mine.begin * width;
  if (m.kind == Collective::ReduceScatter)
    result = recv + slot.segment * slot.segmentLength * width;
  for (int q = 0; q < n; ++q) {
    inputs.push_back(q == own ? send : slot.scratch.data() + q * slot.segmentLength * width);
  }
  void* output = result;
  comm::reduce(m.elem, m.reduction, inputs, output, 0, mine.length);
  if (m.kind == Collective::AllReduce) {
    for (int k = 1; k < n; ++k) {
      int from = (own + n - k) % n, to = (own + k) % n;
      if (Part theirs = part(slot, from, slot.segment); theirs.length > 0) {
        receive(slot, recv + theirs.begin * width, theirs.length, from, slot.tag);
      }
      if (mine.length > 0) this->send(slot, result, mine.length, to, slot.tag);
    }
  }
  ++slot.segment;
  exchange(slot);
  return false;
}

bool MpiCommunicator::drive(Slot& slot) {
  if (!slot.used || slot.complete) return false;
  int done = 0;
  statuses_.resize(slot.requests.size());
  int code = MPI_Testall(int(slot.requests.size()), slot.requests.data(), &done, statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : statuses_) {
      bool isError = status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING;
      if (isError) code = status.MPI_ERROR;
    }
  }
  check(code, slot.site, describe(slot.message));
  if (done == 0) return false;
  // MPI takes a shorter message without a word. The receive is a transfer's first request.
  const Message& m = slot.message;
  if (m.kind == Collective::SendReceive && m.from != Message::kNobody) {
    int received = 0;
    check(MPI_Get_count(statuses_.data(), datatype(m.elem), &received), slot.site);
    if (received != m.count)
      abort("failed in " + describe(slot.site) + ", " + describe(m) + ": rank " +
            std::to_string(slot.group->members()[size_t(m.from)]) + " sends " +
            (received == MPI_UNDEFINED ? "others" : std::to_string(received)));
  }
  slot.requests.clear();
  slot.complete = !isReduction(slot.message) || continueReduction(slot);
  return true;
}

void MpiCommunicator::driveUntil(llvm::function_ref<bool()> done, const Group& group,
                                 const Site& site, std::chrono::milliseconds timeout) {
  using namespace std::chrono_literals;
  auto last = Clock::now();
  while (!done()) {
    bool moved = false;
    for (Slot& slot : slots_) moved |= drive(slot);
    auto now = Clock::now();
    if (moved) last = now;
    auto idle = now - last;
    // Ranks may outnumber processors: leave this one to another rank soon (most libraries do that by
    // themselves, and at once, when they know), and at last to nobody.
    if (idle > timeout) {
      abort("ends the run: no progress for " + comm::seconds(timeout) + " in " + describe(site) +
            " among " + comm::rankList(group.members()));
    } else if (idle > 100ms) {
      std::this_thread::sleep_for(50us);
    } else if (idle > 200us) {
      sched_yield();
    }
  }
}

llvm::Error MpiCommunicator::wait(Ticket ticket) {
  Slot& slot = slots_[size_t(ticket.slot)];
  driveUntil([&] { return slot.complete; }, *slot.group, slot.site, timeout_);
  slot.used = false;
  return llvm::Error::success();
}

MpiCommunicator::~MpiCommunicator() {
  for (Slot& slot : slots_) {
    if (slot.used) abort("ended without waiting for " + describe(slot.site));
  }
  // MPI_Finalize would wait for the other ranks without a time-out. Twice the usual one, so that those
  // that wait for a message of this rank are the first to say so.
  Site site{.op = "waiting for all ranks to end"};
  MPI_Request ended;
  check(MPI_Ibarrier(world_.comm, &ended), site);
  auto done = [&] {
    int all = 0;
    check(MPI_Test(&ended, &all, MPI_STATUS_IGNORE), site);
    return all != 0;
  };
  driveUntil(done, world_, site, 2 * timeout_);
  for (MpiGroup& group : groups_) MPI_Comm_free(&group.comm);
  MPI_Comm_free(&world_.comm);
  if (finalizes_) MPI_Finalize();
}

}  // namespace

llvm::Expected<std::unique_ptr<Communicator>> makeMpiCommunicator(
    std::chrono::milliseconds timeout) {
  int initialized = 0, level = 0, rank = 0, size = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  else MPI_Query_thread(&level);
  if (level < MPI_THREAD_FUNNELED) {
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "this MPI doesn't let a process have threads");
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return std::make_unique<MpiCommunicator>(rank, size, initialized == 0, timeout);
}

}  // namespace planc
