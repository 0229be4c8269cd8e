// What a rank tells the hub of tcp.cpp: frames of a kind, a head of plain values, and for some a
// tensor behind it. All machines of a run have one byte order.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/comm.h"
#include "runtime/comm/socket.h"

namespace planc::comm {

// A rank's first words, and the answer: a text, empty when all ranks have come.
struct Hello {
  uint64_t magic;
  int32_t rank, size;
};
inline constexpr uint64_t kHello = 0x31'70'63'74'6e'6c'70'00;
// The same of a rank's second connection, on which the hub asks for parts of its buffers.
inline constexpr uint64_t kFarHello = 0x32'70'63'74'6e'6c'70'00;

enum class Frame : uint8_t {
  Group,  // members: the next group's
  Start,  // slot, group, whether it is far, message, site; then, unless it is, what it sends
  Wait,   // slot; the answer: a text (empty: all is well), then, unless it is far, what it receives
  Fail,   // why; the answer: a text
  End,    // the answer: a text, empty; then the rank closes
};

// What messages send and receive goes with these frames where it is short; else it is *far*: the hub asks
// for it on the second connection, part by part, while it works on the message.
inline constexpr int64_t kMostNear = 16 * 1024;  // bytes
enum class FarRequest : uint8_t {
  Fetch,  // the answer: bytes of what the message sends
  Store,  // then bytes for where it receives
  Sync,   // the answer: a byte, when all that was stored before is there
};
struct FarHead {
  FarRequest request;
  int32_t slot;
  int64_t offset, bytes;
};

// Values one behind the other.
class Head {
 public:
  Head() = default;
  explicit Head(std::string bytes) : bytes_(std::move(bytes)) {}

  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  template <class T>
  void putAll(llvm::ArrayRef<T> values) {
    put(uint64_t(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void put(llvm::StringRef text) { putAll(llvm::ArrayRef<char>(text.data(), text.size())); }

  // Behind the end values are 0, and `isWhole` is false.
  template <class T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value{};
    if (const char* at = take(sizeof value)) std::memcpy(&value, at, sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> getAll() {
    uint64_t count = get<uint64_t>();
    if (count > bytes_.size()) isWhole_ = false;
    const char* at = isWhole_ ? take(count * sizeof(T)) : nullptr;
    std::vector<T> values(at != nullptr ? count : 0);
    if (!values.empty()) std::memcpy(values.data(), at, count * sizeof(T));
    return values;
  }
  std::string getText() {
    std::vector<char> text = getAll<char>();
    return {text.begin(), text.end()};
  }
  bool isWhole() const { return isWhole_; }

  // With the frame's kind and its length ahead.
  llvm::Error sendTo(Socket& socket, Frame frame) const;
  static llvm::Expected<std::pair<Frame, Head>> receiveFrom(Socket& socket);

 private:
  const char* take(size_t bytes);

  std::string bytes_;
  size_t at_ = 0;
  bool isWhole_ = true;
};

// Why a run ended.
inline std::string isGone(int rank) {
  return "rank " + std::to_string(rank) + " is gone: its connection closed";
}

// Texts as answers.
llvm::Error sendText(Socket& socket, llvm::StringRef text);
llvm::Expected<std::string> receiveText(Socket& socket);

// A message less its buffers, of a group of `size` ranks; and what is in those, in bytes.
void putMessage(Head& head, const Message& message, const Site& site);
struct WireMessage {
  Message message;
  std::vector<int64_t> sendCounts, recvCounts;  // the message's
  Site site;
};
// False when it is none.
bool getMessage(Head& head, int size, WireMessage& into);
int64_t bytesToSend(const Message& message, int size, int position);
int64_t bytesToReceive(const Message& message, int size, int position);

}  // namespace planc::comm
