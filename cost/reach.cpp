// A group is a first rank and what each member's number is more. The first ranks are all whose coordinates on
// the group's axes are 0. Tested by tests/unit/wires_test.cpp, against ranks one by one.
#include "cost/reach.h"

#include <algorithm>
#include <numeric>

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"

namespace planc {
namespace {

int64_t ranksOf(llvm::ArrayRef<Steps> grid) {
  int64_t ranks = 1;
  for (const Steps& axis : grid) ranks = saturatingMul(ranks, axis.size);
  return ranks;
}

bool isOn(int64_t rank, const Party::Fixed& fixed) {
  return rank / fixed.axis.stride % fixed.axis.size == fixed.at;
}

// The numbers, in their order, of the ranks at these coordinates of the first axis and at all of the others;
// no coordinates: all.
std::vector<int64_t> offsetsOf(llvm::ArrayRef<Steps> axes, llvm::ArrayRef<int64_t> among) {
  std::vector<int64_t> offsets{0};
  for (size_t i = 0; i < axes.size(); ++i) {
    std::vector<int64_t> more;
    for (int64_t offset : offsets)
      for (int64_t at = 0; at < axes[i].size; ++at)
        if (i > 0 || among.empty() || llvm::is_contained(among, at))
          more.push_back(offset + at * axes[i].stride);
    offsets = std::move(more);
  }
  return offsets;
}

class Counter {
 public:
  Counter(const Cluster& cluster, llvm::ArrayRef<Steps> grid, const Party& party)
      : grid_(grid), party_(party), ranks_(ranksOf(grid)) {
    for (size_t i = 0; i <= cluster.levels.size(); ++i)
      units_.push_back(std::min(cluster.devicesWithin(i), ranks_));
    sums_.resize(units_.size());
    numbers_.resize(units_.size());
  }

  Reach reach();

 private:
  // Of the ranks of a unit that send: how many there are, and what they send at the next level, in parts
  // of a rank's bytes: 1 / parts_.
  struct Sum {
    int64_t senders = 0, sent = 0;
  };

  int64_t unit(int64_t rank, size_t level) const { return rank / units_[level]; }
  // Of the unit that a rank is in.
  Sum& sum(int64_t rank, size_t level) {
    const std::vector<int64_t>& known = numbers_[level];
    int64_t number = unit(rank, level);
    if (!known.empty()) number = llvm::lower_bound(known, number) - known.begin();
    return sums_[level][size_t(number)];
  }
  void countOne(int64_t first);
  void joinAlike();
  void countAll();
  void send(int64_t from, int64_t to) {
    if (from == to) return;
    size_t level = 0;
    while (level + 1 < units_.size() && unit(from, level + 1) != unit(to, level + 1)) ++level;
    sum(from, level).sent += times_;
  }
  void countGroup(int64_t first);
  void sendToEveryone(int64_t from);
  bool allAlike() const {
    return llvm::all_of(units_, [&](int64_t devices) { return nests(grid_, devices); });
  }
  bool sends(int64_t rank) const {
    return llvm::all_of(party_.where, [&](const Party::Fixed& fixed) { return isOn(rank, fixed); });
  }

