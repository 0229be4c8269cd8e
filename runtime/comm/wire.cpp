// Frames between ranks and the hub. Tested by tests/runtime/comm_tcp_test.cpp.
#include "runtime/comm/wire.h"

#include <numeric>

#include "llvm/ADT/STLExtras.h"

namespace planc::comm {
namespace {

// Heads are some lists of ranks and names.
constexpr uint32_t kMostHeadBytes = 1 << 28;
constexpr int64_t kMostElements = int64_t{1} << 46;

struct FrameStart {
  Frame frame;
  uint32_t bytes;
};

int64_t sum(llvm::ArrayRef<int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

const char* Head::take(size_t bytes) {
  isWhole_ = isWhole_ && bytes <= bytes_.size() - at_;
  if (!isWhole_) return nullptr;
  at_ += bytes;
  return bytes_.data() + at_ - bytes;
}

llvm::Error Head::sendTo(Socket& socket, Frame frame) const {
  FrameStart start{};
  start.frame = frame;
  start.bytes = uint32_t(bytes_.size());
  std::string all(reinterpret_cast<const char*>(&start), sizeof start);
  all += bytes_;
  return socket.send(all.data(), all.size());
}

llvm::Expected<std::pair<Frame, Head>> Head::receiveFrom(Socket& socket) {
  FrameStart start;
  if (llvm::Error error = socket.receive(&start, sizeof start)) return error;
  if (start.bytes > kMostHeadBytes) return failure("no frame");
  std::string bytes(start.bytes, '\0');
  if (llvm::Error error = socket.receive(bytes.data(), bytes.size())) return error;
  return std::pair(start.frame, Head(std::move(bytes)));
}

llvm::Error sendText(Socket& socket, llvm::StringRef text) {
  uint32_t bytes = uint32_t(text.size());
  std::string all(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  all += text;
  return socket.send(all.data(), all.size());
}

llvm::Expected<std::string> receiveText(Socket& socket) {
  uint32_t bytes = 0;
  if (llvm::Error error = socket.receive(&bytes, sizeof bytes)) return error;
  if (bytes > kMostHeadBytes) return failure("no answer");
  std::string text(bytes, '\0');
  if (llvm::Error error = socket.receive(text.data(), text.size())) return error;
  return text;
}

void putMessage(Head& head, const Message& message, const Site& site) {
  head.put(message.kind);
  head.put(message.elem);
  head.put(message.reduction);
  head.put(message.count);
  head.putAll(message.sendCounts);
  head.putAll(message.recvCounts);
  for (int rank : {message.root, message.to, message.from}) head.put(rank);
  for (const std::string& text : {site.op, site.tensor, site.place, site.stage})
    head.put(llvm::StringRef(text));
  head.put(site.number);
}

bool getMessage(Head& head, int size, WireMessage& into) {
  Message& message = into.message;
  message.kind = head.get<Collective>();
  message.elem = head.get<Elem>();
  message.reduction = head.get<Reduction>();
  message.count = head.get<int64_t>();
  into.sendCounts = head.getAll<int64_t>();
  into.recvCounts = head.getAll<int64_t>();
  message.sendCounts = into.sendCounts;
  message.recvCounts = into.recvCounts;
  for (int* rank : {&message.root, &message.to, &message.from}) *rank = head.get<int>();
  Site& site = into.site;
  for (std::string* text : {&site.op, &site.tensor, &site.place, &site.stage})
    *text = head.getText();
  site.number = head.get<int64_t>();

  auto isRank = [&](int rank, int least) { return rank >= least && rank < size; };
  auto isCount = [](int64_t count) { return count >= 0 && count <= kMostElements; };
  auto areCounts = [&](llvm::ArrayRef<int64_t> counts) {
    return (counts.empty() || counts.size() == size_t(size)) && llvm::all_of(counts, isCount);
  };
  return head.isWhole() && message.kind <= Collective::SendReceive && message.elem <= Elem::I32 &&
         message.reduction <= Reduction::Max && isCount(message.count) &&
         areCounts(message.sendCounts) && areCounts(message.recvCounts) &&
         message.sendCounts.size() == message.recvCounts.size() && isRank(message.root, 0) &&
         isRank(message.to, Message::kNobody) && isRank(message.from, Message::kNobody);
}

int64_t bytesToSend(const Message& message, int size, int position) {
  int64_t count = message.count;
  switch (message.kind) {
    case Collective::AllReduce:
    case Collective::AllGather:
      break;
    case Collective::ReduceScatter:
      count *= size;
      break;
    case Collective::AllToAll:
      count = message.sendCounts.empty() ? count * size : sum(message.sendCounts);
      break;
    case Collective::Broadcast:
      if (message.root != position) count = 0;
      break;
    case Collective::SendReceive:
      if (message.to == Message::kNobody) count = 0;
      break;
  }
  return count * bytesPerElement(message.elem);
}

int64_t bytesToReceive(const Message& message, int size, int position) {
  int64_t count = message.count;
  switch (message.kind) {
    case Collective::AllReduce:
    case Collective::ReduceScatter:
      break;
    case Collective::AllGather:
      count *= size;
      break;
    case Collective::AllToAll:
      count = message.recvCounts.empty() ? count * size : sum(message.recvCounts);
      break;
    case Collective::Broadcast:
      if (message.root == position) count = 0;
      break;
    case Collective::SendReceive:
      if (message.from == Message::kNobody) count = 0;
      break;
  }
  return count * bytesPerElement(message.elem);
}

}  // namespace planc::comm
