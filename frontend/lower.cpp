// Lowering, statements: dims, inputs, weights, assignments, `repeat`, `if`, `loss`, and the frame
// of a module's two functions. @begin counts the step's valid targets; @forward computes one
// microbatch's share of the loss. What is wrong gives a poisoned item, so one mistake is told once.
// Tested by tests/unit/lower_test.cpp and tests/frontend/errors/lower_names.plan.
#include "frontend/lower.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "ir/text.h"
#include "ir/verify.h"
#include "llvm/ADT/StringExtras.h"

namespace planc {
namespace lowering {

static constexpr unsigned kMaxErrors = 200;  // then lowering stops looking
static constexpr size_t kMaxDims = 1024;     // in scope at once
static constexpr size_t kMaxVars = 1u << 14;
static constexpr unsigned kMaxScan = 1u << 24;  // expressions looked at to find carried variables

Lowering::Lowering(Module& module, const PlanSettings& settings, const Scope& scope, DimMap& dims,
                   Diagnostics& diags)
    : module_(module),
      settings_(settings),
      scope_(scope),
      allDims_(dims),
      diags_(diags),
      compute_(settings.precision),
      scalar_(settings.precision == Elem::F64 ? Elem::F64 : Elem::F32),
      builder_((module.addFunction("begin"), module.addFunction("forward")->body.get())) {}

void Lowering::run(const ast::Module& model, const std::vector<Override>& overrides) {
  metric("loss", scalar_);
  frames_.push_back(std::make_unique<Frame>());
  frame().module = &model;
  frame().scopes.emplace_back();
  bindModelParameters(model, overrides);
  lowerBody(model.body, false);
  if (!losses_ && !diags_.failed())
    error(model.name.loc, Diag::NoLoss, model.name.text)
        .suggest("end it with: loss cross_entropy(logits, targets)");
  finish();
}

void Lowering::lowerBody(const std::vector<ast::Stmt>& body, bool isLoop) {
  DepthGuard guard(depth_);
  if (depth_ > kMaxLowerDepth) {
    if (!body.empty()) error(body.front().loc, Diag::TooDeep, kMaxLowerDepth);
    return;
  }
  frame().rest.emplace_back(&body, 0);
  frame().restIsLoop.push_back(isLoop);
  for (size_t i = 0; i < body.size(); ++i) {
    const ast::Stmt& stmt = body[i];
    if (diags_.errors() > kMaxErrors || tooLarge_) break;
    if (frame().returned) {  // here, or in a branch that was taken
      const auto* last = std::get_if<ast::Assign>(&body[i - 1].node);
      if (last && last->isReturn) error(stmt.loc, Diag::AfterReturn);
      break;
    }
    frame().rest.back().second = i + 1;
    std::visit([&](const auto& node) { lower(node, stmt.loc); }, stmt.node);
  }
  frame().rest.pop_back();
  frame().restIsLoop.pop_back();
}

void Lowering::lower(const ast::DimDecl& decl, Loc) {
  auto size = evalInteger(*decl.size, "the size of a dim");
  // A dim of unknown size still has a name: what uses it is checked as far as that goes.
  if (size && *size < 1) {
    error(decl.size->loc, Diag::DimSize, decl.name.text, *size)
        .suggest("a dim has at least 1 element");
    size = std::nullopt;
  } else if (size && *size > kMaxDimSize) {
    error(decl.size->loc, Diag::DimTooLarge, decl.name.text, *size, kMaxDimSize);
    size = std::nullopt;
  }
  if (dims_.size() >= kMaxDims) {
    tooLarge_ = true;
    error(decl.name.loc, Diag::TooLarge, kMaxDims, "dims");
    return;
  }
  declareDim(decl.name, size.value_or(1), false);
}

void Lowering::lower(const ast::InputDecl& decl, Loc) {
  Item item;
  item.loc = decl.name.loc;
  item.fresh = false;
  auto dims = resolveDims(decl.dims);
  std::optional<Dim> vocab;
  if (!decl.separator) vocab = dimNamed(decl.of);
  if (const Item* seen = findName(decl.name.text)) {
    error(decl.name.loc, Diag::NameTwice, decl.name.text)
        .note(seen->loc, Diag::DeclaredHere, decl.name.text);
    return;
  }
  if (dims && dims->size() < 2) {
    error(decl.name.loc, Diag::InputDims, decl.name.text, dims->size())
        .suggest("an input has a dim of samples first and one of positions last: [batch, seq]");
    dims = std::nullopt;
  }
  Variable var;
  if (dims && decl.separator) {
    // A sequence has at most as many documents as positions.
    if (numbersDocuments(decl, *dims, var)) vocab = dims->back();
  } else if (vocab) {
    noteUse(vocab->name, kTokens);
  }
  if (dims && vocab) {
    for (const Dim& dim : *dims) noteUse(dim.name, &dim == dims->begin() ? kSamples : kPositions);
    var.name = decl.name.text;
    var.kind = VarKind::Input;
    var.type = {Elem::I32, *dims};
    if (settings_.microbatches > 1) {
      var.type.dims.insert(var.type.dims.begin(), Dim{"microbatch", settings_.microbatches, ""});
      var.stack = {"microbatch"};
    }
    var.vocab = vocab->size;
    var.loc = decl.name.loc;
    if (fits(var.type, decl.name.loc) && !isReserved(var.name, decl.name.loc)) {
      item.kind = Item::Input;
      item.var = module_.addVar(std::move(var));
      vocab_[item.var] = vocab->name;
    }
  }
  scope().names[decl.name.text] = item;
}

// What a variable says of the documents that it numbers; false: reported.
bool Lowering::numbersDocuments(const ast::InputDecl& decl, llvm::ArrayRef<Dim> dims,
                                Variable& var) {
  const Item* tokens = findName(decl.of.text);
  auto separator = evalInteger(*decl.separator, "the separator of documents");
  if (tokens && tokens->kind == Item::Poison) return false;
  if (!tokens || tokens->kind != Item::Input || !tokens->var->documents.empty() ||
      llvm::ArrayRef<Dim>(tokens->var->slice(tokens->var->stack).dims) != dims) {
    Diagnostic& message = error(decl.of.loc, Diag::DocumentsOf, decl.name.text, decl.of.text);
    if (tokens) message.note(tokens->loc, Diag::DeclaredHere, decl.of.text);
    message.suggest("declare it before: input " + decl.of.text + dimList(dims) + " : token(vocab)");
    return false;
  }
  if (!separator) return false;
  if (*separator < 0 || *separator >= tokens->var->vocab) {
    error(decl.separator->loc, Diag::NumberRange, "separator",
          "at least 0 and below " + std::to_string(tokens->var->vocab), *separator);
    return false;
  }
  var.documents = tokens->var->name;
  var.separator = *separator;
  return true;
}

static std::optional<Init> initOf(const ast::InitSpec& spec, std::optional<double> value) {
  llvm::StringRef kind = spec.kind.text;
  if (kind.empty()) return Init{};
  if (kind == "zeros") return Init{"const", 0};
  if (kind == "ones") return Init{"const", 1};
  if (kind == "normal" || kind == "uniform" || kind == "const")
    if (value) return Init{kind.str(), *value};
  return std::nullopt;
}

// Names under which a program keeps what it makes itself, next to weights and inputs: the step's
// metrics, and gradients as `grad.NAME`.
bool Lowering::isReserved(llvm::StringRef name, Loc loc) {
  static constexpr llvm::StringLiteral kReserved[] = {
      "count", "dropped", "grad", "grad_norm", "load", "loss", "lr", "penalty", "step"};
  llvm::StringRef first = name.split('.').first;
  if (!llvm::is_contained(kReserved, first)) return false;
  error(loc, Diag::ReservedName, first)
      .suggest(
          "these are reserved: count, dropped, grad, grad_norm, load, loss, lr, penalty, step");
  return true;
}

void Lowering::lower(const ast::WeightDecl& decl, Loc) {
  auto dims = resolveDims(decl.dims);
  std::optional<double> value;
  if (decl.init.value) value = evalNumber(*decl.init.value);
  std::optional<Init> init = initOf(decl.init, value);
  const std::string& kind = decl.init.kind.text;
  if (!init && !(decl.init.value && !value)) {
    auto& message = error(decl.init.kind.loc, Diag::UnknownInit, kind);
    message.suggest("use zeros, ones, normal(deviation), uniform(bound) or const(value)");
  } else if (value && (kind == "normal" || kind == "uniform") && *value < 0) {
    error(decl.init.value->loc, Diag::NumberRange, kind, "at least 0", printNumber(*value));
  }
  double balance = 0;
  if (decl.balanced) {
    auto rate = evalNumber(*decl.balanced);
    bool inRange = rate && std::isfinite(*rate) && *rate > 0;
    if (rate && !inRange)
      error(decl.balanced->loc, Diag::NumberRange, "balanced", "above 0", printNumber(*rate));
    if (!inRange) dims = std::nullopt;
    else balance = *rate;
  }
  const Words stack = builder_.block()->enclosing();
  for (const std::string& dim : stack)
    if (dims && Wanted{true, false, *dims}.find(dim)) {
      error(decl.names[0].loc, Diag::WeightHasRepeat, decl.names[0].text, dim)
          .suggest("leave it out: each iteration has its own weight");
      dims = std::nullopt;
    }
  for (const ast::Ident& name : decl.names) {
    Item item;
    item.loc = name.loc;
    item.fresh = false;
    const auto& here = scope().names;
    if (auto seen = here.find(name.text); seen != here.end()) {
      error(name.loc, Diag::NameTwice, name.text)
          .note(seen->second.loc, Diag::DeclaredHere, name.text);
      continue;
    }
    if (module_.vars.size() >= kMaxVars) {
      tooLarge_ = true;
      error(name.loc, Diag::TooLarge, kMaxVars, "weights");
      return;
    }
    if (dims && init) {
      Variable var;
      var.kind = VarKind::Weight;
      var.name = scope().path + name.text;
      var.type.elem = scalar_;
      var.stack = stack;
      for (const std::string& dim : var.stack) var.type.dims.push_back(findDim(dim)->dim);
      var.type.dims.append(dims->begin(), dims->end());
      var.init = *init;
      var.decay = !decl.balanced && decl.decay.value_or(dims->size() >= 2);
      var.balance = balance;
      var.loc = name.loc;
      if (fits(var.type, name.loc) && !isReserved(var.name, name.loc)) {
        item.kind = Item::Weight;
        item.var = module_.addVar(std::move(var));
        std::pair<uint32_t, uint64_t> place{name.loc.file,
                                            uint64_t(name.loc.line) << 32 | name.loc.column};
        weightPlace_[item.var] = place;
        weightUsed_.emplace(place, false);
      }
    }
    scope().names[name.text] = item;
  }
}

// Makes a value's dims those declared: same names demanded, another order is permuted.
Item Lowering::conform(Item value, llvm::ArrayRef<Dim> dims, llvm::StringRef name, Loc loc,
                       Loc declared) {
  const Type& type = value.value->type;
  bool same = type.dims.size() == dims.size();
  for (const Dim& dim : dims) same &= type.has(dim.name);
  if (!same) {
    std::vector<std::string> missing, extra;
    for (const Dim& dim : dims)
      if (!type.has(dim.name)) missing.push_back("'" + dim.name + "'");
    auto isDeclared = [&](const Dim& dim) {
      return std::any_of(dims.begin(), dims.end(),
                         [&](const Dim& d) { return d.name == dim.name; });
    };
    for (const Dim& dim : type.dims)
      if (!isDeclared(dim)) extra.push_back("'" + dim.name + "'");
    Diagnostic& message = error(loc, Diag::ResultNames, name.empty() ? "the result" : name,
                                dimList(dims), dimList(type.dims));
    if (declared.known()) message.note(declared, Diag::DeclaredHere, name);
    std::string help;
    if (!missing.empty()) help = "no operand has " + llvm::join(missing, ", ");
    if (!extra.empty())
      help += (help.empty() ? "" : "; ") + llvm::join(extra, ", ") +
              " must be summed (sum, @) or declared";
    message.suggest(help);
    return poison();
  }
  if (!sizesAgree(type, Type{type.elem, llvm::SmallVector<Dim, 4>(dims.begin(), dims.end())}, loc))
    return poison();
  Type wanted{type.elem, {}};
  bool inOrder = true;
  for (size_t i = 0; i < dims.size(); ++i) {
    wanted.dims.push_back(type.dims[size_t(type.find(dims[i].name))]);
    inOrder &= type.dims[i].name == dims[i].name;
  }
  bool rowsFirst =
      type.grouping().empty() || (type.dims.size() > 1 && dims[0].name == type.grouping() &&
                                  type.dims[size_t(type.find(dims[1].name))].isRagged());
  if (inOrder && rowsFirst) return value;
  if (!type.grouping().empty()) {
    error(loc, Diag::RaggedOrder, name, dimList(type.dims))
        .suggest("the groups' dim and their rows come first");
    return poison();
  }
  Item result = Item::tensor(emit(OpKind::Sum, {value.value}, wanted, {}, loc), value.offsets);
  if (!result.value) return poison();
  return result;
}

void Lowering::lower(const ast::Assign& assign, Loc loc) {
  const std::string& name = assign.name.text;
  const Item* before = assign.isReturn ? nullptr : findName(name);
  Wanted wanted;
  bool badDims = false;
  if (assign.hasDims) {
    const ast::Expr& value = *assign.value;
    bool open = value.kind == ast::ExprKind::Call && value.text == "dispatch";
    auto dims = resolveDims(assign.dims, open);
    badDims = !dims;
    wanted.broken = badDims;
    if (dims) wanted = {true, false, *dims};
  } else if (before && before->kind == Item::Tensor) {
    const auto& dims = before->value->type.dims;
    wanted = {true, false, {dims.begin(), dims.end()}};
  }
  if (before && !assign.isReturn &&
      (before->kind == Item::Weight || before->kind == Item::Input ||
       (before->parameter && before->isStatic()))) {
    error(assign.name.loc, Diag::CannotAssign, name,
          before->kind == Item::Weight  ? "a weight"
          : before->kind == Item::Input ? "an input"
                                        : "a parameter")
        .note(before->loc, Diag::DeclaredHere, name);
    return;
  }
  const Item old = before ? *before : Item();
  Item item = eval(*assign.value, wanted);
  if (badDims) item = poison();
  // The value is wrong, but its dims are declared: uses are checked against them.
  auto isDense = [](const Dim& dim) { return dim.size > 0 && !dim.isRagged(); };
  if (item.kind == Item::Poison && wanted.known &&
      std::all_of(wanted.dims.begin(), wanted.dims.end(), isDense))
    item = Item::tensor(at(loc).constant(0, {compute_, wanted.dims}));
  // A wrong `dispatch` still names its rows: later uses of the name are no further mistakes.
  if (item.kind == Item::Poison)
    for (const Dim& dim : wanted.dims)
      if (dim.size == 0 && !findDim(dim.name))
        dims_.push_back({dim.name, Dim{dim.name, 0, dim.name}, loc});
  if (item.kind == Item::Number && wanted.known)
    item = Item::tensor(emit(OpKind::Const, {}, {compute_, wanted.dims}, {{"value", item.number}},
                             assign.value->loc));
  if (item.kind == Item::Weight || item.kind == Item::Input || (item.isStatic() && wanted.known))
    item = toTensor(item, assign.value->loc);
  if (item.kind == Item::Tensor && wanted.known) {
    Loc declared = assign.hasDims ? Loc() : old.loc;
    item = conform(item, wanted.dims, name, assign.value->loc, declared);
  } else if (item.kind == Item::Route && (wanted.known || assign.isReturn)) {
    error(loc, Diag::NotATensor, "the result of 'route'");
    item = poison();
  } else if (item.isStatic() && frame().scopes.size() > 1 && old.isStatic()) {
    error(assign.name.loc, Diag::NumberInRepeat, name)
        .suggest("a number is known when compiling; use a tensor: " + name + "[] = ...");
    item = poison();
  }
  if (item.kind == Item::Tensor && item.fresh && !name.empty()) item.value->name = name;
  item.fresh = false;
  item.parameter = false;
  item.loc = assign.name.loc;
  if (!assign.isReturn) {
    scope().names[name] = item;
    return;
  }
  if (frame().scopes.size() > 1 || frames_.size() == 1)
    error(loc, Diag::ReturnPlace).suggest("'return' ends a module's body");
  frame().returned = true;
  frame().result = item;
}

namespace {

// Which names statements read before they set them, and which they set. Both branches of an `if`
// count for reads, and what either sets counts as set only when both set it.
class Flow {
 public:
  explicit Flow(unsigned& scanned) : scanned_(scanned) {}
  std::set<std::string> reads, sets;

