// Where the model's two functions are cut, and what crosses the cuts. Tested by tests/passes/pipeline.
#include <functional>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "passes/pipeline.h"

namespace planc {
namespace {

bool isCut(const Op& op, const Module& whole) {
  return op.kind == OpKind::Repeat && llvm::is_contained(whole.pipeline.dims, op.attrs.word("dim"));
}

// The value at the top of a function that an operand is, whatever body the op stands in; null: a
// body's own.
const Value* topValue(const Value* value, const Function& function) {
  return value->block() == function.body.get() ? value : nullptr;
}

// Calls f(value) for the function's own values that an op needs, in its bodies too; `begins`: whether it
// also needs what a repeat begins with.
template <class F>
void forOperands(const Op& op, const Function& function, F&& f, bool begins = true) {
  for (const Value* operand : op.operands())
    if (const Value* top = topValue(operand, function); top && begins) f(top);
  if (!op.body) return;
  walk(*op.body, [&](const Op* inner) {
    for (const Value* operand : inner->operands())
      if (const Value* top = topValue(operand, function)) f(top);
  });
}

// Calls f(chunk, op, begins) for all that chunks do, in order: a repeat once for each of its parts, of which
// only the first begins.
template <class F>
void forWork(const FunctionCut& cut, F&& f) {
  for (const Part& part : cut.parts) {
    for (const Op* op : part.ops)
      if (isPlaced(*op)) f(part.chunk, *op, true);
    if (part.repeat) f(part.chunk, *part.repeat, part.isFirst);
  }
}

// What stands behind local values, which are made where they are wanted.
template <class F>
void forOrigins(const Value* value, F&& f) {
  if (!isLocal(value)) return f(value);
  if (value->def()->kind == OpKind::Read && value->def()->var->kind == VarKind::Slot) f(value);
  for (const Value* operand : value->def()->operands()) forOrigins(operand, f);
}

class Cutter {
 public:
  Cutter(ModelCut& cut, const Function& function, bool isBackward, FunctionCut& into)
      : model_(cut), function_(function), into_(into) {
    into.function = &function;
    into.isBackward = isBackward;
    into.takes.resize(size_t(cut.chunks()));
  }

  void parts();
  // Every chunk gets what its ops need from the chunks before it.
  void connect();
  // A chunk needs a value, beside what its ops take.
  void need(const Value* value, int chunk);

 private:
  int chunkOf(int64_t iteration) const {
    auto above = llvm::upper_bound(model_.bounds, iteration);
    return int(above - model_.bounds.begin()) - 1;
  }
  void addRepeat(const Op& op, size_t number);

