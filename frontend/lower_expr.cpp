// Lowering, expressions: names, numbers known when compiling, elementwise operators by name, and
// `@`. What `@` sums follows from the dims that the statement declares: names that neither they nor
// a later operand of the same chain have. Where that would leave a doubt, the answer is an error.
// Tested by tests/unit/lower_test.cpp and tests/frontend/errors/lower_expr.plan.
#include <algorithm>
#include <cmath>

#include "frontend/lower.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace planc::lowering {

using ast::ExprKind;

Item Item::tensor(Value* value, Value* offsets) {
  Item item;
  if (!value) return item;
  item.kind = Tensor;
  item.value = value;
  if (!value->type.grouping().empty()) item.offsets = offsets;
  return item;
}

Item Item::ofNumber(double number) {
  Item item;
  item.kind = Number;
  item.number = number;
  return item;
}

Builder& Lowering::at(Loc loc) {
  builder_.loc = loc;
  return builder_;
}

bool Lowering::fits(const Type& type, Loc loc) {
  if (type.elements() <= kMaxWholeElements) return true;
  error(loc, Diag::TensorTooLarge, type.str(), kMaxWholeElements);
  return false;
}

Value* Lowering::emit(OpKind kind, llvm::ArrayRef<Value*> operands, Type type, Attrs attrs,
                      Loc loc) {
  if (!fits(type, loc)) return nullptr;
  return at(loc).value(kind, operands, std::move(type), std::move(attrs));
}

// The name that the plan gives a variable, without the modules around it.
static std::string ownName(const Variable& var) {
  llvm::StringRef name = llvm::StringRef(var.name).rsplit('.').second;
  return name.empty() ? var.name : name.str();
}

// The value of a weight, in the precision of activations (but a balanced one: a step of it may be less
// than they tell apart), or of this microbatch's input.
Value* Lowering::readVar(Variable* var, Loc loc) {
  if (auto place = weightPlace_.find(var); place != weightPlace_.end())
    weightUsed_[place->second] = true;
  Words enclosing = builder_.block()->enclosing();
  if (var->kind == VarKind::Input) enclosing = var->stack;
  std::string name = ownName(*var);
  Type type = var->slice(enclosing);
  Value* value = at(loc).create(OpKind::Read, {}, {type}, {}, var, name)->result();
  if (var->kind != VarKind::Weight || type.elem == compute_ || var->balance > 0) return value;
  return builder_.value(OpKind::Cast, {value}, type.withElem(compute_), {}, name);
}

Variable* Lowering::metric(llvm::StringRef name, Elem elem) {
  Variable* seen = module_.findVar(name);
  if (seen && seen->kind == VarKind::Metric) return seen;
  Variable var;
  var.name = name.str();
  var.kind = VarKind::Metric;
  var.type = {elem, {}};
  return module_.addVar(std::move(var));
}

llvm::SmallVector<Dim, 4> Lowering::dimsOf(const Item& item) const {
  if (item.kind == Item::Tensor) return item.value->type.dims;
  if (item.kind == Item::Weight) return item.var->slice(item.var->stack).dims;
  return {};
}

Item Lowering::toTensor(const Item& item, Loc loc, std::optional<Elem> elem) {
  switch (item.kind) {
    case Item::Poison:
    case Item::Tensor:
      return item;
    case Item::Weight:
      if (item.var->balance > 0) {
        error(loc, Diag::BalancedUse, ownName(*item.var))
            .suggest("only 'route' takes it: route(s, top = 2, bias = NAME)");
        return poison();
      }
      return Item::tensor(readVar(item.var, loc));
    case Item::Number:
      return Item::tensor(at(loc).constant(item.number, Type{elem.value_or(compute_), {}}));
    case Item::Input:
      error(loc, Diag::InputAsNumbers, item.var->name)
          .suggest("look its rows up in a table: table[" + item.var->name + "]");
      return poison();
    case Item::Route:
      error(loc, Diag::NotATensor, "the result of 'route'")
          .suggest("only 'dispatch' and 'combine' take it");
      return poison();
    case Item::Truth:
    case Item::Word:
      error(
          loc, Diag::NotATensor,
          item.kind == Item::Word ? "the word '" + item.word + "'" : std::string("true or false"));
      return poison();
  }
  return poison();
}

