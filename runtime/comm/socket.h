// Streams of bytes between processes: TCP, with errors in words.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

namespace planc::comm {

using Clock = std::chrono::steady_clock;

llvm::Error failure(const llvm::Twine& what);
// What `receive` says when the other side has closed.
inline constexpr const char* kClosed = "the connection was closed";

// A socket, closed with its owner.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  bool isOpen() const { return fd_ >= 0; }

  // All of the bytes, however long it takes.
  llvm::Error send(const void* data, size_t bytes);
  llvm::Error receive(void* data, size_t bytes);
  // Whether so many bytes have come; an error when they never will.
  llvm::Expected<bool> has(size_t bytes);
  // From now on calls fail in which nothing moves for so long.
  void setPatience(std::chrono::milliseconds timeout);
  // Both sides' calls end, at once.
  void shutDown();

 private:
  int release();
  int fd_ = -1;
};

// Takes connections to that port; to addresses of this machine alone when `host` is one.
llvm::Expected<Socket> listenAt(const std::string& host, int port);
// The next connection, which must be there.
llvm::Expected<Socket> acceptAt(const Socket& listening);
// Tries until the deadline: the other side may not listen yet.
llvm::Expected<Socket> connectTo(const std::string& host, int port, Clock::time_point deadline);
// Waits until one of them has something to read (or has ended), or the deadline.
void waitForAny(llvm::ArrayRef<int> fds, Clock::time_point deadline);

}  // namespace planc::comm
