// Ranks as processes that talk over TCP, for runs that were started without MPI. Rank 0's process
// is the hub (tcp_hub.cpp): every other rank sends it what it asks for, and gets back what it is to
// receive. That is right for what a host has to say when tensors travel between GPUs by themselves,
// and simple; on CPUs alone MPI is faster. Short messages go with the frames that ask for them, and
// `start` takes as long as that; of long ones the hub asks for parts, which a thread gives and takes.
// Tested by tests/runtime/comm_tcp_test.cpp.
#include <cassert>
#include <deque>
#include <mutex>
#include <thread>

#include "llvm/Support/raw_ostream.h"
#include "runtime/comm/tcp_hub.h"
#include "runtime/comm/wire.h"
#include "runtime/comm_text.h"

namespace planc {
namespace {

using comm::Frame;
using comm::Head;
using comm::Socket;

struct TcpGroup : Group {
  TcpGroup(llvm::ArrayRef<int> members, int rank, uint32_t number)
      : Group(members, rank), number(number) {}
  uint32_t number;  // of this rank's groups
};

class TcpCommunicator : public Communicator {
 public:
  TcpCommunicator(int rank, int size, Socket hub, Socket far)
      : Communicator(rank, size), hub_(std::move(hub)), far_(std::move(far)) {
    std::vector<int> all(size_t(size), 0);
    for (int r = 0; r < size; ++r) all[size_t(r)] = r;
    groups_.push_back(std::make_unique<TcpGroup>(all, rank, 0));
    server_ = std::thread([this] { serve(); });
  }
  ~TcpCommunicator() override;

  Group& world() override { return *groups_[0]; }
  Group& group(llvm::ArrayRef<int> members) override;
  llvm::Error wait(Ticket ticket) override;
  void fail(llvm::StringRef why) override;

 protected:
  Ticket begin(Group& group, const Message& message, const Site& site) override;

 private:
  // A started message.
  struct Slot {
    bool used = false, isFar = false;
    const std::byte* send = nullptr;
    std::byte* recv = nullptr;
    int64_t toSend = 0, toReceive = 0;  // bytes
  };

  // What the hub asks for of far messages, until the connection ends.
  void serve();
  llvm::Error answer(const comm::FarHead& head);
  void stopServing() {
    far_.shutDown();
    if (server_.joinable()) server_.join();
  }
  // The run is over: nobody uses buffers any more. No reason: it goes on.
  void end(std::string why);
  // The same, if there is an error: the hub is gone.
  void lose(llvm::Error error);
  // Sends a frame; behind a failure nothing is sent.
  void send(Frame frame, const Head& head) {
    if (failure_.empty()) lose(head.sendTo(hub_, frame));
  }

