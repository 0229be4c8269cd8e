// The communicator between GPUs. Each group has a clique and a stream of its own: a message's start makes
// the stream wait for the compute stream, its wait makes the compute stream wait for the message, and the
// host waits for neither. What ranks tell each other in host memory goes through the host's communicator.
//
// The host finds out how far messages are when it waits for the GPU: behind each one a kernel writes the
// message's number to pinned memory, in a recorded step too. So a time-out can name the message that did
// not end. Tested by tests/gpu/machine_test.cpp.
#include <algorithm>
#include <deque>
#include <map>

#include "llvm/ADT/STLExtras.h"
#include "runtime/comm_text.h"
#include "runtime/cuda/cliques.h"
#include "runtime/cuda/copies.h"
#include "runtime/cuda/device.h"
#include "runtime/talk.h"

namespace planc::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kManySites = 4096;
// Groups of so many ranks at most connect each with each ahead of the first step.
constexpr int kMostPeers = 64;

class GpuGroup : public Group {
 public:
  GpuGroup(llvm::ArrayRef<int> members, int rank, Group& host) : Group(members, rank), host(host) {}

  Group& host;
  Clique clique = nullptr;
  Stream stream = nullptr;
  // In pinned memory: how many of `sites` the GPU has come to, and how many are done: of a recorded step's
  // messages, or of those since the list was last cleared.
  volatile int32_t *entered = nullptr, *done = nullptr;
  std::vector<Site> sites;

  void restart() {
    *entered = 0;
    *done = 0;
  }
  bool isInside() const { return done != nullptr && *entered > *done; }
};

struct Slot {
  bool isUsed = false;
  Ticket host{-1};  // of a message in host memory
  Event ready = nullptr, complete = nullptr;
};

class NcclCommunicator : public Communicator, private GpuWatch {
 public:
  NcclCommunicator(Communicator& host, CudaDevice& device, std::unique_ptr<Messenger> messenger,
                   std::chrono::milliseconds timeout)
      : Communicator(host.rank(), host.size()),
        host_(host),
        device_(device),
        messenger_(std::move(messenger)),
        timeout_(timeout),
        world_(host.world().members(), host.rank(), host.world()) {
    device_.setWatch(this);
  }
  ~NcclCommunicator() override;

  Group& world() override { return world_; }
  Group& group(llvm::ArrayRef<int> members) override {
    return groups_.emplace_back(members, rank(), host_.group(members));
  }
  llvm::Error connect() override;
  llvm::Error wait(Ticket ticket) override;
  void fail(llvm::StringRef why) override;
  std::string failure() override { return failure_.empty() ? host_.failure() : failure_; }

  llvm::Error meet();

 protected:
  Ticket begin(Group& group, const Message& message, const Site& site) override;

 private:
  void enqueue(GpuGroup& group, const Message& message);
  void exchangeAll(GpuGroup& group, const Message& message);
  void warmUp(GpuGroup& group, int32_t* scratch);
  void mark(const GpuGroup& group, volatile int32_t* cell);
  void giveUp();
  llvm::Error look() override;
  llvm::Error check() override;
  void lost(const std::string& why) override {
    if (failure().empty()) fail(why);
  }
  void restart(bool records) override;
  std::string whatIsStuck() const;
  Slot& takeSlot(int& index);

  Communicator& host_;
  CudaDevice& device_;
  std::unique_ptr<Messenger> messenger_;
  const std::chrono::milliseconds timeout_;
  GpuGroup world_;
  std::deque<GpuGroup> groups_;
  std::deque<Slot> slots_;
  std::string failure_;
  bool isConnected_ = false;
  bool hasEnded_ = false;  // the messenger has
  // What `look` saw last: how many messages were done, and since when.
  int64_t seen_ = 0;
  Clock::time_point since_{}, looked_{};
};

llvm::Error error(const llvm::Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", what.str().c_str());
}

// All ranks' GPUs, before any group.
llvm::Error NcclCommunicator::meet() {
  if (size() == 1) return llvm::Error::success();
  std::string id;
  llvm::Error mine = llvm::Error::success();
  if (rank() == 0) {
    auto made = messenger_->makeId();
    if (made) id.assign(made->bytes, sizeof made->bytes);
    else mine = made.takeError();
  }
  if (llvm::Error failed = host_.agree(std::move(mine))) return failed;
  auto all = fromFirst(host_, id);
  if (!all) return all.takeError();
  Messenger::Id shared;
  std::copy_n(all->begin(), sizeof shared.bytes, shared.bytes);
  auto clique = messenger_->join(shared, size(), rank());
  if (clique) world_.clique = *clique;
  return host_.agree(clique ? llvm::Error::success() : clique.takeError());
}

