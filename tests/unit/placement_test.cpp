// The order of axes against all orders tried by code that knows only ranks, groups and links.
#include "cost/placement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

using Sizes = std::map<std::string, int64_t>;

// An op of the program that ranks at these coordinates run so often a step.
struct Message {
  OpKind kind;
  Words axes;
  int64_t elements;      // of its operand, in f32
  int64_t bytes, calls;  // of a rank, of one call
  int64_t from = -1, to = -1;
};

struct Tried {
  Words order;
  double seconds = 0;
  std::vector<double> bytes;
};

class Machine {
 public:
  Machine(const Cluster& cluster, const Words& order, const Sizes& sizes)
      : cluster_(cluster), order_(order), sizes_(sizes) {
    for (auto& [axis, size] : sizes) ranks_ *= size;
    for (const ClusterLevel& level : cluster.levels)
      devices_.push_back(devices_.back() * level.count);
  }

  int64_t ranks() const { return ranks_; }
  std::map<std::string, int64_t> at(int64_t rank) const {
    std::map<std::string, int64_t> at;
    for (size_t i = order_.size(); i-- > 0; rank /= sizes_.at(order_[i]))
      at[order_[i]] = rank % sizes_.at(order_[i]);
    return at;
  }
  int64_t rankAt(const std::map<std::string, int64_t>& at) const {
    int64_t rank = 0;
    for (const std::string& axis : order_) rank = rank * sizes_.at(axis) + at.at(axis);
    return rank;
  }
  size_t levelOf(int64_t a, int64_t b) const {
    size_t level = 0;
    while (a / devices_[level + 1] != b / devices_[level + 1]) ++level;
    return level;
  }
  // Of the ranks at a coordinate of `p` (-1: of all): adds the message's bytes by level; returns its time.
  double run(const Message& message, int64_t stage, std::vector<double>& bytes) const {
    std::vector<std::map<int64_t, std::pair<double, double>>> units(cluster_.levels.size());
    size_t highest = 0, n = 0;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      auto here = at(rank);
      if (stage >= 0 && here.at("p") != stage) continue;
      std::vector<int64_t> group;
      for (int64_t other = 0; other < ranks_; ++other) {
        auto there = at(other);
        if (llvm::all_of(order_, [&](const std::string& axis) {
              return llvm::is_contained(message.axes, axis) || here.at(axis) == there.at(axis);
            }))
          group.push_back(other);
      }
      n = group.size();
      std::vector<double> sent(cluster_.levels.size());
      auto send = [&](int64_t other, double part) {
        if (other == rank) return;
        size_t level = levelOf(rank, other);
        sent[level] += part * double(message.bytes) * double(message.calls);
        highest = std::max(highest, level);
      };
      if (message.from >= 0) {
        auto there = here;
        there.at(message.axes[0]) = message.to;
        send(rankAt(there), 1);
      } else if (message.kind == OpKind::AllToAll) {
        for (int64_t other : group) send(other, 1.0 / double(n - 1));
      } else {
        size_t own = size_t(llvm::find(group, rank) - group.begin());
        send(group[(own + 1) % n], 1);
      }
      for (size_t level = 0; level < sent.size(); ++level) {
        auto& sum = units[level][rank / devices_[level]];
        sum.first += 1, sum.second += sent[level];
        bytes[level] += sent[level];
      }
    }
    double longest = 0;
    for (size_t level = 0; level < units.size(); ++level)
      for (auto& [unit, sum] : units[level])
        longest = std::max(longest, sum.second / sum.first / cluster_.levels[level].link());
    double rounds = message.from >= 0 ? 1 : std::ceil(std::log2(double(n)) - 1e-9);
    return longest + double(message.calls) * rounds * cluster_.levels[highest].latency();
  }

 private:
  const Cluster& cluster_;
  Words order_;
  Sizes sizes_;
  std::vector<int64_t> devices_{1};
  int64_t ranks_ = 1;
};

struct RandomCase {
  Words axes;  // as they are written
  Sizes sizes;
  Cluster cluster;
  std::vector<std::vector<Message>> roles;

  std::string text() const;
};

