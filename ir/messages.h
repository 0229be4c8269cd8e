// What one program does between ranks: its messages, and the order in which it starts them and waits
// for them.
#pragma once

#include <string>
#include <vector>

#include "ir/op.h"
#include "llvm/Support/Error.h"

namespace planc {

// What the ranks of a group must have alike in a message, and the words for it.
struct Feature {
  llvm::StringRef name;
  std::string value;
};
std::vector<Feature> featuresOf(const Op& op);

struct Message {
  const Op* op;
  std::vector<size_t> along;  // axes of the grid, in its order; those of one rank left out
  std::string features;       // equal: the same message

  // Goes between two ranks: one sends, the other receives.
  bool isTransfer() const { return op->kind == OpKind::Send || op->kind == OpKind::Receive; }
};

// What a function does between ranks, with its repeats rolled. Skip: starts of messages that nobody
// else takes part in.
struct Step {
  enum Kind : uint8_t { Start, Wait, Repeat, End, Skip } kind;
  size_t at = 0;  // Start and Wait: the message; End: its Repeat
  bool unlessLast = false;
  int64_t count = 0;     // Repeat: iterations; Skip: starts
  bool reverse = false;  // of a Repeat
};
using Steps = std::vector<Step>;

struct Program {
  std::vector<Message> messages;
  std::vector<Steps> functions;
  struct Call {
    size_t function;
    int64_t microbatch;
    Phase phase;
  };
  std::vector<Call> calls;
};

// An error where a start and its wait do not pair up.
llvm::Expected<Program> programOf(const Module& module);

// The same without the messages that are marked alone: their starts are counted and nothing else, and
// repeats with nothing but them are not run.
Steps withoutAlone(const Steps& steps, const std::vector<bool>& isAlone);

}  // namespace planc
