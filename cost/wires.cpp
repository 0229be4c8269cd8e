// From ops to the ranks they are between, and sums over a step. Tested by tests/unit/wires_test.cpp.
#include "cost/wires.h"

#include <algorithm>
#include <cmath>

#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

// Ranks that an op's group has.
int64_t groupSize(const Op& op) {
  Axes axes = groupAxes(op);
  int64_t among = int64_t(op.attrs.words("among").size());
  return among > 0 ? ranksOver(axes) / axes[0].size * among : ranksOver(axes);
}

// Those that run a program.
std::vector<Coordinates> ranksOf(const Module& role) {
  std::vector<Coordinates> ranks;
  for (int64_t rank = 0; rank < role.grid.ranks(); ++rank)
    if (Coordinates at(role.grid, rank); role.fits(at)) ranks.push_back(std::move(at));
  return ranks;
}

bool isOf(const Transfer& transfer, const Talk& talk) {
  return transfer.op->kind == talk.kind &&
         std::equal(transfer.axes.begin(), transfer.axes.end(), talk.axes.begin(), talk.axes.end(),
                    [](const Axis& axis, const std::string& name) { return axis.name == name; });
}

// The mean of two shares that are of these bytes.
void average(std::vector<double>& share, double bytes, const std::vector<double>& other,
             double more) {
  for (size_t i = 0; i < share.size(); ++i)
    share[i] = (share[i] * bytes + other[i] * more) / (bytes + more);
}

}  // namespace

Pattern patternOf(OpKind kind) {
  switch (kind) {
    case OpKind::AllToAll:
    case OpKind::ExchangeRows:
      return Pattern::Everyone;
    case OpKind::Rotate:
      return Pattern::Shift;
    case OpKind::Send:
    case OpKind::Receive:
      return Pattern::Peer;
    default:
      return Pattern::Ring;
  }
}

double meanBytes(const Op& op) {
  int64_t bytes = bytesSent(op);
  if (op.kind == OpKind::ExchangeRows) return double(bytes - bytes / groupSize(op));
  if (isEven(op)) return double(bytes);
  double sum = 0, ranks = 0;
  for (const Coordinates& rank : ranksOf(op.parent()->module()))
    sum += double(bytesSent(op, rank)), ranks += 1;
  return sum / ranks;
}

void Wires::renumber(const Grid& grid) {
  steps_.clear();
  int64_t stride = 1;
  for (auto axis = grid.axes.rbegin(); axis != grid.axes.rend(); ++axis) {
    steps_.push_back(byName_[axis->name] = {axis->size, stride});
    stride = saturatingMul(stride, axis->size);
  }
  nests_ = true;
  for (size_t i = 1; i <= cluster_.levels.size(); ++i)
    nests_ &= nests(steps_, cluster_.devicesWithin(i));
}

Party Wires::partyOf(const Op& op) const {
  auto steps = [&](llvm::StringRef axis) {
    auto at = byName_.find(axis.str());
    return at == byName_.end() ? Steps() : at->second;
  };
  Party party;
  party.pattern = patternOf(op.kind);
  Axes axes = groupAxes(op);
  for (const Axis& axis : axes) party.axes.push_back(steps(axis.name));
  if (party.pattern == Pattern::Shift) {
    int64_t n = ranksOver(axes), by = op.attrs.integer("by", 1) % n;
    party.to = (by + n) % n;
  } else if (party.pattern == Pattern::Peer) {
    party.to = op.attrs.integer(op.kind == OpKind::Send ? "to" : "from", -1);
  } else {
    party.among = coordinatesOf(op, {});
  }
  for (const auto& [axis, at] : op.parent()->module().where)
    party.where.push_back({steps(axis), at});
  return party;
}

