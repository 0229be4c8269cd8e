// The memory of one fake GPU: a range of addresses that the host can't touch, except while somebody
// executes what the GPU does; and the pinned memory beside it. Fences lie around each allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace planc::cuda::fake {

class DeviceMemory {
 public:
  DeviceMemory(int64_t bytes, bool isProtected);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;

  // Zeroed, 256-byte aligned; null: no room.
  std::byte* allocate(int64_t bytes);
  std::byte* allocateHost(int64_t bytes);
  int64_t freeBytes() const { return room_ - used_; }

  // Whether the bytes lie in one allocation: of the device, or of either.
  bool holds(const void* at, int64_t bytes) const { return isIn(device_, at, bytes); }
  bool reaches(const void* at, int64_t bytes) const {
    return holds(at, bytes) || isIn(host_, at, bytes);
  }
  // Which fence was written over; empty: none.
  std::string brokenFence() const;

  // While one lives, by any thread, the memory can be touched.
  class Open {
   public:
    explicit Open(DeviceMemory& memory) : memory_(memory) { memory_.open(+1); }
    ~Open() { memory_.open(-1); }
    Open(const Open&) = delete;

   private:
    DeviceMemory& memory_;
  };

 private:
  struct Piece {
    std::byte* at;
    int64_t bytes;
  };
  static bool isIn(const std::vector<Piece>& pieces, const void* at, int64_t bytes);
  static std::string broken(const std::vector<Piece>& pieces, const char* what);
  void open(int by);
  void protect(int access);

  const int64_t room_;
  const bool isProtected_;
  size_t range_;  // of addresses, in bytes
  std::byte *mapped_, *begin_;
  int64_t used_ = 0;
  std::vector<Piece> device_, host_;
  std::vector<std::unique_ptr<std::byte[]>> pinned_;
  std::mutex mutex_;
  int open_ = 0;
};

}  // namespace planc::cuda::fake
