// What every backend's communicator does alike: counting bytes, the barrier, and agreeing on an
// error. Tested by tests/runtime/comm_test.cpp.
#include "runtime/comm.h"

#include <cstring>
#include <vector>

#include "llvm/ADT/STLExtras.h"
#include "runtime/comm_text.h"

namespace planc {
namespace {

// The convention is at `Communicator::bytesSent`.
int64_t bytesSentBy(const Group& group, const Message& message) {
  int64_t n = group.size(), others = n - 1, bytes = message.count * bytesPerElement(message.elem);
  switch (message.kind) {
    case Collective::AllReduce:
      return 2 * others * bytes / n;
    case Collective::ReduceScatter:
    case Collective::AllGather:
      return others * bytes;
    case Collective::AllToAll: {
      if (message.sendCounts.empty()) return others * bytes;
      int64_t elements = 0;
      for (int i = 0; i < n; ++i) {
        if (i != group.position()) elements += message.sendCounts[size_t(i)];
      }
      return elements * bytesPerElement(message.elem);
    }
    case Collective::Broadcast:
      return n > 1 && message.root == group.position() ? bytes : 0;
    case Collective::SendReceive:
      return message.to == Message::kNobody || message.to == group.position() ? 0 : bytes;
  }
  return 0;
}

}  // namespace

Group::Group(llvm::ArrayRef<int> members, int rank)
    : members_(members.begin(), members.end()),
      position_(int(llvm::find(members, rank) - members.begin())) {}

Ticket Communicator::start(Group& group, const Message& message, const Site& site) {
  int64_t bytes = bytesSentBy(group, message);
  bytesSent_ += bytes;
  if (site.counter >= 0) sent_[size_t(site.counter)].bytes += bytes;
  return enter(group, message, site);
}

int Communicator::counter(llvm::StringRef op, llvm::ArrayRef<std::string> axes) {
  auto known = llvm::find_if(sent_, [&](const SentBytes& sent) {
    return sent.op == op && llvm::ArrayRef<std::string>(sent.axes) == axes;
  });
  if (known == sent_.end()) known = sent_.insert(known, {op.str(), axes.vec()});
  return int(known - sent_.begin());
}

void Communicator::countAgain(llvm::ArrayRef<SentBytes> sent) {
  for (const SentBytes& more : sent) {
    sent_[size_t(counter(more.op, more.axes))].bytes += more.bytes;
    bytesSent_ += more.bytes;
  }
}

Ticket Communicator::enter(Group& group, const Message& message, Site site) {
  site.stage = stage_;
  site.counter = -1;  // another communicator that may carry the message has its own
  return begin(group, message, site);
}

void Communicator::failIn(const Site& site, const llvm::Twine& why) {
  fail(comm::describe(site) + ": " + why.str());
}

llvm::Error Communicator::barrier(Group& group, const Site& site) {
  int32_t present = 1;
  return wait(enter(group,
                    {.kind = Collective::AllReduce,
                     .elem = Elem::I32,
                     .reduction = Reduction::Max,
                     .send = &present,
                     .recv = &present,
                     .count = 1},
                    site));
}

llvm::Error Communicator::agree(llvm::Error mine) {
  std::string text = llvm::toString(std::move(mine));
  Site site{.op = "agree"};
  auto failed = [](const std::string& why) {
    return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", why.c_str());
  };
  if (size() == 1) return text.empty() ? llvm::Error::success() : failed(text);
  // The longest error's length, in the elements that carry it.
  int32_t length = int32_t((text.size() + sizeof(int32_t) - 1) / sizeof(int32_t));
  Ticket lengths = enter(world(),
                         {.kind = Collective::AllReduce,
                          .elem = Elem::I32,
                          .reduction = Reduction::Max,
                          .send = &length,
                          .recv = &length,
                          .count = 1},
                         site);
  if (llvm::Error error = wait(lengths)) return error;
  if (length == 0) return llvm::Error::success();
  std::vector<int32_t> own(size_t(length), 0), all(size_t(length) * size_t(size()));
  std::memcpy(own.data(), text.data(), text.size());
  Ticket texts = enter(world(),
                       {.kind = Collective::AllGather,
                        .elem = Elem::I32,
                        .send = own.data(),
                        .recv = all.data(),
                        .count = length},
                       site);
  if (llvm::Error error = wait(texts)) return error;
  // Ranks that failed alike share a line.
  std::vector<std::pair<std::string, llvm::SmallVector<int, 8>>> reasons;
  for (int r = 0; r < size(); ++r) {
    const char* begin = reinterpret_cast<const char*>(&all[size_t(r) * size_t(length)]);
    std::string why(begin, strnlen(begin, size_t(length) * sizeof(int32_t)));
    if (why.empty()) continue;
    auto known = llvm::find_if(reasons, [&](auto& reason) { return reason.first == why; });
    if (known == reasons.end()) known = reasons.insert(known, {why, {}});
    known->second.push_back(r);
  }
  std::string joined;
  for (auto& [why, ranks] : reasons) {
    joined += (joined.empty() ? "" : "\n") + comm::rankList(ranks) + ": " + why;
  }
  return failed(joined);
}

}  // namespace planc
