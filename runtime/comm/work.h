// What has to be done for one message between buffers in one memory, cut in tasks that any thread
// may take.
#pragma once

#include <vector>

#include "runtime/comm.h"
#include "runtime/comm/far.h"

namespace planc::comm {

// Whether the messages of members `i` and `j` of a group (of a transfer: 0 sends, 1 receives) can be
// one.
bool agree(const Message& a, int i, const Message& b, int j);

class Work {
 public:
  // The messages of all members in order; of a transfer, the sender's and the receiver's.
  explicit Work(llvm::ArrayRef<const Message*> messages);

  size_t tasks() const { return ends_.size(); }
  void run(size_t task) const;

 private:
  // Where elements lie: so many bytes behind the begin of a buffer, here or in another process.
  struct Place {
    std::byte* base;
    int64_t offset;
    Far* far;
    std::byte* at(int64_t bytes) const { return base + offset + bytes; }
    bool operator==(const Place& other) const {
      return far == nullptr && other.far == nullptr && at(0) == other.at(0);
    }
  };
  // outputs[j] = inputs reduced, elementwise. With one input it is a copy.
  struct Item {
    llvm::SmallVector<Place, 2> inputs, outputs;
    bool isFar() const;
  };
  struct Piece {
    size_t item;
    int64_t begin, end;  // elements
  };

  Place sent(const Message& message, int64_t element = 0) const;
  Place received(const Message& message, int64_t element = 0) const;
  void runFar(const Item& item, int64_t begin, int64_t end) const;
  void add(Item item, int64_t count);
  void addChunks(llvm::ArrayRef<const Message*> messages);

  Elem elem_;
  Reduction reduction_;
  std::vector<Item> items_;
  std::vector<Piece> pieces_;
  std::vector<size_t> ends_;  // of each task among the pieces
  int64_t room_ = 0;          // bytes that the last task may still take on
};

}  // namespace planc::comm
