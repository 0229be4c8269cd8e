// TCP by the system's calls. Small frames go at once (TCP_NODELAY), and a machine that is gone
// without a word shows within half a minute (keep-alives). Tested by
// tests/runtime/comm_tcp_test.cpp.
#include "runtime/comm/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "llvm/ADT/SmallVector.h"

namespace planc::comm {
namespace {

llvm::Error systemFailure(const llvm::Twine& what) {
  bool isLate = errno == EAGAIN || errno == EWOULDBLOCK;  // see setPatience
  return failure(what + ": " + (isLate ? "nothing moves" : std::strerror(errno)));
}

void setOption(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof value);
}

void prepareStream(int fd) {
  setOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  setOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  setOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);  // seconds
  setOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);  // seconds
  setOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  setOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);  // milliseconds, of what was sent
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

llvm::Expected<Addresses> resolve(const std::string& host, int port, int flags) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const char* name = host.empty() ? nullptr : host.c_str();
  int code = getaddrinfo(name, std::to_string(port).c_str(), &hints, &found);
  if (code != 0) return failure("no address for '" + host + "': " + gai_strerror(code));
  return Addresses(found, &freeaddrinfo);
}

bool isLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

llvm::Expected<Socket> listenOn(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.isOpen()) return systemFailure("no socket");
  setOption(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) setOption(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.fd(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(socket.fd(), SOMAXCONN) != 0)
    return systemFailure("cannot listen");
  return socket;
}

}  // namespace

llvm::Error failure(const llvm::Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), what);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this == &other) return *this;
  if (isOpen()) ::close(fd_);
  fd_ = other.release();
  return *this;
}

Socket::~Socket() {
  if (isOpen()) ::close(fd_);
}

int Socket::release() { return std::exchange(fd_, -1); }

llvm::Error Socket::send(const void* data, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    ssize_t sent = ::send(fd_, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return systemFailure("cannot send");
    at += sent;
    bytes -= size_t(sent);
  }
  return llvm::Error::success();
}

llvm::Error Socket::receive(void* data, size_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    ssize_t got = ::recv(fd_, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return systemFailure("cannot receive");
    if (got == 0) return failure(kClosed);
    at += got;
    bytes -= size_t(got);
  }
  return llvm::Error::success();
}

llvm::Expected<bool> Socket::has(size_t bytes) {
  llvm::SmallVector<std::byte, 64> peeked(bytes);
  ssize_t got = ::recv(fd_, peeked.data(), bytes, MSG_PEEK | MSG_DONTWAIT);
  if (got == 0) return failure(kClosed);
  if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
    return systemFailure("cannot receive");
  return got == ssize_t(bytes);
}

void Socket::setPatience(std::chrono::milliseconds timeout) {
  timeval time = {};
  time.tv_sec = timeout.count() / 1000;
  time.tv_usec = timeout.count() % 1000 * 1000;
  for (int name : {SO_RCVTIMEO, SO_SNDTIMEO})
    setsockopt(fd_, SOL_SOCKET, name, &time, sizeof time);
}

void Socket::shutDown() { ::shutdown(fd_, SHUT_RDWR); }

llvm::Expected<Socket> listenAt(const std::string& host, int port) {
  // A machine's own name may stand for 127.0.1.1 there, and for another address elsewhere: only who says
  // loopback means it.
  llvm::Expected<Addresses> named =
      resolve(host == "localhost" ? "127.0.0.1" : host, port, AI_NUMERICHOST);
  if (named && isLoopback((*named)->ai_addr)) return listenOn(**named);
  if (!named) llvm::consumeError(named.takeError());
  llvm::Expected<Addresses> any = resolve("", port, AI_PASSIVE);
  if (!any) return any.takeError();
  // One that takes both kinds of addresses, where there is one.
  const addrinfo* best = any->get();
  for (const addrinfo* a = any->get(); a != nullptr; a = a->ai_next)
    if (a->ai_family == AF_INET6) best = a;
  llvm::Expected<Socket> both = listenOn(*best);
  if (both || best == any->get()) return both;
  llvm::consumeError(both.takeError());
  return listenOn(**any);
}

llvm::Expected<Socket> acceptAt(const Socket& listening) {
  Socket socket(::accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.isOpen()) return systemFailure("cannot accept a connection");
  prepareStream(socket.fd());
  return socket;
}

llvm::Expected<Socket> connectTo(const std::string& host, int port, Clock::time_point deadline) {
  using namespace std::chrono_literals;
  std::string why = "no address";
  for (auto pause = 10ms;; pause = std::min<std::chrono::milliseconds>(2 * pause, 500ms)) {
    llvm::Expected<Addresses> found = resolve(host, port, 0);
    if (!found) why = llvm::toString(found.takeError());
    for (const addrinfo* a = found ? found->get() : nullptr; a != nullptr; a = a->ai_next) {
      Socket socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (socket.isOpen() && ::connect(socket.fd(), a->ai_addr, a->ai_addrlen) == 0) {
        prepareStream(socket.fd());
        return socket;
      }
      why = std::strerror(errno);
    }
    if (Clock::now() + pause > deadline) return failure(why);
    std::this_thread::sleep_for(pause);
  }
}

void waitForAny(llvm::ArrayRef<int> fds, Clock::time_point deadline) {
  llvm::SmallVector<pollfd, 16> polled;
  for (int fd : fds) polled.push_back({fd, POLLIN, 0});
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  if (left.count() > 0) ::poll(polled.data(), polled.size(), int(left.count()));
}

}  // namespace planc::comm
