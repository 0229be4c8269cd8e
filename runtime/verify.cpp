// Rank 0 also runs the model before the others go on: up to the update, and then to the end of the
// step. So all can read its tensors where they lie, and no rank needs to be where another is in its
// schedule, which may be another one. Activations, whose memory is used again, are copied. Ranks that
// are processes run the model each for itself, which is repeatable to the bit. At the end rank 0 gets
// what each rank has found. Tested by tests/tools/verify.test, tests/tools/verify_mpi.test,
// tests/runtime/stages_test.cpp and tests/runtime/verify_test.cpp, which plants faults.
#include "runtime/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "ir/schedule.h"
#include "runtime/elements.h"
#include "runtime/random.h"
#include "runtime/runs.h"
#include "runtime/session.h"
#include "runtime/talk.h"

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

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

// What is compared at once: what forward calls save, what is added up before the update, and what the
// step leaves.
enum class Moment { Activations, Sums, Step };

// Where the schedule's update begins; its end where there is none.
size_t updateOf(const Module& program) {
  return size_t(llvm::find_if(program.schedule,
                              [](const Call& call) { return call.function == "update"; }) -
                program.schedule.begin());
}

bool isForward(const Call& call) {
  std::optional<Task> task = taskOf(call);
  return task && task->work == Work::Forward;
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

// Whichever order they lie in.
bool isShapedAs(const Type& a, const Type& b) {
  return std::equal(
      a.dims.begin(), a.dims.end(), b.dims.begin(), b.dims.end(),
      [](const Dim& x, const Dim& y) { return x.name == y.name && x.size == y.size; });
}

Slice sliceOf(const Variable& var, llvm::ArrayRef<int64_t> at, const Coordinates& rank) {
  Slice slice{var.type};
  int64_t number = 0, before = var.piece ? var.piece->first : 0;
  for (int64_t index : at) {
    Dim dim = slice.type.dims.front();
    int64_t here = index - before - rank.offset(dim);
    before = 0;  // of the outermost dim only
    slice.exists &= here >= 0 && here < dim.size;
    number = number * dim.size + here;
    slice.type.dims.erase(slice.type.dims.begin());
  }
  slice.first = number * slice.type.elements();
  return slice;
}

std::string iterationText(const Variable& var, llvm::ArrayRef<int64_t> at) {
  std::string text;
  for (size_t i = 0; i < at.size(); ++i)
    text += (i ? ", " : "") + var.stack[i] + " " + std::to_string(at[i]);
  return text;
}

// Of the stacked dims, the indices of an element of the whole variable.
std::vector<int64_t> iterationsOf(const Variable& whole, int64_t element) {
  std::vector<int64_t> at(whole.stack.size());
  int64_t each = whole.slice(whole.stack).elements();
  element /= each;
  for (size_t i = at.size(); i-- > 0;) {
    at[i] = element % whole.type.dims[i].size;
    element /= whole.type.dims[i].size;
  }
  return at;
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
    made->device_ = makeDevice();
    assert(made->device_->isHost());
    auto session = Session::create(program, *made->device_, *made->comm_);
    if (!session) return session.takeError();
    made->session_ = std::move(*session);
    if (llvm::Error error = made->session_->initialise(kJitter)) return error;
    return made;
  }
  const Module& program() const { return program_; }
  Session& session() { return *session_; }
  const std::byte* data(const Variable& var) const { return session_->interpreter().data(var); }
  llvm::Error run(const Call& call) { return session_->run(call); }

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
  Verifier(std::unique_ptr<OneRank> one, std::unique_ptr<OneRank> exact,
           const VerifyOptions& options)
      : one_(std::move(one)),
        exact_(std::move(exact)),
        options_(options),
        order_(ProgramOrder(one_->program()).take()) {}
  llvm::Error run(const Roles& roles, Communicator& comm, Device& device) override;
  const VerifyReport& report() const override { return report_; }

 private:
  // A rank's largest difference from the model, relative to a scale, and the element of the whole
  // tensor that has it. Less than no difference: the rank holds nothing of the tensor.
  struct Difference {
    double worst = -1;
    int64_t element = 0;
  };
  // What a comparison of the report compares.
  struct Compared {
    const Tensor* tensor;
    const std::byte* whole;  // the model's; valid for this step
  };
  // One rank of the program.
  struct Mine {
    const Module& program;
    Session& session;
    Coordinates here;
    std::map<std::string, std::vector<const Variable*>> vars;  // by the name in the model
    std::vector<Difference> found = {};  // by the number of the comparison
  };

  std::string nameInModel(const Variable& var) const;
  void setInputs(int64_t step);
  llvm::Error runModel(bool updates, int64_t step);
  void measure(Moment moment, int64_t step, int64_t microbatch = -1);
  void takeInputs(const Module& program, Session& session, const Coordinates& here) const;
  llvm::Error compare(Mine& mine, Moment moment, const Call* call = nullptr);
  llvm::Error compare(Mine& mine, const Variable& var, size_t number);
  void conclude(llvm::ArrayRef<std::string> found);
  Difference difference(const Variable& mine, const std::byte* data, const Compared& with,
                        const Coordinates& here, double scale) const;

  std::unique_ptr<OneRank> one_, exact_;  // the latter may be null
  VerifyOptions options_;
  std::vector<Tensor> order_;
  VerifyReport report_;
  std::vector<Compared> compared_;  // of each of the report's comparisons
  size_t open_ = 0;                 // where those that ranks are to answer begin
  std::map<std::pair<const Variable*, int64_t>, std::vector<std::byte>> activations_;
};

