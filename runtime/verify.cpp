// Rank 0 also runs the model, step by step before the others go on, so that all can read its tensors
// where they lie. Tested by tests/tools/verify.test and tests/runtime/verify_test.cpp, which plants
// faults.
#include "runtime/verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "runtime/elements.h"
#include "runtime/random.h"
#include "runtime/runs.h"
#include "runtime/session.h"

namespace planc {

const Comparison* VerifyReport::first() const {
  for (const Comparison& c : comparisons)
    if (!c.ranks.empty()) return &c;
  return nullptr;
}

const Comparison* VerifyReport::worst() const {
  auto worst = std::max_element(
      comparisons.begin(), comparisons.end(),
      [](const Comparison& a, const Comparison& b) { return a.difference < b.difference; });
  return worst == comparisons.end() ? nullptr : &*worst;
}

namespace {

llvm::StringRef kindName(VarKind kind) { return kind == VarKind::Slot ? "activation" : name(kind); }

// A bias of zero and a scale of one hide what is added or gathered wrongly.
constexpr double kJitter = 0.1;

// Two orders of summing are apart by about as much as each is from the exact sum; more, for what one
// of them has by chance.
constexpr double kNoise = 4;

// Whether ranks hold a variable's own elements: packed rows and their numbers are each rank's own.
bool isComparable(const Variable& var) {
  if (var.kind == VarKind::Slot)
    return isFloat(var.type.elem) && var.type.grouping().empty() && var.type.partial.empty();
  return var.kind == VarKind::Metric || var.kind == VarKind::Gradient ||
         var.kind == VarKind::Weight || var.kind == VarKind::Moment;
}

bool isFinished(const Variable& var) {
  return var.kind == VarKind::Weight || var.kind == VarKind::Moment || var.name == "grad_norm" ||
         var.name == "lr";
}

// Calls of a schedule up to a point at which tensors are compared.
struct Phase {
  size_t from, to;
  enum { Activations, Sums, Step } compare;
  int64_t microbatch = -1;
};

std::vector<Phase> phasesOf(const Module& program, bool activations) {
  std::vector<Phase> phases;
  size_t from = 0;
  for (size_t i = 0; i < program.schedule.size(); ++i) {
    const Call& call = program.schedule[i];
    if (activations && call.function == "forward") {
      phases.push_back({from, i + 1, Phase::Activations, call.microbatch});
      from = i + 1;
    }
    if (call.function == "update") {
      phases.push_back({from, i, Phase::Sums});
      from = i;
    }
  }
  phases.push_back({from, program.schedule.size(), Phase::Step});
  return phases;
}

llvm::Error runPhase(Session& session, const Module& program, const Phase& phase) {
  for (size_t i = phase.from; i < phase.to; ++i)
    if (llvm::Error error = session.run(program.schedule[i])) return error;
  return llvm::Error::success();
}

// A variable, or of an activation or a gradient that is made in a `repeat` one iteration: `at` holds
// an index for each of its stacked dims.
struct Tensor {
  const Variable* var;
  std::vector<int64_t> at = {};
};

// Tensors in the order in which the program makes them: metrics, then activations as they are saved,
// iteration by iteration, and gradients as they are added up.
class ProgramOrder {
 public:
  explicit ProgramOrder(const Module& program) {
    for (const auto& function : program.functions)
      planc::walk(*function->body, [&](const Op* op) {
        if (op->var && op->var->kind == VarKind::Metric && !isFinished(*op->var)) add({op->var});
      });
    for (const auto& function : program.functions) walk(*function->body);
    for (const auto& var : program.vars) {
      bool isMade =
          seen_.lower_bound({var.get(), {}}) != seen_.upper_bound({var.get(), {INT64_MAX}});
      if (!isMade && var->kind != VarKind::Slot) add({var.get()});
    }
  }
  std::vector<Tensor> take() { return std::move(order_); }

