// How many iterations each chunk gets, from the operations and bytes of @forward. Three
// wishes, one after the other: the slowest chunk as fast as may be, the fullest as small, and the rest
// as even (the least sum of squared times). The first two are found by bisection over a bound, since
// "every chunk takes as many iterations as it may" finds out whether a bound can be kept; the last by
// dynamic programming over the places near to where each cut would fall if iterations were a liquid, so
// that what it costs does not grow with the iterations. Tested by tests/unit/balance_test.cpp against all partitions of small models.
#include <algorithm>
#include <limits>

#include "ir/cost.h"
#include "llvm/ADT/STLExtras.h"
#include "passes/pipeline.h"

namespace planc {
namespace {

struct Load {
  double time = 0;   // operations
  double bytes = 0;  // weights, with all that belongs to them
  double saved = 0;  // bytes saved of a microbatch

  Load operator+(const Load& other) const {
    return {time + other.time, bytes + other.bytes, saved + other.saved};
  }
  Load operator*(double n) const { return {time * n, bytes * n, saved * n}; }
};

// What chunks would cost.
class Loads {
 public:
  Loads(const Module& whole, llvm::ArrayRef<CutRepeat> repeats, const PipeSchedule& schedule);

  int64_t iterations() const { return stretches_.back().first + stretches_.back().count; }
  // Of the iterations [0, to), with what stands in front of them.
  Load upTo(int64_t to) const {
    if (to == 0) return {};
    auto behind = llvm::partition_point(stretches_, [&](const Stretch& s) { return s.first < to; });
    const Stretch& last = *(behind - 1);
    return last.front + last.each * double(to - last.first);
  }
  // Of the chunk that does the iterations [from, to); `bytes` with what is saved of all microbatches.
  Load of(int chunk, int64_t from, int64_t to) const {
    Load load = upTo(to) + upTo(from) * -1;
    if (to == iterations()) load = load + end_;
    load.bytes += double(flights_[size_t(chunk)]) * load.saved;
    return load;
  }

 private:
  struct Stretch {
    int64_t first, count;
    Load front;  // all before its first iteration
    Load each;
  };
  std::vector<Stretch> stretches_;  // the repeats
  Load end_;                        // what stands behind the last iteration
  std::vector<int64_t> flights_;    // microbatches that a chunk's stage holds, per chunk
};

double bytesOf(const Variable& var) { return double(var.type.bytes()); }

Loads::Loads(const Module& whole, llvm::ArrayRef<CutRepeat> repeats, const PipeSchedule& schedule) {
  // Bytes of a weight stand for its gradient and state as well.
  llvm::StringMap<double> family;
  for (const auto& var : whole.vars)
    if (var->kind == VarKind::Gradient || var->kind == VarKind::Moment)
      family[var->of] += bytesOf(*var);
  auto loadOf = [&](llvm::ArrayRef<const Op*> ops) {
    Load load;
    llvm::DenseSet<const Variable*> seen;
    auto visit = [&](const Op* op) {
      if (!op->var || !seen.insert(op->var).second) return;
      const Variable& var = *op->var;
      if (var.kind == VarKind::Weight) load.bytes += bytesOf(var) + family.lookup(var.name);
      // Its weight is read by the step alone.
      if (var.kind == VarKind::Copy)
        load.bytes += bytesOf(var) + bytesOf(*whole.findVar(var.of)) + family.lookup(var.of);
      if (var.kind == VarKind::Slot) load.saved += bytesOf(var);
    };
    for (const Op* op : ops) {
      load.time += flopsOf(*op);
      visit(op);
      if (op->body) walk(*op->body, visit);
    }
    return load;
  };
  Load done;
  std::vector<const Op*> between;
  for (const Op* op : whole.findFunction("forward")->body->ops) {
    auto repeat = llvm::find_if(repeats, [&](const CutRepeat& r) { return r.forward == op; });
    if (repeat == repeats.end()) {
      between.push_back(op);
      continue;
    }
    Load front = done + loadOf(between), all = loadOf({op});
    stretches_.push_back({repeat->begin, repeat->count, front, all * (1 / double(repeat->count))});
    done = front + all;
    between.clear();
  }
  end_ = loadOf(between);
  std::vector<int64_t> held = activationsInFlight(schedule);
  int perStage = schedule.chunks() / schedule.stages;
  for (int stage : schedule.stageOf)
    flights_.push_back((held[size_t(stage)] + perStage - 1) / perStage);
}

class Balance {
 public:
  Balance(const Loads& loads, int chunks) : loads_(loads), chunks_(chunks) {}
  std::vector<int64_t> run();