// A stage that holds several parts of the model numbers what each of them saves: `norm.3`.
std::string Verifier::nameInModel(const Variable& var) const {
  const std::string& name = var.wholeName();
  if (var.kind != VarKind::Slot || one_->program().findVar(name)) return name;
  return llvm::StringRef(name).rsplit('.').first.str();
}

// Tokens by chance; of the targets some are left out, more towards a sequence's end and in later
// samples, so that ranks have different numbers of them.
void Verifier::setInputs(int64_t step) {
  for (const auto& var : one_->program().vars) {
    if (var->kind != VarKind::Input) continue;
    auto* tokens = reinterpret_cast<int32_t*>(one_->session().interpreter().data(*var));
    uint64_t key = randomKey(uint64_t(step), var->name);
    int64_t elements = var->type.elements(), positions = var->type.dims.back().size;
    for (int64_t i = 0; i < elements; ++i) {
      // Documents are some positions long.
      if (!var->documents.empty()) {
        bool isNext = i % positions > 0 && uniformAt(key, uint64_t(i)) > 0.7;
        tokens[i] = i % positions == 0 ? 0 : tokens[i - 1] + isNext;
        continue;
      }
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

// The model's step, up to the update or from there on.
llvm::Error Verifier::runModel(bool updates, int64_t step) {
  const std::vector<Call>& schedule = one_->program().schedule;
  size_t update = updateOf(one_->program());
  open_ = report_.comparisons.size();
  if (!updates) activations_.clear();
  for (size_t i = updates ? update : 0; i < (updates ? schedule.size() : update); ++i) {
    for (OneRank* one : {one_.get(), exact_.get()})
      if (one)
        if (llvm::Error error = one->run(schedule[i])) return error;
    if (options_.activations && isForward(schedule[i]))
      measure(Moment::Activations, step, schedule[i].microbatch);
  }
  measure(updates ? Moment::Step : Moment::Sums, step);
  return llvm::Error::success();
}

// Opens comparisons: what the model has now, how large, and how much of it is rounding.
void Verifier::measure(Moment moment, int64_t step, int64_t microbatch) {
  size_t begin = report_.comparisons.size();
  struct OfKind {
    double largest = 0, noise = 0;
  };
  std::map<VarKind, OfKind> kinds;
  std::vector<double> measured;
  for (const Tensor& tensor : order_) {
    const Variable* var = tensor.var;
    bool isSlot = var->kind == VarKind::Slot;
    if (isSlot != (moment == Moment::Activations)) continue;
    if (!isSlot && isFinished(*var) != (moment == Moment::Step)) continue;
    const std::byte* data = one_->data(*var);
    if (isSlot) {
      auto [kept, isNew] = activations_.try_emplace({var, microbatch});
      if (isNew) kept->second.assign(data, data + var->type.bytes());
      data = kept->second.data();
    }
    double largest = 0;
    Slice slice = sliceOf(*var, tensor.at, {});
    for (int64_t i = 0; i < slice.type.elements(); ++i)
      largest = std::max(largest, std::abs(fetch(var->type.elem, data, slice.first + i)));
    double& ofKind = kinds[var->kind].largest;
    ofKind = std::max(ofKind, largest);
    compared_.push_back({&tensor, data});
    measured.push_back(largest);
  }
  for (size_t i = begin; i < compared_.size(); ++i) {
    const Tensor& tensor = *compared_[i].tensor;
    const Variable* var = tensor.var;
    bool hasFloor = var->kind != VarKind::Slot && var->kind != VarKind::Metric;
    Comparison c;
    c.tensor = var->name;
    c.kind = kindName(var->kind).str();
    c.iteration = iterationText(*var, tensor.at);
    c.step = step;
    c.microbatch = microbatch;
    c.loc = var->loc;
    OfKind& ofKind = kinds[var->kind];
    double largest = measured[i - begin];
    c.scale = hasFloor ? std::max(largest, ofKind.largest / 100) : largest;
    const Variable* exact = exact_ ? exact_->program().findVar(var->name) : nullptr;
    if (exact) {
      double noise = difference(*exact, exact_->data(*exact), compared_[i], {}, c.scale).worst;
      if (std::isfinite(noise)) ofKind.noise = std::max(ofKind.noise, noise);
    }
    report_.comparisons.push_back(std::move(c));
  }
  for (size_t i = begin; i < compared_.size(); ++i)
    report_.comparisons[i].bound =
        std::max(options_.bound, kNoise * kinds[compared_[i].tensor->var->kind].noise);
}

void Verifier::takeInputs(const Module& program, Session& session, const Coordinates& here) const {
  for (const auto& var : program.vars) {
    if (var->kind != VarKind::Input) continue;
    const Variable* one = one_->program().findVar(var->name);
    HostBytes bytes = session.interpreter().blank(*var);
    auto* into = bytes.as<int32_t>();
    const auto* from = reinterpret_cast<const int32_t*>(one_->data(*one));
    Runs runs = pieceRuns(var->type, here);
    runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
      std::copy_n(from + b, count, into + a);
    });
    bytes.store();
  }
}

// The largest difference of a rank's piece, relative to `scale`; padding must be zero. What is not
// finite is never equal, even to itself.
Verifier::Difference Verifier::difference(const Variable& mine, const std::byte* data,
                                          const Compared& with, const Coordinates& here,
                                          double scale) const {
  const Variable& one = *with.tensor->var;
  llvm::ArrayRef<int64_t> at = with.tensor->at;
  if (!isShapedAs(mine.wholeType(), one.type) || !mine.type.partial.empty()) return {kInfinity};
  Difference found{0};
  int64_t nonzero = 0;
  auto note = [&](double a, double b, int64_t element) {
    double apart = std::isnan(a - b) ? kInfinity : std::abs(a - b);
    if (apart > found.worst) found = {apart, element};
    nonzero += a != 0;
  };
  Slice piece = sliceOf(mine, at, here), all = sliceOf(one, at, {});
  Runs runs = at.empty() ? pieceRuns(mine, here) : pieceRuns(piece.type, here);
  runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      note(fetch(mine.type.elem, data, piece.first + a + i),
           fetch(one.type.elem, with.whole, all.first + b + i), all.first + b + i);
  });
  if (runs.elements() != piece.type.elements() && mine.kind != VarKind::Slot) {
    for (int64_t i = 0; i < piece.type.elements(); ++i)
      nonzero -= fetch(mine.type.elem, data, piece.first + i) != 0;
    if (nonzero != 0) return {kInfinity, found.element};
  }
  bool isRelative = scale > 0 && std::isfinite(found.worst);
  found.worst = found.worst == 0 ? 0 : isRelative ? found.worst / scale : kInfinity;
  return found;
}