  ModelCut& model_;
  const Function& function_;
  FunctionCut& into_;
  llvm::DenseMap<const Value*, int> made_;  // by which chunk
};

void Cutter::addRepeat(const Op& op, size_t number) {
  const CutRepeat& repeat = model_.repeats[number];
  std::vector<Part> parts;
  for (int chunk = 0; chunk < model_.chunks(); ++chunk) {
    auto [from, to] = model_.iterations(chunk, int(number));
    if (from == to) continue;
    Part part{chunk, {}, &op, from, to - from, from == 0, to == repeat.count};
    if (into_.isBackward) std::swap(part.isFirst, part.isLast);
    parts.push_back(part);
  }
  if (into_.isBackward) std::reverse(parts.begin(), parts.end());
  into_.parts.insert(into_.parts.end(), parts.begin(), parts.end());
}

// Ops in a row belong to the chunk of the iteration behind them, in the model's order; what stands
// behind all repeats to the last.
void Cutter::parts() {
  size_t count = model_.repeats.size();
  size_t passed = into_.isBackward ? count : 0;  // repeats in front, in the model's order
  auto straight = [&] {
    int64_t next = passed < count ? model_.repeats[passed].begin : model_.bounds.back() - 1;
    return Part{chunkOf(next), {}};
  };
  into_.parts.push_back(straight());
  for (const Op* op : function_.body->ops) {
    if (!isCut(*op, *model_.whole)) {
      into_.parts.back().ops.push_back(op);
      continue;
    }
    if (into_.isBackward) --passed;
    addRepeat(*op, passed);
    if (!into_.isBackward) ++passed;
    into_.parts.push_back(straight());
  }
  for (const Part& part : into_.parts) {
    for (const Op* op : part.ops)
      for (const Value* result : op->results())
        if (!isLocal(result)) made_[result] = part.chunk;
    if (part.repeat && part.isLast)
      for (const Value* result : part.repeat->results()) made_[result] = part.chunk;
  }
}

void Cutter::need(const Value* value, int chunk) {
  forOrigins(value, [&](const Value* origin) {
    auto made = made_.find(origin);
    if (made == made_.end()) return;  // a slot, made anew by each who reads it
    for (; chunk != made->second; chunk = into_.before(chunk))
      if (!into_.takes[size_t(chunk)].insert(origin)) return;  // the rest of the way is known
  });
}

void Cutter::connect() {
  for (const Part& part : into_.parts)
    if (part.repeat && !part.isFirst)
      for (const Value* arg : part.repeat->body->args())
        into_.takes[size_t(part.chunk)].insert(arg);
  forWork(into_, [&](int chunk, const Op& op, bool begins) {
    forOperands(
        op, function_, [&](const Value* value) { need(value, chunk); }, begins);
  });
}

// Which slots of values from outside repeats each chunk's backward reads: its forward saves them.
std::vector<std::set<const Variable*>> slotsRead(const FunctionCut& cut, int chunks) {
  std::vector<std::set<const Variable*>> slots{size_t(chunks)};
  auto add = [&](const Value* value, int chunk) {
    forOrigins(value, [&](const Value* origin) {
      const Op* def = origin->def();
      if (def && def->kind == OpKind::Read && def->var->kind == VarKind::Slot)
        slots[size_t(chunk)].insert(def->var);
    });
  };
  forWork(cut, [&](int chunk, const Op& op, bool begins) {
    forOperands(
        op, *cut.function, [&](const Value* value) { add(value, chunk); }, begins);
    if (!op.body) return;
    walk(*op.body, [&](const Op* inner) {
      bool isOuter = inner->kind == OpKind::Read && inner->var->kind == VarKind::Slot &&
                     inner->var->stack.empty();
      if (isOuter) slots[size_t(chunk)].insert(inner->var);
    });
  });
  return slots;
}

// Stacked variables belong to the repeat in whose body they stand, and so does what belongs to them.
void findStacks(ModelCut& cut) {
  auto add = [&](const Op& repeat, int number) {
    walk(*repeat.body, [&](const Op* op) {
      if (op->var && !op->var->stack.empty() && op->var->stack.front() == repeat.attrs.word("dim"))
        cut.repeatOf[op->var] = number;
    });
  };
  for (size_t i = 0; i < cut.repeats.size(); ++i) {
    add(*cut.repeats[i].forward, int(i));
    add(*cut.repeats[i].backward, int(i));
  }
  for (bool isChanged = true; isChanged;) {
    isChanged = false;
    for (const auto& var : cut.whole->vars) {
      const Variable* of = var->of.empty() ? nullptr : cut.whole->findVar(var->of);
      if (!of) continue;
      auto mine = cut.repeatOf.find(var.get()), its = cut.repeatOf.find(of);
      if ((mine == cut.repeatOf.end()) == (its == cut.repeatOf.end())) continue;
      isChanged = true;
      if (mine == cut.repeatOf.end()) cut.repeatOf[var.get()] = its->second;
      else cut.repeatOf[of] = mine->second;
    }
  }
}

void findTouched(ModelCut& cut) {
  cut.touched.resize(size_t(cut.chunks()));
  for (const FunctionCut* function : {&cut.forward, &cut.backward})
    forWork(*function, [&](int chunk, const Op& op, bool begins) {
      auto& touched = cut.touched[size_t(chunk)];
      std::function<void(const Value*)> origins = [&](const Value* value) {
        if (!isLocal(value)) return;
        if (value->def()->var) touched.insert(value->def()->var);
        for (const Value* operand : value->def()->operands()) origins(operand);
      };
      if (op.var) touched.insert(op.var);
      forOperands(op, *function->function, origins, begins);
      if (!op.body) return;
      walk(*op.body, [&](const Op* inner) {
        if (inner->var) touched.insert(inner->var);
      });
    });
}

}  // namespace

bool isLocal(const Value* value) {
  const Op* op = value->def();
  if (!op || value->block()->owner()) return false;
  switch (op->kind) {
    case OpKind::Read:
    case OpKind::Const:
      return true;
    case OpKind::Sum:
      // Another order in memory; what adds up is work.
      if (op->result()->type.dims.size() != op->operand(0)->type.dims.size()) return false;
      [[fallthrough]];
    case OpKind::Cast:
    case OpKind::AllGather:
    case OpKind::ShardSlice:
    case OpKind::OneCopy:
      return !op->var && llvm::all_of(op->operands(), isLocal);
    default:
      return false;
  }
}

std::pair<int64_t, int64_t> ModelCut::iterations(int chunk, int repeat) const {
  const CutRepeat& cut = repeats[size_t(repeat)];
  int64_t from = std::max(bounds[size_t(chunk)], cut.begin) - cut.begin;
  int64_t to = std::min(bounds[size_t(chunk) + 1], cut.begin + cut.count) - cut.begin;
  return from < to ? std::pair(from, to) : std::pair<int64_t, int64_t>(0, 0);
}

std::vector<CutRepeat> findRepeats(const Module& whole, Diagnostics& diags) {
  std::vector<CutRepeat> repeats;
  std::vector<const Op*> backward;
  auto collect = [&](llvm::StringRef function, std::vector<const Op*>& into) {
    if (const Function* found = whole.findFunction(function))
      for (const Op* op : found->body->ops)
        if (isCut(*op, whole)) into.push_back(op);
  };
  std::vector<const Op*> forward;
  collect("forward", forward);
  collect("backward", backward);
  std::reverse(backward.begin(), backward.end());
  bool fits = !forward.empty() && forward.size() == backward.size();
  int64_t first = 0;
  for (size_t i = 0; fits && i < forward.size(); ++i) {
    int64_t count = forward[i]->attrs.integer("count");
    fits = backward[i]->attrs.integer("count") == count &&
           backward[i]->attrs.word("dim") == forward[i]->attrs.word("dim");
    repeats.push_back({forward[i], backward[i], count, first});
    first += count;
  }
  if (fits) return repeats;
  diags.report(whole.pipeline.loc, Diag::NoStages, llvm::join(whole.pipeline.dims, "', '"));
  return {};
}

ModelCut cutModel(const Module& whole, std::vector<CutRepeat> repeats, std::vector<int64_t> bounds,
                  const PipeSchedule& schedule) {
  ModelCut cut;
  cut.whole = &whole;
  cut.repeats = std::move(repeats);
  cut.bounds = std::move(bounds);
  Cutter forward(cut, *whole.findFunction("forward"), false, cut.forward);
  Cutter backward(cut, *whole.findFunction("backward"), true, cut.backward);
  forward.parts();
  forward.connect();
  backward.parts();
  backward.connect();
  // What a chunk's backward reads, its own forward has saved, though another chunk made it.
  cut.saved = slotsRead(cut.backward, cut.chunks());
  for (const Op* op : whole.findFunction("forward")->body->ops)
    if (op->kind == OpKind::Write)
      for (int chunk = 0; chunk < cut.chunks(); ++chunk)
        if (cut.saved[size_t(chunk)].count(op->var)) forward.need(op->operand(0), chunk);
  findStacks(cut);
  findTouched(cut);
  for (int chunk = 0; chunk < cut.chunks(); ++chunk)
    for (const Variable* var : cut.touched[size_t(chunk)]) {
      int stage = schedule.stageOf[size_t(chunk)];
      cut.touchersOf[var].insert(stage);
      cut.holdersOf[&familyOf(whole, *var)].insert(stage);
    }
  return cut;
}

}  // namespace planc
