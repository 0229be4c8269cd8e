// Memory of a device where the host can read and write it: itself where the host reaches it, else a copy.
#pragma once

#include <memory>

#include "runtime/device.h"

namespace planc {

class HostBytes {
 public:
  // What is there, behind all that was asked of the device before.
  static llvm::Expected<HostBytes> read(Device& device, std::byte* at, int64_t bytes) {
    HostBytes made = blank(device, at, bytes);
    if (!device.isHost())
      if (llvm::Error error = device.read(made.data(), at, bytes)) return error;
    return made;
  }
  // For who fills all of it: before that it holds anything.
  static HostBytes blank(Device& device, std::byte* at, int64_t bytes) {
    return HostBytes(device, at, bytes);
  }

  std::byte* data() const { return copy_ ? copy_.get() : at_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }
  // What was written goes to the device.
  void store() {
    if (copy_) device_->write(at_, copy_.get(), bytes_);
  }

 private:
  HostBytes(Device& device, std::byte* at, int64_t bytes)
      : device_(&device), at_(at), bytes_(bytes) {
    if (!device.isHost()) copy_.reset(new std::byte[size_t(bytes)]);
  }

  Device* device_;
  std::byte* at_;
  int64_t bytes_;
  std::unique_ptr<std::byte[]> copy_;
};

}  // namespace planc
