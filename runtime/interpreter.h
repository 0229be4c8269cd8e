// Runs a rank program on a device: resolves every value's place to a pointer and calls the kernels
// in program order, and the communicator for ops between ranks. Everything that shapes decide is done
// once, when the program is loaded; a step allocates nothing. It knows nothing of models.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "ir/op.h"
#include "llvm/Support/Error.h"
#include "runtime/device.h"
#include "runtime/exchange.h"
#include "runtime/host_bytes.h"
#include "runtime/io/trace.h"

namespace planc {

class Interpreter {
 public:
  // What keeps a program from running on the communicator's rank, known before ranks meet.
  static llvm::Error check(const Module& program, const Communicator& comm);
  // Allocates the arena and prepares every kernel. The program must outlive this and be verified.
  // A program for several ranks needs a communicator, whose ranks are the grid's.
  static llvm::Expected<std::unique_ptr<Interpreter>> create(const Module& program, Device& device,
                                                             Communicator* comm = nullptr);

  // Where a variable lies (all iterations) in the device's memory, and what the arena takes of it.
  std::byte* data(const Variable& var) const { return arena_ + var.place->offset; }
  // The same for the host: what it holds, or to be filled whole and stored.
  llvm::Expected<HostBytes> read(const Variable& var, int64_t microbatch = 0) const {
    return HostBytes::read(device_, data(var) + microbatch % var.flights * var.type.bytes(),
                           var.type.bytes());
  }
  HostBytes blank(const Variable& var) const {
    return HostBytes::blank(device_, data(var), var.type.bytes());
  }
  Device& device() const { return device_; }
  int64_t arenaBytes() const { return device_.arenaBytes(); }

  // Runs one entry of the schedule. Messages that `Phase::Start` began are under way until the same
  // function's `Phase::Wait` for the same microbatch; any number may be. An error is the
  // communicator's: the run is over on all ranks.
  llvm::Error run(const Call& call, uint64_t seed, int64_t step);

  // Seconds spent in ops of each kind so far, indexed by OpKind. An op that only starts counts what
  // starting took, its `wait` the rest. Of a device that works behind the host's back, what asking it took.
  llvm::ArrayRef<double> secondsByKind() const { return seconds_; }

  // Each call's and each op's time goes there; null: no trace. A device that works behind the host's back
  // is then waited for behind each op.
  void setTrace(Trace* trace) { trace_ = trace; }
  bool isTraced() const { return trace_ != nullptr; }
  std::string placeOf(const Op& op) const;  // file:line of the plan

  // An op that the host must see results for before it can go on, or null: a step that has none is
  // the same calls of the device every time.
  const Op* hostOp() const { return hostOp_; }

 private:
  // Bytes from the arena's start, plus a stride for each counter that moves it. Counter 0 is the
  // microbatch, counter 1 + d the repeat at depth d.
  struct Pointer {
    int64_t offset = 0;
    struct Step {
      unsigned counter;
      int64_t bytes;
      int64_t ring;  // > 0: the counter counts modulo it
      bool operator==(const Step&) const = default;
    };
    llvm::SmallVector<Step, 2> strides;
    bool operator==(const Pointer&) const = default;
  };
  struct Copy {
    Pointer from, to;
    int64_t bytes;
    bool unlessLast;  // the last iteration has not made it
  };
  struct Instruction {
    const Op* op = nullptr;
    std::string name;   // in the trace
    std::string place;  // file:line of the plan
    std::unique_ptr<Kernel> kernel;
    std::unique_ptr<Exchange> exchange;  // ops between ranks
    std::vector<Pointer> operands, results;
    std::vector<Copy> copies;       // repeat: initial values; others: what moves
    std::vector<Instruction> body;  // repeat
    int64_t first = 0, count = 0;   // repeat: its first iteration's number in the whole model
    bool reverse = false;
    unsigned depth = 0;
  };

  struct Procedure {
    std::string name;
    std::vector<Instruction> instructions;
  };
  // An op of a function between its start and its `wait`.
  struct Started {
    const Op* op;
    Exchange::Flight flight;
  };
  // A function's messages between Phase::Start and Phase::Wait.
  struct UnderWay {
    const Procedure* procedure;
    int64_t microbatch;
    llvm::SmallVector<Exchange::Flight, 1> flights;  // of its messages in order
  };
  // Ranks, and which of their streams of messages; collectives have one of their own.
  using GroupKey = std::pair<std::vector<int64_t>, int64_t>;

  Interpreter(const Module& program, Device& device, Communicator* comm);
  void makeGroups();
  GroupKey groupOf(const Op& op) const;
  llvm::Error prepare(const Block& block, std::vector<Instruction>& into);
  llvm::Expected<Instruction> prepare(const Op& op);
  Pointer pointer(const Place& place, const Words& enclosing) const;
  Pointer slice(const Variable& var, const Words& enclosing) const;
  std::byte* resolve(const Pointer& pointer) const {
    int64_t at = pointer.offset;
    for (const auto& [counter, bytes, ring] : pointer.strides)
      at += (ring > 0 ? counters_[counter] % ring : counters_[counter]) * bytes;
    return arena_ + at;
  }
  llvm::Expected<std::unique_ptr<Exchange>> prepareExchange(const Op& op, const Instruction& made);
  llvm::Error run(const std::vector<Instruction>& instructions);
  llvm::Error run(const Instruction& instruction);
  llvm::Error runExchange(const Instruction& instruction);
  llvm::Error run(const Procedure& procedure, Phase phase);
  llvm::Error startMessages(const Procedure& procedure);
  llvm::Error waitForMessages(const Procedure& procedure);
  void resolveAll(const Instruction& instruction);
  Exchange::Flight begin(const Instruction& instruction);
  void move(const std::vector<Copy>& copies);

  const Module& program_;
  Device& device_;
  Communicator* comm_;
  const Coordinates here_;
  std::map<GroupKey, Group*> groups_;
  int64_t exchanges_ = 0;  // prepared
  const Op* hostOp_ = nullptr;
  std::vector<Started> started_;
  std::vector<UnderWay> underWay_;
  std::byte* arena_ = nullptr;
  std::vector<Procedure> procedures_;
  std::vector<int64_t> counters_;    // see Pointer
  std::vector<int64_t> iterations_;  // of the repeat at each depth, of the whole model
  bool isLast_ = false;            // in the last iteration of the innermost repeat
  std::vector<void*> operandScratch_;
  std::vector<void*> resultScratch_;
  std::vector<double> seconds_;
  RunContext context_;
  Trace* trace_ = nullptr;
};

}  // namespace planc
