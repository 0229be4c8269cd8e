// See interpreter.h. `repeat` moves counters, and pointers follow through their strides, so a rolled
// body is prepared once. Tested by tests/runtime/equivalence_test.cpp (against the reference),
// tests/runtime/stages_test.cpp (programs of several stages) and all end-to-end tests.
#include "runtime/interpreter.h"

#include <algorithm>
#include <set>

#include "ir/broken.h"
#include "ir/text.h"
#include "ir/traffic.h"

namespace planc {
namespace {

std::string text(const Call& call) {
  return call.function +
         (call.microbatch < 0 ? "" : "(" + std::to_string(call.microbatch) + ")");
}

// In the plan, as far as an op has one: what it makes, or sends, or sets.
std::string nameOf(const Op& op) {
  if (!op.results().empty() && !op.result()->name.empty()) return op.result()->name;
  if (op.var) return op.var->name;
  if (op.kind == OpKind::Send && !op.operand(0)->name.empty()) return op.operand(0)->name;
  return op.info().text.str();
}

// What is started does nothing but pass messages, and is waited for once.
llvm::Error checkPhases(const Module& program) {
  std::set<std::pair<std::string, int64_t>> open;
  for (const Call& call : program.schedule) {
    if (call.phase == Phase::Run) continue;
    bool starts = call.phase == Phase::Start;
    std::pair<std::string, int64_t> key{call.function, call.microbatch};
    if (starts ? !open.insert(key).second : open.erase(key) == 0)
      return broken("the schedule " + llvm::Twine(starts ? "starts" : "waits for") + " '@" +
                    text(call) + "', which " + (starts ? "is under way" : "was not started"));
    for (const Op* op : program.findFunction(call.function)->body->ops)
      if (op->isFlag("start") || (op->kind != OpKind::Read && op->kind != OpKind::Write &&
                                  op->kind != OpKind::Send && op->kind != OpKind::Receive))
        return broken("the schedule starts '@" + call.function +
                      "', which does more than pass messages: " + printOp(*op));
  }
  return open.empty() ? llvm::Error::success()
                      : broken("the schedule starts '@" + open.begin()->first +
                               "' and does not wait for it");
}

}  // namespace

Interpreter::Interpreter(const Module& program, Device& device, Communicator* comm)
    : program_(program),
      device_(device),
      comm_(comm),
      here_(program.grid, comm == nullptr ? 0 : comm->rank()) {
  std::string stage;
  for (const auto& [axis, at] : program.where)
    stage += (stage.empty() ? "" : ", ") + axis + " " + std::to_string(at);
  if (comm != nullptr) comm->setStage(stage);
}

llvm::Error Interpreter::check(const Module& program, const Communicator& comm) {
  if (llvm::Error error = checkPhases(program)) return error;
  Coordinates here(program.grid, comm.rank());
  const Op* outside = nullptr;
  for (const auto& function : program.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->has(Comm) && !llvm::is_contained(membersOf(*op, here), here.rank())) outside = op;
    });
  return outside ? broken("rank " + llvm::Twine(here.rank()) + " is not among those of " +
                          printOp(*outside))
                 : llvm::Error::success();
}

llvm::Expected<std::unique_ptr<Interpreter>> Interpreter::create(const Module& program,
                                                                 Device& device,
                                                                 Communicator* comm) {
  int64_t ranks = comm == nullptr ? 1 : comm->size();
  if (program.grid.ranks() != ranks)
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "the program is for " + llvm::Twine(program.grid.ranks()) +
                                       " ranks, and " + llvm::Twine(ranks) + " run");
  std::unique_ptr<Interpreter> made(new Interpreter(program, device, comm));
  if (comm != nullptr) {
    if (llvm::Error error = check(program, *comm)) return error;
    made->makeGroups();
  }
  auto arena = device.allocateArena(program.arenaBytes);
  if (!arena) return arena.takeError();
  made->arena_ = *arena;
  unsigned deepest = 0;
  size_t operands = 0, results = 1;
  for (const auto& function : program.functions) {
    Procedure& procedure = made->procedures_.emplace_back();
    procedure.name = function->name;
    if (llvm::Error error = made->prepare(*function->body, procedure.instructions)) return error;
    walk(*function->body, [&](const Op* op) {
      deepest = std::max(deepest, unsigned(op->parent()->enclosing().size()));
      operands = std::max(operands, op->operands().size());
      results = std::max(results, op->results().size());
    });
  }
  if (llvm::Error error = device.finishPreparing()) return error;
  made->seconds_.assign(allOps().size(), 0);
  made->counters_.assign(deepest + 2, 0);
  made->iterations_.assign(deepest + 1, 0);
  made->operandScratch_.assign(operands, nullptr);
  made->resultScratch_.assign(results, nullptr);
  return made;
}