bool Lowering::sizesAgree(const Type& a, const Type& b, Loc loc) {
  for (const Dim& dim : a.dims) {
    int other = b.find(dim.name);
    if (other < 0 || b.dims[size_t(other)].size == 0 || b.dims[size_t(other)] == dim) continue;
    error(loc, Diag::NameSizes, dim.name, dim.size, b.dims[size_t(other)].size)
        .suggest("one name means one size: give the two dims different names");
    return false;
  }
  return true;
}

// Names and numbers.

Item Lowering::evalName(const ast::Expr& expr) {
  if (const Item* found = findName(expr.text)) {
    Item item = *found;
    item.fresh = false;
    item.parameter = false;
    return item;
  }
  if (const DimEntry* entry = findDim(expr.text)) return Item::ofNumber(double(entry->dim.size));
  if (expr.text == "true" || expr.text == "false") {
    Item item;
    item.kind = Item::Truth;
    item.number = expr.text == "true";
    return item;
  }
  Diagnostic& message = error(expr.loc, Diag::UnknownName, expr.text);
  if (scope_.module(expr.text) || findBuiltin(expr.text))
    message.suggest("to call it: " + expr.text + "(...)");
  else suggestNearest(message, expr.text, visibleNames(false), "");
  return poison();
}

std::optional<Item> Lowering::evalStatic(const ast::Expr& expr, bool words) {
  if (words && expr.kind == ExprKind::Name && expr.text != "true" && expr.text != "false" &&
      !findName(expr.text) && !findDim(expr.text)) {
    Item item;
    item.kind = Item::Word;
    item.word = expr.text;
    return item;
  }
  Item item = eval(expr, {});
  if (item.isStatic()) return item;
  if (item.kind != Item::Poison)
    error(expr.loc, Diag::NotStatic).suggest("use numbers, parameters and sizes of dims");
  return std::nullopt;
}

std::optional<double> Lowering::evalNumber(const ast::Expr& expr) {
  auto item = evalStatic(expr);
  if (!item) return std::nullopt;
  if (item->kind == Item::Number) return item->number;
  error(expr.loc, Diag::NotANumber,
        item->kind == Item::Word ? "'" + item->word + "'"
        : item->number           ? std::string("true")
                                 : std::string("false"));
  return std::nullopt;
}

std::optional<int64_t> Lowering::evalInteger(const ast::Expr& expr, llvm::StringRef what) {
  auto number = evalNumber(expr);
  if (!number) return std::nullopt;
  if (std::floor(*number) != *number || std::abs(*number) > 0x1p53) {
    error(expr.loc, Diag::NotAnInteger, what, printNumber(*number));
    return std::nullopt;
  }
  return int64_t(*number);
}

Item Lowering::evalCompare(const ast::Expr& expr) {
  auto a = evalStatic(*expr.args[0].value);
  auto b = evalStatic(*expr.args[1].value, a && a->kind == Item::Word);
  if (!a || !b) return poison();
  llvm::StringRef op = expr.text;
  bool isEquality = op == "==" || op == "!=";
  if (a->kind != b->kind || (a->kind != Item::Number && !isEquality)) {
    error(expr.loc, Diag::CannotCompare, op)
        .suggest("numbers compare with numbers; words and truths with == and !=");
    return poison();
  }
  bool equal = a->number == b->number && a->word == b->word, less = a->number < b->number;
  Item item;
  item.kind = Item::Truth;
  item.number = op == "=="   ? equal
                : op == "!=" ? !equal
                : op == "<"  ? less
                : op == "<=" ? less || equal
                : op == ">"  ? !less && !equal
                             : !less;
  return item;
}

