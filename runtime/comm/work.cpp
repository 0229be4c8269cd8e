// A message as copies and reductions between its members' buffers. Large ones are cut in pieces,
// small ones are put together, until a task touches some hundred KiB. Tested by
// tests/runtime/comm_test.cpp.
#include "runtime/comm/work.h"

#include <algorithm>
#include <cstring>

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

template <class T>
T* offset(T* base, Elem elem, int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return static_cast<Byte*>(base) + elements * bytesPerElement(elem);
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

Work::Work(llvm::ArrayRef<const Message*> messages)
    : elem_(messages[0]->elem), reduction_(messages[0]->reduction) {
  const Message& any = *messages[0];
  int64_t count = any.count;
  Item all;
  switch (any.kind) {
    case Collective::AllReduce:
      for (const Message* m : messages) {
        all.inputs.push_back(m->send);
        all.outputs.push_back(m->recv);
      }
      add(std::move(all), count);
      break;
    case Collective::ReduceScatter:
      for (size_t r = 0; r < messages.size(); ++r) {
        Item own;
        for (const Message* m : messages) {
          own.inputs.push_back(offset(m->send, elem_, int64_t(r) * count));
        }
        own.outputs.push_back(messages[r]->recv);
        add(std::move(own), count);
      }
      break;
    case Collective::AllGather:
      for (const Message* to : messages) {
        for (size_t r = 0; r < messages.size(); ++r) {
          add({{messages[r]->send}, {offset(to->recv, elem_, int64_t(r) * count)}}, count);
        }
      }
      break;
    case Collective::AllToAll:
      addChunks(messages);
      break;
    case Collective::Broadcast:
      for (const Message* to : messages) add({{messages[any.root]->recv}, {to->recv}}, count);
      break;
    case Collective::SendReceive:
      add({{messages[0]->send}, {messages[1]->recv}}, count);
      break;
  }
}

void Work::addChunks(llvm::ArrayRef<const Message*> messages) {
  std::vector<int64_t> sent(messages.size(), 0);  // of each sender, to earlier receivers
  for (size_t r = 0; r < messages.size(); ++r) {
    int64_t received = 0;
    for (size_t s = 0; s < messages.size(); ++s) {
      const Message &from = *messages[s], &to = *messages[r];
      int64_t count = chunk(from, from.sendCounts, int(r));
      add({{offset(from.send, elem_, sent[s])}, {offset(to.recv, elem_, received)}}, count);
      sent[s] += count;
      received += count;
    }
  }
}

void Work::add(Item item, int64_t count) {
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
  for (size_t p = task == 0 ? 0 : ends_[task - 1]; p < ends_[task]; ++p) {
    const Piece& piece = pieces_[p];
    const Item& item = items_[piece.item];
    if (item.inputs.size() == 1 && item.outputs.size() == 1) {
      std::memcpy(offset(item.outputs[0], elem_, piece.begin),
                  offset(item.inputs[0], elem_, piece.begin),
                  size_t((piece.end - piece.begin) * bytesPerElement(elem_)));
    } else {
      reduce(elem_, reduction_, item.inputs, item.outputs, piece.begin, piece.end);
    }
  }
}

}  // namespace planc::comm
