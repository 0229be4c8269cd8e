// Messages between fake GPUs. Tested by tests/gpu/fake_messenger_test.cpp.
#include <chrono>
#include <cstring>
#include <functional>

#include "ir/type.h"
#include "llvm/ADT/STLExtras.h"
#include "tests/gpu/fake_driver.h"
#include "tests/gpu/network.h"

namespace planc::cuda {

struct CliqueHandle {
  std::shared_ptr<fake::Club> club;
  int rank;
  uint64_t splits = 0;
};

}  // namespace planc::cuda

namespace planc::cuda::fake {
namespace {

llvm::Error asError(const llvm::Twine& text) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), text);
}

using NetworkLock = std::unique_lock<std::mutex>;

class FakeMessenger : public Messenger {
 public:
  explicit FakeMessenger(FakeDriver& driver) : driver_(driver), core_(driver.core) {}
  ~FakeMessenger() override {
    abort();
  }

  llvm::Expected<Id> makeId() override;
  llvm::Expected<Clique> join(const Id& id, int ranks, int rank) override;
  llvm::Expected<Clique> split(Clique of, int colour, int key) override;

  void begin() override { ++depth_; }
  void end() override;
  void allReduce(Clique clique, const void* send, void* recv, int64_t count, Elem elem,
                 Reduce reduce, Stream stream) override {
    add(clique, {Kind::AllReduce, send, recv, count, elem, reduce}, stream);
  }
  void reduceScatter(Clique clique, const void* send, void* recv, int64_t recvCount, Elem elem,
                     Reduce reduce, Stream stream) override {
    add(clique, {Kind::ReduceScatter, send, recv, recvCount, elem, reduce}, stream);
  }
  void allGather(Clique clique, const void* send, void* recv, int64_t sendCount, Elem elem,
                 Stream stream) override {
    add(clique, {Kind::AllGather, send, recv, sendCount, elem}, stream);
  }
  void broadcast(Clique clique, void* buffer, int64_t count, Elem elem, int root,
                 Stream stream) override {
    add(clique, {Kind::Broadcast, buffer, buffer, count, elem, Reduce::Sum, root}, stream);
  }
  void send(Clique clique, const void* buffer, int64_t count, Elem elem, int to,
            Stream stream) override {
    add(clique, {Kind::Send, buffer, nullptr, count, elem, Reduce::Sum, to}, stream);
  }
  void receive(Clique clique, void* buffer, int64_t count, Elem elem, int from,
               Stream stream) override {
    add(clique, {Kind::Receive, nullptr, buffer, count, elem, Reduce::Sum, from}, stream);
  }

  void enroll(Clique clique, void* memory, int64_t bytes) override;
  llvm::Error error(Clique clique) override;
  void finish() override;
  void abort() override;

 private:
  struct Pending {
    Clique clique;
    std::vector<Call> calls;
    std::vector<Stream> streams;
  };
  void add(Clique clique, Call call, Stream stream);
  std::string whatIsWrong(const CliqueHandle& clique, const Call& call) const;
  void enqueue(Pending pending);
  void meet(const Pending& pending);
  // Until it holds; the GPU goes on meanwhile. False: nobody came.
  bool waitUntil(NetworkLock& lock, const std::function<bool()>& holds);
  Clique keep(std::shared_ptr<Club> club, int rank);

  FakeDriver& driver_;
  std::shared_ptr<Core> core_;
  std::vector<std::unique_ptr<CliqueHandle>> cliques_;
  int depth_ = 0;
  std::vector<Pending> group_;
};

llvm::Expected<Messenger::Id> FakeMessenger::makeId() {
  NetworkLock lock(network().mutex);
  Id id = {};
  std::string text = "fake clique " + std::to_string(network().ids++);
  std::memcpy(id.bytes, text.data(), text.size());
  return id;
}

bool FakeMessenger::waitUntil(NetworkLock& lock, const std::function<bool()>& holds) {
  double until = now() + core_->options.hangSeconds;
  while (!holds()) {
    if (now() > until) return false;
    network().changed.wait_for(lock, std::chrono::milliseconds(1));
    lock.unlock();
    {
      std::lock_guard own(core_->mutex);
      core_->progress(4);
    }
    lock.lock();
  }
  return true;
}

Clique FakeMessenger::keep(std::shared_ptr<Club> club, int rank) {
  cliques_.push_back(std::make_unique<CliqueHandle>());
  cliques_.back()->club = std::move(club);
  cliques_.back()->rank = rank;
  return cliques_.back().get();
}

