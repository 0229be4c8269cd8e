// Weights, inputs and steps of one rank. Tested by tests/runtime/session_test.cpp and
// tests/runtime/golden_test.cpp; of several stages, by tests/runtime/stages_test.cpp.
#include "runtime/session.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/assemble.h"
#include "runtime/elements.h"
#include "runtime/random.h"
#include "runtime/runs.h"
#include "runtime/talk.h"

namespace planc {
namespace {

// The elements [from, to) of a weight's piece.
void draw(const Variable& weight, uint64_t seed, double jitter, const Runs& runs, int64_t from,
          int64_t to, std::byte* into) {
  uint64_t key = randomKey(seed, weight.wholeName());
  const Init& init = weight.init;
  runs.forEach(from, to, [&](int64_t a, int64_t b, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      double value = init.value;
      if (init.kind == "normal") value *= normalAt(key, uint64_t(b + i));
      else if (init.kind == "uniform") value *= uniformAt(key, uint64_t(b + i));
      else if (jitter != 0) value += jitter * uniformAt(key, uint64_t(b + i));
      store(weight.type.elem, into, a + i, value);
    }
  });
}

void zeroPadding(const Type& type, const Runs& runs, std::byte* into) {
  if (runs.elements() != type.elements()) memset(into, 0, size_t(type.bytes()));
}

}  // namespace

void initialiseWeight(const Variable& weight, uint64_t seed, std::byte* into,
                      const Coordinates& rank) {
  Runs runs = pieceRuns(weight, rank);
  zeroPadding(weight.type, runs, into);
  draw(weight, seed, 0, runs, 0, runs.elements(), into);
}

Session::Session(const Roles& roles, Communicator& comm)
    : roles_(roles),
      program_(roles_.program(comm.rank())),
      comm_(comm),
      here_(program_.grid, comm.rank()),
      threads_(std::max(1, int(std::thread::hardware_concurrency()) / comm.size())),
      seed_(uint64_t(program_.settings.integer("seed"))) {}

llvm::Expected<std::unique_ptr<Session>> Session::create(const Roles& roles, Device& device,
                                                         Communicator& comm) {
  if (llvm::Error error = roles.check()) return error;
  std::unique_ptr<Session> session(new Session(roles, comm));
  // Before ranks meet: one whose program can't run would leave the others waiting.
  if (llvm::Error error = comm.agree(Interpreter::check(session->program_, comm))) return error;
  auto interpreter = agree(comm, Interpreter::create(session->program_, device, &comm));
  if (!interpreter) return interpreter.takeError();
  if (llvm::Error error = comm.connect()) return error;
  session->interpreter_ = std::move(*interpreter);
  // Messages are recorded by all their ranks, or by none.
  if (device.canRecord()) {
    auto host = any(comm, session->interpreter_->hostOp() != nullptr);
    if (!host) return host.takeError();
    session->isRecordable_ = !*host;
  }
  return session;
}

llvm::Error Session::initialise(double jitter) {
  zeroMoments();
  step_ = 0;
  return setWeights([&](const Variable& weight, std::byte* into) {
    return initialiseTogether(weight, jitter, into);
  });
}

// Drawing a number takes far longer than moving it: ranks that hold the same elements draw a share
// each, and give it to the others.
llvm::Error Session::initialiseTogether(const Variable& weight, double jitter, std::byte* into) {
  Runs runs = pieceRuns(weight, here_);
  Axes axes = roles_.copyAxes(weight.type);
  int64_t copies = ranksOver(axes), elements = runs.elements();
  zeroPadding(weight.type, runs, into);
  auto [from, to] = share(elements, here_.index(axes), copies);
  inParallel(to - from, threads_, [&, from = from](int64_t begin, int64_t end) {
    draw(weight, seed_, jitter, runs, from + begin, from + end, into);
  });
  if (copies == 1) return llvm::Error::success();
  std::vector<int64_t> ranks = here_.group(axes);
  Group*& group = copies_[ranks];
  if (group == nullptr) group = &comm_.group(llvm::SmallVector<int, 8>(ranks.begin(), ranks.end()));
  // A share may have padding inside, which is zero on all.
  auto place = [&](int64_t element) {
    return element < elements ? runs.at(element / runs.length()).a + element % runs.length()
                              : weight.type.elements();
  };
  int64_t width = bytesPerElement(weight.type.elem);
  for (int root = 0; root < int(copies); ++root) {
    auto [first, last] = share(elements, root, copies);
    if (first == last) continue;
    std::byte* at = into + place(first) * width;
    Message message{.kind = Collective::Broadcast,
                    .elem = weight.type.elem,
                    .send = at,
                    .recv = at,
                    .count = place(last) - place(first),
                    .root = root};
    Site site{.op = "initialise", .tensor = weight.wholeName()};
    if (llvm::Error error = comm_.wait(comm_.start(*group, message, site))) return error;
  }
  return llvm::Error::success();
}