Interpreter::GroupKey Interpreter::groupOf(const Op& op) const {
  bool isTransfer = op.kind == OpKind::Send || op.kind == OpKind::Receive;
  return {membersOf(op, here_), isTransfer ? op.attrs.integer("channel") : -1};
}

// To make a group all its members meet, so all must make those that they share in one order, whatever
// the order in which their programs use them: that of the keys, which are the same on all ranks.
void Interpreter::makeGroups() {
  for (const auto& function : program_.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->has(Comm)) groups_[groupOf(*op)] = nullptr;
    });
  for (auto& [key, group] : groups_)
    group = &comm_->group(llvm::SmallVector<int, 8>(key.first.begin(), key.first.end()));
}

Interpreter::Pointer Interpreter::pointer(const Place& place, const Words& enclosing) const {
  Pointer pointer{place.offset, {}};
  for (const auto& [dim, bytes, ring] : place.strides) {
    auto at = std::find(enclosing.begin(), enclosing.end(), dim);
    // The verifier has seen to it that a dim is a repeat around here or the microbatch.
    unsigned counter = at == enclosing.end() ? 0 : unsigned(at - enclosing.begin()) + 1;
    pointer.strides.push_back({counter, bytes, ring});
  }
  return pointer;
}

Interpreter::Pointer Interpreter::slice(const Variable& var, const Words& enclosing) const {
  Place place = *var.place;
  Type rest = var.type;
  if (var.flights > 1) place.strides.push_back({"microbatch", rest.bytes(), var.flights});
  for (const std::string& dim : var.stack) {
    if (std::find(enclosing.begin(), enclosing.end(), dim) == enclosing.end()) break;
    rest = rest.without(dim);
    place.strides.push_back({dim, rest.bytes()});
  }
  return pointer(place, enclosing);
}

llvm::Error Interpreter::prepare(const Block& block, std::vector<Instruction>& into) {
  for (const Op* op : block.ops) {
    if (op->kind == OpKind::Read) continue;  // its users point into the variable
    auto instruction = prepare(*op);
    if (!instruction) return instruction.takeError();
    into.push_back(std::move(*instruction));
  }
  return llvm::Error::success();
}

llvm::Expected<Interpreter::Instruction> Interpreter::prepare(const Op& op) {
  const Words enclosing = op.parent()->enclosing();
  Instruction made;
  made.op = &op;
  made.depth = unsigned(enclosing.size());
  made.name = nameOf(op);
  made.place = placeOf(op);
  for (const Value* operand : op.operands())
    made.operands.push_back(pointer(*operand->place, enclosing));
  for (const Value* result : op.results())
    made.results.push_back(pointer(*result->place, enclosing));
  auto copy = [&](const Value& from, const Value& to) {
    if (from.place != to.place)
      made.copies.push_back({pointer(*from.place, enclosing), pointer(*to.place, enclosing),
                             from.type.bytes(), from.def() && from.def()->isUnlessLast()});
  };
  switch (op.kind) {
    case OpKind::Repeat: {
      made.first = op.attrs.integer("first");
      made.count = op.attrs.integer("count");
      made.reverse = op.isFlag("reverse");
      for (unsigned i = 0; i < op.operands().size(); ++i) copy(*op.operand(i), *op.body->args()[i]);
      if (llvm::Error error = prepare(*op.body, made.body)) return error;
      return made;
    }
    case OpKind::Yield: {
      const Op& owner = *op.parent()->owner();
      for (unsigned i = 0; i < op.operands().size(); ++i)
        copy(*op.operand(i), *owner.body->args()[i]);
      return made;
    }
    case OpKind::Write: {
      // Nothing moves when the value was made in its variable.
      Pointer to = slice(*op.var, enclosing);
      if (made.operands[0] != to)
        made.copies.push_back({made.operands[0], to, op.operand(0)->type.bytes(), false});
      return made;
    }
    case OpKind::StageShare:
      copy(*op.operand(0), *op.result());
      return made;
    case OpKind::Zero:
      made.results.push_back(pointer(*op.var->place, enclosing));
      return made;
    case OpKind::Wait:
      return made;
    default:
      break;
  }
  if (op.has(Comm)) {
    if (op.kind == OpKind::ExchangeRows) hostOp_ = &op;
    auto exchange = prepareExchange(op, made);
    if (!exchange) return exchange.takeError();
    made.exchange = std::move(*exchange);
    return made;
  }
  if (op.var) made.results.push_back(slice(*op.var, enclosing));
  auto kernel = device_.prepare(op);
  if (!kernel) return kernel.takeError();
  made.kernel = std::move(*kernel);
  return made;
}