llvm::Expected<Clique> FakeMessenger::join(const Id& id, int ranks, int rank) {
  if (driver_.isCapturing()) return asError("a clique is joined while a graph is made");
  NetworkLock lock(network().mutex);
  std::string key(id.bytes, sizeof id.bytes);
  std::shared_ptr<Club> club = network().clubs[key].lock();
  if (club == nullptr) network().clubs[key] = club = std::make_shared<Club>(ranks);
  if (club->members.size() != size_t(ranks) || rank < 0 || rank >= ranks ||
      club->members[size_t(rank)].core != nullptr)
    return asError("rank " + llvm::Twine(rank) + " of " + llvm::Twine(ranks) +
                   " is not one that the clique waits for");
  for (const Club::Member& member : club->members)
    if (member.core != nullptr && member.core->index == core_->index)
      return asError("two ranks of a clique are on GPU " + llvm::Twine(core_->index));
  club->members[size_t(rank)].core = core_;
  network().changed.notify_all();
  auto isThere = [](const Club::Member& member) { return member.core != nullptr; };
  if (!waitUntil(lock, [&] { return llvm::all_of(club->members, isThere); }))
    return asError("not all " + llvm::Twine(ranks) + " ranks joined the clique");
  return keep(std::move(club), rank);
}

llvm::Expected<Clique> FakeMessenger::split(Clique of, int colour, int key) {
  if (driver_.isCapturing()) return asError("a clique is split while a graph is made");
  NetworkLock lock(network().mutex);
  Club& club = *of->club;
  Club::Split& split = club.splits[of->splits++];
  split.wishes.resize(club.members.size());
  split.wishes[size_t(of->rank)] = {colour, key};
  if (++split.come == club.members.size()) {
    split.made.resize(club.members.size());
    std::map<int, std::vector<std::pair<int, int>>> parts;  // by colour: key, rank
    for (size_t r = 0; r < club.members.size(); ++r)
      if (split.wishes[r].first != kNone)
        parts[split.wishes[r].first].push_back({split.wishes[r].second, int(r)});
    for (auto& [ofColour, ranks] : parts) {
      llvm::sort(ranks);
      auto part = std::make_shared<Club>(int(ranks.size()));
      for (size_t i = 0; i < ranks.size(); ++i) {
        size_t rank = size_t(ranks[i].second);
        part->members[i].core = club.members[rank].core;
        split.made[rank] = {part, int(i)};
      }
    }
    network().changed.notify_all();
  }
  if (!waitUntil(lock, [&] { return split.come == club.members.size(); }))
    return asError("not all ranks of the clique split it");
  auto [part, rank] = split.made[size_t(of->rank)];
  return part == nullptr ? nullptr : keep(std::move(part), rank);
}

void FakeMessenger::end() {
  if (--depth_ > 0) return;
  for (Pending& pending : std::exchange(group_, {})) {
    if (core_->options.meetsFirst) meet(pending);
    enqueue(std::move(pending));
  }
}

void FakeMessenger::meet(const Pending& pending) {
  Club& club = *pending.clique->club;
  int own = pending.clique->rank;
  NetworkLock lock(network().mutex);
  auto isTransfer = [](const Call& call) {
    return call.kind == Kind::Send || call.kind == Kind::Receive;
  };
  for (const Call& call : pending.calls)
    if (isTransfer(call)) club.called.insert({own, call.peer});
  network().changed.notify_all();
  for (const Call& call : pending.calls) {
    if (!isTransfer(call)) continue;
    auto hasMet = [&] {
      return club.called.count({call.peer, own}) > 0 || !club.failure.empty() ||
             club.members[size_t(call.peer)].isGone;
    };
    if (!waitUntil(lock, hasMet))
      return club.fail("rank " + std::to_string(own) + " waits for rank " +
                           std::to_string(call.peer) + " to connect, on the host",
                       true);
  }
}

