// Ops, values, blocks and modules: use lists are kept by the operand setters, so they cannot go
// wrong. Tested by tests/unit/ir_test.cpp.
#include "ir/op.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "ir/sharding.h"
#include "llvm/ADT/STLExtras.h"

namespace planc {

static const OpInfo kOps[] = {
#define OP(Kind, text, min, max, results, special, linear, traits, doc) \
  {OpKind::Kind, text, min, max, results, special, linear, traits, doc},
#include "ir/ops.def"
};

const OpInfo& info(OpKind kind) { return kOps[size_t(kind)]; }
llvm::ArrayRef<OpInfo> allOps() { return kOps; }

std::optional<OpKind> opByName(llvm::StringRef text) {
  for (const OpInfo& op : kOps)
    if (op.text == text) return op.kind;
  return std::nullopt;
}

DimRole dimRole(const Op& op, llvm::StringRef dim) {
  llvm::SmallVector<llvm::StringRef, 3> keys;
  op.info().special.split(keys, ',', -1, false);
  for (llvm::StringRef entry : keys) {
    auto [key, way] = entry.split(':');
    if (op.attrs.word(key) != dim) continue;
    if (way == "sum") return DimRole::Summed;
    if (way.empty()) return DimRole::Special;
  }
  if (!keysName(op).empty() && dim == keysName(op))
    return op.kind == OpKind::AttendBlock || op.isFlag("ring") || op.isFlag("block")
               ? DimRole::Parallel
               : DimRole::Special;
  if (op.kind == OpKind::Concat)
    for (const std::string& part : op.attrs.words("parts"))
      if (part == dim) return DimRole::Special;
  // The values' own dims: the log-sum-exp lacks them and is no sum over them.
  if (!keysName(op).empty() && op.operand(2)->type.has(dim) && !op.operand(1)->type.has(dim))
    return DimRole::Special;
  for (const Value* result : op.results())
    if (result->type.has(dim)) return DimRole::Parallel;
  if (op.var && op.has(Accumulates) && op.var->type.has(dim)) return DimRole::Parallel;
  return DimRole::Summed;
}

// Attributes.

Attrs::Attrs(std::initializer_list<std::pair<std::string, Attr>> list) {
  for (auto& [key, value] : list) set(key, value);
}

static auto lowerBound(auto& list, llvm::StringRef key) {
  return std::lower_bound(list.begin(), list.end(), key,
                          [](const auto& entry, llvm::StringRef k) { return entry.first < k; });
}

void Attrs::set(llvm::StringRef key, Attr value) {
  auto at = lowerBound(list_, key);
  if (at != list_.end() && at->first == key) at->second = std::move(value);
  else list_.insert(at, {key.str(), std::move(value)});
}

void Attrs::erase(llvm::StringRef key) {
  auto at = lowerBound(list_, key);
  if (at != list_.end() && at->first == key) list_.erase(at);
}

const Attr* Attrs::find(llvm::StringRef key) const {
  auto at = lowerBound(list_, key);
  return at != list_.end() && at->first == key ? &at->second : nullptr;
}

int64_t Attrs::integer(llvm::StringRef key, int64_t fallback) const {
  const Attr* attr = find(key);
  const auto* value = attr ? std::get_if<int64_t>(attr) : nullptr;
  return value ? *value : fallback;
}

double Attrs::number(llvm::StringRef key, double fallback) const {
  const Attr* attr = find(key);
  if (!attr) return fallback;
  if (const auto* value = std::get_if<double>(attr)) return *value;
  if (const auto* value = std::get_if<int64_t>(attr)) return double(*value);
  return fallback;
}

std::string Attrs::word(llvm::StringRef key) const {
  const Attr* attr = find(key);
  const auto* value = attr ? std::get_if<std::string>(attr) : nullptr;
  return value ? *value : std::string();
}

Words Attrs::words(llvm::StringRef key) const {
  const Attr* attr = find(key);
  const auto* value = attr ? std::get_if<Words>(attr) : nullptr;
  return value ? *value : Words();
}

// Values and ops.

static void dropUse(llvm::SmallVector<Use, 4>& uses, const Op* op, unsigned index) {
  auto at = std::find_if(uses.begin(), uses.end(),
                         [&](const Use& use) { return use.op == op && use.index == index; });
  assert(at != uses.end() && "use list out of step");
  uses.erase(at);
}

void Value::replaceAllUsesWith(Value* other) {
  if (other == this) return;
  llvm::SmallVector<Use, 4> uses = uses_;
  for (const Use& use : uses) use.op->setOperand(use.index, other);
}

void Op::setOperand(unsigned i, Value* value) {
  dropUse(operands_[i]->uses_, this, i);
  operands_[i] = value;
  value->uses_.push_back({this, i});
}

void Op::addOperand(Value* value) {
  operands_.push_back(value);
  value->uses_.push_back({this, unsigned(operands_.size() - 1)});
}

void Op::setOperands(llvm::ArrayRef<Value*> values) {
  for (unsigned i = 0; i < operands_.size(); ++i) dropUse(operands_[i]->uses_, this, i);
  operands_.clear();
  for (Value* value : values) addOperand(value);
}

Value* Op::addResult(Type type, llvm::StringRef name) {
  Value* value = module_->newValue();
  value->type = std::move(type);
  value->name = name.str();
  value->def_ = this;
  value->block_ = parent_;
  value->index_ = unsigned(results_.size());
  results_.push_back(value);
  return value;
}

void Op::dropResults() {
  for ([[maybe_unused]] Value* result : results_) assert(result->uses_.empty());
  results_.clear();
}

void Op::erase() {
  if (body)
    while (!body->ops.empty()) body->ops.back()->erase();
  setOperands({});
  dropResults();
  if (parent_) parent_->ops.erase(parent_->ops.begin() + parent_->indexOf(this));
  parent_ = nullptr;
}

// Blocks.

Value* Block::addArg(Type type, llvm::StringRef name) {
  Value* value = module_->newValue();
  value->type = std::move(type);
  value->name = name.str();
  value->block_ = this;
  value->index_ = unsigned(args_.size());
  args_.push_back(value);
  return value;
}

Words Block::enclosing() const {
  Words names;
  for (const Block* block = this; block && block->owner(); block = block->owner()->parent())
    if (block->owner()->kind == OpKind::Repeat) names.push_back(block->owner()->attrs.word("dim"));
  std::reverse(names.begin(), names.end());
  return names;
}

size_t Block::indexOf(const Op* op) const {
  auto at = std::find(ops.begin(), ops.end(), op);
  assert(at != ops.end());
  return size_t(at - ops.begin());
}

Type Variable::slice(llvm::ArrayRef<std::string> enclosing) const {
  Type result = type;
  for (const std::string& dim : stack)
    if (std::find(enclosing.begin(), enclosing.end(), dim) != enclosing.end() && result.has(dim))
      result = result.without(dim);
  return result;
}

Type Variable::wholeType() const {
  Type result = type.whole();
  if (piece) result.dims.front().size = piece->all;
  for (Dim& dim : result.dims) dim.zigzag = 0;
  return result;
}

// Modules.

bool Module::fits(const Coordinates& rank) const {
  return llvm::all_of(where, [&](const auto& at) { return rank.on(at.first) == at.second; });
}

Variable* Module::findVar(llvm::StringRef name) const { return varByName_.lookup(name); }

Function* Module::findFunction(llvm::StringRef name) const {
  for (const auto& function : functions)
    if (function->name == name) return function.get();
  return nullptr;
}

Variable* Module::addVar(Variable variable) {
  if (findVar(variable.name)) {
    std::string base = variable.name;
    unsigned& next = nextNumber_.try_emplace(base, 2).first->second;
    do variable.name = base + "_" + std::to_string(next++);
    while (findVar(variable.name));
  }
  vars.push_back(std::make_unique<Variable>(std::move(variable)));
  varByName_[vars.back()->name] = vars.back().get();
  return vars.back().get();
}

void Module::rename(Variable& variable, std::string name) {
  varByName_.erase(variable.name);
  variable.name = std::move(name);
  varByName_[variable.name] = &variable;
}

void Module::eraseVars(llvm::function_ref<bool(const Variable&)> isErased) {
  llvm::erase_if(vars, [&](const std::unique_ptr<Variable>& var) {
    if (!isErased(*var)) return false;
    varByName_.erase(var->name);
    return true;
  });
}

Function* Module::addFunction(llvm::StringRef name) {
  functions.push_back(std::make_unique<Function>());
  functions.back()->name = name.str();
  functions.back()->body = std::make_unique<Block>(*this, nullptr);
  return functions.back().get();
}

Op* Module::newOp(OpKind kind) {
  Op& op = ops_.emplace_back();
  op.kind = kind;
  op.module_ = this;
  return &op;
}

Value* Module::newValue() { return &values_.emplace_back(); }

// Builder.

Op* Builder::create(OpKind kind, llvm::ArrayRef<Value*> operands, llvm::ArrayRef<Type> results,
                    Attrs attrs, Variable* var, llvm::StringRef name) {
  Op* op = module().newOp(kind);
  op->attrs = std::move(attrs);
  op->var = var;
  op->loc = loc;
  op->parent_ = block_;
  for (Value* operand : operands) op->addOperand(operand);
  for (const Type& type : results) op->addResult(type, name);
  block_->ops.insert(block_->ops.begin() + at_++, op);
  return op;
}

Op* Builder::copy(const Op& op, llvm::ArrayRef<Value*> operands, Variable* var) {
  llvm::SmallVector<Type, 2> types;
  for (const Value* result : op.results()) types.push_back(result->type);
  Loc here = std::exchange(loc, op.loc);
  Op* made = create(op.kind, operands, types, op.attrs, var);
  loc = here;
  for (const Value* result : op.results()) made->result(result->index())->name = result->name;
  return made;
}

Value* Builder::value(OpKind kind, llvm::ArrayRef<Value*> operands, Type result, Attrs attrs,
                      llvm::StringRef name) {
  return create(kind, operands, {std::move(result)}, std::move(attrs), nullptr, name)->result();
}

Value* Builder::elementwise(OpKind kind, llvm::ArrayRef<Value*> operands, llvm::StringRef name) {
  Type type = operands[0]->type;
  for (const Value* operand : operands.drop_front())
    for (const Dim& dim : operand->type.dims)
      if (!type.has(dim.name)) type.dims.push_back(dim);
  // Dims that only a later operand has lie outside the first's, unless nothing is added: keep the
  // order of the operand that has them all, so that no layout changes for a scalar or a bias.
  for (const Value* operand : operands)
    if (operand->type.dims.size() == type.dims.size()) {
      type.dims = operand->type.dims;
      break;
    }
  return value(kind, operands, type, {}, name);
}

Value* Builder::constant(double number, Type type) {
  return value(OpKind::Const, {}, std::move(type), {{"value", number}});
}

Value* Builder::read(Variable* var) {
  return create(OpKind::Read, {}, {var->slice(block_->enclosing())}, {}, var, var->name)->result();
}

void Builder::write(Variable* var, Value* value) { create(OpKind::Write, {value}, {}, {}, var); }

Op* Builder::repeat(llvm::StringRef dim, int64_t count, bool reverse, llvm::ArrayRef<Value*> init) {
  llvm::SmallVector<Type, 4> types;
  for (const Value* value : init) types.push_back(value->type);
  Attrs attrs{{"dim", dim.str()}, {"count", count}};
  if (reverse) attrs.set("reverse", int64_t{1});
  Op* op = create(OpKind::Repeat, init, types, std::move(attrs));
  op->body = std::make_unique<Block>(module(), op);
  for (size_t i = 0; i < init.size(); ++i) {
    op->result(unsigned(i))->name = init[i]->name;
    op->body->addArg(init[i]->type, init[i]->name);
  }
  return op;
}

llvm::StringRef name(Phase phase) {
  static const llvm::StringRef kNames[] = {"call", "start", "wait"};
  return kNames[size_t(phase)];
}

llvm::StringRef name(Level level) {
  static const llvm::StringRef kLevels[] = {"model", "sharded", "rank"};
  return kLevels[size_t(level)];
}

static const llvm::StringRef kVarKinds[] = {"input", "weight", "copy",   "gradient", "moment",
                                            "sum",   "slot",   "metric", "step"};
llvm::StringRef name(VarKind kind) { return kVarKinds[size_t(kind)]; }
std::optional<VarKind> varKindByName(llvm::StringRef text) {
  for (size_t i = 0; i < std::size(kVarKinds); ++i)
    if (kVarKinds[i] == text) return VarKind(i);
  return std::nullopt;
}

}  // namespace planc
