// The hub of ranks that talk over TCP. In rank 0's process all ranks are a team of threads: rank 0
// itself, and for each other rank a *deputy*, which does what the rank's frames ask for. Of long messages
// the buffers stay where they are, and the team works on parts (far.h). So messages, their order and whatever ends a run are those of threads.cpp,
// and failures are told in the same words on all ranks. Beside the deputies one thread watches
// whether a rank's process is gone while its deputy waits for others. Tested by
// tests/runtime/comm_tcp_test.cpp.
#include "runtime/comm/tcp_hub.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "llvm/ADT/STLExtras.h"
#include "runtime/comm_text.h"
#include "runtime/comm/far.h"
#include "runtime/comm/wire.h"

namespace planc::comm {
namespace {

// Speaks for one rank in rank 0's process.
class Deputy {
 public:
  Deputy(ThreadTeam& team, int rank, Socket socket, Socket far)
      : team_(team), rank_(rank), socket_(std::move(socket)), far_(std::move(far)) {}

  void start() {
    thread_ = std::thread([this] { run(); });
  }
  void join() { thread_.join(); }
  void hangUp() {
    socket_.shutDown();
    far_.shutDown();
  }

  int fd() const { return socket_.fd(); }
  // Whether the rank may close its connection.
  bool hasEnded() const { return ended_; }
  void lose() { team_.fail(isGone(rank_)); }

  // Of a long message of this rank, from any thread.
  bool fetch(int32_t slot, int64_t offset, int64_t bytes, void* into);
  void store(int32_t slot, int64_t offset, int64_t bytes, const void* from);

 private:
  // The buffers of a long message, in the rank's process.
  struct FarBuffers : Far {
    FarBuffers(Deputy& deputy, int32_t slot) : deputy(deputy), slot(slot) {}
    void fetch(int64_t offset, int64_t bytes, void* into) override {
      if (!deputy.fetch(slot, offset, bytes, into)) std::memset(into, 0, size_t(bytes));
    }
    void store(int64_t offset, int64_t bytes, const void* from) override {
      deputy.store(slot, offset, bytes, from);
    }
    Deputy& deputy;
    int32_t slot;
  };
  // A message under way; a short one with its buffers.
  struct Slot {
    WireMessage wire;
    std::unique_ptr<FarBuffers> far;
    std::vector<std::byte> send, recv;
    int64_t toReceive = 0;
    Ticket ticket{};
  };

  void run();
  llvm::Error serve(Frame frame, Head& head);
  llvm::Error makeGroup(Head& head);
  llvm::Error startMessage(Head& head);
  llvm::Error waitFor(Head& head);
  // All that was stored is there.
  llvm::Error sync();
  bool hasWorked(llvm::Error error);