std::string Interpreter::placeOf(const Op& op) const {
  if (!op.loc.known() || op.loc.file >= program_.files.size()) return "";
  return program_.files[op.loc.file] + ":" + std::to_string(op.loc.line);
}

static std::vector<std::string> namesOf(const Axes& axes) {
  std::vector<std::string> names;
  for (const Axis& axis : axes) names.push_back(axis.name);
  return names;
}

llvm::Expected<std::unique_ptr<Exchange>> Interpreter::prepareExchange(const Op& op,
                                                                       const Instruction& made) {
  if (comm_ == nullptr) return broken("'" + op.info().text + "' needs other ranks");
  Site site{.op = op.info().text.str(),
            .tensor = made.name,
            .place = made.place,
            .number = ++exchanges_,
            .counter = comm_->counter(op.info().text, namesOf(groupAxes(op)))};
  return Exchange::create(op, program_.grid, *comm_, *groups_.at(groupOf(op)), device_,
                          std::move(site));
}

void Interpreter::move(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies)
    if (!isLast_ || !copy.unlessLast)
      device_.copy(resolve(copy.to), resolve(copy.from), copy.bytes);
}

llvm::Error Interpreter::run(const Instruction& instruction) {
  const Op& op = *instruction.op;
  switch (op.kind) {
    case OpKind::Repeat: {
      move(instruction.copies);
      int64_t& counter = counters_[instruction.depth + 1];
      int64_t& iteration = iterations_[instruction.depth];
      bool isOuterLast = isLast_;
      for (int64_t i = 0; i < instruction.count; ++i) {
        counter = instruction.reverse ? instruction.count - 1 - i : i;
        iteration = instruction.first + counter;
        isLast_ = i + 1 == instruction.count;
        if (llvm::Error error = run(instruction.body)) return error;
      }
      isLast_ = isOuterLast;
      return llvm::Error::success();
    }
    case OpKind::Yield:
    case OpKind::Write:
    case OpKind::StageShare:
      move(instruction.copies);
      return llvm::Error::success();
    case OpKind::Zero:
      device_.zero(resolve(instruction.results[0]), op.var->type.bytes());
      return llvm::Error::success();
    default:
      break;
  }
  resolveAll(instruction);
  Trace::Time start = Trace::now();
  llvm::Error error = llvm::Error::success();
  if (instruction.kernel) {
    context_.iteration = llvm::ArrayRef<int64_t>(iterations_).take_front(instruction.depth);
    device_.at(op, instruction.place);
    instruction.kernel->run(context_, operandScratch_.data(), resultScratch_.data());
  } else {
    error = runExchange(instruction);
  }
  seconds_[size_t(op.kind)] += std::chrono::duration<double>(Trace::now() - start).count();
  return error;
}

void Interpreter::resolveAll(const Instruction& instruction) {
  for (size_t i = 0; i < instruction.operands.size(); ++i)
    operandScratch_[i] = resolve(instruction.operands[i]);
  for (size_t i = 0; i < instruction.results.size(); ++i)
    resultScratch_[i] = resolve(instruction.results[i]);
}

// Starts an op between ranks whose operands and results are resolved.
Exchange::Flight Interpreter::begin(const Instruction& instruction) {
  Exchange::Flight flight;
  instruction.exchange->start(
      llvm::ArrayRef(operandScratch_).take_front(instruction.operands.size()),
      llvm::ArrayRef(resultScratch_).take_front(instruction.results.size()), flight);
  return flight;
}