 private:
  void add(const Tensor& tensor) {
    if (isComparable(*tensor.var) && seen_.insert({tensor.var, tensor.at}).second)
      order_.push_back(tensor);
  }
  void walk(const Block& block) {
    for (const Op* op : block.ops) {
      if (op->kind == OpKind::Repeat) {
        int64_t count = op->attrs.integer("count");
        for (int64_t i = 0; i < count; ++i) {
          repeats_.push_back({op->attrs.word("dim"), op->isFlag("reverse") ? count - 1 - i : i});
          walk(*op->body);
          repeats_.pop_back();
        }
      }
      if (!op->var || op->kind == OpKind::Read) continue;
      Tensor tensor{op->var};
      if (op->var->kind == VarKind::Slot || op->var->kind == VarKind::Gradient)
        for (const std::string& dim : op->var->stack)
          for (const auto& [repeat, iteration] : repeats_)
            if (repeat == dim) tensor.at.push_back(iteration);
      add(tensor);
    }
  }

  std::vector<Tensor> order_;
  std::set<std::pair<const Variable*, std::vector<int64_t>>> seen_;
  std::vector<std::pair<std::string, int64_t>> repeats_;  // around the block at hand
};

// One iteration of a tensor whose leading dims are stacked.
struct Slice {
  Type type;          // without those dims
  int64_t first = 0;  // its first element
  bool exists = true;
};

Slice sliceOf(const Variable& var, llvm::ArrayRef<int64_t> at, const Coordinates& rank) {
  Slice slice{var.type};
  int64_t number = 0;
  for (int64_t index : at) {
    Dim dim = slice.type.dims.front();
    int64_t here = index - rank.offset(dim);
    slice.exists &= here >= 0 && here < dim.size;
    number = number * dim.size + here;
    slice.type.dims.erase(slice.type.dims.begin());
  }
  slice.first = number * slice.type.elements();
  return slice;
}

// A program for one rank, and all it needs to run.
class OneRank {
 public:
  static llvm::Expected<std::unique_ptr<OneRank>> create(const Module& program,
                                                         const MakeDevice& makeDevice,
                                                         std::chrono::milliseconds timeout) {
    std::unique_ptr<OneRank> made(new OneRank(program));
    made->team_ = makeThreadTeam(1, timeout);
    made->comm_ = made->team_->communicator(0);
    made->device_ = makeDevice({});
    auto session = Session::create(program, *made->device_, *made->comm_);
    if (!session) return session.takeError();
    made->session_ = std::move(*session);
    if (llvm::Error error = made->session_->initialise(kJitter)) return error;
    return made;
  }
  const Module& program() const { return program_; }
  Session& session() { return *session_; }
  const std::byte* data(const Variable& var) const { return session_->interpreter().data(var); }
  llvm::Error run(const Phase& phase) { return runPhase(*session_, program_, phase); }

 private:
  explicit OneRank(const Module& program) : program_(program) {}
  const Module& program_;
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Session> session_;
};

class Verifier : public Verification {
 public:
  Verifier(std::unique_ptr<OneRank> one, std::unique_ptr<OneRank> exact, MakeDevice makeDevice,
           const VerifyOptions& options)
      : one_(std::move(one)),
        exact_(std::move(exact)),
        makeDevice_(std::move(makeDevice)),
        options_(options),
        order_(ProgramOrder(one_->program()).take()) {}
  llvm::Error run(const Module& program, Communicator& comm) override;
  const VerifyReport& report() const override { return report_; }

 private:
  void setInputs(int64_t step);
  void measure(const Phase& phase, int64_t step);
  void takeInputs(const Module& program, Session& session, const Coordinates& here) const;
  void compare(const Module& program, Session& session, const Coordinates& here);
  double difference(const Variable& mine, const std::byte* data, const Tensor& tensor,
                    const Coordinates& here, double scale) const;