  ThreadTeam& team_;
  int rank_;
  Socket socket_, far_;
  std::mutex farMutex_;  // one request on `far_` at a time
  std::unique_ptr<Communicator> comm_;
  std::vector<Group*> groups_;
  std::map<int32_t, Slot> slots_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

void Deputy::run() {
  comm_ = team_.communicator(rank_);
  groups_ = {&comm_->world()};
  while (!ended_) {
    llvm::Expected<std::pair<Frame, Head>> frame = Head::receiveFrom(socket_);
    llvm::Error error = frame ? serve(frame->first, frame->second) : frame.takeError();
    if (!error) continue;
    llvm::consumeError(std::move(error));
    if (!ended_) lose();
    break;
  }
  comm_.reset();  // behind it nobody uses the buffers
  slots_.clear();
}

llvm::Error Deputy::serve(Frame frame, Head& head) {
  switch (frame) {
    case Frame::Group:
      return makeGroup(head);
    case Frame::Start:
      return startMessage(head);
    case Frame::Wait:
      return waitFor(head);
    case Frame::Fail:
      comm_->fail(head.getText());
      return sendText(socket_, team_.failure());
    case Frame::End:
      ended_ = true;
      comm_.reset();
      return sendText(socket_, "");
  }
  return failure("no frame");
}

llvm::Error Deputy::makeGroup(Head& head) {
  std::vector<int> members = head.getAll<int>();
  auto isRank = [&](int rank) { return rank >= 0 && rank < comm_->size(); };
  if (!head.isWhole() || !llvm::all_of(members, isRank) || !llvm::is_contained(members, rank_))
    return failure("no group");
  groups_.push_back(&comm_->group(members));
  return llvm::Error::success();
}

// Else the run is over, and further requests fail at once.
bool Deputy::hasWorked(llvm::Error error) {
  if (!error) return true;
  far_.shutDown();
  std::string why = llvm::toString(std::move(error));
  if (why == kClosed) lose();
  else team_.fail("rank " + std::to_string(rank_) + " is gone: " + why);
  return false;
}

bool Deputy::fetch(int32_t slot, int64_t offset, int64_t bytes, void* into) {
  std::lock_guard lock(farMutex_);
  FarHead head{FarRequest::Fetch, slot, offset, bytes};
  return hasWorked(far_.send(&head, sizeof head)) && hasWorked(far_.receive(into, size_t(bytes)));
}

void Deputy::store(int32_t slot, int64_t offset, int64_t bytes, const void* from) {
  std::lock_guard lock(farMutex_);
  FarHead head{FarRequest::Store, slot, offset, bytes};
  if (hasWorked(far_.send(&head, sizeof head))) hasWorked(far_.send(from, size_t(bytes)));
}

llvm::Error Deputy::sync() {
  std::lock_guard lock(farMutex_);
  FarHead head{FarRequest::Sync, 0, 0, 0};
  if (llvm::Error error = far_.send(&head, sizeof head)) return error;
  char there;
  return far_.receive(&there, sizeof there);
}

llvm::Error Deputy::startMessage(Head& head) {
  int32_t index = head.get<int32_t>();
  Slot& slot = slots_[index];
  uint32_t number = head.get<uint32_t>();
  bool isFar = head.get<uint8_t>() != 0;
  if (number >= groups_.size()) return failure("no group");
  Group& group = *groups_[number];
  if (!getMessage(head, group.size(), slot.wire)) return failure("no message");
  Message& message = slot.wire.message;
  if (isFar) {
    slot.far = std::make_unique<FarBuffers>(*this, index);
    message.far = slot.far.get();
    comm_->setStage(slot.wire.site.stage);
    slot.ticket = comm_->start(group, message, slot.wire.site);
    return llvm::Error::success();
  }
  size_t toSend = size_t(bytesToSend(message, group.size(), group.position()));
  slot.toReceive = bytesToReceive(message, group.size(), group.position());
  slot.send.resize(std::max(toSend, size_t(slot.toReceive)));
  if (llvm::Error error = socket_.receive(slot.send.data(), toSend)) return error;
  bool isOneBuffer = message.kind == Collective::AllReduce || message.kind == Collective::Broadcast;
  if (!isOneBuffer) slot.recv.resize(size_t(slot.toReceive));
  message.send = slot.send.data();
  message.recv = isOneBuffer ? slot.send.data() : slot.recv.data();
  comm_->setStage(slot.wire.site.stage);
  slot.ticket = comm_->start(group, message, slot.wire.site);
  return llvm::Error::success();
}

llvm::Error Deputy::waitFor(Head& head) {
  auto found = slots_.find(head.get<int32_t>());
  if (found == slots_.end()) return failure("no message");
  Slot& slot = found->second;
  if (llvm::Error failed = comm_->wait(slot.ticket)) {
    std::string why = llvm::toString(std::move(failed));
    slots_.clear();  // no buffer is in use
    return sendText(socket_, why);
  }
  if (slot.far)
    if (llvm::Error error = sync()) return error;
  if (llvm::Error error = sendText(socket_, "")) return error;
  llvm::Error error = slot.far ? llvm::Error::success() : socket_.send(slot.wire.message.recv, size_t(slot.toReceive));
  slots_.erase(found);
  return error;
}

// Rank 0 among the deputies of the others.
class Hub : public Communicator {
 public:
  Hub(std::vector<Socket> sockets, std::vector<Socket> far, std::chrono::milliseconds timeout)
      : Communicator(0, int(sockets.size()) + 1),
        team_(makeThreadTeam(size(), timeout)),
        own_(team_->communicator(0)),
        stop_(eventfd(0, EFD_CLOEXEC)) {
    for (size_t i = 0; i < sockets.size(); ++i) {
      far[i].setPatience(timeout);
      deputies_.push_back(std::make_unique<Deputy>(*team_, int(i) + 1, std::move(sockets[i]),
                                                   std::move(far[i])));
    }
    for (auto& deputy : deputies_) deputy->start();
    if (!deputies_.empty()) watch_ = std::thread([this] { watch(); });
  }
  ~Hub() override;

  Group& world() override { return own_->world(); }
  Group& group(llvm::ArrayRef<int> members) override { return own_->group(members); }
  llvm::Error wait(Ticket ticket) override { return own_->wait(ticket); }
  void fail(llvm::StringRef why) override { own_->fail(why); }
  std::string failure() override { return own_->failure(); }

 protected:
  Ticket begin(Group& group, const Message& message, const Site& site) override {
    own_->setStage(site.stage);
    return own_->start(group, message, site);
  }

 private:
  void watch();

  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<Communicator> own_;
  std::vector<std::unique_ptr<Deputy>> deputies_;
  Socket stop_;
  std::thread watch_;
};

// Ranks close their connections only behind their last answer.
void Hub::watch() {
  std::vector<pollfd> polled = {{stop_.fd(), POLLIN, 0}};
  for (auto& deputy : deputies_) polled.push_back({deputy->fd(), POLLRDHUP, 0});
  for (;;) {
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[0].revents != 0) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      if (!deputies_[i - 1]->hasEnded()) deputies_[i - 1]->lose();
      polled[i].fd = -1;
    }
  }
}

Hub::~Hub() {
  own_.reset();
  if (!team_->waitForEnd())
    for (auto& deputy : deputies_) deputy->hangUp();
  for (auto& deputy : deputies_) deputy->join();
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(stop_.fd(), &one, sizeof one);
  if (watch_.joinable()) watch_.join();
}

// The other ranks' connections, by rank: those that begin with this word.
class Gathering {
 public:
  Gathering(int size, const std::string& where, uint64_t hello)
      : where_(where), hello_(hello), ranks_(size_t(size)) {}