// Expressions.

Item Lowering::eval(const ast::Expr& expr, const Wanted& wanted) {
  DepthGuard guard(depth_);
  if (depth_ > kMaxLowerDepth) {
    error(expr.loc, Diag::TooDeep, kMaxLowerDepth);
    return poison();
  }
  if (tooLarge_) return poison();
  if (++expressions_ > kMaxExpressions) {
    tooLarge_ = true;
    error(expr.loc, Diag::TooLarge, kMaxExpressions, "expressions over all calls of its modules");
    return poison();
  }
  switch (expr.kind) {
    case ExprKind::Number:
      return Item::ofNumber(expr.number);
    case ExprKind::Name:
      return evalName(expr);
    case ExprKind::Lookup:
      return evalLookup(expr, wanted);
    case ExprKind::Compare:
      return evalCompare(expr);
    case ExprKind::Neg: {
      Item item = eval(*expr.args[0].value, wanted);
      if (item.kind == Item::Number) return Item::ofNumber(-item.number);
      item = toTensor(item, expr.loc);
      if (item.kind == Item::Poison) return item;
      return Item::tensor(emit(OpKind::Neg, {item.value}, item.value->type, {}, expr.loc),
                          item.offsets);
    }
    case ExprKind::Call: {
      if (const ast::Module* module = scope_.module(expr.text)) {
        if (!module->isModel) return callModule(*module, expr);
        error(expr.loc, Diag::CallsModel, expr.text)
            .note(module->name.loc, Diag::DeclaredHere, expr.text)
            .suggest("only a plan uses a model; write the shared part as a module");
        return poison();
      }
      if (expr.text == "cross_entropy") {
        error(expr.loc, Diag::CrossEntropyPlace)
            .suggest("write: loss cross_entropy(logits, targets); a factor is its 'scale'");
        return poison();
      }
      if (expr.text == "concat") return lowerConcat(expr, wanted);
      if (const Builtin* builtin = findBuiltin(expr.text))
        return callBuiltin(*builtin, expr, wanted);
      std::vector<std::string> names = scope_.moduleNames(false);
      for (llvm::StringRef name : builtinNames()) names.push_back(name.str());
      suggestNearest(error(expr.loc, Diag::UnknownFunction, expr.text), expr.text, names,
                     "import the file that declares it, such as \"std/transformer.plan\"");
      return poison();
    }
    default:
      return evalChain(expr, wanted);
  }
}

static bool isBinary(ExprKind kind) {
  return kind == ExprKind::Add || kind == ExprKind::Sub || kind == ExprKind::Mul ||
         kind == ExprKind::Div || kind == ExprKind::Contract;
}