  void walk(llvm::ArrayRef<ast::Stmt> body) {
    std::set<std::string> known;
    walk(body, known);
  }

 private:
  void walk(llvm::ArrayRef<ast::Stmt> body, std::set<std::string>& known) {
    for (const ast::Stmt& stmt : body) {
      if (scanned_ > kMaxScan) return;
      if (const auto* assign = std::get_if<ast::Assign>(&stmt.node)) {
        read(*assign->value, known);
        if (assign->isReturn) continue;
        known.insert(assign->name.text);
        sets.insert(assign->name.text);
      } else if (const auto* loss = std::get_if<ast::Loss>(&stmt.node)) {
        read(*loss->value, known);
      } else if (const auto* repeat = std::get_if<ast::Repeat>(&stmt.node)) {
        walk(repeat->body, known);
      } else if (const auto* branch = std::get_if<ast::If>(&stmt.node)) {
        std::set<std::string> then = known, otherwise = known;
        walk(branch->then, then);
        walk(branch->otherwise, otherwise);
        std::set_intersection(then.begin(), then.end(), otherwise.begin(), otherwise.end(),
                              std::inserter(known, known.end()));
      }
    }
  }

  // Operator chains may be long, so with a stack.
  void read(const ast::Expr& root, const std::set<std::string>& known) {
    std::vector<const ast::Expr*> todo{&root};
    while (!todo.empty()) {
      const ast::Expr& expr = *todo.back();
      todo.pop_back();
      ++scanned_;
      bool isName = expr.kind == ast::ExprKind::Name || expr.kind == ast::ExprKind::Lookup;
      if (isName && !known.count(expr.text)) reads.insert(expr.text);
      for (const ast::Arg& arg : expr.args) todo.push_back(arg.value.get());
    }
  }

