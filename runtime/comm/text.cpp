// Ranks and messages in words. Tested by tests/runtime/comm_test.cpp.
#include "runtime/comm_text.h"

#include <numeric>

namespace planc {

llvm::StringRef name(Collective kind) {
  static constexpr llvm::StringLiteral kNames[] = {"all-reduce", "reduce-scatter", "all-gather",
                                                   "all-to-all", "broadcast",      "transfer"};
  return kNames[size_t(kind)];
}

llvm::StringRef name(Reduction reduction) { return reduction == Reduction::Sum ? "sum" : "max"; }

namespace comm {

std::string rankList(llvm::ArrayRef<int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    size_t first = i;
    while (i + 1 < ranks.size() && ranks[i + 1] == ranks[i] + 1) ++i;
    if (first > 0) text += ", ";
    text += std::to_string(ranks[first]);
    if (i > first) text += (i > first + 1 ? "-" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

std::string describe(const Site& site) {
  std::string text = site.op;
  if (site.number > 0) text += " " + std::to_string(site.number);
  if (!site.tensor.empty()) text += " of '" + site.tensor + "'";
  if (!site.place.empty()) text += " (" + site.place + ")";
  if (!site.stage.empty()) text += " on " + site.stage;
  return text;
}

std::string describe(const Message& message) {
  bool reduces = message.kind == Collective::AllReduce || message.kind == Collective::ReduceScatter;
  std::string text = name(message.kind).str();
  if (reduces) text += " (" + name(message.reduction).str() + ")";
  int64_t count =
      message.sendCounts.empty()
          ? message.count
          : std::accumulate(message.sendCounts.begin(), message.sendCounts.end(), int64_t(0));
  text += " of " + std::to_string(count) + " " + name(message.elem).str();
  if (message.kind == Collective::Broadcast) {
    text += " from position " + std::to_string(message.root) + " of the group";
  }
  return text;
}

std::string seconds(std::chrono::milliseconds time) {
  int64_t count = time.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + " s" : std::to_string(count) + " ms";
}

}  // namespace comm
}  // namespace planc