// Weights, and then their copies in another precision. `fill` makes a weight in any type: a copy that
// ranks hold in other pieces than the weight is made as the weight was.
llvm::Error Session::setWeights(Fill fill) {
  for (const auto& var : program_.vars)
    if (var->kind == VarKind::Weight) {
      HostBytes into = interpreter_->blank(*var);
      if (llvm::Error error = fill(*var, into.data())) return error;
      into.store();
    }
  for (const auto& var : program_.vars) {
    if (var->kind != VarKind::Copy) continue;
    const Variable& weight = *program_.findVar(var->of);
    HostBytes to = interpreter_->blank(*var);
    if (var->type.withElem(weight.type.elem) != weight.type) {
      Variable other = weight;
      other.type = var->type;
      if (llvm::Error error = fill(other, to.data())) return error;
      to.store();
      continue;
    }
    auto from = interpreter_->read(weight);
    if (!from) return from.takeError();
    inParallel(var->type.elements(), threads_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        store(var->type.elem, to.data(), i, fetch(weight.type.elem, from->data(), i));
    });
    to.store();
  }
  return llvm::Error::success();
}

void Session::zeroMoments() {
  for (const auto& var : program_.vars)
    if (var->kind == VarKind::Moment)
      interpreter_->device().zero(interpreter_->data(*var), var->type.bytes());
}

llvm::Error Session::fillInputs(const TokenFile& data) {
  for (const auto& var : program_.vars) {
    if (var->kind != VarKind::Input) continue;
    const Dim& seq = var->type.dims.back();
    Type rows = var->type.without(seq.name);
    int64_t samples = rows.whole().elements();
    // This rank's positions of a window, which is one longer than a sample.
    Segments positions = here_.segments(seq);
    int64_t ahead = var->follows.empty() ? 0 : 1;
    window_.resize(size_t(seq.all()) + 1);
    HostBytes tokens = interpreter_->blank(*var);
    std::byte* into = tokens.data();
    Runs runs = pieceRuns(rows, here_);
    auto fill = [&](int64_t row, int64_t sample, int64_t rowCount) -> llvm::Error {
      for (int64_t i = 0; i < rowCount; ++i) {
        // Samples in order of step, microbatch and place in the batch: no grid changes it.
        uint64_t index = uint64_t(step_) * uint64_t(samples) + uint64_t(sample + i);
        if (llvm::Error error = data.sample(seed_, index, window_)) return error;
        if (!var->documents.empty()) numberDocuments(window_, var->separator);
        for (const Segment& segment : positions)
          memcpy(into + ((row + i) * seq.size + segment.at) * 4,
                 window_.data() + segment.first + ahead, size_t(segment.count) * 4);
      }
      return llvm::Error::success();
    };
    if (llvm::Error error = runs.tryEach(0, runs.elements(), fill)) return error;
    tokens.store();
  }
  return llvm::Error::success();
}

void Session::beginStep() {
  ++step_;
  for (const auto& var : program_.vars)
    if (var->kind == VarKind::Step) {
      HostBytes step = interpreter_->blank(*var);
      store(Elem::I32, step.data(), 0, double(step_));
      step.store();
    }
  interpreter_->device().beginStep(step_);
}

// What was sent since.
static std::vector<SentBytes> sentSince(llvm::ArrayRef<SentBytes> before, const Communicator& comm) {
  std::vector<SentBytes> sent = comm.sent().vec();
  for (size_t i = 0; i < before.size(); ++i) sent[i].bytes -= before[i].bytes;
  return sent;
}

llvm::Error Session::runSchedule(bool update) {
  std::vector<SentBytes> before = comm_.sent().vec();
  beginStep();
  bool replays = update && records_ && isRecordable_ && interpreter_->device().canRecord() &&
                 !interpreter_->isTraced();
  if (llvm::Error error = replays ? replayStep() : runCalls(update)) return error;
  sentInStep_ = sentSince(before, comm_);
  return interpreter_->device().finish();
}

