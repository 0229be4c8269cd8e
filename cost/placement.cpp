// All orders are tried. What a message costs follows from the strides of its axes, which follow from the set
// of axes behind each: so of few orders anything is new. Tested by tests/unit/placement_test.cpp, against
// ranks one by one, and tests/unit/placed_plans_test.cpp.
#include "cost/placement.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "cost/wires.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

using Order = std::vector<uint8_t>;  // numbers of axes as they are written, the outermost first
using Mask = uint64_t;               // a byte for each of some axes: which axes lie behind it

// Times that differ by less are equal.
constexpr double kEqual = 1e-9;

std::vector<Steps> stepsOf(const Grid& grid) {
  std::vector<Steps> steps;
  int64_t stride = 1;
  for (auto axis = grid.axes.rbegin(); axis != grid.axes.rend(); ++axis) {
    steps.insert(steps.begin(), {axis->size, stride});
    stride *= axis->size;
  }
  return steps;
}

const std::string& planAxis(const GridAxis& axis) { return axis.of.empty() ? axis.name : axis.of; }

// What a rank of a role sends in a step in one party.
struct Load {
  const Op* op;  // one of them
  Words axes;    // the plan's: of the party, and of its role's `where`
  double bytes = 0, calls = 0;
};

struct Role {
  double ranks = 1;
  std::vector<Load> loads;
};

class Search {
 public:
  explicit Search(const Planx& planx);
  std::optional<Placement> run();
  Broken broken() const;

 private:
  struct Cost {
    double perByte = 0, perCall = 0;
    const Reach* reach = nullptr;
  };

  const Cluster& cluster() const { return model_.cluster; }
  Words words(const Order& order) const;
  Grid grid(const Order& order) const { return inOrder(grid_, words(order)); }
  void resize(llvm::StringRef axis, int64_t size);
  void eachOrder(llvm::function_ref<void(const Order&)> visit) const;
  bool meets(const Order& order, const Grid& grid, const Within& place) const;
  bool meetsAll(const Order& order, llvm::ArrayRef<const Within*> places) const;
  bool canMeet(llvm::ArrayRef<const Within*> places) const;
  // The ranks behind an axis.
  int64_t behind(const Order& order, llvm::StringRef axis) const;
  Mask maskOf(const Load& load, const Order& order) const;
  const Cost& costOf(size_t number, const Load& load, const Order& order);
  Placing placing(const Order& order);
  double seconds(const Order& order);
  int64_t shared(const Order& order, size_t axis) const;
  std::vector<int64_t> partition(const Order& order) const;
  std::vector<int64_t> unitsOf(const Grid& grid, int64_t devices) const;

  const Module& model_;
  Grid grid_;
  std::vector<GridAxis> axes_;  // the plan's, whole, as they are written
  Wires wires_;
  std::vector<Role> roles_;
  std::vector<std::unordered_map<Mask, Cost>> costs_;  // of each role's loads, one behind the other
  std::vector<const Within*> scopes_, places_;
};

Search::Search(const Planx& planx)
    : model_(*planx.roles.front()), grid_(model_.grid), wires_(cluster(), grid_) {
  for (const std::string& name : writtenOrder(model_))
    axes_.push_back({name, ranksOver(grid_.find(name))});
  for (const Within& place : model_.places) (place.isScope ? scopes_ : places_).push_back(&place);
  for (const auto& program : planx.roles) {
    Role& role = roles_.emplace_back();
    role.ranks = double(grid_.ranks());
    for (const auto& [axis, at] : program->where) role.ranks /= double(ranksOver(grid_.find(axis)));
    std::map<std::vector<int64_t>, size_t> known;  // parties in the order of now
    for (const Transfer& transfer : trafficOf(*program).transfers) {
      const Op& op = *transfer.op;
      if (transfer.bytes == 0 || transfer.times == 0) continue;
      auto [at, isNew] = known.try_emplace(keyOf(wires_.partyOf(op)), role.loads.size());
      if (isNew) {
        Load& load = role.loads.emplace_back(Load{&op, {}});
        auto use = [&](llvm::StringRef name) {
          for (const GridAxis& axis : grid_.axes)
            if (axis.name == name && !llvm::is_contained(load.axes, planAxis(axis)))
              load.axes.push_back(planAxis(axis));
        };
        for (const Axis& axis : groupAxes(op)) use(axis.name);
        for (const auto& where : program->where) use(where.first);
      }
      Load& load = role.loads[at->second];
      load.bytes += double(transfer.times) * meanBytes(op);
      load.calls += double(transfer.times);
    }
    costs_.resize(costs_.size() + role.loads.size());
  }
}

// ---- Orders

Words Search::words(const Order& order) const {
  Words words;
  for (uint8_t axis : order) words.push_back(axes_[axis].name);
  return words;
}

// The written one first.
void Search::eachOrder(llvm::function_ref<void(const Order&)> visit) const {
  Order order(axes_.size());
  std::iota(order.begin(), order.end(), uint8_t{0});
  do visit(order);
  while (areOrdered(axes_.size(), grid_.ranks()) &&
         std::next_permutation(order.begin(), order.end()));
}