  std::unique_ptr<OneRank> one_, exact_;  // the latter may be null
  MakeDevice makeDevice_;
  VerifyOptions options_;
  std::vector<Tensor> order_;
  VerifyReport report_;
  // Of the phase at hand: where its comparisons begin, and what they compare.
  size_t open_ = 0;
  std::vector<const Tensor*> compared_;
  std::mutex mutex_;
};

// Tokens by chance; of the targets some are left out, more towards a sequence's end and in later
// samples, so that ranks have different numbers of them.
void Verifier::setInputs(int64_t step) {
  for (const auto& var : one_->program().vars) {
    if (var->kind != VarKind::Input) continue;
    auto* tokens = reinterpret_cast<int32_t*>(one_->session().interpreter().data(*var));
    uint64_t key = randomKey(uint64_t(step), var->name);
    int64_t elements = var->type.elements(), positions = var->type.dims.back().size;
    for (int64_t i = 0; i < elements; ++i) {
      double token = (uniformAt(key, uint64_t(2 * i)) + 1) / 2;
      double chance = (uniformAt(key, uint64_t(2 * i + 1)) + 1) / 2;
      double late = double(i % positions) / double(positions) + double(i) / double(elements);
      bool isLeftOut = !var->follows.empty() && chance < 0.4 * late;
      tokens[i] = isLeftOut
                      ? -1
                      : std::clamp(int32_t(token * double(var->vocab)), 0, int32_t(var->vocab - 1));
    }
  }
}

// Opens the phase's comparisons: what the model has now, how large, and how much of it is rounding.
void Verifier::measure(const Phase& phase, int64_t step) {
  open_ = report_.comparisons.size();
  compared_.clear();
  struct OfKind {
    double largest = 0, noise = 0;
  };
  std::map<VarKind, OfKind> kinds;
  std::vector<double> measured;
  for (const Tensor& tensor : order_) {
    const Variable* var = tensor.var;
    bool isSlot = var->kind == VarKind::Slot;
    if (isSlot != (phase.compare == Phase::Activations)) continue;
    if (!isSlot && isFinished(*var) != (phase.compare == Phase::Step)) continue;
    double largest = 0;
    const std::byte* data = one_->data(*var);
    Slice slice = sliceOf(*var, tensor.at, {});
    for (int64_t i = 0; i < slice.type.elements(); ++i)
      largest = std::max(largest, std::abs(fetch(var->type.elem, data, slice.first + i)));
    double& ofKind = kinds[var->kind].largest;
    ofKind = std::max(ofKind, largest);
    compared_.push_back(&tensor);
    measured.push_back(largest);
  }
  for (size_t i = 0; i < compared_.size(); ++i) {
    const Variable* var = compared_[i]->var;
    bool hasFloor = var->kind != VarKind::Slot && var->kind != VarKind::Metric;
    Comparison c;
    c.tensor = var->name;
    c.kind = kindName(var->kind).str();
    for (size_t k = 0; k < compared_[i]->at.size(); ++k)
      c.iteration += (k ? ", " : "") + var->stack[k] + " " + std::to_string(compared_[i]->at[k]);
    c.step = step;
    c.microbatch = phase.microbatch;
    c.loc = var->loc;
    OfKind& ofKind = kinds[var->kind];
    c.scale = hasFloor ? std::max(measured[i], ofKind.largest / 100) : measured[i];
    const Variable* exact = exact_ ? exact_->program().findVar(var->name) : nullptr;
    if (exact) {
      double noise = difference(*exact, exact_->data(*exact), *compared_[i], {}, c.scale);
      if (std::isfinite(noise)) ofKind.noise = std::max(ofKind.noise, noise);
    }
    report_.comparisons.push_back(std::move(c));
  }
  for (size_t i = 0; i < compared_.size(); ++i)
    report_.comparisons[open_ + i].bound =
        std::max(options_.bound, kNoise * kinds[compared_[i]->var->kind].noise);
}

void Verifier::takeInputs(const Module& program, Session& session, const Coordinates& here) const {
  for (const auto& var : program.vars) {
    if (var->kind != VarKind::Input) continue;
    const Variable* one = one_->program().findVar(var->name);
    auto* into = reinterpret_cast<int32_t*>(session.interpreter().data(*var));
    const auto* from = reinterpret_cast<const int32_t*>(one_->data(*one));
    Runs runs = pieceRuns(var->type, here);
    runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
      std::copy_n(from + b, count, into + a);
    });
  }
}

