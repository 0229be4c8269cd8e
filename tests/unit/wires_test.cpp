// Shares of wires against ranks counted one by one, by code that knows no strides; what programs send
// against their groups.
#include "cost/wires.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "llvm/ADT/STLExtras.h"
#include "sharded.h"

namespace planc {
namespace {

using Coordinate = std::vector<int64_t>;  // on each axis of a grid, the outermost first

Coordinate coordinateOf(int64_t rank, const std::vector<int64_t>& sizes) {
  Coordinate at(sizes.size());
  for (size_t i = sizes.size(); i-- > 0; rank /= sizes[i]) at[i] = rank % sizes[i];
  return at;
}

int64_t rankOf(const Coordinate& at, const std::vector<int64_t>& sizes) {
  int64_t rank = 0;
  for (size_t i = 0; i < sizes.size(); ++i) rank = rank * sizes[i] + at[i];
  return rank;
}

Cluster clusterOf(const std::vector<int64_t>& counts) {
  Cluster cluster;
  cluster.name = "c";
  cluster.device = "d";
  for (size_t i = 0; i < counts.size(); ++i)
    cluster.levels.push_back({"level" + std::to_string(i), counts[i], {}});
  return cluster;
}

std::vector<Steps> stepsOf(const std::vector<int64_t>& sizes) {
  std::vector<Steps> steps(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= sizes[i]) steps[i] = {sizes[i], stride};
  return steps;
}

// A party by the numbers of its axes.
struct Asked {
  Pattern pattern;
  std::vector<size_t> axes;
  std::vector<int64_t> among;
  int64_t to = 0;
  std::vector<std::pair<size_t, int64_t>> where;
};

struct Counted {
  std::vector<double> share, most;
};

Counted countRanks(const std::vector<int64_t>& sizes, const std::vector<int64_t>& counts,
                   const Asked& asked) {
  int64_t ranks = 1;
  for (int64_t size : sizes) ranks *= size;
  std::vector<int64_t> devices{1};
  for (int64_t count : counts) devices.push_back(devices.back() * count);
  size_t levels = devices.size();
  // By level and unit below it: senders, and what they send at that level.
  std::vector<std::map<int64_t, std::pair<double, double>>> units(levels);
  auto levelOf = [&](int64_t a, int64_t b) {
    for (size_t level = 1; level < levels; ++level)
      if (a / devices[level] == b / devices[level]) return level - 1;
    return levels - 1;
  };
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Coordinate here = coordinateOf(rank, sizes);
    auto takesPart = [&](const Coordinate& at) {
      return asked.among.empty() || llvm::is_contained(asked.among, at[asked.axes[0]]);
    };
    bool sends = takesPart(here) && llvm::all_of(asked.where, [&](auto& fixed) {
                   return here[fixed.first] == fixed.second;
                 });
    if (!sends) continue;
    // Its group: all ranks that agree on the other axes, those of the group's order in that order.
    std::vector<std::pair<Coordinate, int64_t>> group;
    for (int64_t other = 0; other < ranks; ++other) {
      Coordinate there = coordinateOf(other, sizes);
      bool isMember = takesPart(there);
      for (size_t axis = 0; axis < sizes.size(); ++axis)
        isMember &= llvm::is_contained(asked.axes, axis) || here[axis] == there[axis];
      if (!isMember) continue;
      Coordinate key;
      for (size_t axis : asked.axes) key.push_back(there[axis]);
      group.push_back({key, other});
    }
    size_t n = group.size();
    if (n < 2) return {std::vector<double>(levels), std::vector<double>(levels)};
    std::vector<double> sent(levels);
    if (asked.pattern == Pattern::Shift) llvm::sort(group);
    size_t own = 0;
    while (group[own].second != rank) ++own;
    if (asked.pattern == Pattern::Everyone) {
      for (auto& [key, other] : group)
        if (other != rank) sent[levelOf(rank, other)] += 1.0 / double(n - 1);
    } else if (asked.pattern == Pattern::Peer) {
      Coordinate there = here;
      there[asked.axes[0]] = asked.to;
      if (there != here) sent[levelOf(rank, rankOf(there, sizes))] += 1;
    } else {
      size_t by = asked.pattern == Pattern::Shift ? size_t(asked.to) : 1;
      int64_t other = group[(own + by) % n].second;
      if (other != rank) sent[levelOf(rank, other)] += 1;
    }
    for (size_t level = 0; level < levels; ++level) {
      auto& [senders, bytes] = units[level][rank / devices[level]];
      senders += 1;
      bytes += sent[level];
    }
  }
  Counted made{std::vector<double>(levels), std::vector<double>(levels)};
  for (size_t level = 0; level < levels; ++level) {
    double senders = 0, bytes = 0;
    for (auto& [unit, sum] : units[level]) {
      senders += sum.first, bytes += sum.second;
      made.most[level] = std::max(made.most[level], sum.second / sum.first);
    }
    if (senders > 0) made.share[level] = bytes / senders;
  }
  return made;
}

TEST(Wires, SharesAreThoseOfRanksCountedOneByOne) {
  std::mt19937 random(7);
  auto pick = [&](int64_t from, int64_t to) {
    return from + int64_t(random() % uint64_t(to - from + 1));
  };
  int nested = 0, crossing = 0, all = 2000;
  for (int round = 0; round < all; ++round) {
    std::vector<int64_t> sizes, counts;
    // Half of them almost nest.
    bool isEven = round % 2 == 0;
    for (int64_t i = pick(1, 4); i > 0; --i) sizes.push_back(isEven ? 2 * pick(1, 2) : pick(2, 5));
    for (int64_t i = pick(1, 3); i > 0; --i) counts.push_back(isEven ? 2 * pick(1, 3) : pick(2, 8));
    Asked asked{Pattern(pick(0, 3)), {}, {}, 0, {}};
    std::vector<size_t> axes(sizes.size());
    for (size_t i = 0; i < axes.size(); ++i) axes[i] = i;
    std::shuffle(axes.begin(), axes.end(), random);
    size_t used = asked.pattern == Pattern::Peer ? 1 : size_t(pick(1, int64_t(axes.size())));
    asked.axes.assign(axes.begin(), axes.begin() + long(used));
    int64_t first = sizes[asked.axes[0]], ranks = 1;
    for (size_t axis : asked.axes) ranks *= sizes[axis];
    if (asked.pattern == Pattern::Shift) asked.to = pick(0, ranks - 1);
    if (asked.pattern == Pattern::Peer) {
      int64_t at = pick(0, first - 1);
      asked.where.push_back({asked.axes[0], at});
      asked.to = (at + pick(1, first - 1)) % first;
    } else if (pick(0, 2) == 0) {
      size_t axis = axes[size_t(pick(0, int64_t(axes.size()) - 1))];
      asked.where.push_back({axis, pick(0, sizes[axis] - 1)});
    }
    if (asked.pattern == Pattern::Ring && first > 2 && pick(0, 3) == 0) {
      asked.among = {0, first - 1};
      asked.where = {{asked.axes[0], first - 1}};
    }
    std::vector<Steps> grid = stepsOf(sizes);
    Party party{asked.pattern, {}, asked.among, asked.to, {}};
    for (size_t axis : asked.axes) party.axes.push_back(grid[axis]);
    for (auto [axis, at] : asked.where) party.where.push_back({grid[axis], at});
    Reach made = reachOf(clusterOf(counts), grid, party);
    Counted counted = countRanks(sizes, counts, asked);
    for (size_t level = 0; level <= counts.size(); ++level) {
      EXPECT_NEAR(made.share[level], counted.share[level], 1e-12) << "round " << round;
      EXPECT_NEAR(made.most[level], counted.most[level], 1e-12) << "round " << round;
    }
    Cluster cluster = clusterOf(counts);
    bool isNested = true;
    for (size_t i = 1; i <= counts.size(); ++i) isNested &= nests(grid, cluster.devicesWithin(i));
    nested += isNested;
    crossing += made.level > 0;
  }
  // Both ways to count have been taken.
  EXPECT_GT(nested, all / 10);
  EXPECT_LT(nested, all * 9 / 10);
  EXPECT_GT(crossing, all / 4);
}

TEST(Wires, LieWithinLooksAtAllGroups) {
  std::mt19937 random(11);
  int within = 0, all = 1000;
  for (int round = 0; round < all; ++round) {
    std::vector<int64_t> sizes;
    for (uint64_t i = 1 + random() % 3; i > 0; --i) sizes.push_back(int64_t(2 + random() % 4));
    int64_t devices = int64_t(2 + random() % 12), ranks = 1;
    for (int64_t size : sizes) ranks *= size;
    std::vector<Steps> grid = stepsOf(sizes), some;
    std::vector<bool> isUsed;
    for (const Steps& axis : grid) {
      isUsed.push_back(random() % 2 == 0);
      if (isUsed.back()) some.push_back(axis);
    }
    bool lies = true;
    for (int64_t a = 0; a < ranks; ++a)
      for (int64_t b = 0; b < ranks; ++b) {
        Coordinate atA = coordinateOf(a, sizes), atB = coordinateOf(b, sizes);
        bool isTogether = true;
        for (size_t i = 0; i < sizes.size(); ++i) isTogether &= isUsed[i] || atA[i] == atB[i];
        lies &= !isTogether || a / devices == b / devices;
      }
    EXPECT_EQ(lieWithin(grid, some, devices), lies) << "round " << round;
    within += lies;
  }
  EXPECT_GT(within, all / 10);
  EXPECT_LT(within, all * 9 / 10);
}

// By hand: nodes of 4, 8 ranks; tensor 4 within a node, data 2 between.
TEST(Wires, SecondsAreTheSlowestLevelsAndLatencies) {
  Cluster cluster = clusterOf({4, 2});
  cluster.levels[0].figures = {{"link", 100e9}, {"latency", 1e-6}};
  cluster.levels[1].figures = {{"link", 10e9}, {"latency", 5e-6}};
  std::vector<Steps> grid = stepsOf({2, 4});
  Wires wires(cluster, Grid{{{"data", 2}, {"tensor", 4}}});
  Reach inside = reachOf(cluster, grid, {Pattern::Ring, {grid[1]}});
  EXPECT_EQ(inside.level, 0u);
  EXPECT_EQ(inside.rounds, 2);
  EXPECT_DOUBLE_EQ(wires.seconds(inside, 1e9, 3), 1e9 / 100e9 + 3 * 2 * 1e-6);
  // Of all 8 one rank of each node sends out, and its node's devices share that.
  Reach all = reachOf(cluster, grid, {Pattern::Ring, {grid[0], grid[1]}});
  EXPECT_EQ(all.share, (std::vector<double>{0.75, 0.25, 0}));
  EXPECT_DOUBLE_EQ(wires.seconds(all, 1e9, 1), 0.25e9 / 10e9 + 3 * 5e-6);
  // To all others alike: 3 of 7 in the node, 4 in the other.
  Reach everyone = reachOf(cluster, grid, {Pattern::Everyone, {grid[0], grid[1]}});
  EXPECT_DOUBLE_EQ(everyone.share[1], 4.0 / 7);
  EXPECT_DOUBLE_EQ(wires.seconds(everyone, 7e9, 0), 4e9 / 10e9);
}

// Of a compiled plan: every talk's bytes are those of its transfers, and on each level those of the links
// that its ranks' groups (ir/traffic.h) use.
TEST(Wires, TalksAreTheProgramsTransfers) {
  auto model = test::compileText(test::dense(
      "grid data 2, pipe 2, tensor 2 split batch over data split head, kv, ffn, vocab over tensor "
      "split layer over pipe shard optimizer over data microbatches 2 "));
  model->cluster = clusterOf({2, 3, 4});
  Modules roles;
  roles.push_back(cloneModule(*model));
  test::runAll(roles);
  ASSERT_EQ(roles.size(), 2u);
  for (const auto& role : roles) {
    Wires wires(role->cluster, role->grid);
    std::vector<Talk> talks = talksOf(*role, wires);
    ASSERT_FALSE(talks.empty());
    std::map<std::pair<OpKind, Words>, int64_t> sums;
    for (const Transfer& transfer : trafficOf(*role).transfers) {
      Words axes;
      for (const Axis& axis : transfer.axes) axes.push_back(axis.name);
      sums[{transfer.op->kind, axes}] += transfer.times * transfer.bytes;
    }
    int64_t last = INT64_MAX;
    for (const Talk& talk : talks) {
      EXPECT_EQ(talk.bytes, (sums[{talk.kind, talk.axes}]));
      EXPECT_EQ(talk.evenBytes, talk.bytes);
      EXPECT_FALSE(talk.isBound);
      EXPECT_LE(talk.bytes, last);
      double share = 0;
      for (double part : talk.reach.share) share += part;
      EXPECT_NEAR(share, 1, 1e-12) << talk.axes[0];
      last = talk.bytes;
      sums.erase({talk.kind, talk.axes});
    }
    for (auto& [key, bytes] : sums) EXPECT_EQ(bytes, 0);
    // A send of the pipe axis: of each sender, by the members that ir/traffic.h gives.
    for (const Transfer& transfer : trafficOf(*role).transfers) {
      std::vector<double> sent(role->cluster.levels.size() + 1);
      double senders = 0;
      for (int64_t rank = 0; rank < role->grid.ranks(); ++rank) {
        Coordinates here(role->grid, rank);
        if (!role->fits(here)) continue;
        std::vector<int64_t> members = membersOf(*transfer.op, here);
        if (members.size() != 2) continue;
        senders += 1;
        sent[role->cluster.levelBetween(rank, members[members[0] == rank])] += 1;
      }
      if (senders == 0) continue;
      const Reach& reach = wires.reach(*transfer.op);
      for (size_t level = 0; level < sent.size(); ++level)
        EXPECT_NEAR(reach.share[level], sent[level] / senders, 1e-12);
    }
  }
}

}  // namespace
}  // namespace planc