 private:
  bool allows(const Load& load) const {
    return load.time <= most_.time * kSlack && load.bytes <= most_.bytes * kSlack;
  }
  bool isPossible() const;
  int64_t placeOf(double share) const;
  std::vector<int64_t> evenest() const;
  void bisect(double Load::*bound);

  static constexpr int64_t kNear = 128;       // iterations: all of them, for most models
  static constexpr double kSlack = 1 + 1e-9;  // sums of the same costs differ in their last bits
  const Loads& loads_;
  const int chunks_;
  Load most_{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(), 0};
};

bool Balance::isPossible() const {
  int64_t from = 0;
  for (int chunk = 0; chunk < chunks_; ++chunk) {
    // One is left for each of the others; the last takes all.
    int64_t last = loads_.iterations() - (chunks_ - 1 - chunk), low = from + 1;
    if (chunk + 1 == chunks_) low = last;
    if (!allows(loads_.of(chunk, from, low))) return false;
    for (int64_t high = last; low < high;) {
      int64_t middle = low + (high - low + 1) / 2;
      if (allows(loads_.of(chunk, from, middle))) low = middle;
      else high = middle - 1;
    }
    from = low;
  }
  return true;
}

void Balance::bisect(double Load::*bound) {
  Load all = loads_.of(0, 0, loads_.iterations());
  double low = 0, high = all.*bound;
  for (int chunk = 1; chunk < chunks_; ++chunk)
    high = std::max(high, loads_.of(chunk, 0, loads_.iterations()).*bound);
  constexpr int kSteps = 60;  // to the last bits of a double
  for (int step = 0; step < kSteps && low < high; ++step) {
    most_.*bound = (low + high) / 2;
    (isPossible() ? high : low) = most_.*bound;
  }
  most_.*bound = high;
}

// The least iterations whose time is a share of all.
int64_t Balance::placeOf(double share) const {
  double time = share * loads_.of(0, 0, loads_.iterations()).time;
  int64_t low = 0;
  for (int64_t high = loads_.iterations(); low < high;) {
    int64_t middle = low + (high - low) / 2;
    if (loads_.upTo(middle).time < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The bounds with the least sum of squared times; empty: none near is allowed.
std::vector<int64_t> Balance::evenest() const {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Place {
    int64_t at;
    double least;     // of the chunks in front
    size_t previous;  // where the last of them begins
  };
  std::vector<std::vector<Place>> places{{{0, 0, 0}}};
  for (int chunk = 1; chunk <= chunks_; ++chunk) {
    int64_t all = loads_.iterations(), least = chunk, most = all - (chunks_ - chunk);
    int64_t near = std::clamp(placeOf(double(chunk) / chunks_), least, most);
    int64_t first = std::max(least, near - kNear), last = std::min(most, near + kNear);
    if (chunk == chunks_) first = last = all;
    std::vector<Place>& mine = places.emplace_back();
    const std::vector<Place>& before = places[size_t(chunk) - 1];
    for (int64_t to = first; to <= last; ++to) {
      Place place{to, kNever, 0};
      for (size_t i = before.size(); i-- > 0;) {
        if (before[i].at >= to || before[i].least == kNever) continue;
        Load load = loads_.of(chunk - 1, before[i].at, to);
        if (!allows(load)) break;  // longer ones cost no less
        double sum = before[i].least + load.time * load.time;
        if (sum < place.least * (1 - 1e-12)) place = {to, sum, i};
      }
      mine.push_back(place);
    }
  }
  if (places.back().front().least == kNever) return {};
  std::vector<int64_t> bounds(size_t(chunks_) + 1);
  size_t at = 0;
  for (size_t chunk = size_t(chunks_); chunk > 0; --chunk) {
    bounds[chunk] = places[chunk][at].at;
    at = places[chunk][at].previous;
  }
  return bounds;
}

std::vector<int64_t> Balance::run() {
  bisect(&Load::time);
  bisect(&Load::bytes);
  // Where stages' memory pulls far from their time, time counts.
  std::vector<int64_t> bounds = evenest();
  for (double Load::*bound : {&Load::bytes, &Load::time})
    if (bounds.empty()) {
      most_.*bound = std::numeric_limits<double>::infinity();
      bounds = evenest();
    }
  return bounds;
}

}  // namespace

std::vector<int64_t> balance(const Module& whole, llvm::ArrayRef<CutRepeat> repeats,
                             const PipeSchedule& schedule) {
  Loads loads(whole, repeats, schedule);
  return Balance(loads, schedule.chunks()).run();
}

}  // namespace planc