std::string RandomCase::text() const {
  std::string text = "grid";
  for (const std::string& axis : axes) text += " " + axis + " " + std::to_string(sizes.at(axis));
  for (const ClusterLevel& level : cluster.levels)
    text += ", " + level.name + " " + std::to_string(level.count);
  for (const auto& role : roles) {
    text += "\nrole";
    for (const Message& message : role) {
      text += "\n  " + info(message.kind).text.str();
      for (const std::string& axis : message.axes) text += " " + axis;
      text += " " + std::to_string(message.calls) + " x " + std::to_string(message.bytes);
    }
  }
  return text;
}

// A message's bytes by the convention of rings.
Message messageOf(OpKind kind, const Words& axes, const Sizes& sizes, int64_t elements,
                  int64_t calls) {
  int64_t n = 1, whole = 4 * elements;
  for (const std::string& axis : axes) n *= sizes.at(axis);
  int64_t bytes = kind == OpKind::AllReduce   ? 2 * (n - 1) * whole / n
                  : kind == OpKind::AllGather ? (n - 1) * whole
                  : kind == OpKind::AllToAll  ? (n - 1) * (whole / n)
                                              : whole;
  return {kind, axes, elements, bytes, calls};
}

RandomCase randomCase(std::mt19937& random) {
  auto pick = [&](int64_t from, int64_t to) {
    return from + int64_t(random() % uint64_t(to - from + 1));
  };
  RandomCase made;
  int64_t ranks = 1, size = 1;
  for (const char* axis : {"p", "a", "b", "c"})
    if (made.axes.size() < 2 || pick(0, 1) == 0) {
      made.axes.push_back(axis);
      ranks *= made.sizes[axis] = size = pick(2, axis[0] == 'p' ? 3 : 4);
    }
  std::shuffle(made.axes.begin(), made.axes.end(), random);
  made.cluster.name = made.cluster.device = "c";
  int64_t devices = 1;
  while (made.cluster.levels.size() < 2 || devices < ranks) {
    int64_t count = pick(2, 6);
    made.cluster.levels.push_back(
        {"level" + std::to_string(made.cluster.levels.size()),
         count,
         {{"link", double(pick(1, 40)) * 1e9}, {"latency", double(pick(0, 3)) * 1e-6}}});
    devices *= count;
  }
  bool isStaged = pick(0, 1) == 0;
  int64_t stages = isStaged ? made.sizes["p"] : 1;
  Words others = made.axes;
  if (isStaged) llvm::erase_value(others, "p");
  for (int64_t stage = 0; stage < stages; ++stage) {
    std::vector<Message>& list = made.roles.emplace_back();
    int64_t calls = pick(1, 3);
    for (int64_t ops = pick(1, 4); ops > 0 && !others.empty(); --ops) {
      Words axes = others;
      std::shuffle(axes.begin(), axes.end(), random);
      axes.resize(size_t(pick(1, int64_t(axes.size()))));
      OpKind kinds[] = {OpKind::AllReduce, OpKind::AllGather, OpKind::AllToAll};
      list.push_back(messageOf(kinds[pick(0, 2)], axes, made.sizes, pick(1, 5) * 100000, calls));
    }
    if (!isStaged) continue;
    list.push_back(messageOf(OpKind::Send, {"p"}, made.sizes, pick(1, 5) * 100000, calls));
    list.back().from = stage;
    list.back().to = (stage + 1) % stages;
  }
  return made;
}

// Programs with these messages and nothing else.
Planx planxOf(const RandomCase& random) {
  Planx planx;
  for (size_t number = 0; number < random.roles.size(); ++number) {
    Module& role = *planx.roles.emplace_back(std::make_unique<Module>());
    for (const std::string& axis : random.axes)
      role.grid.axes.push_back({axis, random.sizes.at(axis)});
    role.cluster = random.cluster;
    Builder builder(role.addFunction("f")->body.get());
    for (const Message& message : random.roles[number]) {
      role.schedule.assign(size_t(message.calls), {"f"});
      Type type{Elem::F32, {Dim{"n", message.elements}}};
      Value* value = builder.constant(1, type);
      Attrs attrs{{"axes", message.axes}};
      if (message.from < 0) {
        builder.create(message.kind, {value}, {type}, attrs);
        continue;
      }
      role.where = {{message.axes[0], message.from}};
      attrs.set("to", message.to);
      builder.create(message.kind, {value}, {}, attrs);
    }
  }
  return planx;
}