// An op between ranks, or the wait for one, which names its results and stands in the same block: so
// of one op no more than one is under way.
llvm::Error Interpreter::runExchange(const Instruction& instruction) {
  const Op& op = *instruction.op;
  if (op.kind == OpKind::Wait) {
    auto started = llvm::find_if(
        started_, [&](const Started& s) { return s.op == op.operand(0)->def(); });
    if (started == started_.end())
      return broken("'wait' for '" + instruction.name + "', which was not started");
    Exchange::Flight flight = std::move(started->flight);
    started_.erase(started);
    return flight.exchange->finish(flight);
  }
  Exchange::Flight flight = begin(instruction);
  if (op.isFlag("start")) {
    started_.push_back({&op, std::move(flight)});
    return llvm::Error::success();
  }
  Trace::Time started = Trace::now();
  llvm::Error error = instruction.exchange->finish(flight);
  if (trace_) trace_->add("wait", "wait", instruction.name, started, Trace::now());
  return error;
}

// Reads are free, and nothing that a message function writes is there before its messages are.
llvm::Error Interpreter::startMessages(const Procedure& procedure) {
  UnderWay& made = underWay_.emplace_back(UnderWay{&procedure, counters_[0], {}});
  for (const Instruction& instruction : procedure.instructions) {
    if (!instruction.exchange) continue;
    resolveAll(instruction);
    Trace::Time start = Trace::now();
    made.flights.push_back(begin(instruction));
    seconds_[size_t(instruction.op->kind)] +=
        std::chrono::duration<double>(Trace::now() - start).count();
  }
  return llvm::Error::success();
}

llvm::Error Interpreter::waitForMessages(const Procedure& procedure) {
  auto found = llvm::find_if(underWay_, [&](const UnderWay& u) {
    return u.procedure == &procedure && u.microbatch == counters_[0];
  });
  if (found == underWay_.end())
    return broken("the schedule waits for '@" + procedure.name + "', which was not started");
  UnderWay started = std::move(*found);
  underWay_.erase(found);
  Exchange::Flight* flight = started.flights.begin();
  for (const Instruction& instruction : procedure.instructions) {
    Trace::Time start = Trace::now();
    if (llvm::Error error = instruction.exchange ? instruction.exchange->finish(*flight++)
                                                 : run(instruction))
      return error;
    if (instruction.exchange)
      seconds_[size_t(OpKind::Wait)] +=
          std::chrono::duration<double>(Trace::now() - start).count();
  }
  return llvm::Error::success();
}

llvm::Error Interpreter::run(const std::vector<Instruction>& instructions) {
  for (const Instruction& instruction : instructions) {
    if (isLast_ && instruction.op->isUnlessLast()) continue;
    if (!trace_) {
      if (llvm::Error error = run(instruction)) return error;
      continue;
    }
    Trace::Time start = Trace::now();
    if (llvm::Error error = run(instruction)) return error;
    if (llvm::Error error = device_.finish()) return error;
    if (instruction.op->kind != OpKind::Yield)
      trace_->add(instruction.name, instruction.op->info().text, printOp(*instruction.op), start,
                  Trace::now());
  }
  return llvm::Error::success();
}

llvm::Error Interpreter::run(const Call& call, uint64_t seed, int64_t step) {
  context_.seed = seed;
  context_.step = step;
  context_.microbatch = std::max<int64_t>(call.microbatch, 0);
  counters_[0] = context_.microbatch;
  auto procedure =
      llvm::find_if(procedures_, [&](const Procedure& p) { return p.name == call.function; });
  if (procedure == procedures_.end()) return broken("there is no '@" + call.function + "'");
  Trace::Time start = Trace::now();
  if (llvm::Error error = run(*procedure, call.phase)) return error;
  if (trace_)
    trace_->add(text(call), name(call.phase), "@" + text(call), start, Trace::now());
  return llvm::Error::success();
}

llvm::Error Interpreter::run(const Procedure& procedure, Phase phase) {
  switch (phase) {
    case Phase::Run:
      return run(procedure.instructions);
    case Phase::Start:
      return startMessages(procedure);
    case Phase::Wait:
      return waitForMessages(procedure);
  }
  return llvm::Error::success();
}

}  // namespace planc