  llvm::ArrayRef<Steps> grid_;
  Party party_;
  int64_t ranks_;
  std::vector<int64_t>
      units_;  // devices in a unit of the level below each, the first of one device
  // Of each such unit; behind the last level, what leaves its units. Where one group is counted, only of
  // those that it is in: their numbers.
  std::vector<std::vector<Sum>> sums_;
  std::vector<std::vector<int64_t>> numbers_;
  std::vector<int64_t> offsets_, members_;
  int64_t parts_ = 1;
  int64_t times_ = 1;  // that the group at hand is there
};

void Counter::sendToEveryone(int64_t from) {
  int64_t within = 1;  // itself, and members that lower levels reach
  for (size_t level = 0; level < units_.size(); ++level) {
    int64_t reached = int64_t(members_.size());
    if (level + 1 < units_.size()) {
      int64_t devices = units_[level + 1], begin = from / devices * devices;
      reached = std::lower_bound(members_.begin(), members_.end(), begin + devices) -
                std::lower_bound(members_.begin(), members_.end(), begin);
    }
    sum(from, level).sent += times_ * (reached - within);
    within = reached;
  }
}

void Counter::countGroup(int64_t first) {
  size_t n = offsets_.size();
  members_.resize(n);
  for (size_t i = 0; i < n; ++i) members_[i] = first + offsets_[i];
  for (size_t i = 0; i < n; ++i) {
    int64_t rank = members_[i];
    if (!sends(rank)) continue;
    for (size_t level = 0; level < units_.size(); ++level) sum(rank, level).senders += times_;
    switch (party_.pattern) {
      case Pattern::Ring:
        send(rank, members_[(i + 1) % n]);
        break;
      case Pattern::Everyone:
        sendToEveryone(rank);
        break;
      case Pattern::Shift:
        send(rank, members_[size_t((int64_t(i) + party_.to) % int64_t(n))]);
        break;
      case Pattern::Peer: {
        const Steps& axis = party_.axes.front();
        int64_t at = rank / axis.stride % axis.size;
        send(rank, rank + (party_.to - at) * axis.stride);
        break;
      }
    }
  }
}

void Counter::countOne(int64_t first) {
  for (size_t level = 0; level < units_.size(); ++level) {
    std::vector<int64_t>& known = numbers_[level];
    for (int64_t offset : offsets_) known.push_back(unit(first + offset, level));
    llvm::sort(known);
    known.erase(std::unique(known.begin(), known.end()), known.end());
    sums_[level].resize(known.size());
  }
  countGroup(first);
}

// Ranks in a row that stand alike everywhere, so many, count as one: in a unit and at a coordinate together.
void Counter::joinAlike() {
  int64_t row = ranks_;
  for (const Steps& axis : party_.axes) row = std::gcd(row, axis.stride);
  for (size_t level = 1; level < units_.size(); ++level) row = std::gcd(row, units_[level]);
  // Of an axis inside of a row all rows have as many ranks at a coordinate.
  auto isInside = [&](const Party::Fixed& fixed) {
    return row % (fixed.axis.stride * fixed.axis.size) == 0;
  };
  for (bool isKnown = false; !isKnown;) {
    isKnown = true;
    for (const Party::Fixed& fixed : party_.where) {
      if (isInside(fixed)) continue;
      int64_t less = std::gcd(row, fixed.axis.stride);
      isKnown &= less == row;
      row = less;
    }
  }
  llvm::erase_if(party_.where, isInside);
  ranks_ /= row;
  for (size_t level = 1; level < units_.size(); ++level) units_[level] /= row;
  for (Steps& axis : party_.axes) axis.stride /= row;
  for (Party::Fixed& fixed : party_.where) fixed.axis.stride /= row;
  for (int64_t& offset : offsets_) offset /= row;
}

// Behind a whole number of groups and of units everything comes again.
void Counter::countAll() {
  joinAlike();
  int64_t period = 1;
  auto add = [&](int64_t of) { period = std::min(std::lcm(period, of), ranks_); };
  for (const Steps& axis : party_.axes) add(axis.stride * axis.size);
  for (const Party::Fixed& fixed : party_.where) add(fixed.axis.stride * fixed.axis.size);
  for (int64_t devices : units_) add(devices < ranks_ ? devices : 1);
  int64_t periods = ranks_ / period, end = period + ranks_ % period;
  for (size_t level = 0; level < units_.size(); ++level)
    sums_[level].resize(size_t(unit(end - 1, level) + 1));
  for (int64_t rank = 0; rank < end; ++rank) {
    times_ = rank < period ? periods : 1;
    if (llvm::all_of(party_.axes,
                     [&](const Steps& axis) { return rank / axis.stride % axis.size == 0; }))
      countGroup(rank);
  }
}

Reach Counter::reach() {
  offsets_ = offsetsOf(party_.axes, party_.among);
  int64_t n = int64_t(offsets_.size());
  Reach reach;
  reach.share.resize(units_.size());
  reach.most.resize(units_.size());
  if (n < 2) return reach;
  // A shift goes by the op's order, all else by that of devices.
  if (party_.pattern != Pattern::Shift) llvm::sort(offsets_);
  if (party_.pattern == Pattern::Everyone) parts_ = n - 1;
  if (allAlike()) {
    int64_t first = 0;
    for (const Party::Fixed& fixed : party_.where)
      if (!llvm::is_contained(party_.axes, fixed.axis)) first += fixed.at * fixed.axis.stride;
    countOne(first);
  } else {
    countAll();
  }
  for (size_t level = 0; level < units_.size(); ++level) {
    Sum all;
    for (const Sum& sum : sums_[level]) {
      all.senders += sum.senders;
      all.sent += sum.sent;
      if (sum.senders > 0)
        reach.most[level] =
            std::max(reach.most[level], double(sum.sent) / (double(sum.senders) * double(parts_)));
    }
    if (all.sent == 0) continue;
    reach.share[level] = double(all.sent) / (double(all.senders) * double(parts_));
    reach.level = level;
  }
  bool isTree = party_.pattern == Pattern::Ring || party_.pattern == Pattern::Everyone;
  reach.rounds = isTree ? int(llvm::Log2_64_Ceil(uint64_t(n))) : 1;
  return reach;
}

}  // namespace

bool nests(llvm::ArrayRef<Steps> grid, int64_t devices) {
  return devices >= ranksOf(grid) || llvm::any_of(grid, [&](const Steps& axis) {
           return devices % axis.stride == 0 && axis.size * axis.stride % devices == 0;
         });
}

bool lieWithin(llvm::ArrayRef<Steps> grid, llvm::ArrayRef<Steps> axes, int64_t devices) {
  int64_t span = 0, ranks = ranksOf(grid);
  for (const Steps& axis : axes) span += (axis.size - 1) * axis.stride;
  if (span >= devices) return false;
  if (nests(grid, devices)) return true;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    bool isFirst =
        llvm::all_of(axes, [&](const Steps& axis) { return rank / axis.stride % axis.size == 0; });
    if (isFirst && rank / devices != (rank + span) / devices) return false;
  }
  return true;
}

std::vector<int64_t> keyOf(const Party& party) {
  std::vector<int64_t> key{int64_t(party.pattern), party.to, int64_t(party.axes.size()),
                           int64_t(party.among.size())};
  for (const Steps& axis : party.axes) key.insert(key.end(), {axis.size, axis.stride});
  key.insert(key.end(), party.among.begin(), party.among.end());
  for (const Party::Fixed& fixed : party.where)
    key.insert(key.end(), {fixed.axis.size, fixed.axis.stride, fixed.at});
  return key;
}

Reach reachOf(const Cluster& cluster, llvm::ArrayRef<Steps> grid, const Party& party) {
  return Counter(cluster, grid, party).reach();
}

}  // namespace planc
