// Packed rows on their way to the ranks that have their experts, and home: how many go where, the counts
// say when the op starts, and what must be sorted before or after lies in `spare` meanwhile.
#pragma once

#include <vector>

#include "ir/op.h"
#include "runtime/comm.h"
#include "runtime/device.h"

namespace planc {

class RowExchange {
 public:
  // Between so many ranks.
  RowExchange(const Op& op, int ranks, Device& device);

  // Reads the counts; the message is this object's until `finish`. An error, which no other rank knows
  // of: more rows come than the result has room for.
  llvm::Error start(llvm::ArrayRef<void*> operands, llvm::ArrayRef<void*> results,
                    Message& message);
  // When the message is complete.
  void finish(llvm::ArrayRef<void*> results);

 private:
  void sort(void* from, void* to, bool toExperts);

  Device& device_;
  Elem elem_;
  bool isHome_;
  int64_t width_, bytes_;    // of a row: elements, and their bytes
  int64_t held_, room_;      // rows that the operand and the result can hold
  int64_t ranks_, experts_;  // experts: of each rank
  // Rows by expert of the tokens' side, all ranks' experts in order; and of the experts' side, by rank
  // and own expert.
  std::vector<int32_t> all_, own_;
  std::vector<int64_t> sendCounts_, recvCounts_;  // elements
  std::vector<int64_t> next_;                     // of `sort`, as are the moves
  std::vector<CopyRun> moves_;
  int64_t arriving_ = 0;                          // rows
};

}  // namespace planc
