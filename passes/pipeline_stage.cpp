// A stage's module: its chunks' forward and backward, cloned from the whole step with the variables that
// they touch. Tested by tests/passes/pipeline and, in numbers, by every `planrun verify` of a pipeline.
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/ErrorHandling.h"
#include "passes/dead_ops.h"
#include "passes/pipeline.h"

namespace planc {

StageBuilder::StageBuilder(const ModelCut& cut, const PipeSchedule& schedule,
                           const Timeline& timeline, llvm::ArrayRef<StepMarks> marks, int number)
    : cut_(cut),
      schedule_(schedule),
      timeline_(timeline),
      marks_(marks),
      number_(number),
      chunks_(mine().chunks()) {}

// Stacks and saved values are a chunk's own, everything else the stage's.
std::string StageBuilder::nameOf(const Variable& var, int chunk) const {
  bool isOwn = cut_.repeatFor(var) >= 0 || var.kind == VarKind::Slot;
  if (!isOwn || !holdsSeveral() || var.output) return var.name;
  return var.name + "." + std::to_string(chunk);
}

Variable* StageBuilder::variable(const Variable& var, int chunk) {
  int repeat = cut_.repeatFor(var);
  bool isStacked = repeat >= 0;
  std::pair<const Variable*, int> key{&var, isStacked || var.kind == VarKind::Slot ? chunk : -1};
  if (auto known = vars_.find(key); known != vars_.end()) return known->second;
  Variable made = var;
  made.name = nameOf(var, chunk);
  if (!var.of.empty()) made.of = variable(*cut_.whole->findVar(var.of), chunk)->name;
  if (isStacked) {
    auto [from, to] = cut_.iterations(chunk, repeat);
    int64_t all = cut_.repeats[size_t(repeat)].count;
    made.type.dims.front().size = to - from;
    bool isPart = to - from != all || made.name != var.name;
    if (isPart) made.piece = Piece{var.name, from, all};
  } else {
    made.tied = cut_.isHeldBefore(var, number_);
  }
  return vars_[key] = module_->addVar(std::move(made));
}

// Where a value lies that goes from one chunk to the next: on two stages, or on one.
Variable* StageBuilder::boundary(const Value& value, int from, int to, bool isOut) {
  static const char* const kNames[] = {".in.", ".out.", ".kept."};
  Side side = stageOf(from) == stageOf(to) ? Side::Kept : isOut ? Side::Out : Side::In;
  int chunk = side == Side::Out ? from : to;
  Variable*& made = boundaries_[{&value, side, chunk}];
  if (made) return made;
  Variable var;
  var.name = (value.name.empty() ? "x" : value.name) + kNames[int(side)] + std::to_string(chunk);
  var.kind = VarKind::Slot;
  var.type = value.type;
  if (value.def()) var.loc = value.def()->loc;
  else if (const Op* repeat = value.block()->owner()) var.loc = repeat->loc;
  return made = module_->addVar(std::move(var));
}

Value* StageBuilder::get(Builder& builder, const Value* value, int chunk) {
  if (Value* known = env_.lookup(value)) return known;
  if (!isLocal(value))
    llvm::report_fatal_error("pass 'pipeline': chunk " + llvm::Twine(chunk) + " does not take '" +
                             value->name + "' from the chunk before it");
  clone(builder, *value->def(), chunk);
  return env_.lookup(value);
}

void StageBuilder::cloneBody(const Op& from, Op& to, int chunk) {
  Builder inner(to.body.get());
  for (const Op* op : from.body->ops) clone(inner, *op, chunk);
}

// What a body takes from the function is made in front of it.
void StageBuilder::prepareBody(Builder& builder, const Op& op, int chunk) {
  walk(*op.body, [&](const Op* inner) {
    for (const Value* operand : inner->operands())
      if (!operand->block()->owner()) get(builder, operand, chunk);
  });
}

Op* StageBuilder::clone(Builder& builder, const Op& op, int chunk) {
  // Within a body it has been done.
  if (op.body && !op.parent()->owner()) prepareBody(builder, op, chunk);
  llvm::SmallVector<Value*> operands;
  for (const Value* operand : op.operands()) operands.push_back(get(builder, operand, chunk));
  Op* made = builder.copy(op, operands, op.var ? variable(*op.var, chunk) : nullptr);
  for (const Value* result : op.results()) env_[result] = made->result(result->index());
  if (!op.body) return made;
  made->body = std::make_unique<Block>(*module_, made);
  for (const Value* arg : op.body->args()) env_[arg] = made->body->addArg(arg->type, arg->name);
  cloneBody(op, *made, chunk);
  return made;
}

void StageBuilder::clonePart(Builder& builder, const Part& part) {
  const auto& saved = cut_.saved[size_t(part.chunk)];
  for (const Op* op : part.ops) {
    if (!isPlaced(*op)) continue;
    bool isSlot = op->kind == OpKind::Write && op->var->kind == VarKind::Slot;
    if (isSlot && !op->var->output && !saved.count(op->var)) continue;
    clone(builder, *op, part.chunk);
  }
  if (!part.repeat) return;
  const Op& repeat = *part.repeat;
  llvm::ArrayRef<Value*> args = repeat.body->args();
  llvm::SmallVector<Value*> init;
  for (unsigned i = 0; i < args.size(); ++i)
    init.push_back(get(builder, part.isFirst ? repeat.operand(i) : args[i], part.chunk));
  prepareBody(builder, repeat, part.chunk);
  builder.loc = repeat.loc;
  Op* made = builder.repeat(repeat.attrs.word("dim"), part.count, repeat.isFlag("reverse"), init);
  if (part.from > 0) made->attrs.set("first", part.from);
  for (unsigned i = 0; i < args.size(); ++i) {
    made->body->args()[i]->name = args[i]->name;
    env_[args[i]] = made->body->args()[i];
  }
  cloneBody(repeat, *made, part.chunk);
  for (unsigned i = 0; i < args.size(); ++i) {
    made->result(i)->name = repeat.result(i)->name;
    env_[part.isLast ? repeat.result(i) : args[i]] = made->result(i);
  }
}

// What the chunk's backward reads and another chunk has made.
void StageBuilder::saveForOthers(Builder& builder, int chunk) {
  for (const Part& part : cut_.forward.parts)
    for (const Op* op : part.ops)
      if (op->kind == OpKind::Write && part.chunk != chunk &&
          cut_.saved[size_t(chunk)].count(op->var))
        builder.write(variable(*op->var, chunk), get(builder, op->operand(0), chunk));
}

void StageBuilder::addWork(const FunctionCut& cut, int chunk) {
  Work work = cut.isBackward ? Work::Backward : Work::Forward;
  Builder builder(module_->addFunction(functionName(work, chunk))->body.get());
  env_.clear();
  for (const Value* value : cut.takes[size_t(chunk)]) {
    env_[value] = builder.read(boundary(*value, cut.before(chunk), chunk, false));
    env_[value]->name = value->name;
  }
  for (const Part& part : cut.parts)
    if (part.chunk == chunk) clonePart(builder, part);
  if (!cut.isBackward) saveForOthers(builder, chunk);
  int next = cut.behind(chunk);
  if (!cut.has(next)) return;
  for (const Value* value : cut.takes[size_t(next)]) {
    Value* sent = get(builder, value, chunk);
    builder.loc = sent->def() ? sent->def()->loc : builder.loc;
    builder.write(boundary(*value, chunk, next, true), sent);
  }
}

// `first` overwrites a sum at the step's first microbatch. That must be the first that adds to it: with
// several functions the order is not known here, so the sum is cleared instead.
void StageBuilder::setFirst() {
  std::map<Variable*, std::vector<Op*>> accums;
  std::map<Variable*, std::set<const Function*>> users;
  std::set<const Variable*> cleared;
  for (const auto& function : module_->functions)
    walk(*function->body, [&](Op* op) {
      if (op->kind == OpKind::Zero) cleared.insert(op->var);
      if (op->kind != OpKind::Accum) return;
      accums[op->var].push_back(op);
      users[op->var].insert(function.get());
    });
  Function* begin = module_->findFunction("begin");
  if (!begin) {
    begin = module_->addFunction("begin");
    module_->schedule.insert(module_->schedule.begin(), {"begin", -1});
  }
  for (const auto& var : module_->vars) {
    auto found = accums.find(var.get());
    if (found == accums.end() || cleared.count(var.get())) continue;
    const auto& ops = found->second;
    const auto& functions = users[var.get()];
    auto call = llvm::find_if(
        module_->schedule, [&](const Call& c) { return c.function == (*functions.begin())->name; });
    bool isStacked = ops.front()->parent()->enclosing().size() == var->stack.size();
    bool isKnown = functions.size() == 1 && isStacked && call != module_->schedule.end() &&
                   call->microbatch == 0;
    for (Op* op : ops) op->attrs.erase("first");
    if (isKnown) ops.front()->attrs.set("first", int64_t{1});
    else Builder(begin->body.get()).create(OpKind::Zero, {}, {}, {}, var.get());
  }
}

std::unique_ptr<Module> StageBuilder::make() {
  const Module& whole = *cut_.whole;
  module_ = std::make_unique<Module>();
  module_->name = whole.name;
  module_->level = whole.level;
  module_->settings = whole.settings;
  module_->grid = whole.grid;
  module_->splits = whole.splits;
  module_->shards = whole.shards;
  module_->pipeline = whole.pipeline;
  module_->cluster = whole.cluster;
  module_->places = whole.places;
  module_->files = whole.files;
  module_->where = {{whole.pipeline.axis, number_}};
  for (int chunk : chunks_) addWork(cut_.forward, chunk);
  bool isSplit = schedule_.splitsBackward();
  for (int chunk : llvm::reverse(chunks_)) {
    addWork(cut_.backward, chunk);
    if (isSplit) splitBackward(chunk);
  }
  for (int chunk : chunks_) {
    addMessages(cut_.forward, chunk);
    addMessages(cut_.backward, chunk);
  }
  addStep();
  addCalls();
  setFirst();
  eraseDeadOps(*module_);
  eraseUntouched();
  return std::move(module_);
}

// Slots that only other chunks' backwards read.
void StageBuilder::eraseUntouched() {
  std::set<const Variable*> touched;
  for (const auto& function : module_->functions)
    walk(*function->body, [&](const Op* op) { touched.insert(op->var); });
  module_->eraseVars([&](const Variable& var) {
    return var.kind == VarKind::Slot && !var.output && !touched.count(&var);
  });
}

}  // namespace planc
