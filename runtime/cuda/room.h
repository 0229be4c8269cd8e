// What of the workspace an op's pieces take.
#pragma once

#include "runtime/cuda/ops.h"

namespace planc::cuda {

class Room {
 public:
  explicit Room(Shared& shared) : shared_(&shared) {}
  // Where so many bytes begin.
  int64_t take(int64_t bytes) {
    int64_t at = bytes_;
    bytes_ += (bytes + 255) / 256 * 256;
    shared_->needWorkspace(bytes_);
    return at;
  }
  // When it runs.
  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(shared_->workspace() + offset);
  }

 private:
  Shared* shared_;
  int64_t bytes_ = 0;
};

}  // namespace planc::cuda