// Every rank must take part in every split, so all learn of all groups.
llvm::Error NcclCommunicator::connect() {
  if (size() == 1) return llvm::Error::success();
  std::map<GroupKey, GpuGroup*> mine;
  std::vector<GroupKey> led;
  for (GpuGroup& group : groups_) {
    if (group.clique != nullptr || group.size() == 1) continue;
    GroupKey key{{group.members().begin(), group.members().end()}, 0};
    while (mine.count(key)) ++key.number;
    mine[key] = &group;
    if (group.position() == 0) led.push_back(key);
  }
  auto texts = toFirst(host_, writeGroups(led));
  if (!texts) return texts.takeError();
  std::string joined;
  for (const std::string& text : *texts) joined += text;
  auto all = fromFirst(host_, joined);
  if (!all) return all.takeError();
  auto groups = readGroups(*all);
  if (!groups) return groups.takeError();
  llvm::Error failed = llvm::Error::success();
  std::vector<std::vector<GroupKey>> rounds = roundsOf(std::move(*groups));
  for (const std::vector<GroupKey>& round : rounds) {
    int colour = Messenger::kNone;
    GpuGroup* group = nullptr;
    for (size_t i = 0; i < round.size(); ++i) {
      auto found = mine.find(round[i]);
      if (found == mine.end()) continue;
      colour = int(i);
      group = found->second;
    }
    auto clique = messenger_->split(world_.clique, colour, group ? group->position() : 0);
    if (!clique) {
      failed = clique.takeError();
      break;
    }
    if (group) group->clique = *clique;
  }
  for (auto& [key, group] : mine) {
    if (failed) break;
    group->stream = device_.gpu().makeStream(true);
    auto cells = device_.gpu().allocateHost(2 * sizeof(int32_t));
    if (!cells) {
      failed = cells.takeError();
      break;
    }
    group->entered = reinterpret_cast<int32_t*>(*cells);
    group->done = group->entered + 1;
    group->restart();
    if (group->clique == nullptr) failed = error("a group of this rank's was not made");
    else messenger_->enroll(group->clique, device_.arena(), device_.arenaBytes());
  }
  if (llvm::Error any = host_.agree(std::move(failed))) return any;
  auto scratch = device_.gpu().allocate(2 * kMostPeers * sizeof(int32_t));
  if (llvm::Error any = host_.agree(scratch ? llvm::Error::success() : scratch.takeError()))
    return any;
  for (const std::vector<GroupKey>& round : rounds)
    for (const GroupKey& key : round)
      if (auto found = mine.find(key); found != mine.end())
        warmUp(*found->second, reinterpret_cast<int32_t*>(*scratch));
  if (llvm::Error any = host_.agree(device_.finish())) return any;
  isConnected_ = true;
  return llvm::Error::success();
}

// Ranks connect when they first talk, and a call that does waits for the other side's. A program's first
// messages come in other orders on other ranks, so here all do it in one: the order of the rounds.
void NcclCommunicator::warmUp(GpuGroup& group, int32_t* scratch) {
  messenger_->allReduce(group.clique, scratch, scratch, 1, Elem::I32, Reduce::Sum, group.stream);
  if (group.size() <= kMostPeers) {
    messenger_->begin();
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.position()) continue;
      messenger_->send(group.clique, scratch, 1, Elem::I32, peer, group.stream);
      messenger_->receive(group.clique, scratch + kMostPeers + peer, 1, Elem::I32, peer,
                          group.stream);
    }
    messenger_->end();
  }
  Event done = device_.gpu().makeEvent();
  device_.gpu().record(done, group.stream);
  device_.gpu().wait(device_.compute(), done);
}

Slot& NcclCommunicator::takeSlot(int& index) {
  index = 0;
  while (size_t(index) < slots_.size() && slots_[size_t(index)].isUsed) ++index;
  if (size_t(index) == slots_.size()) slots_.emplace_back();
  Slot& slot = slots_[size_t(index)];
  slot.isUsed = true;
  slot.host = {-1};
  return slot;
}