  Socket hub_, far_;
  std::thread server_;
  std::string failure_;  // why the run ended; empty while it goes well
  std::vector<std::unique_ptr<TcpGroup>> groups_;
  std::mutex mutex_;  // guards the slots
  std::deque<Slot> slots_;
};

void TcpCommunicator::serve() {
  for (bool goesOn = true; goesOn;) {
    comm::FarHead head;
    llvm::Error error = far_.receive(&head, sizeof head);
    if (!error) error = answer(head);
    goesOn = !error;
    llvm::consumeError(std::move(error));
  }
  far_.shutDown();
}

llvm::Error TcpCommunicator::answer(const comm::FarHead& head) {
  if (head.request == comm::FarRequest::Sync) return far_.send("", 1);
  Slot slot;
  {
    std::lock_guard lock(mutex_);
    if (head.slot < 0 || size_t(head.slot) >= slots_.size()) return comm::failure("no message");
    slot = slots_[size_t(head.slot)];
  }
  bool isFetch = head.request == comm::FarRequest::Fetch;
  int64_t most = isFetch ? slot.toSend : slot.toReceive;
  bool isInside = slot.used && head.offset >= 0 && head.bytes >= 0 && head.bytes <= most &&
                  head.offset <= most - head.bytes;
  if (!isInside) return comm::failure("no part of a message");
  return isFetch ? far_.send(slot.send + head.offset, size_t(head.bytes))
                 : far_.receive(slot.recv + head.offset, size_t(head.bytes));
}

void TcpCommunicator::end(std::string why) {
  if (why.empty()) return;
  failure_ = std::move(why);
  stopServing();
  for (Slot& slot : slots_) slot.used = false;
}

// In the same words on all ranks, whatever each saw of it.
void TcpCommunicator::lose(llvm::Error error) {
  if (!error) return;
  llvm::consumeError(std::move(error));
  end(comm::isGone(0));
  // Rank 0, which tells of errors, can't.
  llvm::errs() << "planrun: rank " + std::to_string(rank()) + ": " + failure_ + "\n";
}

Group& TcpCommunicator::group(llvm::ArrayRef<int> members) {
  Head head;
  head.putAll(members);
  send(Frame::Group, head);
  uint32_t number = uint32_t(groups_.size());
  groups_.push_back(std::make_unique<TcpGroup>(members, rank(), number));
  return *groups_.back();
}

Ticket TcpCommunicator::begin(Group& group, const Message& message, const Site& site) {
  Slot slot{.used = true,
            .send = static_cast<const std::byte*>(
                message.kind == Collective::Broadcast ? message.recv : message.send),
            .recv = static_cast<std::byte*>(message.recv),
            .toSend = comm::bytesToSend(message, group.size(), group.position()),
            .toReceive = comm::bytesToReceive(message, group.size(), group.position())};
  slot.isFar = std::max(slot.toSend, slot.toReceive) > comm::kMostNear;
  size_t index = 0;
  {
    std::lock_guard lock(mutex_);
    while (index < slots_.size() && slots_[index].used) ++index;
    if (index == slots_.size()) slots_.emplace_back();
    slots_[index] = slot;
  }
  Head head;
  head.put(int32_t(index));
  head.put(static_cast<TcpGroup&>(group).number);
  head.put(uint8_t(slot.isFar));
  comm::putMessage(head, message, site);
  send(Frame::Start, head);
  if (failure_.empty() && !slot.isFar) lose(hub_.send(slot.send, size_t(slot.toSend)));
  return {int(index)};
}

llvm::Error TcpCommunicator::wait(Ticket ticket) {
  Slot& slot = slots_[size_t(ticket.slot)];  // this thread alone changes them
  assert((slot.used || !failure_.empty()) && "a ticket is waited for once");
  Head head;
  head.put(int32_t(ticket.slot));
  send(Frame::Wait, head);
  if (failure_.empty()) {
    llvm::Expected<std::string> answer = comm::receiveText(hub_);
    if (answer) end(*answer);
    else lose(answer.takeError());
  }
  if (failure_.empty() && !slot.isFar) lose(hub_.receive(slot.recv, size_t(slot.toReceive)));
  if (!failure_.empty()) return comm::failure(failure_);
  std::lock_guard lock(mutex_);
  slot.used = false;
  return llvm::Error::success();
}

void TcpCommunicator::fail(llvm::StringRef why) {
  Head head;
  head.put(why);
  send(Frame::Fail, head);
  if (failure_.empty()) {
    llvm::Expected<std::string> answer = comm::receiveText(hub_);
    if (answer) end(*answer);
    else lose(answer.takeError());
  }
}

TcpCommunicator::~TcpCommunicator() {
  // A failure may have come from the hub, which then still wants to hear that this rank has ended.
  llvm::Error error = Head().sendTo(hub_, Frame::End);
  if (!error) error = comm::receiveText(hub_).takeError();
  llvm::consumeError(std::move(error));
  stopServing();
}

llvm::Expected<std::unique_ptr<Communicator>> makeMember(int rank, int size,
                                                         const std::string& host, int port,
                                                         std::chrono::milliseconds timeout) {
  std::string where = host + ":" + std::to_string(port);
  auto failed = [&](llvm::Error error) {
    return comm::failure("rank " + std::to_string(rank) + " cannot reach rank 0 at " + where +
                         " within " + comm::seconds(timeout) + ": " +
                         llvm::toString(std::move(error)));
  };
  auto deadline = comm::Clock::now() + timeout;
  llvm::Expected<Socket> hub = comm::connectTo(host, port, deadline);
  if (!hub) return failed(hub.takeError());
  comm::Hello hello{comm::kHello, rank, size};
  if (llvm::Error error = hub->send(&hello, sizeof hello)) return failed(std::move(error));
  // Rank 0 answers when all have come, or its own time is up, which began by as much later.
  deadline += timeout;
  for (bool has = false; !has;) {
    comm::waitForAny({hub->fd()}, deadline);
    llvm::Expected<bool> now = hub->has(sizeof(uint32_t));
    if (!now) return failed(now.takeError());
    has = *now;
    if (!has && comm::Clock::now() >= deadline) return failed(comm::failure("no answer"));
  }
  llvm::Expected<std::string> answer = comm::receiveText(*hub);
  if (!answer) return failed(answer.takeError());
  if (!answer->empty()) return comm::failure("rank 0 at " + where + ": " + *answer);
  llvm::Expected<Socket> far = comm::connectTo(host, port, deadline);
  if (!far) return failed(far.takeError());
  hello.magic = comm::kFarHello;
  if (llvm::Error error = far->send(&hello, sizeof hello)) return failed(std::move(error));
  return std::make_unique<TcpCommunicator>(rank, size, std::move(*hub), std::move(*far));
}

}  // namespace

llvm::Expected<std::unique_ptr<Communicator>> makeTcpCommunicator(
    int rank, int size, const std::string& host, int port, std::chrono::milliseconds timeout) {
  if (rank == 0) return comm::makeTcpHub(size, host, port, timeout);
  return makeMember(rank, size, host, port, timeout);
}

}  // namespace planc
