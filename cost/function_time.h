// One run of a function of a rank program on a clock.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cost/clock.h"
#include "cost/step_time.h"
#include "llvm/ADT/DenseMap.h"

namespace planc {

// One run of a message.
struct MessageTime {
  std::string group;  // along the same axes: one behind the other
  size_t level = 0;   // of the cluster, whose wires it has
  double seconds = 0;
};

// What messages of a program take. Keeps references.
class MessageTimes {
 public:
  MessageTimes(Wires& wires, llvm::ArrayRef<Talk> talks) : wires_(wires), talks_(talks) {}

  MessageTime of(const Op& message);
  // The number of the talk that counts it; nullopt: it sends nothing.
  std::optional<size_t> talkOf(const Op& message) const;
  const Cluster& cluster() const { return wires_.cluster(); }

 private:
  Wires& wires_;
  llvm::ArrayRef<Talk> talks_;
};

class FunctionRun {
 public:
  FunctionRun(const Function& function, MessageTimes& messages);

  FunctionTime time() const { return {clock_.computed(), clock_.stood()}; }
  // `visit(op, seconds)`: how long the function stands still for each of its messages.
  template <class F>
  void eachMessage(F&& visit) const {
    for (const auto& [op, message] : messages_) visit(*op, clock_.stood(message));
  }

 private:
  // What a block does: computes for so long, or one thing of another kind.
  struct Step {
    enum Kind : uint8_t { Compute, Message, Start, Wait, Repeat } kind = Compute;
    bool unlessLast = false;
    double seconds = 0;  // Compute
    size_t message = 0;  // of the clock
    int64_t count = 0;   // Repeat
    std::vector<Step> body = {};
  };

  std::vector<Step> stepsOf(const Block& block, MessageTimes& times);
  void run(const std::vector<Step>& steps, bool isLast);
  void repeat(const Step& step);

  Clock clock_;
  std::vector<std::pair<const Op*, size_t>> messages_;
  llvm::DenseMap<const Op*, size_t> started_;
};

}  // namespace planc