Ticket NcclCommunicator::begin(Group& group, const Message& message, const Site& site) {
  auto& mine = static_cast<GpuGroup&>(group);
  int index;
  Slot& slot = takeSlot(index);
  if (!message.isOnDevice) {
    host_.setStage(site.stage);
    slot.host = host_.start(mine.host, message, site);
    return {index};
  }
  Driver& gpu = device_.gpu();
  if (slot.ready == nullptr) {
    slot.ready = gpu.makeEvent();
    slot.complete = gpu.makeEvent();
  }
  if (group.size() > 1 && mine.stream == nullptr) failIn(site, "its ranks' GPUs are not connected");
  if (!failure_.empty()) return {index};  // `wait` says it
  gpu.at(comm::describe(site));
  Stream stream = group.size() > 1 ? mine.stream : device_.compute();
  gpu.record(slot.ready, device_.compute());
  if (stream != device_.compute()) gpu.wait(stream, slot.ready);
  if (group.size() > 1) {
    if (mine.sites.size() > kManySites && size_t(*mine.done) == mine.sites.size()) {
      mine.sites.clear();
      mine.restart();
    }
    mine.sites.push_back(site);
    mark(mine, mine.entered);
  }
  enqueue(mine, message);
  if (group.size() > 1) mark(mine, mine.done);
  gpu.record(slot.complete, stream);
  return {index};
}

void NcclCommunicator::mark(const GpuGroup& group, volatile int32_t* cell) {
  MarkArgs args{const_cast<int32_t*>(cell), int32_t(group.sites.size())};
  device_.gpu().launch(group.stream, kMark, {.x = 1, .threads = 32}, &args);
}

void NcclCommunicator::enqueue(GpuGroup& group, const Message& m) {
  Reduce reduce = m.reduction == Reduction::Max ? Reduce::Max : Reduce::Sum;
  int64_t width = bytesPerElement(m.elem);
  if (group.size() == 1) {
    int64_t count = m.sendCounts.empty() ? m.count : m.sendCounts.front();
    if (m.send != m.recv && m.send && m.recv) device_.copy(m.recv, m.send, count * width);
    return;
  }
  switch (m.kind) {
    case Collective::AllReduce:
      return messenger_->allReduce(group.clique, m.send, m.recv, m.count, m.elem, reduce,
                                   group.stream);
    case Collective::ReduceScatter:
      return messenger_->reduceScatter(group.clique, m.send, m.recv, m.count, m.elem, reduce,
                                       group.stream);
    case Collective::AllGather:
      return messenger_->allGather(group.clique, m.send, m.recv, m.count, m.elem, group.stream);
    case Collective::Broadcast:
      return messenger_->broadcast(group.clique, m.recv, m.count, m.elem, m.root, group.stream);
    case Collective::AllToAll:
      return exchangeAll(group, m);
    case Collective::SendReceive:
      messenger_->begin();
      if (m.to != Message::kNobody)
        messenger_->send(group.clique, m.send, m.count, m.elem, m.to, group.stream);
      if (m.from != Message::kNobody)
        messenger_->receive(group.clique, m.recv, m.count, m.elem, m.from, group.stream);
      return messenger_->end();
  }
}

// A send and a receive for each other rank at once; what stays is copied.
void NcclCommunicator::exchangeAll(GpuGroup& group, const Message& m) {
  int64_t width = bytesPerElement(m.elem), sent = 0, received = 0;
  const auto* send = static_cast<const std::byte*>(m.send);
  auto* recv = static_cast<std::byte*>(m.recv);
  messenger_->begin();
  for (int peer = 0; peer < group.size(); ++peer) {
    int64_t out = m.sendCounts.empty() ? m.count : m.sendCounts[size_t(peer)];
    int64_t in = m.recvCounts.empty() ? m.count : m.recvCounts[size_t(peer)];
    if (peer == group.position()) {
      if (out > 0)
        device_.gpu().copy(group.stream, recv + received * width, send + sent * width, out * width);
    } else {
      if (out > 0)
        messenger_->send(group.clique, send + sent * width, out, m.elem, peer, group.stream);
      if (in > 0)
        messenger_->receive(group.clique, recv + received * width, in, m.elem, peer, group.stream);
    }
    sent += out;
    received += in;
  }
  messenger_->end();
}