// All orders, the best first.
std::vector<Tried> tryAll(const RandomCase& random) {
  std::vector<size_t> order(random.axes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<std::tuple<double, int, std::vector<size_t>, Tried>> all;
  do {
    Tried tried;
    for (size_t axis : order) tried.order.push_back(random.axes[axis]);
    Machine machine(random.cluster, tried.order, random.sizes);
    tried.bytes.resize(random.cluster.levels.size());
    for (size_t role = 0; role < random.roles.size(); ++role) {
      double seconds = 0;
      int64_t stage = random.roles.size() > 1 ? int64_t(role) : -1;
      for (const Message& message : random.roles[role])
        seconds += machine.run(message, stage, tried.bytes);
      tried.seconds = std::max(tried.seconds, seconds);
    }
    int inversions = 0;
    for (size_t i = 0; i < order.size(); ++i)
      for (size_t j = 0; j < i; ++j) inversions += order[j] > order[i];
    // A tie is no matter of the last bit.
    double rounded = std::round(tried.seconds * 1e13);
    all.push_back({rounded, inversions, order, tried});
  } while (std::next_permutation(order.begin(), order.end()));
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a), std::get<2>(a)) <
           std::tie(std::get<0>(b), std::get<1>(b), std::get<2>(b));
  });
  std::vector<Tried> list;
  for (auto& entry : all) list.push_back(std::get<3>(entry));
  return list;
}

void expectEqual(const Placing& placing, const Tried& tried, const std::string& what) {
  EXPECT_EQ(placing.axes, tried.order) << what;
  EXPECT_NEAR(placing.seconds, tried.seconds, 1e-9 * tried.seconds) << what;
  ASSERT_EQ(placing.bytes.size(), tried.bytes.size());
  for (size_t level = 0; level < tried.bytes.size(); ++level)
    EXPECT_NEAR(placing.bytes[level], tried.bytes[level], 1e-9 * (1 + tried.bytes[level])) << what;
}

TEST(Placement, IsTheBestOfAllOrders) {
  std::mt19937 random(3);
  int moved = 0, all = 40;
  for (int round = 0; round < all; ++round) {
    RandomCase made = randomCase(random);
    std::string what = "round " + std::to_string(round) + "\n" + made.text();
    Planx planx = planxOf(made);
    std::optional<Placement> placement = placementOf(planx);
    ASSERT_TRUE(placement) << what;
    std::vector<Tried> tried = tryAll(made);
    expectEqual(placement->chosen, tried.front(), what);
    auto written = llvm::find_if(tried, [&](const Tried& t) { return t.order == made.axes; });
    expectEqual(placement->written, *written, what);
    EXPECT_FALSE(placement->unbound);
    moved += placement->chosen.axes != made.axes;

    // The next one in which two ranks, by their coordinates, share a unit that did not, or no longer.
    auto together = [&](const Words& order) {
      Machine machine(made.cluster, order, made.sizes), names(made.cluster, made.axes, made.sizes);
      std::vector<size_t> levels;
      for (int64_t a = 0; a < machine.ranks(); ++a)
        for (int64_t b = 0; b < a; ++b)
          levels.push_back(
              machine.levelOf(machine.rankAt(names.at(a)), machine.rankAt(names.at(b))));
      return levels;
    };
    auto next = llvm::find_if(
        tried, [&](const Tried& t) { return together(t.order) != together(tried.front().order); });
    ASSERT_EQ(bool(placement->runnerUp), next != tried.end()) << what;
    if (next != tried.end()) expectEqual(*placement->runnerUp, *next, "runner-up, " + what);

    // Of each axis the best order in which fewest of its ranks share a node.
    ASSERT_EQ(placement->across.size(), made.axes.size());
    for (const Across& across : placement->across) {
      auto shared = [&](const Words& order) {
        Machine machine(made.cluster, order, made.sizes);
        std::map<std::pair<std::string, int64_t>, int> counts;
        int most = 0;
        for (int64_t rank = 0; rank < machine.ranks(); ++rank) {
          auto at = machine.at(rank);
          at.erase(across.axis);
          std::string others;
          for (auto& [axis, on] : at) others += axis + std::to_string(on);
          most = std::max(most, ++counts[{others, rank / made.cluster.levels[0].count}]);
        }
        return most;
      };
      int fewest = INT_MAX;
      for (const Tried& t : tried) fewest = std::min(fewest, shared(t.order));
      auto best = llvm::find_if(tried, [&](const Tried& t) { return shared(t.order) == fewest; });
      expectEqual(across.placing, *best, "across " + across.axis + ", " + what);
    }
  }
  EXPECT_GT(moved, all / 4);
}