int64_t Search::behind(const Order& order, llvm::StringRef axis) const {
  int64_t ranks = 1;
  for (auto at = order.rbegin(); at != order.rend() && axes_[*at].name != axis; ++at)
    ranks *= axes_[*at].size;
  return ranks;
}

bool Search::meets(const Order& order, const Grid& grid, const Within& place) const {
  if (!place.isScope)
    return lieWithin(grid, place.axes, cluster().devicesWithin(cluster().find(place.level) + 1));
  Order written(axes_.size());
  std::iota(written.begin(), written.end(), uint8_t{0});
  return llvm::all_of(place.axes, [&](const std::string& axis) {
    return behind(order, axis) == behind(written, axis);
  });
}

bool Search::meetsAll(const Order& order, llvm::ArrayRef<const Within*> places) const {
  if (places.empty()) return true;
  Grid made = grid(order);
  return llvm::all_of(places, [&](const Within* place) { return meets(order, made, *place); });
}

bool Search::canMeet(llvm::ArrayRef<const Within*> places) const {
  bool can = false;
  eachOrder([&](const Order& order) { can = can || meetsAll(order, places); });
  return can;
}

// Pairs of axes that stand the other way round than they are written.
int64_t inversions(const Order& order) {
  int64_t pairs = 0;
  for (size_t i = 0; i < order.size(); ++i)
    for (size_t j = i + 1; j < order.size(); ++j) pairs += order[i] > order[j];
  return pairs;
}

// ---- Costs

Mask Search::maskOf(const Load& load, const Order& order) const {
  Mask mask = 0;
  for (const std::string& axis : load.axes) {
    Mask behind = 0;
    for (auto at = order.rbegin(); at != order.rend() && axes_[*at].name != axis; ++at)
      behind |= Mask{1} << *at;
    mask = mask << 8 | behind;
  }
  return mask;
}

const Search::Cost& Search::costOf(size_t number, const Load& load, const Order& order) {
  auto [at, isNew] = costs_[number].try_emplace(maskOf(load, order));
  if (isNew) {
    wires_.renumber(grid(order));
    const Reach& reach = wires_.reach(*load.op);
    at->second = {wires_.seconds(reach, 1, 0), wires_.seconds(reach, 0, 1), &reach};
  }
  return at->second;
}

double Search::seconds(const Order& order) {
  double most = 0;
  size_t number = 0;
  for (const Role& role : roles_) {
    double seconds = 0;
    for (const Load& load : role.loads) {
      const Cost& cost = costOf(number++, load, order);
      seconds += load.bytes * cost.perByte + load.calls * cost.perCall;
    }
    most = std::max(most, seconds);
  }
  return most;
}

Placing Search::placing(const Order& order) {
  Placing made{words(order), seconds(order), std::vector<double>(cluster().levels.size())};
  size_t number = 0;
  for (const Role& role : roles_)
    for (const Load& load : role.loads) {
      const Reach& reach = *costOf(number++, load, order).reach;
      for (size_t level = 0; level < made.bytes.size(); ++level)
        made.bytes[level] += role.ranks * load.bytes * reach.share[level];
    }
  return made;
}

// ---- Who shares units

// The most ranks of an axis that a unit of the innermost level holds, all else alike: the first unit does.
int64_t Search::shared(const Order& order, size_t axis) const {
  int64_t stride = behind(order, axes_[axis].name), devices = cluster().devicesWithin(1);
  return std::min(axes_[axis].size, (devices + stride - 1) / stride);
}

// Which ranks share a unit of so many devices, named by their coordinates: the unit of each rank, ranks
// counted along the axes as they are written and units as they come.
std::vector<int64_t> Search::unitsOf(const Grid& grid, int64_t devices) const {
  std::vector<Steps> from = stepsOf(inOrder(grid, writtenOrder(model_))), to = stepsOf(grid);
  std::vector<int64_t> units, strides;
  for (const GridAxis& axis : inOrder(grid, writtenOrder(model_)).axes)
    for (size_t i = 0; i < to.size(); ++i)
      if (grid.axes[i].name == axis.name) strides.push_back(to[i].stride);
  std::unordered_map<int64_t, int64_t> numbers;
  for (int64_t rank = 0, ranks = grid.ranks(); rank < ranks; ++rank) {
    int64_t device = 0;
    for (size_t i = 0; i < from.size(); ++i)
      device += rank / from[i].stride % from[i].size * strides[i];
    units.push_back(numbers.try_emplace(device / devices, int64_t(numbers.size())).first->second);
  }
  return units;
}

// The same for orders in which the same ranks share units at every level.
std::vector<int64_t> Search::partition(const Order& order) const {
  std::vector<int64_t> all;
  Grid made = grid(order);
  std::vector<Steps> steps = stepsOf(made);
  for (size_t level = 1; level <= cluster().levels.size(); ++level) {
    int64_t devices = cluster().devicesWithin(level);
    if (devices >= made.ranks()) continue;
    if (nests(steps, devices)) {
      for (const GridAxis& axis : axes_)
        all.push_back(std::clamp<int64_t>(devices / behind(order, axis.name), 1, axis.size));
      continue;
    }
    std::vector<int64_t> units = unitsOf(made, devices);
    all.insert(all.end(), units.begin(), units.end());
  }
  return all;
}