// A chain of binary operators, leaning left, may be as long as the file: walked with a loop.
Item Lowering::evalChain(const ast::Expr& expr, const Wanted& wanted) {
  std::vector<const ast::Expr*> spine;  // outermost first
  const ast::Expr* first = &expr;
  for (; isBinary(first->kind); first = first->args[0].value.get()) spine.push_back(first);
  expressions_ += unsigned(spine.size());
  auto isSum = [](const ast::Expr& e) {
    return e.kind == ExprKind::Add || e.kind == ExprKind::Sub;
  };

  // Which nodes lie to the left of an `@`: there, the declared dims say nothing of an operand's own
  // `@`. Directly in a chain of `@` `*` `/` they still do, together with the later operands.
  size_t count = spine.size();
  std::vector<bool> under(count + 1), known(count + 1);
  known[0] = wanted.known;
  for (size_t i = 0; i < count; ++i) {
    bool contracts = spine[i]->kind == ExprKind::Contract;
    under[i + 1] = under[i] || contracts;
    bool breaks = i + 1 < count && under[i + 1] && (isSum(*spine[i]) || isSum(*spine[i + 1]));
    known[i + 1] = known[i] && !breaks;
  }
  auto operand = [&](const ast::Expr& operandExpr, size_t node) {
    bool direct = !under[node] && spine[node]->kind != ExprKind::Contract;
    return eval(operandExpr, direct ? wanted : wanted.unknown());
  };
  Item acc = operand(*first, count - 1);
  std::vector<Item> right(count);
  for (size_t i = count; i-- > 0;) right[i] = operand(*spine[i]->args[1].value, i);

  for (size_t i = count; i-- > 0;) {
    Wanted keep = under[i] && !known[i] ? wanted.unknown() : wanted;
    if (spine[i]->kind == ExprKind::Contract && keep.known && known[i]) {
      llvm::SmallVector<Dim, 4> left = dimsOf(acc), own = dimsOf(right[i]);
      auto has = [](llvm::ArrayRef<Dim> list, llvm::StringRef name) {
        return std::any_of(list.begin(), list.end(), [&](const Dim& d) { return d.name == name; });
      };
      bool unclear = false;
      for (size_t j = i; j-- > 0 && !isSum(*spine[j]);) {
        llvm::SmallVector<Dim, 4> later = dimsOf(right[j]);
        for (const Dim& dim : left)
          if (spine[j]->kind == ExprKind::Contract && has(own, dim.name) && has(later, dim.name) &&
              wanted.find(dim.name) && !unclear) {
            error(spine[i]->loc, Diag::SumAmbiguous, dim.name)
                .suggest("give this product its own statement with declared dims");
            unclear = true;
          }
        keep = keep.with(later);
      }
      if (unclear) {
        acc = poison();
        continue;
      }
    } else if (spine[i]->kind == ExprKind::Contract) {
      keep = wanted.unknown();
    }
    acc = binary(spine[i]->kind, *spine[i], acc, right[i], keep);
  }
  return acc;
}

Item Lowering::binary(ExprKind kind, const ast::Expr& expr, Item a, Item b, const Wanted& wanted) {
  if (a.kind == Item::Poison || b.kind == Item::Poison) return poison();
  if (a.kind == Item::Number && b.kind == Item::Number && kind != ExprKind::Contract) {
    if (kind == ExprKind::Div && b.number == 0) {
      error(expr.loc, Diag::DivisionByZero);
      return poison();
    }
    return Item::ofNumber(kind == ExprKind::Add   ? a.number + b.number
                          : kind == ExprKind::Sub ? a.number - b.number
                          : kind == ExprKind::Mul ? a.number * b.number
                                                  : a.number / b.number);
  }
  if (kind == ExprKind::Contract && (a.kind == Item::Number || b.kind == Item::Number)) {
    error(expr.loc, Diag::ContractNumber).suggest("use * to scale");
    return poison();
  }
  // A number takes the other operand's element type.
  Loc aLoc = expr.args[0].value->loc, bLoc = expr.args[1].value->loc;
  if (a.kind == Item::Number) b = toTensor(b, bLoc);
  a = toTensor(a, aLoc, b.value ? b.value->type.elem : compute_);
  b = toTensor(b, bLoc, a.value ? a.value->type.elem : compute_);
  if (a.kind == Item::Poison || b.kind == Item::Poison) return poison();
  if (kind == ExprKind::Contract) return contract(a, b, wanted, expr.loc);
  OpKind op = kind == ExprKind::Add   ? OpKind::Add
              : kind == ExprKind::Sub ? OpKind::Sub
              : kind == ExprKind::Mul ? OpKind::Mul
                                      : OpKind::Div;
  return elementwise(op, a, b, wanted, expr.loc);
}