const Reach& Wires::reach(Party party) {
  // Groups that all lie alike do so on every stage.
  if (nests_)
    llvm::erase_if(party.where, [&](const Party::Fixed& fixed) {
      return !llvm::is_contained(party.axes, fixed.axis);
    });
  auto [known, isNew] = known_.try_emplace(keyOf(party));
  if (isNew && !cluster_.levels.empty()) known->second = reachOf(cluster_, steps_, party);
  return known->second;
}

double Wires::seconds(const Reach& reach, double bytes, double calls) const {
  double longest = 0;
  for (size_t level = 0; level < cluster_.levels.size() && level < reach.most.size(); ++level)
    if (double link = cluster_.levels[level].link(); link > 0)
      longest = std::max(longest, bytes * reach.most[level] / link);
  if (reach.level >= cluster_.levels.size()) return longest;
  return longest + calls * reach.rounds * cluster_.levels[reach.level].latency();
}

// The most and the least that ranks send of talks of which each rank sends its own.
static void addUneven(const Module& role, const Traffic& traffic, std::vector<Talk>& talks) {
  for (Talk& talk : talks) {
    bool isUneven = llvm::any_of(traffic.transfers, [&](const Transfer& transfer) {
      return isOf(transfer, talk) && !isEven(*transfer.op);
    });
    if (!isUneven) continue;
    talk.bytes = 0, talk.leastBytes = INT64_MAX;
    for (const Coordinates& rank : ranksOf(role)) {
      int64_t bytes = bytesOf(talk, role, rank.rank());
      talk.bytes = std::max(talk.bytes, bytes);
      talk.leastBytes = std::min(talk.leastBytes, bytes);
    }
  }
}

int64_t bytesOf(const Talk& talk, const Module& role, int64_t rank) {
  if (talk.isBound) return talk.bytes;
  Coordinates here(role.grid, rank);
  int64_t bytes = 0;
  for (const Transfer& transfer : trafficOf(role).transfers)
    if (isOf(transfer, talk))
      bytes = saturatingAdd(bytes, saturatingMul(transfer.times, bytesSent(*transfer.op, here)));
  return bytes;
}

std::vector<Talk> talksOf(const Module& role, Wires& wires) {
  std::vector<Talk> talks;
  Traffic traffic = trafficOf(role);
  for (const Transfer& transfer : traffic.transfers) {
    const Op& op = *transfer.op;
    bool isBound = op.kind == OpKind::ExchangeRows;
    int64_t bytes = saturatingMul(transfer.times, isBound ? mostRowBytes(op) : transfer.bytes);
    if (bytes == 0) continue;
    Talk more;
    more.kind = op.kind;
    more.calls = transfer.times;
    more.bytes = more.leastBytes = bytes;
    for (const Axis& axis : transfer.axes) more.axes.push_back(axis.name);
    more.isBound = isBound;
    more.evenBytes = std::llround(double(transfer.times) * meanBytes(op));
    more.reach = wires.reach(op);
    more.seconds = wires.seconds(more.reach, double(more.evenBytes), double(more.calls));
    auto same = llvm::find_if(
        talks, [&](const Talk& talk) { return talk.kind == more.kind && talk.axes == more.axes; });
    if (same == talks.end()) {
      talks.push_back(std::move(more));
      continue;
    }
    average(same->reach.share, double(same->bytes), more.reach.share, double(more.bytes));
    average(same->reach.most, double(same->bytes), more.reach.most, double(more.bytes));
    same->reach.level = std::max(same->reach.level, more.reach.level);
    same->reach.rounds = std::max(same->reach.rounds, more.reach.rounds);
    same->calls = saturatingAdd(same->calls, more.calls);
    same->leastBytes = same->bytes = saturatingAdd(same->bytes, more.bytes);
    same->evenBytes = saturatingAdd(same->evenBytes, more.evenBytes);
    same->seconds += more.seconds;
  }
  addUneven(role, traffic, talks);
  llvm::stable_sort(talks, [](const Talk& a, const Talk& b) { return a.bytes > b.bytes; });
  return talks;
}

}  // namespace planc
