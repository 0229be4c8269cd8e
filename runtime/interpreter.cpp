// See interpreter.h. `repeat` moves counters, and pointers follow through their strides, so a rolled
// body is prepared once. Tested by tests/runtime/equivalence_test.cpp (against the reference) and
// all end-to-end tests.
#include "runtime/interpreter.h"

#include <algorithm>

#include "ir/text.h"

namespace planc {

llvm::Expected<std::unique_ptr<Interpreter>> Interpreter::create(const Module& program,
                                                                 Device& device,
                                                                 Communicator* comm) {
  int64_t ranks = comm == nullptr ? 1 : comm->size();
  if (program.grid.ranks() != ranks)
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "the program is for " + llvm::Twine(program.grid.ranks()) +
                                       " ranks, and " + llvm::Twine(ranks) + " run");
  std::unique_ptr<Interpreter> made(new Interpreter(program, device, comm));
  auto arena = device.allocateArena(program.arenaBytes);
  if (!arena) return arena.takeError();
  made->arena_ = *arena;
  unsigned deepest = 0;
  size_t operands = 0, results = 1;
  for (const auto& function : program.functions) {
    auto& [name, instructions] = made->functions_.emplace_back();
    name = function->name;
    if (llvm::Error error = made->prepare(*function->body, instructions)) return error;
    walk(*function->body, [&](const Op* op) {
      deepest = std::max(deepest, unsigned(op->parent()->enclosing().size()));
      operands = std::max(operands, op->operands().size());
      results = std::max(results, op->results().size());
    });
  }
  made->seconds_.assign(allOps().size(), 0);
  made->counters_.assign(deepest + 2, 0);
  made->operandScratch_.assign(operands, nullptr);
  made->resultScratch_.assign(results, nullptr);
  return made;
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
  made.name = !op.results().empty() && !op.result()->name.empty() ? op.result()->name
              : op.var                                            ? op.var->name
                                                                  : op.info().text.str();
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
    case OpKind::Zero:
      made.results.push_back(pointer(*op.var->place, enclosing));
      return made;
    case OpKind::Wait:
      return made;
    default:
      break;
  }
  if (op.has(Comm)) {
    auto exchange = prepareExchange(op, made.name);
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

llvm::Expected<std::unique_ptr<Exchange>> Interpreter::prepareExchange(const Op& op,
                                                                       llvm::StringRef name) {
  if (comm_ == nullptr)
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "'" + op.info().text + "' needs other ranks");
  Site site{.op = op.info().text.str(), .tensor = name.str(), .number = ++exchanges_};
  if (op.loc.known() && op.loc.file < program_.files.size())
    site.place = program_.files[op.loc.file] + ":" + std::to_string(op.loc.line);
  auto groupOf = [&](llvm::ArrayRef<int64_t> ranks) -> Group& {
    Group*& group = groups_[ranks.vec()];
    if (group == nullptr)
      group = &comm_->group(llvm::SmallVector<int, 8>(ranks.begin(), ranks.end()));
    return *group;
  };
  return Exchange::create(op, program_.grid, *comm_, groupOf, device_, std::move(site));
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
      bool isOuterLast = isLast_;
      for (int64_t i = 0; i < instruction.count; ++i) {
        counter = instruction.reverse ? instruction.count - 1 - i : i;
        isLast_ = i + 1 == instruction.count;
        if (llvm::Error error = run(instruction.body)) return error;
      }
      isLast_ = isOuterLast;
      return llvm::Error::success();
    }
    case OpKind::Yield:
    case OpKind::Write:
      move(instruction.copies);
      return llvm::Error::success();
    case OpKind::Zero:
      device_.zero(resolve(instruction.results[0]), op.var->type.bytes());
      return llvm::Error::success();
    default:
      break;
  }
  for (size_t i = 0; i < instruction.operands.size(); ++i)
    operandScratch_[i] = resolve(instruction.operands[i]);
  for (size_t i = 0; i < instruction.results.size(); ++i)
    resultScratch_[i] = resolve(instruction.results[i]);
  Trace::Time start = Trace::now();
  llvm::Error error = llvm::Error::success();
  if (instruction.kernel) {
    context_.iteration = llvm::ArrayRef<int64_t>(counters_).slice(1, instruction.depth);
    instruction.kernel->run(context_, operandScratch_.data(), resultScratch_.data());
  } else {
    error = runExchange(instruction);
  }
  seconds_[size_t(op.kind)] += std::chrono::duration<double>(Trace::now() - start).count();
  return error;
}

// An op between ranks, or the wait for one: that is the one whose first result lies where the wait's
// first operand does.
llvm::Error Interpreter::runExchange(const Instruction& instruction) {
  if (instruction.op->kind == OpKind::Wait) {
    auto flight = llvm::find_if(
        flights_, [&](const Exchange::Flight& f) { return f.results[0] == operandScratch_[0]; });
    if (flight == flights_.end())
      return llvm::createStringError(
          llvm::inconvertibleErrorCode(),
          "'wait' for '" + instruction.name + "', which was not started");
    Exchange::Flight started = std::move(*flight);
    flights_.erase(flight);
    return started.exchange->finish(started);
  }
  Exchange::Flight flight;
  instruction.exchange->start(
      llvm::ArrayRef(operandScratch_).take_front(instruction.operands.size()),
      llvm::ArrayRef(resultScratch_).take_front(instruction.results.size()), flight);
  if (instruction.op->isFlag("start")) {
    flights_.push_back(std::move(flight));
    return llvm::Error::success();
  }
  Trace::Time started = Trace::now();
  llvm::Error error = instruction.exchange->finish(flight);
  if (trace_) trace_->add("wait", "wait", instruction.name, started, Trace::now());
  return error;
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
  for (const auto& [name, instructions] : functions_)
    if (name == call.function)
      if (llvm::Error error = run(instructions)) return error;
  return llvm::Error::success();
}

}  // namespace planc