// What this rank holds of the open comparisons of a moment; of activations, those that the call has
// written.
llvm::Error Verifier::compare(Mine& mine, Moment moment, const Call* call) {
  mine.found.resize(report_.comparisons.size());
  std::set<const Variable*> written;
  if (call)
    walk(*mine.program.findFunction(call->function)->body, [&](const Op* op) {
      if (op->var && op->kind != OpKind::Read) written.insert(op->var);
    });
  for (size_t i = open_; i < report_.comparisons.size(); ++i) {
    bool isSlot = compared_[i].tensor->var->kind == VarKind::Slot;
    if (isSlot != (moment == Moment::Activations)) continue;
    if (call && call->microbatch != report_.comparisons[i].microbatch) continue;
    auto vars = mine.vars.find(report_.comparisons[i].tensor);
    if (vars == mine.vars.end()) continue;
    for (const Variable* var : vars->second)
      if (!call || written.count(var))
        if (llvm::Error error = compare(mine, *var, i)) return error;
  }
  return llvm::Error::success();
}

llvm::Error Verifier::compare(Mine& mine, const Variable& var, size_t number) {
  const Comparison& c = report_.comparisons[number];
  const Compared& with = compared_[number];
  if (!sliceOf(var, with.tensor->at, mine.here).exists) return llvm::Error::success();
  auto bytes = mine.session.interpreter().read(var, std::max<int64_t>(c.microbatch, 0));
  if (!bytes) return bytes.takeError();
  Difference apart = difference(var, bytes->data(), with, mine.here, c.scale);
  if (apart.worst > mine.found[number].worst) mine.found[number] = apart;
  return llvm::Error::success();
}