// A tensor of one element for each group meets the groups' rows: repeated for each row.
bool Lowering::spread(Item& a, const Item& ragged, Loc loc) {
  const Type& rows = ragged.value->type;
  llvm::StringRef group = rows.grouping();
  if (group.empty() || !a.value->type.has(group) || !a.value->type.grouping().empty()) return true;
  Type type{a.value->type.elem, {}};
  type.dims.push_back(rows.dims[size_t(rows.find(group))]);
  for (const Dim& dim : rows.dims)
    if (dim.isRagged()) type.dims.push_back(dim);
  for (const Dim& dim : a.value->type.dims)
    if (dim.name != group) type.dims.push_back(dim);
  a = Item::tensor(emit(OpKind::Spread, {a.value, ragged.offsets}, type, {}, loc), ragged.offsets);
  return a.kind == Item::Tensor;
}

Item Lowering::elementwise(OpKind kind, Item a, Item b, const Wanted& wanted, Loc loc) {
  if (a.offsets && b.offsets && a.offsets != b.offsets) {
    error(loc, Diag::OtherRouting);
    return poison();
  }
  if (!sizesAgree(a.value->type, b.value->type, loc)) return poison();
  if (a.offsets && !spread(b, a, loc)) return poison();
  if (b.offsets && !spread(a, b, loc)) return poison();
  Type type = a.value->type;
  for (const Dim& dim : b.value->type.dims)
    if (!type.has(dim.name)) type.dims.push_back(dim);
  for (const Item* item : {&a, &b})  // a layout that exists is kept where nothing else is wanted
    if (item->value->type.dims.size() == type.dims.size()) {
      type.dims = item->value->type.dims;
      break;
    }
  Value* offsets = a.offsets ? a.offsets : b.offsets;
  if (!offsets) type.dims = ordered(type.dims, wanted);
  if (a.value->type.elem != b.value->type.elem) {
    Value*& other = a.value->type.elem == compute_ ? b.value : a.value;
    other = at(loc).value(OpKind::Cast, {other}, other->type.withElem(compute_));
    type.elem = compute_;
  }
  return Item::tensor(emit(kind, {a.value, b.value}, type, {}, loc), offsets);
}

Item Lowering::contract(Item a, Item b, const Wanted& keep, Loc loc) {
  if (!keep.known) {
    if (!keep.broken)
      error(loc, Diag::SumUnclear)
          .suggest("give the product its own statement with declared dims: y[batch, ...] = a @ b");
    return poison();
  }
  if (a.offsets && b.offsets && a.offsets != b.offsets) {
    error(loc, Diag::OtherRouting);
    return poison();
  }
  if (!sizesAgree(a.value->type, b.value->type, loc)) return poison();
  // Rows that only one operand has and the result lacks are summed within their groups first.
  auto sumOwnRows = [&](Item& item, const Type& other) {
    llvm::SmallVector<Dim, 4> rest;
    for (const Dim& dim : item.value->type.dims)
      if (!dim.isRagged() || other.has(dim.name) || keep.find(dim.name)) rest.push_back(dim);
    if (rest.size() < item.value->type.dims.size()) item = sumTo(item, rest, loc);
  };
  for (const Item* item : {&a, &b}) {
    const Type& other = (item == &a ? b : a).value->type;
    for (const Dim& dim : item->value->type.dims)
      if (!dim.isRagged() && !other.has(dim.name) && !keep.find(dim.name))
        diags_.report(loc, Diag::SumsAlone, dim.name)
            .suggest("declare a result that has '" + dim.name +
                     "', or say sum(..., over = " + dim.name + ")");
  }
  sumOwnRows(a, b.value->type);
  sumOwnRows(b, a.value->type);
  llvm::SmallVector<Dim, 4> all = a.value->type.dims, kept;
  for (const Dim& dim : b.value->type.dims)
    if (!a.value->type.has(dim.name)) all.push_back(dim);
  for (const Dim& dim : all)
    if (keep.find(dim.name)) kept.push_back(dim);
  Type type{compute_, ordered(kept, keep)};
  if (llvm::StringRef group = type.grouping(); !group.empty() && !type.has(group)) {
    error(loc, Diag::GroupSummed, group).suggest("declare it in the result");
    return poison();
  }
  llvm::SmallVector<Value*, 3> operands{a.value, b.value};
  Value* offsets = a.offsets ? a.offsets : b.offsets;
  llvm::StringRef group = a.value->type.grouping();
  if (group.empty()) group = b.value->type.grouping();
  if (!group.empty()) operands.push_back(offsets);
  if (group.empty() || type.has(group))
    return Item::tensor(emit(OpKind::Einsum, operands, type, {}, loc), offsets);
  // A product over rows is one for each group: the groups are summed afterwards.
  Type byGroup = type;
  const Type& ragged = a.value->type.has(group) ? a.value->type : b.value->type;
  byGroup.dims.insert(byGroup.dims.begin(), ragged.dims[ragged.find(group)]);
  Item product = Item::tensor(emit(OpKind::Einsum, operands, byGroup, {}, loc), offsets);
  return sumTo(product, type.dims, loc);
}