  unsigned& scanned_;
};

}  // namespace

// The variables that a repeat carries from one iteration to the next: those from outside that its
// body sets, if the body reads the earlier value or something after the repeat reads the last.
std::vector<std::string> Lowering::carriedBy(const ast::Repeat& repeat) {
  Flow inside(scanned_), after(scanned_);
  inside.walk(repeat.body);
  for (size_t i = frame().rest.size(); i-- > 0;) {
    const auto& [body, next] = frame().rest[i];
    after.walk(llvm::ArrayRef(*body).drop_front(next));
    if (frame().restIsLoop[i]) after.walk(*body);
  }
  std::vector<std::string> carried;
  for (const std::string& name : inside.sets) {
    const Item* item = findName(name);
    bool used = inside.reads.count(name) || after.reads.count(name) || scanned_ > kMaxScan;
    if (item && item->kind == Item::Tensor && used) carried.push_back(name);
  }
  return carried;
}

void Lowering::lower(const ast::Repeat& repeat, Loc loc) {
  auto count = evalInteger(*repeat.count, "the count of a repeat");
  if (count && (*count < 1 || *count > kMaxDimSize)) {
    error(repeat.count->loc, Diag::RepeatCount, repeat.dim.text, *count)
        .suggest("a repeat runs at least once; use 'if' to leave it out");
    count = std::nullopt;
  }
  size_t outerDims = dims_.size();
  if (declareDim(repeat.dim, count.value_or(1), true))
    noteRepeat(repeat.dim.text, count.value_or(1));
  if (builder_.block()->enclosing().size() >= kMaxNesting) {
    error(loc, Diag::TooDeep, kMaxNesting);
    dims_.resize(outerDims);
    return;
  }
  bool declared = dims_.size() > outerDims;
  std::vector<std::string> names = carriedBy(repeat);
  std::vector<Item> before;
  std::vector<Value*> init;
  for (const std::string& name : names) {
    before.push_back(*findName(name));
    init.push_back(before.back().value);
  }
  // Values are assigned in a body of its own even when the dim is wrong, to find its errors.
  std::string path = instancePath(repeat.dim.text) + ".";
  Op* op = at(loc).repeat(repeat.dim.text, count.value_or(1), false, init);
  Builder saved = builder_;
  builder_ = Builder(op->body.get());
  frame().scopes.emplace_back();
  scope().path = path;
  for (size_t i = 0; i < names.size(); ++i) {
    Item item = before[i];
    item.value = op->body->args()[i];
    item.value->name = op->result(unsigned(i))->name = names[i];
    scope().names[names[i]] = item;
  }
  if (declared) lowerBody(repeat.body, true);

  std::vector<Value*> yields;
  std::vector<bool> good;
  for (size_t i = 0; i < names.size(); ++i) {
    const Item& last = scope().names[names[i]];
    Value* value = last.kind == Item::Tensor ? last.value : nullptr;
    if (value && value->type != init[i]->type) {
      error(last.loc, Diag::CarriedNames, names[i], dimList(init[i]->type.dims),
            dimList(value->type.dims))
          .note(before[i].loc, Diag::DeclaredHere, names[i])
          .suggest("a repeat gives each iteration the same dims; use another name inside");
      value = nullptr;
    } else if (value && last.offsets != before[i].offsets) {
      error(last.loc, Diag::OtherRouting);
      value = nullptr;
    }
    good.push_back(value);
    yields.push_back(value ? value : op->body->args()[i]);
  }
  at(loc).create(OpKind::Yield, yields, {});
  frame().scopes.pop_back();
  builder_ = saved;
  dims_.resize(outerDims);
  for (size_t i = 0; i < names.size(); ++i) {
    Item item = before[i];
    item.value = op->result(unsigned(i));
    if (!good[i]) item = poison();
    item.loc = before[i].loc;
    scope().names[names[i]] = item;
  }
}

void Lowering::lower(const ast::If& branch, Loc) {
  auto condition = evalStatic(*branch.condition);
  if (!condition) return;
  if (condition->kind != Item::Truth) {
    error(branch.condition->loc, Diag::NotATruth)
        .suggest(
            "compare parameters or dims: heads == kv; or use a parameter that is true or false");
    return;
  }
  lowerBody(condition->number != 0 ? branch.then : branch.otherwise, false);
}

// Adds to the step's loss. A loss of one microbatch counts by its share of the step.
void Lowering::addLoss(Value* value, bool perMicrobatch) {
  Type type{scalar_, {}};
  if (value->type.elem != scalar_) value = builder_.value(OpKind::Cast, {value}, type);
  if (perMicrobatch && settings_.microbatches > 1)
    value = builder_.value(
        OpKind::Mul, {value, builder_.constant(1.0 / double(settings_.microbatches), type)}, type);
  addUp(value, "loss");
}

// The metric is of the line that first adds to it.
void Lowering::addUp(Value* value, llvm::StringRef name) {
  Variable* var = metric(name, scalar_);
  Op* accum = builder_.create(OpKind::Accum, {value}, {}, {}, var);
  if (!var->loc.known()) var->loc = accum->loc;
}

void Lowering::lower(const ast::Loss& loss, Loc) {
  ++losses_;
  const ast::Expr& expr = *loss.value;
  if (expr.kind == ast::ExprKind::Call && expr.text == "cross_entropy" &&
      !scope_.module("cross_entropy")) {
    if (Value* value = lowerCrossEntropy(expr)) addLoss(value, false);
    return;
  }
  Wanted scalar;
  scalar.known = true;
  Item item = eval(expr, scalar);
  if (item.kind != Item::Poison) item = toTensor(item, expr.loc);
  if (item.kind == Item::Poison) return;
  if (!item.value->type.dims.empty()) {
    error(expr.loc, Diag::LossNotScalar, dimList(item.value->type.dims))
        .suggest("use mean(...) or sum(...)");
    return;
  }
  at(expr.loc);
  addLoss(item.value, true);
}

// The step's start: metrics to zero, valid targets counted over all microbatches. Then the
// schedule, and a warning for each weight that nothing reads.
void Lowering::finish() {
  Builder begin(module_.findFunction("begin")->body.get());
  for (const auto& var : module_.vars) {
    if (var->kind != VarKind::Input || !counts_.count(var.get())) continue;
    begin.loc = var->loc;
    Value* ids = begin.create(OpKind::Read, {}, {var->type}, {}, var.get(), var->name)->result();
    Value* count = begin.value(OpKind::CountValid, {ids}, Type{Elem::I32, {}}, {}, "count");
    begin.write(counts_[var.get()], count);
  }
  begin.loc = {};
  for (const auto& var : module_.vars)
    if (var->kind == VarKind::Metric && isFloat(var->type.elem))
      begin.create(OpKind::Zero, {}, {}, {}, var.get());

  module_.schedule.push_back({"begin", -1});
  for (int64_t i = 0; i < settings_.microbatches; ++i) module_.schedule.push_back({"forward", i});

  if (diags_.failed()) return;  // uses may lie in what was not lowered
  std::set<std::pair<uint32_t, uint64_t>> told;
  for (const auto& var : module_.vars) {
    auto place = weightPlace_.find(var.get());
    if (place == weightPlace_.end() || weightUsed_[place->second]) continue;
    if (told.insert(place->second).second)
      diags_.report(var->loc, Diag::WeightUnused, var->name)
          .suggest("it would only be decayed by the optimizer; remove it");
  }
}

}  // namespace lowering

std::unique_ptr<Module> lowerModel(const ast::Module& model, const std::vector<Override>& overrides,
                                   const PlanSettings& settings, const Scope& scope, DimMap& dims,
                                   Diagnostics& diags) {
  unsigned errors = diags.errors();
  auto module = std::make_unique<Module>();
  module->name = settings.name;
  lowering::Lowering(*module, settings, scope, dims, diags).run(model, overrides);
  return diags.errors() == errors ? std::move(module) : nullptr;
}

}  // namespace planc
