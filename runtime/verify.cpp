// Rank 0 also runs the model, step by step before the others go on, so that all can read its tensors
// where they lie. Tested by tests/tools/verify.test and tests/runtime/verify_test.cpp, which plants
// faults.
#include "runtime/verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "llvm/ADT/STLExtras.h"
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

// Variables in the order in which the program makes them: activations as they are saved, gradients as
// they are added up.
std::vector<const Variable*> inProgramOrder(const Module& program) {
  std::vector<const Variable*> order;
  auto add = [&](const Variable* var) {
    if (var && isComparable(*var) && !llvm::is_contained(order, var)) order.push_back(var);
  };
  for (const auto& var : program.vars)
    if (var->kind == VarKind::Metric && !isFinished(*var)) add(var.get());
  for (const auto& function : program.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->var && op->kind != OpKind::Read) add(op->var);
    });
  for (const auto& var : program.vars) add(var.get());
  return order;
}

class Verifier : public Verification {
 public:
  Verifier(const Module& model, const VerifyOptions& options)
      : model_(model), options_(options), order_(inProgramOrder(model)) {}
  llvm::Error prepare();
  llvm::Error run(const Module& program, Communicator& comm) override;
  const VerifyReport& report() const override { return report_; }

 private:
  void setInputs(int64_t step);
  void measure(const Phase& phase, int64_t step);
  void takeInputs(const Module& program, Session& session, const Coordinates& here);
  void compare(const Module& program, Session& session, const Coordinates& here);
  double difference(const Variable& mine, const std::byte* data, const Variable& one,
                    const Coordinates& here, double scale) const;

  const Module& model_;
  VerifyOptions options_;
  std::vector<const Variable*> order_;
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Session> one_;
  VerifyReport report_;
  size_t open_ = 0;  // comparisons from here on are of the phase at hand
  std::mutex mutex_;
};

llvm::Error Verifier::prepare() {
  team_ = makeThreadTeam(1, options_.timeout);
  comm_ = team_->communicator(0);
  device_ = makeCpuDevice(1);
  auto session = Session::create(model_, *device_, *comm_);
  if (!session) return session.takeError();
  one_ = std::move(*session);
  return one_->initialise();
}

// Tokens by chance; of the targets some are left out, more towards a sequence's end, so that ranks
// have different numbers of them.
void Verifier::setInputs(int64_t step) {
  for (const auto& var : model_.vars) {
    if (var->kind != VarKind::Input) continue;
    auto* tokens = reinterpret_cast<int32_t*>(one_->interpreter().data(*var));
    uint64_t key = randomKey(uint64_t(step), var->name);
    int64_t positions = var->type.dims.back().size;
    for (int64_t i = 0; i < var->type.elements(); ++i) {
      double token = (uniformAt(key, uint64_t(2 * i)) + 1) / 2;
      double chance = (uniformAt(key, uint64_t(2 * i + 1)) + 1) / 2;
      bool isLeftOut =
          !var->follows.empty() && chance < 0.4 * double(i % positions) / double(positions);
      tokens[i] = isLeftOut
                      ? -1
                      : std::clamp(int32_t(token * double(var->vocab)), 0, int32_t(var->vocab - 1));
    }
  }
}

// Opens the phase's comparisons: what the model has now, and how large.
void Verifier::measure(const Phase& phase, int64_t step) {
  open_ = report_.comparisons.size();
  std::map<VarKind, double> largestOfKind;
  std::vector<std::pair<const Variable*, double>> measured;
  for (const Variable* var : order_) {
    bool isSlot = var->kind == VarKind::Slot;
    if (isSlot != (phase.compare == Phase::Activations)) continue;
    if (!isSlot && isFinished(*var) != (phase.compare == Phase::Step)) continue;
    double largest = 0;
    const std::byte* data = one_->interpreter().data(*var);
    for (int64_t i = 0; i < var->type.elements(); ++i)
      largest = std::max(largest, std::abs(fetch(var->type.elem, data, i)));
    double& kind = largestOfKind[var->kind];
    kind = std::max(kind, largest);
    measured.push_back({var, largest});
  }
  for (const auto& [var, largest] : measured) {
    bool hasFloor = var->kind != VarKind::Slot && var->kind != VarKind::Metric;
    Comparison c;
    c.tensor = var->name;
    c.kind = kindName(var->kind).str();
    c.step = step;
    c.microbatch = phase.microbatch;
    c.loc = var->loc;
    c.scale = hasFloor ? std::max(largest, largestOfKind[var->kind] / 100) : largest;
    report_.comparisons.push_back(std::move(c));
  }
}