TEST(Placement, PlaceLeavesTheBestOfThoseThatMeetIt) {
  std::mt19937 random(5);
  int unbound = 0, broken = 0, all = 40;
  for (int round = 0; round < all; ++round) {
    RandomCase made = randomCase(random);
    Planx planx = planxOf(made);
    std::string axis = made.axes[random() % made.axes.size()];
    const std::string& level = made.cluster.levels[0].name;
    for (auto& role : planx.roles) role->places = {{{axis}, level}};
    std::vector<Tried> tried = tryAll(made);
    auto meets = [&](const Tried& t) {
      Machine machine(made.cluster, t.order, made.sizes);
      for (int64_t rank = 0; rank < machine.ranks(); ++rank) {
        auto at = machine.at(rank);
        for (at[axis] = 0; at[axis] < made.sizes[axis]; ++at[axis])
          if (machine.levelOf(rank, machine.rankAt(at)) > 0) return false;
      }
      return true;
    };
    auto best = llvm::find_if(tried, meets);
    Broken no;
    std::optional<Placement> placement = placementOf(planx, &no);
    ASSERT_EQ(bool(placement), best != tried.end());
    if (!placement) {
      ++broken;
      EXPECT_EQ(no.place, &planx.roles[0]->places[0]);
      EXPECT_EQ(no.with, nullptr);
      // What it says would do does.
      if (no.most > 0) {
        EXPECT_EQ(no.axis, axis);
        EXPECT_LT(no.most, made.sizes[axis]);
        for (auto& role : planx.roles)
          for (GridAxis& a : role->grid.axes)
            if (a.name == axis) a.size = no.most;
        EXPECT_TRUE(placementOf(planx));
      }
      continue;
    }
    expectEqual(placement->chosen, *best, made.text());
    ASSERT_EQ(bool(placement->unbound), tried.front().seconds < best->seconds * (1 - 1e-9));
    if (!placement->unbound) continue;
    ++unbound;
    expectEqual(*placement->unbound, tried.front(), made.text());
  }
  EXPECT_GT(unbound, all / 20);
  EXPECT_GT(broken, all / 20);
}

TEST(Placement, ATieIsTheNearestToWhatIsWritten) {
  // One message along all axes: any order does.
  RandomCase made;
  made.axes = {"a", "b", "c"};
  made.sizes = {{"a", 2}, {"b", 2}, {"c", 2}};
  made.cluster.name = made.cluster.device = "c";
  made.cluster.levels = {{"x", 4, {{"link", 1e9}}}, {"y", 2, {{"link", 1e8}}}};
  made.roles = {{messageOf(OpKind::AllReduce, made.axes, made.sizes, 100, 1)}};
  Planx planx = planxOf(made);
  EXPECT_EQ(placementOf(planx)->chosen.axes, made.axes);
  // Of programs in another order, to the order that was written.
  planx.roles[0]->settings.set("written", Words{"c", "a", "b"});
  EXPECT_EQ(placementOf(planx)->chosen.axes, (Words{"c", "a", "b"}));
  EXPECT_EQ(placementOf(planx)->written.axes, (Words{"c", "a", "b"}));
  // Two levels and two axes are needed for a choice.
  planx.roles[0]->cluster.levels.pop_back();
  EXPECT_FALSE(placementOf(planx));
}

TEST(Placement, MoreAxesThanAreTriedStay) {
  RandomCase made;
  for (size_t i = 0; i <= kMaxOrdered; ++i) {
    made.axes.push_back(std::string(1, char('a' + i)));
    made.sizes[made.axes.back()] = 2;
  }
  made.cluster.name = made.cluster.device = "c";
  made.cluster.levels = {{"x", 4, {{"link", 1e9}}}, {"y", 1024, {{"link", 1e8}}}};
  made.roles = {{messageOf(OpKind::AllReduce, {"a"}, made.sizes, 100, 1)}};
  Planx planx = planxOf(made);
  std::optional<Placement> placement = placementOf(planx);
  ASSERT_TRUE(placement);
  EXPECT_EQ(placement->chosen.axes, placement->written.axes);
  EXPECT_FALSE(placement->runnerUp);
}

}  // namespace
}  // namespace planc
