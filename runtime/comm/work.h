// What has to be done for one message between buffers in one memory, cut in tasks that any thread
// may take.
#pragma once

#include <vector>

#include "runtime/comm.h"

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
  // outputs[j] = inputs reduced, elementwise. With one input and one output it is a copy.
  struct Item {
    llvm::SmallVector<const void*, 2> inputs;
    llvm::SmallVector<void*, 2> outputs;
  };
  struct Piece {
    size_t item;
    int64_t begin, end;  // elements
  };

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
