// How many iterations each chunk gets, from the operations and bytes that the cut functions show. Three
// wishes, one after the other: the slowest chunk as fast as may be, the fullest as small, and the rest
// as even (the least sum of squared times). The first two are found by bisection over a bound, since
// "every chunk takes as many iterations as it may" finds out whether a bound can be kept; the last by
// dynamic programming. Tested by tests/unit/balance_test.cpp against all partitions of small models.
#include <limits>

#include "ir/cost.h"
#include "llvm/ADT/STLExtras.h"
#include "passes/pipeline.h"

namespace planc {
namespace {

struct Load {
  double time = 0;   // operations
  double bytes = 0;  // weights, with all that belongs to them, and saved values
};

// What chunks would cost.
class Loads {
 public:
  Loads(const Module& whole, llvm::ArrayRef<CutRepeat> repeats, const PipeSchedule& schedule);

  int64_t iterations() const { return int64_t(each_.size()) - 1; }
  // Of the chunk that does the iterations [from, to).
  Load of(int chunk, int64_t from, int64_t to) const {
    double flights = double(flights_[size_t(chunk)]);
    Load load;
    load.time = each_[size_t(to)].time - each_[size_t(from)].time;
    load.bytes = each_[size_t(to)].bytes - each_[size_t(from)].bytes +
                 flights * (saved_[size_t(to)] - saved_[size_t(from)]);
    if (to == iterations()) {
      load.time += end_.time;
      load.bytes += end_.bytes + flights * endSaved_;
    }
    return load;
  }

 private:
  std::vector<Load> each_;      // of iteration 0 to i, with what stands in front of it
  std::vector<double> saved_;   // so for values saved of one microbatch
  Load end_;                    // what stands behind the last iteration
  double endSaved_ = 0;
  std::vector<int64_t> flights_;  // microbatches that a chunk's stage holds, per chunk
};

double bytesOf(const Variable& var) { return double(var.type.bytes()); }

Loads::Loads(const Module& whole, llvm::ArrayRef<CutRepeat> repeats, const PipeSchedule& schedule) {
  // Bytes of a weight stand for its gradient and state as well.
  llvm::StringMap<double> family;
  for (const auto& var : whole.vars)
    if (var->kind == VarKind::Gradient || var->kind == VarKind::Moment) family[var->of] += bytesOf(*var);
  auto count = [&](llvm::ArrayRef<const Op*> ops, double share) {
    Load load;
    double saved = 0;
    llvm::DenseSet<const Variable*> seen;
    auto visit = [&](const Op* op) {
      if (!op->var || !seen.insert(op->var).second) return;
      if (op->var->kind == VarKind::Weight || op->var->kind == VarKind::Copy)
        load.bytes += share * (bytesOf(*op->var) + family.lookup(op->var->of.empty() ? op->var->name : op->var->of));
      if (op->var->kind == VarKind::Slot) saved += share * bytesOf(*op->var);
    };
    for (const Op* op : ops) {
      load.time += op->kind == OpKind::Repeat ? flopsOf(*op->body) : flopsOf(*op);
      visit(op);
      if (op->body) walk(*op->body, visit);
    }
    return std::pair(load, saved);
  };
  each_.emplace_back();
  saved_.push_back(0);
  std::vector<const Op*> between;
  auto flush = [&] {
    auto made = count(between, 1);
    between.clear();
    return made;
  };
  for (const Op* op : whole.findFunction("forward")->body->ops) {
    auto repeat = llvm::find_if(repeats, [&](const CutRepeat& r) { return r.forward == op; });
    if (repeat == repeats.end()) {
      between.push_back(op);
      continue;
    }
    auto [front, frontSaved] = flush();
    auto [one, oneSaved] = count({op}, 1.0 / double(repeat->count));
    for (int64_t i = 0; i < repeat->count; ++i) {
      each_.push_back({each_.back().time + one.time + front.time, each_.back().bytes + one.bytes + front.bytes});
      saved_.push_back(saved_.back() + oneSaved + frontSaved);
      front = {};
      frontSaved = 0;
    }
  }
  std::tie(end_, endSaved_) = flush();
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
  void bisect(double Load::*bound);

  static constexpr double kSlack = 1 + 1e-9;  // sums of the same costs differ in their last bits
  const Loads& loads_;
  const int chunks_;
  Load most_{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
};

bool Balance::isPossible() const {
  int64_t from = 0;
  for (int chunk = 0; chunk < chunks_; ++chunk) {
    int64_t last = loads_.iterations() - (chunks_ - 1 - chunk);  // one for each of the others
    int64_t to = from + 1;
    if (!allows(loads_.of(chunk, from, to)) && chunk + 1 < chunks_) return false;
    while (to < last && allows(loads_.of(chunk, from, to + 1))) ++to;
    if (chunk + 1 == chunks_) to = last;
    if (!allows(loads_.of(chunk, from, to))) return false;
    from = to;
  }
  return from == loads_.iterations();
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

std::vector<int64_t> Balance::run() {
  bisect(&Load::time);
  bisect(&Load::bytes);
  // least[c][i]: of the first c chunks over the first i iterations; from[c][i]: where the last begins.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  size_t all = size_t(loads_.iterations());
  std::vector<std::vector<double>> least(size_t(chunks_) + 1, std::vector<double>(all + 1, kNever));
  std::vector<std::vector<size_t>> from(size_t(chunks_) + 1, std::vector<size_t>(all + 1));
  least[0][0] = 0;
  for (int chunk = 0; chunk < chunks_; ++chunk)
    for (size_t to = size_t(chunk) + 1; to <= all; ++to)
      for (size_t begin = to; begin-- > 0;) {
        Load load = loads_.of(chunk, int64_t(begin), int64_t(to));
        if (!allows(load)) break;  // longer ones cost no less
        double sum = least[size_t(chunk)][begin] + load.time * load.time;
        double& best = least[size_t(chunk) + 1][to];
        if (sum < best * (1 - 1e-12) || (sum == best && best == kNever)) {
          best = sum;
          from[size_t(chunk) + 1][to] = begin;
        }
      }
  std::vector<int64_t> bounds(size_t(chunks_) + 1);
  size_t at = all;
  for (size_t chunk = size_t(chunks_); chunk > 0; --chunk) {
    bounds[chunk] = int64_t(at);
    at = from[chunk][at];
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
