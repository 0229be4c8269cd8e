// The verifier. The walk checks structure (definitions, bodies, variables, places); verify_shapes.cpp
// checks each op's shape rule. Tested by tests/unit/verify_test.cpp and tests/fuzz.
#include "ir/verify.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "ir/broken.h"
#include "ir/text.h"
#include "ir/verify_ahead.h"
#include "ir/verify_shapes.h"
#include "ir/verify_sharding.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"

namespace planc {
namespace {

using llvm::Twine;

class Verifier {
 public:
  explicit Verifier(const Module& module) : module_(module), sources_(module) {}
  llvm::Error run();

 private:
  llvm::Error variable(const Variable& var);
  llvm::Error block(const Block& block, unsigned depth);
  llvm::Error op(const Op& op, const Block& block, unsigned depth);
  llvm::Error structure(const Op& op, const Block& block);
  llvm::Error type(const Type& type);
  llvm::Error piece(const Variable& var);
  llvm::Error slice(const Variable& var);
  llvm::Error body(const Op& op, unsigned depth);
  llvm::Error balanced(const Op& read);
  llvm::Error place(const std::optional<Place>& place, const Type& type, const Op* def = nullptr);

  const Module& module_;
  ValueSources sources_;
  llvm::DenseSet<const Value*> defined_;
  bool isUpdate_ = false;
  std::vector<std::pair<std::string, int64_t>> repeats_;  // enclosing: dim, count
};

// A ragged dim stands behind its groups; ops ask for more where they need it.
llvm::Error checkType(const Type& type) {
  llvm::StringSet<> seen;
  for (size_t i = 0; i < type.dims.size(); ++i) {
    const Dim& dim = type.dims[i];
    if (dim.name.empty()) return broken("a dim without a name");
    if (dim.size < 1) return broken("dim '" + dim.name + "' has size " + Twine(dim.size));
    if (!seen.insert(dim.name).second)
      return broken("dim '" + dim.name + "' stands twice in a type");
    if (dim.isRagged() && (i == 0 || type.dims[i - 1].name != dim.over))
      return broken("ragged dim '" + dim.name + "' must stand behind its groups '" + dim.over +
                    "'");
  }
  return llvm::Error::success();
}

llvm::Error Verifier::type(const Type& type) {
  if (llvm::Error error = checkType(type)) return error;
  bool isModel = module_.level == Level::Model;
  if (type.elements() > (isModel ? kMaxWholeElements : kMaxElements))
    return broken("type " + type.str() + " has more than 2^" + Twine(isModel ? 60 : 46) +
                  " elements");
  // The first of them is the microbatch, with which no piece moves.
  for (const Dim& dim : type.dims)
    if (!dim.moves.empty() && llvm::none_of(llvm::drop_begin(repeats_), [&](const auto& repeat) {
          return repeat.first == dim.moves;
        }))
      return broken("dim '" + dim.name + "' moves with '" + dim.moves +
                    "', which no repeat around counts");
  if (module_.level != Level::Model) return verifyHeld(type, module_.grid);
  for (const Dim& dim : type.dims)
    if (dim.zigzag != 0) return broken("an order of ranks at the model's level: " + type.str());
  return type == type.whole() ? llvm::Error::success()
                              : broken("a split type at the model's level: " + type.str());
}

// All that a value touches lies in the arena. A slice ahead is not read in the last iteration, where
// its place would be one beyond the variable.
llvm::Error Verifier::place(const std::optional<Place>& place, const Type& type, const Op* def) {
  if (module_.level != Level::Rank) return llvm::Error::success();
  if (!place) return broken("no place at rank level");
  int64_t begin = place->offset, end = place->offset;
  if (begin % bytesPerElement(type.elem) != 0)
    return broken("place " + Twine(begin) + " is unaligned");
  bool isAhead = def && def->kind == OpKind::Read && def->isFlag("ahead");
  const Op* repeatAhead = isAhead ? def->parent()->owner() : nullptr;
  for (const auto& [dim, stride, ring] : place->strides) {
    auto repeat = std::find_if(repeats_.begin(), repeats_.end(),
                               [&, d = &dim](const auto& r) { return r.first == *d; });
    if (repeat == repeats_.end())
      return broken("place moves with '" + dim + "', which no enclosing repeat counts");
    if (stride < 0 || stride % bytesPerElement(type.elem) != 0)
      return broken("place moves by " + Twine(stride) + " bytes");
    if (ring < 0) return broken("place moves around a ring of " + Twine(ring));
    int64_t first = 0, last = (ring > 0 ? std::min(ring, repeat->second) : repeat->second) - 1;
    if (isAhead && repeatAhead->attrs.word("dim") == dim) {
      if (repeatAhead->isFlag("reverse")) ++first;
      else --last;
    }
    if (__builtin_add_overflow(begin, saturatingMul(stride, first), &begin) ||
        __builtin_add_overflow(end, saturatingMul(stride, last), &end))
      return broken("place lies outside the arena");
  }
  if (begin < 0 || __builtin_add_overflow(end, type.bytes(), &end) || end > module_.arenaBytes)
    return broken("place lies outside the arena");
  return llvm::Error::success();
}

llvm::Error Verifier::variable(const Variable& var) {
  if (llvm::Error error = type(var.type)) return error;
  if (var.stack.size() > var.type.dims.size()) return broken("more stack dims than dims");
  for (size_t i = 0; i < var.stack.size(); ++i)
    if (var.type.dims[i].name != var.stack[i])
      return broken("stack dim '" + var.stack[i] + "' is not leading");
  auto isScalar = [&](Elem elem) { return var.type == Type{elem, {}}; };
  switch (var.kind) {
    case VarKind::Input:
      if (var.type.elem != Elem::I32) return broken("an input holds i32");
      if (var.vocab < 1) return broken("an input needs a vocab");
      if (var.type.dims.size() != var.stack.size() + 2)
        return broken("an input has two dims: samples and positions");
      for (const std::string& name : {var.follows, var.documents}) {
        if (name.empty()) continue;
        // A stage has only the inputs that it reads.
        const Variable* other = module_.findVar(name);
        bool isElsewhere = !other && !module_.where.empty();
        bool isTokens =
            other && other->kind == VarKind::Input && other->type == var.type &&
            (name == var.follows || (other->follows.empty() && other->documents.empty()));
        if (!isElsewhere && !isTokens)
          return broken((name == var.follows ? "it follows '" : "it numbers documents of '") +
                        name + "', which is no input of its type");
      }
      if (!var.documents.empty() && var.vocab < var.type.dims.back().all())
        return broken("a sequence may have " + llvm::Twine(var.type.dims.back().all()) +
                      " documents, not " + llvm::Twine(var.vocab));
      break;
    case VarKind::Weight:
      if (!isFloat(var.type.elem)) return broken("a weight holds floating-point numbers");
      if (var.init.kind != "normal" && var.init.kind != "uniform" && var.init.kind != "const")
        return broken("unknown initialisation '" + var.init.kind + "'");
      if (!std::isfinite(var.balance) || var.balance < 0)
        return broken("it moves by " + llvm::Twine(numberText(var.balance)) + " a step");
      break;
    case VarKind::Copy:
    case VarKind::Gradient:
    case VarKind::Moment: {
      const Variable* of = module_.findVar(var.of);
      if (!of || of->kind != VarKind::Weight) return broken("it belongs to no weight");
      if (of->type.whole().dims != var.type.whole().dims)
        return broken("its dims are not those of its weight");
      break;
    }
    case VarKind::Sum: {
      const Variable* of = module_.findVar(var.of);
      if (!of || (of->kind != VarKind::Gradient && of->kind != VarKind::Metric) ||
          of->type.whole().dims != var.type.whole().dims)
        return broken("it is the sum of no gradient or metric of its dims");
      break;
    }
    case VarKind::Metric:
      if (var.type != var.type.whole()) return broken("all ranks have a metric");
      break;
    case VarKind::Step:
      if (!isScalar(Elem::I32)) return broken("the step is an i32[]");
      break;
    case VarKind::Slot:
      break;
  }
  if (var.flights < 1 || (var.flights > 1 && var.kind != VarKind::Slot))
    return broken("it has " + Twine(var.flights) + " flights");
  if (llvm::Error error = piece(var)) return error;
  if (llvm::Error error = place(var.place, var.type)) return error;
  if (!var.place || var.flights == 1) return llvm::Error::success();
  int64_t end = 0, bytes = saturatingMul(var.type.bytes(), var.flights);
  return __builtin_add_overflow(var.place->offset, bytes, &end) || end > module_.arenaBytes
             ? broken("its flights do not lie in the arena")
             : llvm::Error::success();
}

llvm::Error Verifier::piece(const Variable& var) {
  if (!var.piece) return llvm::Error::success();
  if (var.stack.empty()) return broken("it is a piece, but stacks nothing");
  int64_t first = var.piece->first, all = var.piece->all, size = var.type.dims.front().size;
  return first >= 0 && all <= kMaxWholeElements && size <= all && first <= all - size
             ? llvm::Error::success()
             : broken("its iterations " + Twine(first) + " and on are not of " + Twine(all));
}

// A variable's slice in the repeats around: they pick leading stack dims, of their own counts.
llvm::Error Verifier::slice(const Variable& var) {
  bool picks = true;
  for (size_t i = 0; i < var.stack.size(); ++i) {
    auto repeat = std::find_if(repeats_.begin(), repeats_.end(),
                               [&](const auto& r) { return r.first == var.stack[i]; });
    if (repeat == repeats_.end()) {
      picks = false;
      continue;
    }
    if (!picks) return broken("'@" + var.name + "' is sliced behind a stack dim that is not");
    if (repeat->second != var.type.dims[i].size)
      return broken("repeats '" + var.stack[i] + "' " + Twine(repeat->second) + " times, but '@" +
                    var.name + "' stacks " + Twine(var.type.dims[i].size));
  }
  return llvm::Error::success();
}

llvm::Error Verifier::structure(const Op& op, const Block& block) {
  const OpInfo& info = op.info();
  int operands = int(op.operands().size());
  if (operands < info.minOperands || (info.maxOperands >= 0 && operands > info.maxOperands))
    return broken("has " + Twine(operands) + " operands");
  bool accumulates = op.var && op.has(Accumulates);
  int results = int(op.results().size());
  if (accumulates ? results != 0 : info.results >= 0 && results != info.results)
    return broken("has " + Twine(results) + " results");
  if (op.has(Var) && !op.var) return broken("names no variable");
  if (op.var && !op.has(Var) && !op.has(Accumulates)) return broken("takes no variable");
  bool wantsBody = op.kind == OpKind::Repeat || op.kind == OpKind::Fused;
  if (wantsBody != bool(op.body)) return broken(wantsBody ? "has no body" : "takes no body");
  if (op.var && op.kind != OpKind::Zero)
    if (llvm::Error error = slice(*op.var)) return error;
  if (llvm::Error error = verifyAhead(op)) return error;
  for (const Value* operand : op.operands())
    if (!defined_.contains(operand)) return broken("an operand is not defined before it");
  for (const Value* result : op.results()) {
    if (llvm::Error error = type(result->type)) return error;
    if (llvm::Error error = place(result->place, result->type, &op)) return error;
  }
  if (op.kind == OpKind::Yield && (&op != block.ops.back() || !block.owner()))
    return broken("does not end a body");
  return llvm::Error::success();
}

// What a repeat carries and moves on a place an iteration: before it, and so many iterations on, in
// its body or behind it.
Type stopped(Type type, llvm::StringRef repeat) {
  for (Dim& dim : type.dims)
    if (!repeat.empty() && dim.moves == repeat) dim.moves.clear();
  return type;
}
Type movedOn(Type type, llvm::StringRef repeat, int64_t iterations, bool isBehind) {
  for (Dim& dim : type.dims)
    if (dim.moves == repeat && dim.isSplit())
      dim.moved = (dim.moved + iterations % ranksOver(dim.axes)) % ranksOver(dim.axes);
  return isBehind ? stopped(std::move(type), repeat) : type;
}

llvm::Error Verifier::body(const Op& op, unsigned depth) {
  const Block& body = *op.body;
  if (depth >= kMaxNesting) return broken("bodies nest deeper than " + Twine(kMaxNesting));
  if (body.ops.empty() || body.ops.back()->kind != OpKind::Yield)
    return broken("its body ends in no yield");
  if (body.args().size() != op.operands().size())
    return broken("its body takes " + Twine(body.args().size()) + " values, not " +
                  Twine(op.operands().size()));
  std::string around = op.kind == OpKind::Repeat ? op.attrs.word("dim") : "";
  for (size_t i = 0; i < body.args().size(); ++i)
    if (stopped(body.args()[i]->type, around) != op.operands()[i]->type)
      return broken("its body's value " + Twine(i) + " is not of its operand's type");
  const Op& yield = *body.ops.back();
  if (op.kind == OpKind::Repeat) {
    int64_t count = op.attrs.integer("count");
    std::string dim = op.attrs.word("dim");
    if (count < 1) return broken("counts " + Twine(count));
    if (dim.empty()) return broken("names no dim");
    for (const Value* arg : body.args())
      for (const Dim& carried : arg->type.dims)
        if (carried.moves == dim && op.isFlag("reverse"))
          return broken("moves '" + carried.name + "' on with its iterations, but in reverse");
    for (const auto& repeat : repeats_)
      if (repeat.first == dim) return broken("repeats '" + dim + "' within itself");
    if (op.results().size() != op.operands().size() ||
        yield.operands().size() != op.operands().size())
      return broken("starts, yields and ends different numbers of values");
    for (size_t i = 0; i < op.operands().size(); ++i)
      if (op.results()[i]->type != movedOn(body.args()[i]->type, dim, count, true) ||
          yield.operands()[i]->type != movedOn(body.args()[i]->type, dim, 1, false))
        return broken("value " + Twine(i) + " changes its type");
    // A carried value has one place, which its own repeat does not move.
    for (size_t i = 0; i < body.args().size(); ++i) {
      if (llvm::Error error = place(body.args()[i]->place, body.args()[i]->type)) return error;
      if (op.results()[i]->place != body.args()[i]->place)
        return broken("result " + Twine(i) + " lies elsewhere than what the body carries");
    }
    repeats_.push_back({dim, count});
  }
  // A fused body's values live in registers; they have no place.
  for (const Value* arg : body.args()) defined_.insert(arg);
  llvm::Error error = op.kind == OpKind::Fused ? verifyFused(op) : block(body, depth + 1);
  if (op.kind == OpKind::Repeat) repeats_.pop_back();
  for (const Value* arg : body.args()) defined_.erase(arg);
  return error;
}

llvm::Error Verifier::op(const Op& op, const Block& block, unsigned depth) {
  if (llvm::Error error = structure(op, block)) return error;
  if (op.body)
    if (llvm::Error error = body(op, depth)) return error;
  if (llvm::Error error = verifyShapes(op, block.enclosing(), sources_)) return error;
  if (llvm::Error error = balanced(op)) return error;
  if (module_.level != Level::Model && !module_.grid.axes.empty())
    if (llvm::Error error = verifySharding(op, module_.grid)) return error;
  for (const Value* result : op.results()) defined_.insert(result);
  return llvm::Error::success();
}

// Loads move a balanced weight, so it has no gradient: what it is used for must need none. Lower down
// its way to a route is a matter of casts, and @update only adds to it.
llvm::Error Verifier::balanced(const Op& read) {
  if (module_.level != Level::Model || read.kind != OpKind::Read || read.var->balance <= 0 ||
      isUpdate_)
    return llvm::Error::success();
  for (const Use& use : read.result()->uses())
    if (use.op->kind != OpKind::Route || use.index != 1)
      return broken("'@" + read.var->name +
                    "' is balanced, but is used for more than a route's bias");
  return llvm::Error::success();
}

llvm::Error Verifier::block(const Block& block, unsigned depth) {
  for (const Op* o : block.ops)
    if (llvm::Error error = op(*o, block, depth)) {
      std::string text = llvm::toString(std::move(error));
      // The innermost op is named; the ones around it add nothing.
      if (text.find("\n  in: ") == std::string::npos)
        text = std::string(o->info().text) + " " + text + "\n  in: " + printOp(*o);
      return broken(text);
    }
  for (const Op* o : block.ops)
    for (const Value* result : o->results()) defined_.erase(result);
  return llvm::Error::success();
}

llvm::Error Verifier::run() {
  if (module_.level == Level::Rank &&
      (module_.arenaBytes < 0 || module_.arenaBytes > kMaxElements * 8))
    return broken("the arena has " + Twine(module_.arenaBytes) + " bytes");
  if (llvm::Error error = verifyGrid(module_.grid)) return error;
  for (const auto& [name, at] : module_.where) {
    auto axis = llvm::find_if(module_.grid.axes,
                              [&, n = &name](const GridAxis& a) { return a.name == *n; });
    if (axis == module_.grid.axes.end() || at < 0 || at >= axis->size)
      return broken("the grid has no '" + name + "' " + Twine(at));
  }
  int64_t microbatches = module_.settings.integer("microbatches", 1);
  if (microbatches < 1) return broken("the module has " + Twine(microbatches) + " microbatches");
  // Places of an input's slices move with the microbatch, as with a repeat.
  repeats_.push_back({"microbatch", microbatches});
  for (const auto& var : module_.vars)
    if (llvm::Error error = variable(*var))
      return broken("variable '@" + var->name + "': " + llvm::toString(std::move(error)));
  for (const auto& function : module_.functions) {
    isUpdate_ = function->name == "update";
    if (llvm::Error error = block(*function->body, 0))
      return broken("function '@" + function->name + "': " + llvm::toString(std::move(error)));
  }
  llvm::StringSet<> functions;  // there may be thousands of calls
  for (const auto& function : module_.functions) functions.insert(function->name);
  for (const Call& call : module_.schedule) {
    if (!functions.contains(call.function))
      return broken("the schedule calls '@" + call.function + "', which there is not");
    if (call.microbatch < -1 || call.microbatch >= microbatches)
      return broken("the schedule calls '@" + call.function + "' for microbatch " +
                    Twine(call.microbatch) + " of " + Twine(microbatches));
  }
  for (const auto& var : module_.vars)
    if (var->kind == VarKind::Input && !var->stack.empty() &&
        (var->stack != Words{"microbatch"} || var->type.dims[0].size != microbatches))
      return broken("variable '@" + var->name + "': an input's only stack dim is 'microbatch'");
  return llvm::Error::success();
}

}  // namespace

llvm::Error verify(const Module& module) {
  if (std::string what = module.cluster.broken(); !what.empty())
    return broken("cluster '" + module.cluster.name + "': " + what);
  return Verifier(module).run();
}

}  // namespace planc