// Bytes that NCCL lets a call read and write: the same ones, a rank's own piece of the whole, or
// none in common.
std::string FakeMessenger::whatIsWrong(const CliqueHandle& clique, const Call& call) const {
  int ranks = int(clique.club->members.size());
  if (call.count < 0 || call.peer < 0 || call.peer >= ranks) return "there is no such call";
  int64_t piece = call.count * bytesPerElement(call.elem), whole = piece * ranks;
  int64_t sent = call.kind == Kind::ReduceScatter ? whole : piece;
  int64_t received = call.kind == Kind::AllGather ? whole : piece;
  auto isThere = [&](const void* at, int64_t bytes) {
    return bytes == 0 || at == nullptr || core_->memory.holds(at, bytes);
  };
  if (!isThere(call.send, sent) || !isThere(call.recv, received))
    return "its memory is not in one allocation of the GPU";
  if (call.send == nullptr || call.recv == nullptr || piece == 0) return "";
  auto* from = static_cast<const std::byte*>(call.send);
  auto* to = static_cast<const std::byte*>(call.recv);
  if (from + sent <= to || to + received <= from) return "";
  int64_t own = clique.rank * piece;
  bool isInPlace = call.kind == Kind::AllGather       ? from == to + own
                   : call.kind == Kind::ReduceScatter ? to == from + own
                                                      : from == to;
  return isInPlace ? "" : "what it sends and what it receives overlap";
}

void FakeMessenger::add(Clique clique, Call call, Stream stream) {
  std::lock_guard lock(core_->mutex);
  if (std::string wrong = whatIsWrong(*clique, call); !wrong.empty())
    return core_->fail(call.text() + ": " + wrong);
  {
    NetworkLock inner(network().mutex);
    if (clique->club->members[size_t(clique->rank)].isGone)
      return core_->fail(call.text() + " in a clique that was aborted");
  }
  auto pending = llvm::find_if(group_, [&](const Pending& p) { return p.clique == clique; });
  if (pending == group_.end()) {
    group_.push_back({clique, {}, {}});
    pending = std::prev(group_.end());
  }
  pending->calls.push_back(call);
  if (!llvm::is_contained(pending->streams, stream)) pending->streams.push_back(stream);
  if (depth_ == 0) {
    depth_ = 1;
    end();
  }
}

void FakeMessenger::enqueue(Pending pending) {
  Core* core = core_.get();
  auto work = [core, club = pending.clique->club, rank = pending.clique->rank,
               calls = std::move(pending.calls)]() -> Step {
    auto operation = std::make_shared<Operation>();
    operation->rank = rank;
    operation->calls = calls;
    Club::Member& own = club->members[size_t(rank)];
    NetworkLock lock(network().mutex);
    operation->ticket = own.issued++;
    return [=, &own] {
      NetworkLock lock(network().mutex);
      if (own.isGone) return true;
      if (!club->failure.empty() && club->failsDrivers) core->fail(club->failure);
      if (!club->failure.empty() || own.finished != operation->ticket || own.isSilent) return false;
      if (!operation->isPosted) {
        if (core->fires(Fault::CliqueError)) club->fail("an error, as a test wants it", false);
        own.isSilent = core->fires(Fault::Silence);
        if (core->fires(Fault::Death)) {
          core->fail("the GPU is lost, as a test wants it");
          club->fail("rank " + std::to_string(rank) + " is lost", false);
          club->leave(rank);
          return false;
        }
        if (own.isSilent || !club->failure.empty()) return false;
        club->post(operation);
      }
      if (operation->left == 0 && club->failure.empty()) {
        ++own.finished;
        noteProgress();
        return true;
      }
      club->noteGone(*operation);
      if (now() - lastProgress() > core->options.hangSeconds)
        club->fail("no GPU does anything: on rank " + std::to_string(rank) + ", " +
                       club->waitsFor(*operation),
                   true);
      if (!club->failure.empty() && club->failsDrivers) core->fail(club->failure);
      return false;
    };
  };
  driver_.enqueue(pending.streams, std::move(work));
}

void FakeMessenger::enroll(Clique, void* memory, int64_t bytes) {
  std::lock_guard lock(core_->mutex);
  if (!core_->memory.holds(memory, bytes)) core_->fail("enrolls memory that is not the GPU's");
}

llvm::Error FakeMessenger::error(Clique clique) {
  NetworkLock lock(network().mutex);
  if (clique->club->failure.empty()) return llvm::Error::success();
  return asError(clique->club->failure);
}

void FakeMessenger::finish() {
  std::lock_guard lock(core_->mutex);
  if (driver_.graphs() > 0) core_->fail("cliques end while a graph holds their messages");
  abort();
}

void FakeMessenger::abort() {
  NetworkLock lock(network().mutex);
  for (auto& clique : cliques_) clique->club->leave(clique->rank);
}

}  // namespace
}  // namespace planc::cuda::fake

namespace planc::cuda {

llvm::Expected<std::unique_ptr<Messenger>> makeMessenger(Driver& driver, Patience) {
  return std::make_unique<fake::FakeMessenger>(static_cast<fake::FakeDriver&>(driver));
}

}  // namespace planc::cuda
