// A message as copies and reductions between its members' buffers. Large ones are cut in pieces,
// small ones are put together, until a task touches some hundred KiB. Tested by
// tests/runtime/comm_test.cpp.
#include "runtime/comm/work.h"

#include <algorithm>
#include <cstring>

#include "llvm/ADT/STLExtras.h"
#include "runtime/comm/reduce.h"

namespace planc::comm {
namespace {

// What a task reads: large against the cost of taking it, small against a thread's share of a
// message that is worth sharing.
constexpr int64_t kTaskBytes = 256 * 1024;
constexpr int64_t kLeastPiece = 1024;  // elements: a block of `reduce`

int64_t chunk(const Message& message, llvm::ArrayRef<int64_t> counts, int position) {
  return counts.empty() ? message.count : counts[size_t(position)];
}

}  // namespace

bool agree(const Message& a, int i, const Message& b, int j) {
  if (a.kind != b.kind || a.elem != b.elem) return false;
  switch (a.kind) {
    case Collective::AllReduce:
    case Collective::ReduceScatter:
      return a.count == b.count && a.reduction == b.reduction;
    case Collective::AllToAll:
      return chunk(a, a.sendCounts, j) == chunk(b, b.recvCounts, i) &&
             chunk(a, a.recvCounts, j) == chunk(b, b.sendCounts, i);
    case Collective::Broadcast:
      return a.count == b.count && a.root == b.root;
    case Collective::AllGather:
    case Collective::SendReceive:
      return a.count == b.count;
  }
  return false;
}

// A root of a broadcast has what it sends where others receive.
Work::Place Work::sent(const Message& message, int64_t element) const {
  const void* base = message.kind == Collective::Broadcast ? message.recv : message.send;
  return {static_cast<std::byte*>(const_cast<void*>(base)), element * bytesPerElement(elem_),
          message.far};
}

Work::Place Work::received(const Message& message, int64_t element) const {
  return {static_cast<std::byte*>(message.recv), element * bytesPerElement(elem_), message.far};
}

bool Work::Item::isFar() const {
  auto isFar = [](const Place& place) { return place.far != nullptr; };
  return llvm::any_of(inputs, isFar) || llvm::any_of(outputs, isFar);
}

Work::Work(llvm::ArrayRef<const Message*> messages)
    : elem_(messages[0]->elem), reduction_(messages[0]->reduction) {
  const Message& any = *messages[0];
  int64_t count = any.count;
  // What one process fetches it gives to all that want it; from one memory to another each copy is a task.
  bool isFar = llvm::any_of(messages, [](const Message* m) { return m->far != nullptr; });
  auto copy = [&](Place from, llvm::ArrayRef<Place> to) {
    if (isFar) return add({{from}, {to.begin(), to.end()}}, count);
    for (const Place& place : to) add({{from}, {place}}, count);
  };
  Item all;
  switch (any.kind) {
    case Collective::AllReduce:
      for (const Message* m : messages) {
        all.inputs.push_back(sent(*m));
        all.outputs.push_back(received(*m));
      }
      add(std::move(all), count);
      break;
    case Collective::ReduceScatter:
      for (size_t r = 0; r < messages.size(); ++r) {
        Item own;
        for (const Message* m : messages) own.inputs.push_back(sent(*m, int64_t(r) * count));
        own.outputs.push_back(received(*messages[r]));
        add(std::move(own), count);
      }
      break;
    case Collective::AllGather:
      for (size_t r = 0; r < messages.size(); ++r) {
        llvm::SmallVector<Place, 8> to;
        for (const Message* m : messages) to.push_back(received(*m, int64_t(r) * count));
        copy(sent(*messages[r]), to);
      }
      break;
    case Collective::AllToAll:
      addChunks(messages);
      break;
    case Collective::Broadcast: {
      llvm::SmallVector<Place, 8> to;
      for (const Message* m : messages)
        if (m != messages[size_t(any.root)]) to.push_back(received(*m));
      copy(sent(*messages[size_t(any.root)]), to);
      break;
    }
    case Collective::SendReceive:
      add({{sent(*messages[0])}, {received(*messages[1])}}, count);
      break;
  }
}

void Work::addChunks(llvm::ArrayRef<const Message*> messages) {
  std::vector<int64_t> sentBefore(messages.size(), 0);  // of each sender, to earlier receivers
  for (size_t r = 0; r < messages.size(); ++r) {
    int64_t receivedBefore = 0;
    for (size_t s = 0; s < messages.size(); ++s) {
      const Message &from = *messages[s], &to = *messages[r];
      int64_t count = chunk(from, from.sendCounts, int(r));
      add({{sent(from, sentBefore[s])}, {received(to, receivedBefore)}}, count);
      sentBefore[s] += count;
      receivedBefore += count;
    }
  }
}

void Work::add(Item item, int64_t count) {
  if (item.outputs.empty()) return;
  if (item.inputs.size() == 1 && item.outputs.size() == 1 && item.inputs[0] == item.outputs[0]) {
    return;
  }
  int64_t perElement = bytesPerElement(elem_) * int64_t(item.inputs.size());
  int64_t most = std::max(kTaskBytes / perElement / kLeastPiece, int64_t(1)) * kLeastPiece;
  for (int64_t begin = 0; begin < count; begin += most) {
    int64_t end = std::min(begin + most, count), bytes = (end - begin) * perElement;
    pieces_.push_back({items_.size(), begin, end});
    if (ends_.empty() || bytes > room_) {
      ends_.push_back(0);
      room_ = kTaskBytes;
    }
    ends_.back() = pieces_.size();
    room_ -= bytes;
  }
  items_.push_back(std::move(item));
}

void Work::run(size_t task) const {
  int64_t width = bytesPerElement(elem_);
  for (size_t p = task == 0 ? 0 : ends_[task - 1]; p < ends_[task]; ++p) {
    const Piece& piece = pieces_[p];
    const Item& item = items_[piece.item];
    if (item.isFar()) {
      runFar(item, piece.begin, piece.end);
      continue;
    }
    if (item.inputs.size() == 1 && item.outputs.size() == 1) {
      std::memcpy(item.outputs[0].at(piece.begin * width), item.inputs[0].at(piece.begin * width),
                  size_t((piece.end - piece.begin) * width));
      continue;
    }
    llvm::SmallVector<const void*, 8> inputs;
    llvm::SmallVector<void*, 8> outputs;
    for (const Place& place : item.inputs) inputs.push_back(place.at(0));
    for (const Place& place : item.outputs) outputs.push_back(place.at(0));
    reduce(elem_, reduction_, inputs, outputs, piece.begin, piece.end);
  }
}

// The part that a task is of is here for a moment: its inputs, and behind them what they make.
void Work::runFar(const Item& item, int64_t begin, int64_t end) const {
  int64_t width = bytesPerElement(elem_), bytes = (end - begin) * width, at = begin * width;
  thread_local std::vector<std::byte> room;
  room.resize(size_t(bytes) * (item.inputs.size() + 1));
  llvm::SmallVector<const void*, 8> inputs;
  for (const Place& place : item.inputs) {
    std::byte* into = &room[size_t(bytes) * inputs.size()];
    if (place.far != nullptr) place.far->fetch(place.offset + at, bytes, into);
    inputs.push_back(place.far != nullptr ? into : place.at(at));
  }
  const void* made = inputs[0];
  if (inputs.size() > 1) {
    void* sum = &room[size_t(bytes) * inputs.size()];
    reduce(elem_, reduction_, inputs, {sum}, 0, end - begin);
    made = sum;
  }
  for (const Place& place : item.outputs) {
    if (place.far != nullptr) place.far->store(place.offset + at, bytes, made);
    else if (place.at(at) != made) std::memcpy(place.at(at), made, size_t(bytes));
  }
}

}  // namespace planc::comm
