// Runs a model-level module: variables by name, functions op by op, `repeat` as a plain loop. Every
// value is kept until its function ends. Copies of weights in another precision are the weights
// themselves here, because nothing is rounded.
// Tested by tests/unit/reference_test.cpp and, through whole models, tests/golden.
#include "runtime/reference.h"

#include <algorithm>
#include <cassert>

#include "llvm/ADT/STLExtras.h"
#include "runtime/random.h"

namespace planc {
namespace {

// Initial weights are rounded to what the runtime stores, so that both start from the same numbers.
double stored(double value, Elem elem) { return elem == Elem::F64 ? value : double(float(value)); }

Array initialValue(const Variable& variable, uint64_t seed) {
  Array values(size_t(variable.type.elements()), 0.0);
  if (variable.kind != VarKind::Weight) return values;
  uint64_t key = randomKey(seed, variable.name);
  for (size_t i = 0; i < values.size(); ++i) {
    double unit = variable.init.kind == "normal"    ? normalAt(key, i)
                  : variable.init.kind == "uniform" ? uniformAt(key, i)
                                                    : 1.0;
    values[i] = stored(variable.init.value * unit, variable.type.elem);
  }
  return values;
}

void addTo(double* to, const Array& from, bool overwrite) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = overwrite ? from[i] : to[i] + from[i];
}

}  // namespace

std::vector<Type> resultTypes(const Op& op) {
  if (op.has(Accumulates) && op.var != nullptr) {
    return {op.var->slice(op.parent()->enclosing())};
  }
  std::vector<Type> types;
  for (const Value* result : op.results()) types.push_back(result->type);
  return types;
}

Reference::Reference(const Module& module) : module_(module) {
  uint64_t seed = uint64_t(module.settings.integer("seed"));
  for (const auto& variable : module.vars) {
    if (variable->kind != VarKind::Copy) {
      vars_.emplace(variable->name, initialValue(*variable, seed));
    }
  }
}

Array& Reference::var(llvm::StringRef name) {
  const Variable* variable = module_.findVar(name);
  if (variable != nullptr && variable->kind == VarKind::Copy) name = variable->of;
  auto found = vars_.find(name.str());
  assert(found != vars_.end() && "no such variable");
  return found->second;
}

void Reference::step(int64_t step) {
  RunContext context;
  context.seed = uint64_t(module_.settings.integer("seed"));
  context.step = step;
  for (const Call& call : module_.schedule) {
    context.microbatch = std::max<int64_t>(call.microbatch, 0);
    run(*module_.findFunction(call.function), context);
  }
}

void Reference::run(const Function& function, const RunContext& context) {
  for (const auto& variable : module_.vars) {
    if (variable->kind == VarKind::Step) var(variable->name) = {double(context.step)};
  }
  Values values;
  runBlock(*function.body, context, values);
}

std::pair<size_t, size_t> Reference::slice(const Op& op, const RunContext& context) {
  const Variable& variable = *op.var;
  Words enclosing = op.parent()->enclosing();
  // The value's own type says which stack dims it keeps whole.
  Type kept;
  if (op.kind == OpKind::Read) kept = op.result()->type;
  if (op.kind == OpKind::Write || op.kind == OpKind::Accum) kept = op.operand(0)->type;
  if (op.has(Accumulates)) kept = variable.slice(enclosing);

  size_t start = 0, count = size_t(variable.type.elements());
  for (const std::string& dim : variable.stack) {
    if (kept.has(dim)) break;
    count /= size_t(variable.type.size(dim));
    auto loop = llvm::find(enclosing, dim);
    int64_t index = loop == enclosing.end() ? context.microbatch
                                            : context.iteration[size_t(loop - enclosing.begin())];
    start += size_t(index) * count;
  }
  return {start, count};
}

void Reference::runBlock(const Block& block, const RunContext& context, Values& values) {
  for (const Op* op : block.ops) {
    std::vector<Array> operands;
    for (const Value* operand : op->operands()) operands.push_back(values.at(operand));
    bool overwrite = op->isFlag("first") && context.microbatch == 0;
    switch (op->kind) {
      case OpKind::Read: {
        auto [start, count] = slice(*op, context);
        const double* data = var(op->var->name).data() + start;
        values[op->result()] = Array(data, data + count);
        break;
      }
      case OpKind::Write:
      case OpKind::Accum:
        addTo(var(op->var->name).data() + slice(*op, context).first, operands[0],
              overwrite || op->kind == OpKind::Write);
        break;
      case OpKind::Zero:
        var(op->var->name).assign(var(op->var->name).size(), 0.0);
        break;
      case OpKind::Repeat:
        runRepeat(*op, context, values);
        break;
      case OpKind::Yield:
        break;
      default: {
        std::vector<Array> results = referenceOp(*op, std::move(operands), context);
        if (op->has(Accumulates) && op->var != nullptr) {
          addTo(var(op->var->name).data() + slice(*op, context).first, results[0], overwrite);
          break;
        }
        for (size_t i = 0; i < results.size(); ++i) {
          values[op->result(unsigned(i))] = std::move(results[i]);
        }
      }
    }
  }
}

void Reference::runRepeat(const Op& op, const RunContext& context, Values& values) {
  const Block& body = *op.body;
  std::vector<Array> carried;
  for (const Value* operand : op.operands()) carried.push_back(values.at(operand));

  std::vector<int64_t> iteration = context.iteration.vec();
  iteration.push_back(0);
  RunContext inner = context;
  inner.iteration = iteration;
  int64_t count = op.attrs.integer("count");
  for (int64_t i = 0; i < count; ++i) {
    iteration.back() = op.isFlag("reverse") ? count - 1 - i : i;
    for (size_t a = 0; a < carried.size(); ++a) values[body.args()[a]] = carried[a];
    runBlock(body, inner, values);
    const Op* yield = body.ops.back();
    for (size_t a = 0; a < carried.size(); ++a) carried[a] = values.at(yield->operand(unsigned(a)));
  }
  for (size_t a = 0; a < carried.size(); ++a) values[op.result(unsigned(a))] = carried[a];
}

}  // namespace planc