void Verifier::takeInputs(const Module& program, Session& session, const Coordinates& here) {
  for (const auto& var : program.vars) {
    if (var->kind != VarKind::Input) continue;
    const Variable* one = model_.findVar(var->name);
    auto* into = reinterpret_cast<int32_t*>(session.interpreter().data(*var));
    const auto* from = reinterpret_cast<const int32_t*>(one_->interpreter().data(*one));
    Runs runs = pieceRuns(var->type, here);
    runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
      std::copy_n(from + b, count, into + a);
    });
  }
}

// The largest difference of a rank's piece, relative to `scale`; padding must be zero.
double Verifier::difference(const Variable& mine, const std::byte* data, const Variable& one,
                            const Coordinates& here, double scale) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::byte* whole = one_->interpreter().data(one);
  if (mine.type.whole().dims != one.type.dims) return kInfinity;
  double worst = 0;
  int64_t nonzero = 0;
  auto note = [&](double a, double b) {
    double apart = std::abs(a - b);
    worst = std::isnan(apart) ? kInfinity : std::max(worst, apart);
    nonzero += a != 0;
  };
  Runs runs = pieceRuns(mine.type, here);
  runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      note(fetch(mine.type.elem, data, a + i), fetch(one.type.elem, whole, b + i));
  });
  if (runs.elements() != mine.type.elements() && mine.kind != VarKind::Slot) {
    for (int64_t i = 0; i < mine.type.elements(); ++i)
      nonzero -= fetch(mine.type.elem, data, i) != 0;
    if (nonzero != 0) return kInfinity;
  }
  return worst == 0 ? 0 : scale > 0 ? worst / scale : kInfinity;
}

void Verifier::compare(const Module& program, Session& session, const Coordinates& here) {
  for (size_t i = open_; i < report_.comparisons.size(); ++i) {
    Comparison& c = report_.comparisons[i];
    const Variable* mine = program.findVar(c.tensor);
    const Variable* one = model_.findVar(c.tensor);
    double apart = std::numeric_limits<double>::infinity();
    if (mine && mine->type.partial.empty())
      apart = difference(*mine, session.interpreter().data(*mine), *one, here, c.scale);
    std::lock_guard lock(mutex_);
    c.difference = std::max(c.difference, apart);
    if (apart > options_.bound) c.ranks.push_back(here.rank());
  }
}

llvm::Error Verifier::run(const Module& program, Communicator& comm) {
  Coordinates here(program.grid, comm.rank());
  std::unique_ptr<Device> device = makeCpuDevice(1, here);
  auto session = Session::create(program, *device, comm);
  if (!session) return session.takeError();
  if (llvm::Error error = (*session)->initialise()) return error;
  // The model's side of a phase, while the other ranks wait.
  auto asOne = [&](auto&& body) -> llvm::Error {
    if (llvm::Error error = comm.barrier(comm.world(), {"verify"})) return error;
    llvm::Error mine = comm.rank() == 0 ? body() : llvm::Error::success();
    return comm.agree(std::move(mine));
  };
  auto runCalls = [](Session& s, const Module& m, const Phase& phase) -> llvm::Error {
    for (size_t i = phase.from; i < phase.to; ++i)
      if (llvm::Error error = s.run(m.schedule[i])) return error;
    return llvm::Error::success();
  };
  std::vector<Phase> phases = phasesOf(program, options_.activations);
  std::vector<Phase> model = phasesOf(model_, options_.activations);
  if (phases.size() != model.size())
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "the program and its model have different schedules");
  for (int64_t step = 1; step <= options_.steps; ++step) {
    if (llvm::Error error = asOne([&] {
          setInputs(step);
          one_->beginStep();
          return llvm::Error::success();
        }))
      return error;
    takeInputs(program, **session, here);
    (*session)->beginStep();
    for (size_t i = 0; i < phases.size(); ++i) {
      if (llvm::Error error = asOne([&]() -> llvm::Error {
            if (llvm::Error error = runCalls(*one_, model_, model[i])) return error;
            measure(model[i], step);
            return llvm::Error::success();
          }))
        return error;
      if (llvm::Error error = runCalls(**session, program, phases[i])) return error;
      compare(program, **session, here);
    }
  }
  return comm.barrier(comm.world(), {"verify"});
}

}  // namespace

llvm::Expected<std::unique_ptr<Verification>> makeVerification(const Module& model,
                                                               const VerifyOptions& options) {
  auto verifier = std::make_unique<Verifier>(model, options);
  if (llvm::Error error = verifier->prepare()) return error;
  return verifier;
}

}  // namespace planc
