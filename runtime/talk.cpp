// Texts travel as i32 elements, filled up with zeros; numbers as two. Tested by
// tests/runtime/session_test.cpp.
#include "runtime/talk.h"

#include <cstring>

namespace planc {
namespace {

using Words = std::vector<int32_t>;

Words toWords(llvm::StringRef text) {
  Words words((text.size() + 3) / 4, 0);
  if (!text.empty()) std::memcpy(words.data(), text.data(), text.size());
  return words;
}

llvm::Error exchange(Communicator& comm, const Message& message, const char* what) {
  return comm.wait(comm.start(comm.world(), message, Site{.op = what}));
}

}  // namespace

llvm::Expected<std::vector<int64_t>> gather(Communicator& comm, int64_t mine) {
  std::vector<int64_t> all(size_t(comm.size()), 0);
  Message message{.kind = Collective::AllGather,
                  .elem = Elem::I32,
                  .send = &mine,
                  .recv = all.data(),
                  .count = 2};
  if (llvm::Error error = exchange(comm, message, "gather")) return error;
  return all;
}

llvm::Expected<bool> any(Communicator& comm, bool mine) {
  int32_t flag = mine;
  Message message{.kind = Collective::AllReduce,
                  .elem = Elem::I32,
                  .reduction = Reduction::Max,
                  .send = &flag,
                  .recv = &flag,
                  .count = 1};
  if (llvm::Error error = exchange(comm, message, "any")) return error;
  return flag != 0;
}

llvm::Expected<std::string> fromFirst(Communicator& comm, std::string text) {
  auto sizes = gather(comm, int64_t(text.size()));
  if (!sizes) return sizes.takeError();
  text.resize(size_t(sizes->front()));
  Words words = toWords(text);
  Message message{.kind = Collective::Broadcast,
                  .elem = Elem::I32,
                  .send = words.data(),
                  .recv = words.data(),
                  .count = int64_t(words.size())};
  if (llvm::Error error = exchange(comm, message, "from_first")) return error;
  return std::string(reinterpret_cast<const char*>(words.data()), text.size());
}

llvm::Expected<std::vector<std::string>> toFirst(Communicator& comm, const std::string& text) {
  auto sizes = gather(comm, int64_t(text.size()));
  if (!sizes) return sizes.takeError();
  std::vector<std::string> texts;
  if (comm.rank() == 0) texts.push_back(text);
  for (int rank = 1; rank < comm.size(); ++rank) {
    if (comm.rank() != 0 && comm.rank() != rank) continue;
    size_t size = size_t((*sizes)[size_t(rank)]);
    Words words = comm.rank() == rank ? toWords(text) : Words((size + 3) / 4, 0);
    Message message{
        .kind = Collective::SendReceive, .elem = Elem::I32, .count = int64_t(words.size())};
    if (comm.rank() == rank) {
      message.send = words.data();
      message.to = 0;
    } else {
      message.recv = words.data();
      message.from = rank;
    }
    if (llvm::Error error = exchange(comm, message, "to_first")) return error;
    if (comm.rank() == 0) texts.emplace_back(reinterpret_cast<const char*>(words.data()), size);
  }
  return texts;
}

}  // namespace planc