// ---- The search

std::optional<Placement> Search::run() {
  struct Tried {
    double seconds;
    int64_t inversions;
    Order order;
    bool isAllowed;
  };
  std::vector<Tried> tried;
  eachOrder([&](const Order& order) {
    if (!meetsAll(order, scopes_)) return;
    tried.push_back({seconds(order), inversions(order), order, meetsAll(order, places_)});
  });
  // Equal times are one time, so that ties are the same whatever was added in which order.
  llvm::stable_sort(tried, [](const Tried& a, const Tried& b) { return a.seconds < b.seconds; });
  for (size_t i = 1; i < tried.size(); ++i)
    if (tried[i].seconds <= tried[i - 1].seconds * (1 + kEqual))
      tried[i].seconds = tried[i - 1].seconds;
  llvm::stable_sort(tried, [](const Tried& a, const Tried& b) {
    return std::tie(a.seconds, a.inversions, a.order) < std::tie(b.seconds, b.inversions, b.order);
  });
  auto chosen = llvm::find_if(tried, [](const Tried& t) { return t.isAllowed; });
  if (chosen == tried.end()) return std::nullopt;

  Placement made;
  Order written(axes_.size());
  std::iota(written.begin(), written.end(), uint8_t{0});
  made.written = placing(written);
  made.chosen = placing(chosen->order);
  if (tried.front().seconds < chosen->seconds) made.unbound = placing(tried.front().order);
  // Who shares units decides the time, so that another time is enough to see that others do.
  std::vector<int64_t> units = partition(chosen->order);
  for (auto other = std::next(chosen); other != tried.end() && !made.runnerUp; ++other)
    if (other->isAllowed && (other->seconds > chosen->seconds || partition(other->order) != units))
      made.runnerUp = placing(other->order);
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    auto best = std::min_element(tried.begin(), tried.end(), [&](const Tried& a, const Tried& b) {
      return shared(a.order, axis) < shared(b.order, axis);
    });
    made.across.push_back({axes_[axis].name, placing(best->order)});
  }
  return made;
}

Broken Search::broken() const {
  std::vector<const Within*> before = scopes_;
  for (const Within* place : places_) {
    before.push_back(place);
    if (canMeet(before)) continue;
    Broken made;
    made.place = place;
    for (const Within* other : llvm::ArrayRef<const Within*>(before).drop_back())
      if (made.with == nullptr && canMeet({place}) && !canMeet({other, place})) made.with = other;
    if (made.with == nullptr && canMeet({place})) made.with = before[before.size() - 2];
    // A smaller axis would do, if no split has cut it.
    for (const std::string& name : place->axes) {
      Search smaller = *this;
      for (int64_t size = ranksOver(grid_.find(name)) - 1; size > 1 && made.most == 0; --size) {
        smaller.resize(name, size);
        if (smaller.canMeet(before)) made.axis = name, made.most = size;
      }
    }
    return made;
  }
  return {};
}

void Search::resize(llvm::StringRef axis, int64_t size) {
  for (GridAxis& part : grid_.axes)
    if (part.name == axis) part.size = size;
  for (GridAxis& whole : axes_)
    if (whole.name == axis) whole.size = size;
}

}  // namespace

Words writtenOrder(const Module& model) {
  Words written = model.settings.words("written");
  if (!written.empty()) return written;
  for (const GridAxis& axis : model.grid.axes)
    if (!llvm::is_contained(written, planAxis(axis))) written.push_back(planAxis(axis));
  return written;
}

bool areOrdered(size_t axes, int64_t ranks) {
  if (axes > kMaxOrdered) return false;
  int64_t orders = 1;
  for (size_t i = 2; i <= axes; ++i) orders *= int64_t(i);
  return saturatingMul(orders, ranks) <= kMaxLooked;
}

bool hasOrders(const Module& model) {
  return model.cluster.levels.size() >= 2 && writtenOrder(model).size() >= 2;
}

Grid inOrder(const Grid& grid, llvm::ArrayRef<std::string> axes) {
  Grid made = grid;
  llvm::stable_sort(made.axes, [&](const GridAxis& a, const GridAxis& b) {
    return llvm::find(axes, planAxis(a)) < llvm::find(axes, planAxis(b));
  });
  return made;
}

bool lieWithin(const Grid& grid, llvm::ArrayRef<std::string> axes, int64_t devices) {
  std::vector<Steps> all = stepsOf(grid), some;
  for (size_t i = 0; i < all.size(); ++i)
    if (llvm::is_contained(axes, planAxis(grid.axes[i])) ||
        llvm::is_contained(axes, grid.axes[i].name))
      some.push_back(all[i]);
  return lieWithin(all, some, devices);
}

std::optional<Placement> placementOf(const Planx& planx, Broken* broken) {
  if (!hasOrders(*planx.roles.front())) return std::nullopt;
  Search search(planx);
  std::optional<Placement> made = search.run();
  if (!made && broken != nullptr) *broken = search.broken();
  return made;
}

}  // namespace planc