// The first step runs op by op, so that what libraries make on first use is made outside of a recording;
// the second is recorded.
llvm::Error Session::replayStep() {
  Device& device = interpreter_->device();
  switch (recorded_) {
    case Recorded::Nothing:
      recorded_ = Recorded::Warm;
      return runCalls(true);
    case Recorded::Warm: {
      std::vector<SentBytes> before = comm_.sent().vec();
      device.beginRecording();
      llvm::Error error = runCalls(true);
      if (llvm::Error other = device.endRecording())
        error = llvm::joinErrors(std::move(error), std::move(other));
      if (error) return error;
      recordedSent_ = sentSince(before, comm_);
      recorded_ = Recorded::Step;
      break;
    }
    case Recorded::Step:
      comm_.countAgain(recordedSent_);
  }
  device.replay();
  return llvm::Error::success();
}

llvm::Error Session::runCalls(bool update) {
  for (const Call& call : program_.schedule) {
    if (!update && call.function == "update") continue;
    if (llvm::Error error = run(call)) return error;
    if (outputs_)
      if (llvm::Error error = takeOutputs(call)) return error;
  }
  return llvm::Error::success();
}

// What the call has written for its microbatch: later ones may use its memory.
llvm::Error Session::takeOutputs(const Call& call) {
  if (call.phase == Phase::Start) return llvm::Error::success();
  int64_t microbatch = std::max<int64_t>(call.microbatch, 0);
  std::vector<const Variable*> taken;
  walk(*program_.findFunction(call.function)->body, [&](const Op* op) {
    if (op->kind != OpKind::Write || !op->var->output) return;
    Output& output = outputs_->at(op->var);
    if (output.isTaken[size_t(microbatch)]) return;
    output.isTaken[size_t(microbatch)] = true;
    taken.push_back(op->var);
  });
  for (const Variable* var : taken) {
    auto bytes = interpreter_->read(*var, microbatch);
    if (!bytes) return bytes.takeError();
    memcpy(&outputs_->at(var).bytes[size_t(microbatch * var->type.bytes())], bytes->data(),
           size_t(var->type.bytes()));
  }
  return llvm::Error::success();
}

// Of a model without it, 0. Together where some stages lack it.
llvm::Expected<double> Session::metric(llvm::StringRef name) const {
  const ModelVariable* metric = roles_.find(name);
  if (!metric || metric->kind != VarKind::Metric) return 0;
  double value = 0;
  if (const Variable* var = program_.findVar(name)) {
    auto bytes = interpreter_->read(*var);
    if (!bytes) return bytes.takeError();
    value = fetch(var->type.elem, bytes->data(), 0);
  }
  auto holds = [&](const Module* program) { return metric->isHeldBy(*program); };
  if (llvm::all_of(roles_.programs(), holds)) return value;
  int root = 0;
  while (root + 1 < comm_.size() && !holds(&roles_.program(root))) ++root;
  Message message{.kind = Collective::Broadcast,
                  .elem = Elem::F64,
                  .send = &value,
                  .recv = &value,
                  .count = 1,
                  .root = root};
  Site site{.op = "metric", .tensor = metric->name};
  if (llvm::Error error = comm_.wait(comm_.start(comm_.world(), message, site))) return error;
  return value;
}

llvm::Expected<StepRecord> Session::step(const TokenFile& data) {
  auto start = std::chrono::steady_clock::now();
  if (llvm::Error error = fillInputs(data)) return tellOthers(comm_, std::move(error));
  if (llvm::Error error = runSchedule(true)) return error;
  auto loss = metric("loss"), gradientNorm = metric("grad_norm"), learningRate = metric("lr");
  for (auto* value : {&loss, &gradientNorm, &learningRate})
    if (!*value) return value->takeError();
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  StepRecord record;
  record.step = step_;
  record.loss = *loss;
  record.gradientNorm = *gradientNorm;
  record.learningRate = *learningRate;
  record.tokensPerSecond = double(tokensPerStep()) / seconds;
  record.seconds = seconds;
  if (llvm::Error error = addLoads(record)) return error;
  return record;
}