// Sums to some of the operand's dims.
Item Lowering::sumTo(Item a, llvm::ArrayRef<Dim> dims, Loc loc) {
  const Type& from = a.value->type;
  Type type{from.elem, llvm::SmallVector<Dim, 4>(dims.begin(), dims.end())};
  if (type == from) return a;
  llvm::StringRef group = from.grouping();
  bool keepsRows = !type.grouping().empty();
  if (keepsRows && !type.has(group)) {
    error(loc, Diag::GroupSummed, group).suggest("sum its rows too");
    return poison();
  }
  if (!group.empty() && !keepsRows && !type.has(group)) {
    llvm::SmallVector<Dim, 4> byGroup{from.dims[from.find(group)]};
    byGroup.append(dims.begin(), dims.end());
    return sumTo(sumTo(a, byGroup, loc), dims, loc);
  }
  llvm::SmallVector<Value*, 2> operands{a.value};
  if (!group.empty() && !keepsRows) operands.push_back(a.offsets);
  return Item::tensor(emit(OpKind::Sum, operands, type, {}, loc), a.offsets);
}

// `table[tokens]`: the table's dim that goes is the one that the tokens count.
Item Lowering::evalLookup(const ast::Expr& expr, const Wanted& wanted) {
  ast::Expr name{ExprKind::Name, expr.loc, expr.text, 0, false, {}};
  Item table = evalName(name);
  Item ids = eval(*expr.args[0].value, {});
  if (table.kind == Item::Poison || ids.kind == Item::Poison) return poison();
  if (ids.kind != Item::Input || !ids.var->documents.empty()) {
    error(expr.args[0].value->loc, Diag::LookupIds, expr.text)
        .suggest("an input declared as token(...) indexes a table");
    return poison();
  }
  table = toTensor(table, expr.loc);
  if (table.kind == Item::Poison) return poison();
  const std::string& vocab = vocab_[ids.var];
  const Type& rows = table.value->type;
  if (!rows.has(vocab)) {
    error(expr.loc, Diag::LookupVocab, ids.var->name, vocab, expr.text, dimList(rows.dims))
        .note(ids.var->loc, Diag::DeclaredHere, ids.var->name);
    return poison();
  }
  Value* tokens = readVar(ids.var, expr.args[0].value->loc);
  Type type{compute_, tokens->type.dims};
  for (const Dim& dim : rows.dims) {
    if (dim.name == vocab) continue;
    if (type.has(dim.name)) {
      error(expr.loc, Diag::LookupShares, expr.text, ids.var->name, dim.name)
          .suggest("a table has a dim for the tokens and dims that the tokens lack");
      return poison();
    }
    type.dims.push_back(dim);
  }
  type.dims = ordered(type.dims, wanted);
  return Item::tensor(
      emit(OpKind::Lookup, {table.value, tokens}, type, {{"over", vocab}}, expr.loc));
}

}  // namespace planc::lowering
