// What a stage runs of the step's functions. From what a stage must write follows backwards what it
// must make. A sum whose terms lie on several stages is made of shares: each stage adds what it has, a
// term that several hold is the first one's, and where the total is wanted the shares are added up over
// the stages. Norms, losses and tied gradients all come out of this; none is named here. Tested by
// tests/passes/pipeline and tests/unit/pipeline_test.cpp.
#include "ir/sharding.h"
#include "llvm/ADT/STLExtras.h"
#include "passes/pipeline.h"

namespace planc {

// ---- Who holds what

const Variable& familyOf(const Module& whole, const Variable& var) {
  const Variable* root = &var;
  while (!root->of.empty()) root = whole.findVar(root->of);
  return *root;
}

const std::set<int>& ModelCut::touchers(const Variable& var) const {
  static const std::set<int> kNone;
  auto found = touchersOf.find(&var);
  return found == touchersOf.end() ? kNone : found->second;
}

const std::set<int>& ModelCut::holders(const Variable& var) const {
  // What no chunk uses is updated all the same: on the first stage.
  static const std::set<int> kFirst{0};
  auto found = holdersOf.find(&familyOf(*whole, var));
  return found == holdersOf.end() ? kFirst : found->second;
}

bool ModelCut::isShared(const Variable& sum) const {
  if (sum.kind != VarKind::Sum || repeatFor(sum) >= 0) return false;
  const std::set<int>& adders = touchers(sum);
  return adders.size() != 1 || familyOf(*whole, sum).kind != VarKind::Weight ||
         adders != holders(sum);
}

bool ModelCut::isHeldBefore(const Variable& var, int stage) const {
  if (repeatFor(var) >= 0 || var.kind == VarKind::Sum ||
      familyOf(*whole, var).kind != VarKind::Weight)
    return false;
  return *holders(var).begin() < stage;
}

void addStageSums(Module& whole, const ModelCut& cut) {
  std::set<const Variable*> added;
  for (const Function* function : {cut.forward.function, cut.backward.function})
    walk(*function->body, [&](const Op* op) {
      if (op->kind == OpKind::Accum) added.insert(op->var);
    });
  std::vector<std::pair<Variable*, Variable*>> sums;
  for (size_t i = 0, count = whole.vars.size(); i < count; ++i) {
    Variable& var = *whole.vars[i];
    bool isTotal = var.kind == VarKind::Metric || var.kind == VarKind::Gradient;
    if (!isTotal || !added.count(&var) || cut.repeatFor(var) >= 0) continue;
    const std::set<int>& adders = cut.touchers(var);
    if (var.kind == VarKind::Gradient && adders.size() == 1 && cut.holders(var) == adders) continue;
    Variable total = var;
    var.kind = VarKind::Sum;
    var.of = total.name;
    whole.rename(var, total.name + ".sum");
    sums.push_back({&var, whole.addVar(std::move(total))});
  }
  if (sums.empty()) return;
  if (Function* update = whole.findFunction("update"))
    walk(*update->body, [&](Op* op) {
      for (const auto& [sum, total] : sums)
        if (op->var == sum) op->var = total;
    });
  Function* reduce = whole.findFunction("reduce");
  if (!reduce) {
    reduce = whole.addFunction("reduce");
    auto update = llvm::find_if(whole.functions, [](const auto& f) { return f->name == "update"; });
    if (update != whole.functions.end())
      std::rotate(update, whole.functions.end() - 1, whole.functions.end());
    auto at = llvm::find_if(whole.schedule, [](const Call& c) { return c.function == "update"; });
    whole.schedule.insert(at, {"reduce", -1});
  }
  for (const auto& [sum, total] : sums) {
    Builder builder(reduce->body.get());
    builder.loc = sum->loc;
    builder.write(total, builder.read(sum));
  }
}

// ---- What a stage wants

StepMarks::StepMarks(const ModelCut& cut, const PipeSchedule& schedule, int stage)
    : cut_(cut), schedule_(schedule), stage_(stage) {
  for (int chunk = 0; chunk < schedule.chunks(); ++chunk)
    if (schedule.stageOf[size_t(chunk)] == stage) chunks_.push_back(chunk);
  for (const auto& function : cut.whole->functions)
    if (!isWork(function->name)) addRoots(*function, *function->body);
}

void StepMarks::join(const std::set<const Value*>& totals) {
  for (const Value* value : totals)
    if (contributes(value)) {
      totals_.insert(value);
      markShare(value);
    }
}

std::vector<int> StepMarks::chunksOf(int repeat) const {
  std::vector<int> chunks;
  for (int chunk : chunks_)
    if (auto [from, to] = cut_.iterations(chunk, repeat); from < to) chunks.push_back(chunk);
  return chunks;
}

void StepMarks::addRoots(const Function& function, const Block& block) {
  walk(block, [&](const Op* op) {
    if (!op->var || op->kind == OpKind::Read) return;
    const Variable& var = *op->var;
    std::vector<int> wanted;
    if (int repeat = cut_.repeatFor(var); repeat >= 0) {
      wanted = chunksOf(repeat);
    } else {
      // A total of the step is told by all ranks; what is counted before it, to those who use it.
      bool isTold = var.kind == VarKind::Metric && function.name != "begin";
      bool belongs = familyOf(*cut_.whole, var).kind == VarKind::Weight && var.kind != VarKind::Sum;
      const std::set<int>& stages = belongs ? cut_.holders(var) : cut_.touchers(var);
      if (isTold || stages.count(stage_)) wanted = {-1};
    }
    for (int chunk : wanted) {
      roots_.insert({op, chunk});
      operands(*op, chunk, false);
    }
  });
}

// Marks what an op takes; `isShare`: it makes a share of its own.
void StepMarks::operands(const Op& op, int chunk, bool isShare) {
  for (const Value* operand : op.operands()) {
    const Whereabouts& where = whereIs(operand);
    if (where.kind == Whereabouts::Share) {
      if (!isShare) totals_.insert(operand);
      markShare(operand);
    } else if (isShare && op.kind == OpKind::Add && where.kind != Whereabouts::Spread) {
      if (speaksFor(operand)) mark(operand, -1);
    } else {
      bool isOwn = where.kind == Whereabouts::Spread || operand->block()->owner();
      mark(operand, isOwn ? chunk : -1);
    }
  }
}

void StepMarks::mark(const Value* value, int chunk) {
  if (!marked_.insert({value, chunk}).second || !value->def()) return;
  operands(*value->def(), chunk, false);
}

void StepMarks::markShare(const Value* value) {
  if (!shares_.insert(value).second || !contributes(value)) return;
  const Op& op = *value->def();
  int repeat = -1;
  for (const Value* operand : op.operands())
    if (whereIs(operand).kind == Whereabouts::Spread) repeat = whereIs(operand).repeat;
  if (repeat < 0) return operands(op, -1, true);
  for (int chunk : chunksOf(repeat)) operands(op, chunk, true);
}

bool StepMarks::speaksFor(const Value* value) const {
  const Whereabouts& where = whereIs(value);
  return where.kind == Whereabouts::Some ? *where.stages.begin() == stage_ : stage_ == 0;
}

bool StepMarks::contributes(const Value* value) const {
  const Op& op = *value->def();
  if (op.kind == OpKind::Read) return cut_.touchers(*op.var).count(stage_) != 0;
  return llvm::any_of(op.operands(), [&](const Value* operand) {
    const Whereabouts& where = whereIs(operand);
    if (where.kind == Whereabouts::Share) return contributes(operand);
    if (where.kind == Whereabouts::Spread) return !chunksOf(where.repeat).empty();
    return (op.kind == OpKind::Add || op.kind == OpKind::SumSquares) && speaksFor(operand);
  });
}

const Whereabouts& StepMarks::whereIs(const Value* value) const {
  if (auto known = where_.find(value); known != where_.end()) return known->second;
  Whereabouts where;
  const Op* op = value->def();
  if (op && op->kind == OpKind::Read) {
    const Variable& var = *op->var;
    if (int repeat = cut_.repeatFor(var); repeat >= 0) where = {Whereabouts::Spread, {}, repeat};
    else if (cut_.isShared(var)) where.kind = Whereabouts::Share;
    else if (familyOf(*cut_.whole, var).kind == VarKind::Weight)
      where = {Whereabouts::Some, cut_.holders(var)};
  } else if (op) {
    std::vector<Whereabouts> operands;
    for (const Value* operand : op->operands()) operands.push_back(whereIs(operand));
    bool isSum = op->kind == OpKind::Add;
    for (unsigned i = 0; i < operands.size(); ++i) {
      const Whereabouts& from = operands[i];
      if (where.kind == Whereabouts::Spread || where.kind == Whereabouts::Share) break;
      switch (from.kind) {
        case Whereabouts::All:
          break;
        case Whereabouts::Spread: {
          bool isStack =
              value->block()->owner() ||
              value->type.has(cut_.repeats[size_t(from.repeat)].forward->attrs.word("dim"));
          where = isStack ? from : Whereabouts{Whereabouts::Share};
          break;
        }
        case Whereabouts::Share:
          if (isSum || linearIn(*op, i) != Linear::No || op->has(Comm)) where = from;
          break;
        case Whereabouts::Some:
          if (op->kind == OpKind::SumSquares) where = {Whereabouts::Share};
          else if (where.kind == Whereabouts::All) where = from;
          else if (isSum && where.stages != from.stages) where = {Whereabouts::Share};
          break;
      }
    }
  }
  return where_.try_emplace(value, std::move(where)).first->second;
}

// ---- What a stage's module gets

void StageBuilder::addStep() {
  for (const auto& function : cut_.whole->functions)
    if (!isWork(function->name)) addStepFunction(*function);
}

void StageBuilder::addStepFunction(const Function& function) {
  Builder builder(module_->addFunction(function.name)->body.get());
  step_.clear();
  shares_.clear();
  totals_.clear();
  std::vector<int> chunks{-1};
  chunks.insert(chunks.end(), chunks_.begin(), chunks_.end());
  // What other stages have a part in comes last: until then nobody waits for them.
  std::vector<const Op*> later;
  std::vector<const Value*> totals;
  for (const Op* op : function.body->ops) {
    if (op->kind == OpKind::Repeat) {
      for (int chunk : chunks) stepRepeats(builder, *op, chunk);
      continue;
    }
    if (op->results().empty()) {
      bool isTotal =
          op->kind == OpKind::Write && mine().whereIs(op->operand(0)).kind == Whereabouts::Share;
      if (isTotal) later.push_back(op);
      else
        for (int chunk : chunks)
          if (mine().isRoot(*op, chunk)) stepOp(builder, *op, chunk);
      continue;
    }
    if (mine().whereIs(op->result()).kind == Whereabouts::Share) {
      shareOp(builder, *op);
      // All that take part add up at the same place of the function.
      if (!mine().wantsTotal(op->result())) continue;
      bool isStored = llvm::all_of(op->result()->uses(),
                                   [](const Use& use) { return use.op->kind == OpKind::Write; });
      if (isStored) totals.push_back(op->result());
      else total(builder, op->result());
      continue;
    }
    for (int chunk : chunks)
      if (llvm::any_of(op->results(), [&](const Value* v) { return mine().isMarked(v, chunk); }))
        stepOp(builder, *op, chunk);
  }
  for (const Value* value : totals) total(builder, value);
  for (const Op* op : later)
    if (mine().isRoot(*op, -1)) stepOp(builder, *op, -1);
}

Value* StageBuilder::stepValue(Builder& builder, const Value* value, int chunk) {
  const Whereabouts& where = mine().whereIs(value);
  if (where.kind == Whereabouts::Share) return total(builder, value);
  bool isOwn = where.kind == Whereabouts::Spread || value->block()->owner();
  return step_.at({value, isOwn ? chunk : -1});
}

void StageBuilder::stepOp(Builder& builder, const Op& op, int chunk) {
  llvm::SmallVector<Value*> operands;
  for (const Value* operand : op.operands()) operands.push_back(stepValue(builder, operand, chunk));
  Op* made = builder.copy(op, operands, op.var ? variable(*op.var, chunk) : nullptr);
  for (const Value* result : op.results()) {
    Value* mine = step_[{result, chunk}] = made->result(result->index());
    const Whereabouts& where = this->mine().whereIs(result);
    if (where.kind != Whereabouts::Spread) continue;
    // Of a whole stack, the chunk's part.
    auto [from, to] = cut_.iterations(chunk, where.repeat);
    int at = mine->type.find(cut_.repeats[size_t(where.repeat)].forward->attrs.word("dim"));
    if (at >= 0) mine->type.dims[size_t(at)].size = to - from;
  }
}

// A repeat over a stack: a chunk runs its own iterations of what is cut, for each repeat of the model
// whose stacks it goes over; the stage runs what is not cut once.
void StageBuilder::stepRepeats(Builder& builder, const Op& op, int chunk) {
  std::set<int> repeats;
  walk(*op.body, [&](const Op* inner) {
    if (inner->var && mine().isRoot(*inner, chunk)) repeats.insert(cut_.repeatFor(*inner->var));
  });
  for (int repeat : repeats) {
    builder.loc = op.loc;
    auto [from, to] = repeat < 0 ? std::pair<int64_t, int64_t>(0, op.attrs.integer("count"))
                                 : cut_.iterations(chunk, repeat);
    Op* made = builder.repeat(op.attrs.word("dim"), to - from, op.isFlag("reverse"), {});
    if (from > 0) made->attrs.set("first", from);
    stepBody(*op.body, *made->body, chunk, repeat);
  }
}

void StageBuilder::stepBody(const Block& from, Block& to, int chunk, int repeat) {
  Builder builder(&to);
  for (const Op* op : from.ops) {
    if (op->kind == OpKind::Repeat) {
      bool isWanted = false;
      walk(*op->body, [&](const Op* inner) {
        isWanted |= mine().isRoot(*inner, chunk) && cut_.repeatFor(*inner->var) == repeat;
      });
      if (!isWanted) continue;
      builder.loc = op->loc;
      Op* made = builder.repeat(op->attrs.word("dim"), op->attrs.integer("count"),
                                op->isFlag("reverse"), {});
      stepBody(*op->body, *made->body, chunk, repeat);
      continue;
    }
    bool isWanted = op->kind == OpKind::Yield ||
                    (mine().isRoot(*op, chunk) && cut_.repeatFor(*op->var) == repeat);
    for (const Value* result : op->results()) {
      const Whereabouts& where = mine().whereIs(result);
      bool isOthers = where.kind == Whereabouts::Spread && where.repeat != repeat;
      isWanted |= mine().isMarked(result, chunk) && !isOthers;
    }
    if (isWanted) stepOp(builder, *op, chunk);
  }
}

// The stage's part of a term; null: it has none.
Value* StageBuilder::share(const Value* value) {
  if (mine().whereIs(value).kind == Whereabouts::Share) return shares_.lookup(value);
  return mine().speaksFor(value) ? step_.at({value, -1}) : nullptr;
}

void StageBuilder::shareOp(Builder& builder, const Op& op) {
  const Value* result = op.result();
  if (!mine().isShareWanted(result) || !mine().contributes(result)) return;
  builder.loc = op.loc;
  llvm::SmallVector<Value*> terms;
  int repeat = -1;
  for (const Value* operand : op.operands())
    if (mine().whereIs(operand).kind == Whereabouts::Spread)
      repeat = mine().whereIs(operand).repeat;
  if (repeat >= 0) {
    for (int chunk : mine().chunksOf(repeat)) {
      stepOp(builder, op, chunk);
      terms.push_back(step_.at({result, chunk}));
    }
  } else if (op.kind == OpKind::Add) {
    for (const Value* operand : op.operands())
      if (Value* term = share(operand)) terms.push_back(term);
  } else {
    llvm::SmallVector<Value*> operands;
    for (const Value* operand : op.operands()) {
      bool isShare = mine().whereIs(operand).kind == Whereabouts::Share;
      operands.push_back(isShare ? shares_.lookup(operand) : stepValue(builder, operand, -1));
    }
    Op* made = builder.create(op.kind, operands, {result->type}, op.attrs,
                              op.var ? variable(*op.var, -1) : nullptr, result->name);
    terms.push_back(made->result());
  }
  Value* sum = terms.front();
  for (Value* term : llvm::drop_begin(terms))
    sum = builder.value(OpKind::Add, {sum, term}, result->type, {}, result->name);
  shares_[result] = sum;
}

Value* StageBuilder::total(Builder& builder, const Value* value) {
  Value*& made = totals_[value];
  if (made) return made;
  Words among;
  for (int stage = 0; stage < schedule_.stages; ++stage)
    if (marks_[size_t(stage)].wantsTotal(value)) among.push_back(std::to_string(stage));
  builder.loc = value->def()->loc;
  Value* mine = shares_.lookup(value);
  if (!mine) mine = builder.constant(0, value->type);
  if (among.size() == 1) return made = mine;
  const std::string& axis = cut_.whole->pipeline.axis;
  Type type = value->type;
  for (const Axis& part : module_->grid.find(axis)) type.partial.push_back(part);
  module_->grid.sort(type.partial);
  Attrs attrs{{"axes", Words{axis}}};
  Value* share = builder.value(OpKind::StageShare, {mine}, type, attrs, value->name);
  if (int(among.size()) < schedule_.stages) attrs.set("among", among);
  return made = builder.value(OpKind::AllReduce, {share}, value->type, attrs, value->name);
}

}  // namespace planc
