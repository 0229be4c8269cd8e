// An op between ranks, prepared: which messages it is, to whom, and how its operands and results
// become their buffers. Several operands (of a `receive`, results) are as many messages, started
// together in their order.
#pragma once

#include <memory>
#include <vector>

#include "ir/op.h"
#include "runtime/comm.h"
#include "runtime/device.h"
#include "runtime/exchange_rows.h"
#include "runtime/runs.h"

namespace planc {

class Exchange {
 public:
  // A started op: until `finish` its operands must not change, and its results hold nothing yet.
  struct Flight {
    Exchange* exchange = nullptr;
    llvm::SmallVector<Ticket, 2> tickets;
    llvm::SmallVector<void*, 2> results;
  };

  // `group`: of the ranks that the op is between (membersOf), in that order.
  static llvm::Expected<std::unique_ptr<Exchange>> create(const Op& op, const Grid& grid,
                                                          Communicator& comm, Group& group,
                                                          Device& device, Site site);

  // Operands are not written to. Any number of flights of a message that is not staged may be under
  // way.
  void start(llvm::ArrayRef<void*> operands, llvm::ArrayRef<void*> results, Flight& flight);
  // Waits until all messages are complete; an error means that the run is over.
  llvm::Error finish(Flight& flight);

 private:
  // One operand's message. Where its buffers can't be the tensors themselves, it is *staged*: `pack`
  // says what goes from the operand to the send buffer before, `unpack` from the receive buffer to
  // the result after.
  struct Part {
    Message message;
    std::unique_ptr<Copies> pack, unpack;
    std::byte *sent = nullptr, *received = nullptr;
    std::vector<int64_t> sendCounts, recvCounts;
    int64_t clear = 0;  // bytes of the result that the unpacking does not fill completely
  };

  Exchange(Communicator& comm, Group& group, Device& device, Site site)
      : comm_(comm), group_(group), device_(device), site_(std::move(site)) {}
  llvm::Error prepare(const Op& op, const Grid& grid);
  llvm::Error prepareTransfer(const Op& op, const Grid& grid);
  llvm::Error stageWhole(Part& part, const Type& whole, bool isSent);
  llvm::Error stageBoxes(Part& part, const Type& from, const Type& to, const Grid& grid);

  Communicator& comm_;
  Group& group_;
  Device& device_;
  Site site_;
  std::vector<Part> parts_;
  std::unique_ptr<RowExchange> rows_;  // of `exchange_rows`, which has no parts
  bool isUnderWay_ = false;  // staged messages and rows only: their buffers are taken
};

}  // namespace planc