// On rank 0 the whole of a metric of which stages may have a part each.
llvm::Expected<std::vector<double>> Session::wholeMetric(const ModelVariable& metric) const {
  auto pieces = piecesOf(metric);
  if (!pieces) return pieces.takeError();
  // What is no part of a stack all stages have.
  if (!metric.parts.front().var->piece) pieces->list.resize(1);
  auto bytes = assemble(comm_, program_.grid, metric.type, pieces->list);
  if (!bytes) return bytes.takeError();
  std::vector<double> values;
  int64_t width = bytesPerElement(metric.type.elem);
  for (int64_t i = 0; i < int64_t(bytes->size()) / width; ++i)
    values.push_back(fetch(metric.type.elem, bytes->data(), i));
  return values;
}

// The loads of all experts, from `load.NAME` and `dropped.NAME`, a record for each routing and iteration
// of the repeats around it.
llvm::Error Session::addLoads(StepRecord& record) const {
  for (const ModelVariable& metric : roles_.variables()) {
    llvm::StringRef name = metric.name;
    if (metric.kind != VarKind::Metric || !name.consume_front("load.")) continue;
    auto loads = wholeMetric(metric);
    if (!loads) return loads.takeError();
    std::vector<double> dropped;
    if (const ModelVariable* of = roles_.find(("dropped." + name).str())) {
      auto values = wholeMetric(*of);
      if (!values) return values.takeError();
      dropped = std::move(*values);
    }
    llvm::ArrayRef<Dim> stack(metric.type.dims.begin(), metric.type.dims.end() - 1);
    size_t experts = size_t(metric.type.dims.back().size);
    for (size_t i = 0; i < loads->size() / experts; ++i) {
      ExpertLoads entry{name.str(), {}, {}, i < dropped.size() ? dropped[i] : 0};
      int64_t rest = int64_t(i);
      for (const Dim& dim : llvm::reverse(stack)) {
        entry.at.insert(entry.at.begin(), rest % dim.size);
        rest /= dim.size;
      }
      auto from = loads->begin() + long(i * experts);
      entry.load.assign(from, from + long(experts));
      record.experts.push_back(std::move(entry));
    }
  }
  return llvm::Error::success();
}

// Of every rank that holds some of the variable, its piece; of those with the same one, the first.
llvm::Expected<Session::Pieces> Session::piecesOf(const ModelVariable& var) const {
  Pieces pieces;
  for (int rank = 0; rank < comm_.size(); ++rank) {
    Coordinates there(program_.grid, rank);
    const Module& program = roles_.program(rank);
    for (const Held& held : var.parts) {
      if (held.program != &program || held.var->tied) continue;
      Axes copies = roles_.copyAxes(held.var->type);
      llvm::erase_if(copies,
                     [&](const Axis& a) { return hasAxis(held.var->type.partial, a.name); });
      if (there.index(copies) != 0) continue;
      RankPiece piece{rank, held.var->type, held.var->piece ? held.var->piece->first : 0};
      if (rank == comm_.rank()) {
        auto bytes = interpreter_->read(*held.var);
        if (!bytes) return bytes.takeError();
        piece.data = bytes->data();
        pieces.own.push_back(std::move(*bytes));
      }
      pieces.list.push_back(std::move(piece));
    }
  }
  return pieces;
}

std::vector<std::pair<std::string, int64_t>> Session::coordinates() const {
  std::vector<std::pair<std::string, int64_t>> list;
  for (const GridAxis& axis : program_.grid.axes)
    list.emplace_back(axis.name, here_.on(axis.name));
  return list;
}

int64_t Session::tokensPerStep() const {
  for (const ModelVariable& var : roles_.variables())
    if (var.kind == VarKind::Input && var.parts.front().var->follows.empty() &&
        var.parts.front().var->documents.empty())
      return var.type.elements();
  return 0;
}

int64_t Session::positions() const {
  int64_t most = 0;
  for (const ModelVariable& var : roles_.variables())
    if (var.kind == VarKind::Input) most = std::max(most, var.type.dims.back().size);
  return most;
}

int64_t Session::vocab() const {
  int64_t least = INT64_MAX;
  for (const ModelVariable& var : roles_.variables())
    if (var.kind == VarKind::Input && var.parts.front().var->documents.empty())
      least = std::min(least, var.parts.front().var->vocab);
  return least;
}

}  // namespace planc
