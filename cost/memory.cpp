// Of all that the program holds (cost/lives.h), the arena is fullest where the most bytes are held, those
// that several hold counted once: a sweep over time with a tree over the bytes between two ends of lives.
// What is held then is laid out byte by byte. Tested by tests/unit/memory_bill_test.cpp and
// tests/unit/closed_forms_memory_test.cpp.
#include "cost/memory.h"

#include <algorithm>
#include <map>
#include <set>

#include "cost/lives.h"

namespace planc {
namespace {

// How many bytes some intervals cover together, as they come and go.
class Cover {
 public:
  explicit Cover(std::vector<int64_t> ends) : ends_(std::move(ends)) {
    std::sort(ends_.begin(), ends_.end());
    ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
    size_t pieces = ends_.empty() ? 0 : ends_.size() - 1;
    while (leaves_ < pieces) leaves_ *= 2;
    nodes_.resize(2 * leaves_);
    for (size_t i = 0; i < pieces; ++i) nodes_[leaves_ + i].bytes = ends_[i + 1] - ends_[i];
    for (size_t i = leaves_ - 1; i > 0; --i)
      nodes_[i].bytes = nodes_[2 * i].bytes + nodes_[2 * i + 1].bytes;
  }

  // `change` 1: an interval comes; -1: it goes. Its ends are among those given at first.
  void add(int64_t begin, int64_t end, int change) {
    size_t from = index(begin), to = index(end);
    add(1, 0, leaves_, from, to, change);
  }
  int64_t bytes() const { return nodes_[1].covered; }

 private:
  struct Node {
    int64_t bytes = 0, covered = 0;
    int intervals = 0;  // that cover all of it and are counted here
  };

  size_t index(int64_t end) const {
    return size_t(std::lower_bound(ends_.begin(), ends_.end(), end) - ends_.begin());
  }
  void add(size_t node, size_t first, size_t last, size_t from, size_t to, int change) {
    if (to <= first || last <= from) return;
    Node& here = nodes_[node];
    if (from <= first && last <= to) {
      here.intervals += change;
    } else {
      size_t middle = (first + last) / 2;
      add(2 * node, first, middle, from, to, change);
      add(2 * node + 1, middle, last, from, to, change);
    }
    bool isLeaf = node >= leaves_;
    int64_t below = isLeaf ? 0 : nodes_[2 * node].covered + nodes_[2 * node + 1].covered;
    here.covered = here.intervals > 0 ? here.bytes : below;
  }

  std::vector<int64_t> ends_;
  size_t leaves_ = 1;
  std::vector<Node> nodes_;
};

// The first moment at which the most bytes are held.
int fullestMoment(const Lives& lives) {
  std::vector<int64_t> ends;
  std::vector<const Life*> byEnd;
  for (const Life& life : lives.list) {
    ends.insert(ends.end(), {life.begin, life.end});
    byEnd.push_back(&life);
  }
  std::vector<const Life*> byBegin = byEnd;
  llvm::stable_sort(byBegin, [](const Life* a, const Life* b) { return a->from < b->from; });
  llvm::stable_sort(byEnd, [](const Life* a, const Life* b) { return a->to < b->to; });
  Cover cover(std::move(ends));
  int moment = 0;
  int64_t most = 0;
  for (auto begun = byBegin.begin(), ended = byEnd.begin(); begun != byBegin.end();) {
    int time = (*begun)->from;
    for (; ended != byEnd.end() && (*ended)->to < time; ++ended)
      cover.add((*ended)->begin, (*ended)->end, -1);
    for (; begun != byBegin.end() && (*begun)->from == time; ++begun)
      cover.add((*begun)->begin, (*begun)->end, 1);
    if (cover.bytes() <= most) continue;
    most = cover.bytes();
    moment = time;
  }
  return moment;
}

// Something held, and how many of its bytes count for it.
struct Share {
  const Life* life;
  int64_t bytes = 0;
};

// What is held at a moment; of bytes that several hold, the first by Holding, then the larger, counts.
std::vector<Share> sharesAt(const Lives& lives, int moment) {
  std::vector<Share> shares;
  for (const Life& life : lives.list)
    if (life.from <= moment && moment <= life.to) shares.push_back({&life});
  llvm::stable_sort(shares, [](const Share& a, const Share& b) {
    if (a.life->holding != b.life->holding) return a.life->holding < b.life->holding;
    return a.life->end - a.life->begin > b.life->end - b.life->begin;
  });
  struct Edge {
    int64_t at;
    size_t share;
    bool isBegin;
  };
  std::vector<Edge> edges;
  for (size_t i = 0; i < shares.size(); ++i) {
    edges.push_back({shares[i].life->begin, i, true});
    edges.push_back({shares[i].life->end, i, false});
  }
  llvm::sort(edges, [](const Edge& a, const Edge& b) { return a.at < b.at; });
  std::set<size_t> holders;
  int64_t from = 0;
  for (const Edge& edge : edges) {
    if (!holders.empty()) shares[*holders.begin()].bytes += edge.at - from;
    from = edge.at;
    if (edge.isBegin) holders.insert(edge.share);
    else holders.erase(edge.share);
  }
  return shares;
}

// The most and the most in flight first.
std::vector<SavedChunk> savedBy(const Lives& lives) {
  std::map<std::pair<int, int64_t>, int64_t> bytes;  // by chunk and flights
  for (const Life& life : lives.list)
    if (life.holding == Holding::Activations && life.var != nullptr)
      bytes[{life.chunk, -life.var->flights}] += life.var->type.bytes();
  std::vector<SavedChunk> saved;
  for (const auto& [key, sum] : bytes) saved.push_back({key.first, sum, -key.second});
  return saved;
}

}  // namespace

MemoryBill memoryOf(const Module& role) {
  MemoryBill bill;
  bill.arena = role.arenaBytes;
  Lives lives = livesOf(role);
  int moment = fullestMoment(lives);
  bill.fullest = lives.moments[size_t(moment)];
  bill.saved = savedBy(lives);
  std::vector<Share> shares = sharesAt(lives, moment);
  int64_t* const fields[] = {&bill.weights,     &bill.gradients,     &bill.optimizer, &bill.inputs,
                             &bill.activations, &bill.messages, &bill.workspace};
  static_assert(std::size(fields) == kHoldings);
  bill.gaps = bill.arena;
  for (const Share& share : shares) {
    *fields[size_t(share.life->holding)] += share.bytes;
    bill.gaps -= share.bytes;
  }
  llvm::stable_sort(shares, [](const Share& a, const Share& b) { return a.bytes > b.bytes; });
  constexpr size_t kLargest = 8;
  for (const Share& share : shares) {
    if (bill.largest.size() == kLargest || share.bytes == 0) break;
    bill.largest.push_back(
        {share.life->name(), name(share.life->holding).str(), share.bytes, share.life->loc()});
  }
  return bill;
}

}  // namespace planc
