// The order in which messages take wires is that of their starts, so all times are sums and maxima of
// given ones: nothing that gets faster makes anything later. Tested by tests/unit/clock_test.cpp.
#include "cost/clock.h"

#include <algorithm>

namespace planc {

size_t Clock::addMessage(const std::string& group, size_t level, double seconds) {
  size_t at = size_t(std::find(groups_.begin(), groups_.end(), group) - groups_.begin());
  if (at == groups_.size()) {
    groups_.push_back(group);
    ofGroup_.push_back(kNone);
  }
  if (level >= ofLevel_.size()) ofLevel_.resize(level + 1, kNone);
  messages_.push_back({at, level, seconds});
  return messages_.size() - 1;
}

void Clock::compute(double seconds) {
  now_ += seconds;
  computed_ += seconds;
}

size_t Clock::later(size_t a, size_t b) const {
  if (a == kNone || b == kNone) return a == kNone ? b : a;
  return runs_[a].end >= runs_[b].end ? a : b;
}

void Clock::start(size_t index) {
  Message& message = messages_[index];
  size_t behind = later(ofGroup_[message.group], ofLevel_[message.level]);
  double begin = behind == kNone ? now_ : std::max(now_, runs_[behind].end);
  runs_.push_back({index, begin, begin + message.seconds, behind});
  message.last = ofGroup_[message.group] = ofLevel_[message.level] = runs_.size() - 1;
  message.sent += message.seconds;
}

// Stands still for the messages that have the wires meanwhile: this one, and those that it is behind.
void Clock::wait(size_t index) {
  size_t run = messages_[index].last;
  if (run == kNone || runs_[run].end <= now_) return;
  double end = runs_[run].end;
  for (double until = end; run != kNone && until > now_; run = runs_[run].behind) {
    double from = std::max(now_, runs_[run].begin);
    messages_[runs_[run].message].stood += until - from;
    until = from;
  }
  stood_ += end - now_;
  now_ = end;
}

void Clock::repeat(const Clock& before, double times) {
  double passed = times * (now_ - before.now_);
  for (Run& run : runs_)
    if (run.end > now_) {
      run.begin += passed;
      run.end += passed;
    }
  now_ += passed;
  computed_ += times * (computed_ - before.computed_);
  stood_ += times * (stood_ - before.stood_);
  for (size_t i = 0; i < messages_.size(); ++i) {
    messages_[i].stood += times * (messages_[i].stood - before.messages_[i].stood);
    messages_[i].sent += times * (messages_[i].sent - before.messages_[i].sent);
  }
}

std::vector<double> Clock::taken() const {
  std::vector<double> taken;
  for (const std::vector<size_t>* wires : {&ofGroup_, &ofLevel_})
    for (size_t run : *wires)
      taken.push_back(run == kNone ? 0 : std::max(0.0, runs_[run].end - now_));
  return taken;
}

}  // namespace planc