llvm::Error NcclCommunicator::wait(Ticket ticket) {
  Slot& slot = slots_[size_t(ticket.slot)];
  slot.isUsed = false;
  if (slot.host.slot >= 0) return host_.wait(slot.host);
  if (!failure_.empty()) return error(failure_);
  device_.gpu().wait(device_.compute(), slot.complete);
  return llvm::Error::success();
}

// Others first: MPI ends all processes here. They may have failed before, which is then the cause.
void NcclCommunicator::fail(llvm::StringRef why) {
  host_.fail(why);
  if (failure_.empty()) failure_ = host_.failure();
  if (failure_.empty()) failure_ = why.str();
  giveUp();
}

// What was recorded holds messages, and they hold their cliques.
void NcclCommunicator::giveUp() {
  if (hasEnded_) return;
  hasEnded_ = true;
  device_.dropRecording();
  if (messenger_) messenger_->abort();
}

NcclCommunicator::~NcclCommunicator() {
  bool isGood = isConnected_ && failure().empty() && !llvm::errorToBool(device_.finish());
  device_.setWatch(nullptr);
  if (hasEnded_ || messenger_ == nullptr) return;
  if (!isGood) {
    giveUp();
    return;
  }
  device_.dropRecording();
  messenger_->finish();
}

// Of each group the first message that is not done.
std::string NcclCommunicator::whatIsStuck() const {
  std::string text;
  for (const GpuGroup& group : groups_) {
    if (!group.isInside()) continue;
    text += (text.empty() ? "" : "; ") + comm::describe(group.sites[size_t(*group.done)]) +
            " among " + comm::rankList(group.members());
  }
  return text;
}

// What calls of the library left behind.
llvm::Error NcclCommunicator::check() {
  if (!failure_.empty()) return error(failure_);
  for (const GpuGroup& group : groups_)
    if (group.clique != nullptr)
      if (llvm::Error lost = messenger_->error(group.clique)) return lost;
  return llvm::Error::success();
}

void NcclCommunicator::restart(bool records) {
  for (GpuGroup& group : groups_) {
    if (group.done == nullptr) continue;
    group.restart();
    if (records) group.sites.clear();
  }
}

// Every millisecond or so, while the host waits for the GPU.
llvm::Error NcclCommunicator::look() {
  using namespace std::chrono_literals;
  auto now = Clock::now();
  if (now - looked_ < 1ms) return llvm::Error::success();
  bool isNew = now - looked_ > 100ms;  // the host did something else meanwhile
  looked_ = now;
  if (std::string why = failure(); !why.empty()) {
    if (failure_.empty()) failure_ = why;
    giveUp();
    return error(why);
  }
  int64_t done = 0;
  bool isInside = false;
  for (const GpuGroup& group : groups_) {
    if (group.clique == nullptr) continue;
    if (llvm::Error lost = messenger_->error(group.clique)) {
      std::string where = whatIsStuck();
      std::string why = llvm::toString(std::move(lost)) + (where.empty() ? "" : ", in " + where);
      fail(why);
      return error(why);
    }
    done += *group.done;
    isInside |= group.isInside();
  }
  // However long the GPU computes, only messages are waited for with a limit.
  if (isNew || !isInside || done != seen_) {
    seen_ = done;
    since_ = now;
  }
  if (now - since_ < timeout_) return llvm::Error::success();
  std::string why = "no progress for " + comm::seconds(timeout_) + " in " + whatIsStuck();
  fail(why);
  return error(why);
}

}  // namespace
}  // namespace planc::cuda

namespace planc {

llvm::Expected<std::unique_ptr<Communicator>> makeNcclCommunicator(
    Communicator& host, Device& device, std::chrono::milliseconds timeout) {
  auto& gpu = static_cast<cuda::CudaDevice&>(device);
  std::unique_ptr<cuda::Messenger> messenger;  // one rank has nobody to talk to
  if (host.size() > 1) {
    auto isOver = [&host] { return !host.failure().empty(); };
    auto made = agree(host, cuda::makeMessenger(gpu.gpu(), {timeout, isOver}));
    if (!made) return made.takeError();
    messenger = std::move(*made);
  }
  auto made = std::make_unique<cuda::NcclCommunicator>(host, gpu, std::move(messenger), timeout);
  if (llvm::Error error = made->meet()) return error;
  return made;
}

}  // namespace planc