// From each rank's differences, as bytes. What no rank holds: of activations a program need not save
// the same; anything else is missing.
void Verifier::conclude(llvm::ArrayRef<std::string> found) {
  std::vector<Comparison> kept;
  for (size_t i = 0; i < compared_.size(); ++i) {
    Comparison& c = report_.comparisons[i];
    const Variable& whole = *compared_[i].tensor->var;
    Difference worst;
    for (size_t rank = 0; rank < found.size(); ++rank) {
      Difference d;
      std::memcpy(&d, &found[rank][i * sizeof(d)], sizeof(d));
      if (d.worst > worst.worst) worst = d;
      if (d.worst > c.bound) c.ranks.push_back(int64_t(rank));
    }
    bool isHeld = worst.worst >= 0;
    if (!isHeld && whole.kind == VarKind::Slot) continue;
    c.difference = isHeld ? worst.worst : kInfinity;
    if (!isHeld)
      for (size_t rank = 0; rank < found.size(); ++rank) c.ranks.push_back(int64_t(rank));
    else if (!c.ranks.empty() && compared_[i].tensor->at.empty())
      c.iteration = iterationText(whole, iterationsOf(whole, worst.element));
    kept.push_back(std::move(c));
  }
  report_.comparisons = std::move(kept);
}

llvm::Error Verifier::run(const Roles& roles, Communicator& comm, Device& device) {
  const Module& program = roles.program(comm.rank());
  Coordinates here(program.grid, comm.rank());
  auto session = Session::create(roles, device, comm);
  if (!session) return session.takeError();
  if (llvm::Error error = (*session)->initialise(kJitter)) return error;
  Mine mine{program, **session, here, {}};
  for (const auto& var : program.vars) mine.vars[nameInModel(*var)].push_back(var.get());
  // The model's side, while ranks that share it wait.
  auto asOne = [&](auto&& body) -> llvm::Error {
    if (llvm::Error error = comm.barrier(comm.world(), {"verify"})) return error;
    bool isRunner = comm.rank() == 0 || !options_.isShared;
    return comm.agree(isRunner ? body() : llvm::Error::success());
  };
  size_t update = updateOf(program);
  bool updates = update < program.schedule.size();
  if (llvm::Error error = comm.agree(
          updates == (updateOf(one_->program()) < one_->program().schedule.size())
              ? llvm::Error::success()
              : llvm::createStringError(llvm::inconvertibleErrorCode(),
                                        "the program and its model have different schedules")))
    return error;
  for (int64_t step = 1; step <= options_.steps; ++step) {
    if (llvm::Error error = asOne([&] {
          setInputs(step);
          one_->session().beginStep();
          if (exact_) {
            takeInputs(exact_->program(), exact_->session(), {});
            exact_->session().beginStep();
          }
          return runModel(false, step);
        }))
      return error;
    takeInputs(program, **session, here);
    (*session)->beginStep();
    for (size_t i = 0; i < update; ++i) {
      const Call& call = program.schedule[i];
      if (llvm::Error error = (*session)->run(call)) return error;
      if (options_.activations && isForward(call))
        if (llvm::Error error = compare(mine, Moment::Activations, &call)) return error;
    }
    if (llvm::Error error = compare(mine, Moment::Sums)) return error;
    if (llvm::Error error = asOne([&] { return runModel(true, step); })) return error;
    for (size_t i = update; i < program.schedule.size(); ++i)
      if (llvm::Error error = (*session)->run(program.schedule[i])) return error;
    if (llvm::Error error = compare(mine, Moment::Step)) return error;
  }
  auto found = toFirst(comm, std::string(reinterpret_cast<const char*>(mine.found.data()),
                                         mine.found.size() * sizeof(Difference)));
  if (!found) return found.takeError();
  if (comm.rank() == 0) conclude(*found);
  return llvm::Error::success();
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
  return std::make_unique<Verifier>(std::move(*one), std::move(other), options);
}

}  // namespace planc
