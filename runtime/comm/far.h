// Buffers of a message that lie in another process. Who works on them holds no more of them than a task's
// part at once, so a hub of ranks needs no memory that grows with their tensors.
#pragma once

#include <cstdint>

namespace planc::comm {

class Far {
 public:
  virtual ~Far() = default;
  // Bytes of what the message sends. From any thread; when the other side is lost they are zero, and the
  // run is over.
  virtual void fetch(int64_t offset, int64_t bytes, void* into) = 0;
  // Bytes for where it receives.
  virtual void store(int64_t offset, int64_t bytes, const void* from) = 0;
};

}  // namespace planc::comm
