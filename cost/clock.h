// A rank's time: compute advances it, messages take the wires meanwhile, and a wait for one that is still
// on its way stands still. Messages of one group follow each other, and so do those whose highest level of
// the cluster is the same, since they share its wires.
#pragma once

#include <string>
#include <vector>

namespace planc {

class Clock {
 public:
  // A kind of message: `seconds` on the wires of `level`; those of one group come in their order.
  size_t addMessage(const std::string& group, size_t level, double seconds);

  void compute(double seconds);
  // Puts a message on its wires; several of a kind may be under way.
  void start(size_t message);
  // Until the one that was started last has arrived.
  void wait(size_t message);
  // What was passed since `before` comes `times` times more. Messages under way stay as far from arriving.
  void repeat(const Clock& before, double times);

  double now() const { return now_; }
  double computed() const { return computed_; }
  double stood() const { return stood_; }
  // Seconds in which waits stood still for messages of the kind, and that these took the wires.
  double stood(size_t message) const { return messages_[message].stood; }
  double sent(size_t message) const { return messages_[message].sent; }
  // How far the wires of each group and level are still taken: what later times depend on.
  std::vector<double> taken() const;

 private:
  static constexpr size_t kNone = ~size_t{0};

  struct Message {
    size_t group, level;
    double seconds;
    size_t last = kNone;  // the run of it that was started last
    double stood = 0, sent = 0;
  };
  // From `begin` to `end` on the wires; it may have begun only when run `behind` had ended.
  struct Run {
    size_t message;
    double begin, end;
    size_t behind;
  };

  size_t later(size_t a, size_t b) const;

  double now_ = 0, computed_ = 0, stood_ = 0;
  std::vector<Message> messages_;
  std::vector<Run> runs_;
  std::vector<std::string> groups_;
  std::vector<size_t> ofGroup_, ofLevel_;  // the run that takes their wires last
};

}  // namespace planc