// The largest difference of a rank's piece, relative to `scale`; padding must be zero.
double Verifier::difference(const Variable& mine, const std::byte* data, const Tensor& tensor,
                            const Coordinates& here, double scale) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Variable& one = *tensor.var;
  const std::byte* whole = one_->data(one);
  if (mine.type.whole().dims != one.type.dims) return kInfinity;
  double worst = 0;
  int64_t nonzero = 0;
  auto note = [&](double a, double b) {
    double apart = std::abs(a - b);
    worst = std::isnan(apart) ? kInfinity : std::max(worst, apart);
    nonzero += a != 0;
  };
  Slice piece = sliceOf(mine, tensor.at, here), all = sliceOf(one, tensor.at, {});
  if (!piece.exists) return 0;
  Runs runs = pieceRuns(piece.type, here);
  runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      note(fetch(mine.type.elem, data, piece.first + a + i),
           fetch(one.type.elem, whole, all.first + b + i));
  });
  if (runs.elements() != piece.type.elements() && mine.kind != VarKind::Slot) {
    for (int64_t i = 0; i < piece.type.elements(); ++i)
      nonzero -= fetch(mine.type.elem, data, piece.first + i) != 0;
    if (nonzero != 0) return kInfinity;
  }
  return worst == 0 ? 0 : scale > 0 ? worst / scale : kInfinity;
}

void Verifier::compare(const Module& program, Session& session, const Coordinates& here) {
  for (size_t i = open_; i < report_.comparisons.size(); ++i) {
    Comparison& c = report_.comparisons[i];
    const Variable* mine = program.findVar(c.tensor);
    const Tensor& tensor = *compared_[i - open_];
    double apart = std::numeric_limits<double>::infinity();
    if (mine && mine->type.partial.empty())
      apart = difference(*mine, session.interpreter().data(*mine), tensor, here, c.scale);
    std::lock_guard lock(mutex_);
    c.difference = std::max(c.difference, apart);
    if (apart > c.bound) c.ranks.push_back(here.rank());
  }
}

llvm::Error Verifier::run(const Module& program, Communicator& comm) {
  Coordinates here(program.grid, comm.rank());
  std::unique_ptr<Device> device = makeDevice_(here);
  auto session = Session::create(program, *device, comm);
  if (!session) return session.takeError();
  if (llvm::Error error = (*session)->initialise(kJitter)) return error;
  // The model's side of a phase, while the other ranks wait.
  auto asOne = [&](auto&& body) -> llvm::Error {
    if (llvm::Error error = comm.barrier(comm.world(), {"verify"})) return error;
    llvm::Error mine = comm.rank() == 0 ? body() : llvm::Error::success();
    return comm.agree(std::move(mine));
  };
  std::vector<Phase> phases = phasesOf(program, options_.activations);
  std::vector<Phase> model = phasesOf(one_->program(), options_.activations);
  if (phases.size() != model.size())
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "the program and its model have different schedules");
  for (int64_t step = 1; step <= options_.steps; ++step) {
    if (llvm::Error error = asOne([&] {
          setInputs(step);
          one_->session().beginStep();
          if (exact_) {
            takeInputs(exact_->program(), exact_->session(), {});
            exact_->session().beginStep();
          }
          return llvm::Error::success();
        }))
      return error;
    takeInputs(program, **session, here);
    (*session)->beginStep();
    for (size_t i = 0; i < phases.size(); ++i) {
      if (llvm::Error error = asOne([&]() -> llvm::Error {
            if (llvm::Error error = one_->run(model[i])) return error;
            if (exact_)
              if (llvm::Error error = exact_->run(model[i])) return error;
            measure(model[i], step);
            return llvm::Error::success();
          }))
        return error;
      if (llvm::Error error = runPhase(**session, program, phases[i])) return error;
      compare(program, **session, here);
    }
  }
  return comm.barrier(comm.world(), {"verify"});
}

}  // namespace

llvm::Expected<std::unique_ptr<Verification>> makeVerification(const Module& model,
                                                               const Module* exact,
                                                               MakeDevice makeDevice,
                                                               const VerifyOptions& options) {
  auto one = OneRank::create(model, makeDevice, options.timeout);
  if (!one) return one.takeError();
  std::unique_ptr<OneRank> other;
  if (exact) {
    auto made = OneRank::create(*exact, makeDevice, options.timeout);
    if (!made) return made.takeError();
    other = std::move(*made);
  }
  return std::make_unique<Verifier>(std::move(*one), std::move(other), std::move(makeDevice),
                                    options);
}

}  // namespace planc