  llvm::Error run(const Socket& listening, Clock::time_point deadline,
                  std::chrono::milliseconds timeout);
  // Tells all that have come; nothing: that all have.
  void answer(llvm::StringRef why);
  std::vector<Socket> take() {
    ranks_.erase(ranks_.begin());
    return std::move(ranks_);
  }

 private:
  std::vector<int> missing() const {
    std::vector<int> missing;
    for (size_t r = 1; r < ranks_.size(); ++r)
      if (!ranks_[r].isOpen()) missing.push_back(int(r));
    return missing;
  }
  // Takes in those that have said who they are.
  llvm::Error hear();
  llvm::Error take(Socket& socket, const Hello& hello);

  std::string where_;
  uint64_t hello_;
  std::vector<Socket> ranks_;  // by rank; 0 stays closed
  std::vector<Socket> strangers_;
};

llvm::Error Gathering::hear() {
  for (Socket& stranger : strangers_) {
    Hello hello;
    llvm::Expected<bool> has = stranger.has(sizeof hello);
    if (has && !*has) continue;
    Socket socket = std::move(stranger);
    if (!has) {
      llvm::consumeError(has.takeError());
      continue;
    }
    llvm::cantFail(socket.receive(&hello, sizeof hello));
    if (hello.magic != hello_) continue;  // whoever it is, it is no rank
    if (llvm::Error error = take(socket, hello)) {
      std::string why = llvm::toString(std::move(error));
      llvm::consumeError(sendText(socket, why));
      return failure(why);
    }
  }
  llvm::erase_if(strangers_, [](const Socket& socket) { return !socket.isOpen(); });
  return llvm::Error::success();
}

llvm::Error Gathering::take(Socket& socket, const Hello& hello) {
  std::string who = "rank " + std::to_string(hello.rank);
  if (hello.size != int(ranks_.size()))
    return failure(who + " was started as one of " + std::to_string(hello.size) +
                   " ranks, rank 0 as one of " + std::to_string(ranks_.size()));
  if (hello.rank < 1 || hello.rank >= hello.size || ranks_[size_t(hello.rank)].isOpen())
    return failure("there are two processes that say they are " + who);
  ranks_[size_t(hello.rank)] = std::move(socket);
  return llvm::Error::success();
}

llvm::Error Gathering::run(const Socket& listening, Clock::time_point deadline,
                           std::chrono::milliseconds timeout) {
  llvm::Error error = llvm::Error::success();
  while (!error && !missing().empty()) {
    if (Clock::now() >= deadline) {
      std::vector<int> here, gone = missing();
      for (int r = 0; r < int(ranks_.size()); ++r)
        if (!llvm::is_contained(gone, r)) here.push_back(r);
      error =
          failure(rankList(gone) + " of " + std::to_string(ranks_.size()) + " did not come to " +
                  where_ + " within " + seconds(timeout) + "; " + rankList(here) + " did");
      break;
    }
    std::vector<int> fds = {listening.fd()};
    for (const Socket& stranger : strangers_) fds.push_back(stranger.fd());
    waitForAny(fds, deadline);
    llvm::Expected<Socket> next = acceptAt(listening);
    if (next) strangers_.push_back(std::move(*next));
    else llvm::consumeError(next.takeError());  // nobody new
    error = hear();
    // A stranger that stops in the middle of a word would keep this loop awake.
    if (!strangers_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return error;
}

void Gathering::answer(llvm::StringRef why) {
  for (Socket& rank : ranks_)
    if (rank.isOpen()) llvm::consumeError(sendText(rank, why));
}

}  // namespace

llvm::Expected<std::unique_ptr<Communicator>> makeTcpHub(int size, const std::string& host,
                                                         int port,
                                                         std::chrono::milliseconds timeout) {
  std::string where = host + ":" + std::to_string(port);
  auto failed = [&](llvm::Error error) {
    return failure("rank 0 at " + where + ": " + llvm::toString(std::move(error)));
  };
  if (size == 1) return std::make_unique<Hub>(std::vector<Socket>(), std::vector<Socket>(), timeout);
  Gathering ranks(size, where, kHello), far(size, where, kFarHello);
  llvm::Expected<Socket> listening = listenAt(host, port);
  if (!listening) return failed(listening.takeError());
  llvm::Error error = ranks.run(*listening, Clock::now() + timeout, timeout);
  std::string why = llvm::toString(std::move(error));
  ranks.answer(why);
  if (!why.empty()) return failed(failure(why));
  if (llvm::Error late = far.run(*listening, Clock::now() + timeout, timeout))
    return failed(std::move(late));
  return std::make_unique<Hub>(ranks.take(), far.take(), timeout);
}

}  // namespace planc::comm
