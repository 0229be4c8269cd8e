// Tested by tests/gpu/fake_messenger_test.cpp.
#include "tests/gpu/network.h"

#include <algorithm>
#include <cstring>

#include "ir/type.h"
#include "llvm/ADT/STLExtras.h"
#include "runtime/bf16.h"

namespace planc::cuda::fake {
namespace {

const char* nameOf(Kind kind) {
  switch (kind) {
    case Kind::AllReduce:
      return "all-reduce";
    case Kind::ReduceScatter:
      return "reduce-scatter";
    case Kind::AllGather:
      return "all-gather";
    case Kind::Broadcast:
      return "broadcast";
    case Kind::Send:
      return "send";
    case Kind::Receive:
      return "receive";
  }
  return "";
}

template <class T>
T combine(Reduce reduce, T a, T b) {
  if (reduce == Reduce::Sum) return a + b;
  return a > b || a != a ? a : b;
}

// In the order of ranks; bf16 is rounded once.
template <class T, class Load, class Store>
void reduceAs(const std::vector<Posted>& calls, int64_t count, Load load, Store store) {
  for (int64_t i = 0; i < count; ++i) {
    T x = load(calls[0].call->send, i);
    for (size_t r = 1; r < calls.size(); ++r)
      x = combine(calls[0].call->reduce, x, load(calls[r].call->send, i));
    store(i, x);
  }
}

template <class T>
void reducePlain(const std::vector<Posted>& calls, int64_t count, std::byte* to) {
  reduceAs<T>(
      calls, count, [](const void* from, int64_t i) { return static_cast<const T*>(from)[i]; },
      [&](int64_t i, T x) { reinterpret_cast<T*>(to)[i] = x; });
}

void reduce(const std::vector<Posted>& calls, int64_t count, std::byte* to) {
  switch (calls[0].call->elem) {
    case Elem::F32:
      return reducePlain<float>(calls, count, to);
    case Elem::F64:
      return reducePlain<double>(calls, count, to);
    case Elem::I32:
      return reducePlain<int32_t>(calls, count, to);
    case Elem::BF16:
      return reduceAs<float>(
          calls, count,
          [](const void* from, int64_t i) { return toFloat(static_cast<const Bf16*>(from)[i]); },
          [&](int64_t i, float x) { reinterpret_cast<Bf16*>(to)[i] = toBf16(x); });
  }
}

std::string listed(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

bool isSame(const Call& a, const Call& b) {
  bool reduces = a.kind == Kind::AllReduce || a.kind == Kind::ReduceScatter;
  return a.kind == b.kind && a.count == b.count && a.elem == b.elem &&
         (!reduces || a.reduce == b.reduce) && (a.kind != Kind::Broadcast || a.peer == b.peer);
}

}  // namespace

Network& network() {
  static Network all;
  return all;
}

std::string Call::text() const {
  std::string text = nameOf(kind);
  text += " of " + std::to_string(count) + " " + name(elem).str();
  if (reduce == Reduce::Max) text += " (max)";
  if (kind == Kind::Broadcast) text += " from rank " + std::to_string(peer);
  if (kind == Kind::Send) text += " to rank " + std::to_string(peer);
  if (kind == Kind::Receive) text += " from rank " + std::to_string(peer);
  return text;
}

void Club::fail(const std::string& text, bool failsDriver) {
  if (!failure.empty()) return;
  failure = text;
  failsDrivers = failsDriver;
  network().changed.notify_all();
}

void Club::post(const OperationRef& operation) {
  int rank = operation->rank;
  operation->isPosted = true;
  operation->left = operation->calls.size();
  noteProgress();
  for (const Call& call : operation->calls) {
    if (!call.isCollective()) {
      bool sends = call.kind == Kind::Send;
      std::pair<int, int> pair = sends ? std::pair(rank, call.peer) : std::pair(call.peer, rank);
      (sends ? sends_ : receives_)[pair].push_back({operation, &call});
      matchPairs(pair.first, pair.second);
      continue;
    }
    uint64_t number = members[size_t(rank)].collectives++;
    numbers_[&call] = number;
    auto& calls = collectives_[number];
    calls.resize(members.size());
    calls[size_t(rank)] = {operation, &call};
    for (size_t other = 0; other < calls.size(); ++other) {
      const Call* theirs = calls[other].call;
      if (theirs == nullptr || isSame(call, *theirs)) continue;
      return fail("rank " + std::to_string(rank) + " does " + call.text() + " where rank " +
                      std::to_string(other) + " does " + theirs->text(),
                  true);
    }
    bool isComplete = llvm::all_of(calls, [](const Posted& p) { return p.call != nullptr; });
    if (!isComplete) continue;
    runCollective(calls);
    for (const Posted& done : calls) {
      --done.operation->left;
      numbers_.erase(done.call);
    }
    collectives_.erase(number);
  }
  network().changed.notify_all();
}

void Club::runCollective(std::vector<Posted>& calls) {
  const Call& first = *calls[0].call;
  size_t ranks = calls.size(), piece = size_t(first.count * bytesPerElement(first.elem));
  std::deque<DeviceMemory::Open> open;
  for (const Member& member : members) open.emplace_back(member.core->memory);
  bool hasPieces = first.kind == Kind::ReduceScatter || first.kind == Kind::AllGather;
  std::vector<std::byte> result(hasPieces ? ranks * piece : piece);
  switch (first.kind) {
    case Kind::AllReduce:
    case Kind::ReduceScatter:
      reduce(calls, hasPieces ? int64_t(ranks) * first.count : first.count, result.data());
      break;
    case Kind::AllGather:
      for (size_t r = 0; r < ranks; ++r)
        std::memcpy(result.data() + r * piece, calls[r].call->send, piece);
      break;
    default:
      std::memcpy(result.data(), calls[size_t(first.peer)].call->send, piece);
  }
  for (size_t r = 0; r < ranks; ++r) {
    bool isPart = first.kind == Kind::ReduceScatter;
    std::memcpy(calls[r].call->recv, result.data() + (isPart ? r * piece : 0),
                isPart ? piece : result.size());
  }
}

void Club::matchPairs(int from, int to) {
  auto &sends = sends_[{from, to}], &receives = receives_[{from, to}];
  while (!sends.empty() && !receives.empty()) {
    const Call &out = *sends.front().call, &in = *receives.front().call;
    if (out.count != in.count || out.elem != in.elem)
      return fail("rank " + std::to_string(from) + " does " + out.text() + " where rank " +
                      std::to_string(to) + " does " + in.text(),
                  true);
    DeviceMemory::Open source(members[size_t(from)].core->memory);
    DeviceMemory::Open target(members[size_t(to)].core->memory);
    std::memcpy(in.recv, out.send, size_t(out.count * bytesPerElement(out.elem)));
    --sends.front().operation->left;
    --receives.front().operation->left;
    sends.pop_front();
    receives.pop_front();
  }
}

std::string Club::waitsFor(const Operation& operation) const {
  for (const Call& call : operation.calls) {
    if (!call.isCollective()) continue;
    auto found = numbers_.find(&call);
    if (found == numbers_.end()) continue;
    std::vector<int> missing;
    const auto& calls = collectives_.at(found->second);
    for (size_t r = 0; r < calls.size(); ++r)
      if (calls[r].call == nullptr) missing.push_back(int(r));
    return call.text() + " waits for " + listed(missing);
  }
  for (const auto* queues : {&sends_, &receives_})
    for (const auto& [pair, queue] : *queues)
      for (const Posted& posted : queue)
        if (posted.operation.get() == &operation)
          return posted.call->text() + " waits for rank " + std::to_string(posted.call->peer);
  return "nothing";
}

void Club::noteGone(const Operation& operation) {
  auto check = [&](int rank, const Call& call) {
    if (members[size_t(rank)].isGone)
      fail("rank " + std::to_string(rank) + " is gone, for which " + call.text() + " waits", false);
  };
  for (const Call& call : operation.calls) {
    auto found = numbers_.find(&call);
    if (found == numbers_.end()) continue;
    const auto& calls = collectives_.at(found->second);
    for (size_t r = 0; r < calls.size(); ++r)
      if (calls[r].call == nullptr) check(int(r), call);
  }
  for (const auto* queues : {&sends_, &receives_})
    for (const auto& [pair, queue] : *queues)
      for (const Posted& posted : queue)
        if (posted.operation.get() == &operation) check(posted.call->peer, *posted.call);
}

void Club::leave(int rank) {
  members[size_t(rank)].isGone = true;
  for (auto& [number, calls] : collectives_) {
    numbers_.erase(calls[size_t(rank)].call);
    calls[size_t(rank)] = {};
  }
  for (auto* queues : {&sends_, &receives_})
    for (auto& [pair, queue] : *queues)
      std::erase_if(queue, [&](const Posted& p) { return p.operation->rank == rank; });
  network().changed.notify_all();
}

}  // namespace planc::cuda::fake
