// Lowering, builtins: one table says what each takes (kinds, defaults, ranges), so that all
// argument errors come from one place; then a function for each lowers the bound arguments to ops.
// Tested by tests/unit/lower_test.cpp and tests/frontend/errors/lower_builtins.plan.
#include <algorithm>
#include <cmath>
#include <limits>

#include "frontend/lower_builtins.h"
#include "ir/text.h"
#include "llvm/ADT/StringExtras.h"

namespace planc::lowering {

namespace {

enum class Takes { Tensor, Route, Balanced, Documents, Number, Integer, DimName, Flag, Word };
// What of the statement's wanted dims an operand should have: nothing is known, the same as the
// result, or the result's and `over`.
enum class Shape { None, Same, Reduced };

constexpr double kNone = -1e300;  // no default: must be given
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Param {
  const char* name;
  Takes takes;
  double fallback = kNone;  // Number, Integer
  double low = -kInf, high = kInf;
  const char* words = "";  // Word: its values, the first is the default. DimName: the default
  bool above = false;      // Number: `low` itself is not in range
};

}  // namespace

struct Builtin {
  const char* name;
  Shape shape;
  std::vector<Param> params;
  std::function<Item(Lowering&, BoundArgs&)> lower;

  static const std::vector<Builtin>& table();
};

const std::vector<Builtin>& Builtin::table() {
  using T = Takes;
  auto unary = [](const char* name, OpKind kind) {
    return Builtin{name, Shape::Same, {{"x", T::Tensor}}, [kind](Lowering& l, BoundArgs& a) {
                     return l.lowerUnary(kind, a);
                   }};
  };
  auto binary = [](const char* name, OpKind kind) {
    return Builtin{
        name, Shape::Same, {{"a", T::Tensor}, {"b", T::Tensor}}, [kind](Lowering& l, BoundArgs& a) {
          return l.lowerMaxMin(kind, a);
        }};
  };
  static const std::vector<Builtin> builtins = {
      unary("exp", OpKind::Exp),
      unary("log", OpKind::Log),
      unary("sqrt", OpKind::Sqrt),
      unary("rsqrt", OpKind::Rsqrt),
      unary("square", OpKind::Square),
      unary("tanh", OpKind::Tanh),
      unary("sigmoid", OpKind::Sigmoid),
      unary("relu", OpKind::Relu),
      unary("silu", OpKind::Silu),
      unary("gelu", OpKind::Gelu),
      unary("gelu_tanh", OpKind::GeluTanh),
      binary("max", OpKind::Max),
      binary("min", OpKind::Min),
      {"rms_norm",
       Shape::Same,
       {{"x", T::Tensor},
        {"over", T::DimName, kNone, 0, 0, "model"},
        {"eps", T::Number, 1e-5, 0, kInf, "", true}},
       [](Lowering& l, BoundArgs& a) { return l.lowerNorm(false, a); }},
      {"layer_norm",
       Shape::Same,
       {{"x", T::Tensor},
        {"over", T::DimName, kNone, 0, 0, "model"},
        {"eps", T::Number, 1e-5, 0, kInf, "", true}},
       [](Lowering& l, BoundArgs& a) { return l.lowerNorm(true, a); }},
      {"softmax",
       Shape::Same,
       {{"x", T::Tensor}, {"over", T::DimName}},
       [](Lowering& l, BoundArgs& a) { return l.lowerSoftmax(a); }},
      {"sum",
       Shape::Reduced,
       {{"x", T::Tensor}, {"over", T::DimName, kNone, 0, 0, "?"}},
       [](Lowering& l, BoundArgs& a) { return l.lowerSum(false, a); }},
      {"mean",
       Shape::Reduced,
       {{"x", T::Tensor}, {"over", T::DimName, kNone, 0, 0, "?"}},
       [](Lowering& l, BoundArgs& a) { return l.lowerSum(true, a); }},
      {"rope",
       Shape::Same,
       {{"x", T::Tensor},
        {"theta", T::Number, 10000, 0, kInf, "", true},
        {"by", T::DimName, kNone, 0, 0, "width"},
        {"over", T::DimName, kNone, 0, 0, "seq"},
        {"style", T::Word, 0, 0, 0, "half pairs"}},
       [](Lowering& l, BoundArgs& a) { return l.lowerRope(a); }},
      {"attend",
       Shape::None,
       {{"q", T::Tensor},
        {"k", T::Tensor},
        {"v", T::Tensor},
        {"causal", T::Flag},
        {"window", T::Integer, 0, 0},
        {"scale", T::Number, 0, 0},
        {"over", T::DimName, kNone, 0, 0, "seq"},
        {"by", T::DimName, kNone, 0, 0, "width"},
        {"documents", T::Documents}},
       [](Lowering& l, BoundArgs& a) { return l.lowerAttend(a); }},
      {"dropout",
       Shape::Same,
       {{"x", T::Tensor}, {"rate", T::Number, kNone, 0, 1}},
       [](Lowering& l, BoundArgs& a) { return l.lowerDropout(a); }},
      {"slice",
       Shape::None,
       {{"x", T::Tensor}, {"over", T::DimName}, {"from", T::Integer, 0, 0}},
       [](Lowering& l, BoundArgs& a) { return l.lowerSlice(a); }},
      {"route",
       Shape::None,
       {{"s", T::Tensor},
        {"top", T::Integer, kNone, 1},
        {"balance", T::Number, 0, 0},
        {"over", T::DimName, kNone, 0, 0, "expert"},
        {"score", T::Word, 0, 0, 0, "softmax sigmoid"},
        {"normalise", T::Flag, 1},
        {"scale", T::Number, 1, 0, kInf, "", true},
        {"capacity", T::Number, 0, 0},
        {"per", T::Word, 0, 0, 0, "microbatch sequence"},
        {"groups", T::Integer, 1, 1},
        {"kept", T::Integer, 0, 0},
        {"group_score", T::Word, 0, 0, 0, "best best2"},
        {"z", T::Number, 0, 0},
        {"bias", T::Balanced}},
       [](Lowering& l, BoundArgs& a) { return l.lowerRoute(a); }},
      {"dispatch",
       Shape::None,
       {{"x", T::Tensor}, {"r", T::Route}},
       [](Lowering& l, BoundArgs& a) { return l.lowerDispatch(a); }},
      {"combine",
       Shape::None,
       {{"o", T::Tensor}, {"r", T::Route}},
       [](Lowering& l, BoundArgs& a) { return l.lowerCombine(a); }},
  };
  return builtins;
}

const Builtin* findBuiltin(llvm::StringRef name) {
  static const Builtin special[] = {{"concat", Shape::None, {}, nullptr},
                                    {"cross_entropy", Shape::None, {}, nullptr}};
  for (const Builtin& builtin : Builtin::table())
    if (name == builtin.name) return &builtin;
  for (const Builtin& builtin : special)
    if (name == builtin.name) return &builtin;
  return nullptr;
}

// Binds the arguments: first those that are no tensors, since they say what shape tensors need.
Item Lowering::callBuiltin(const Builtin& builtin, const ast::Expr& call, const Wanted& wanted) {
  std::vector<ParamName> names;
  for (const Param& param : builtin.params) {
    bool required = param.takes == Takes::Tensor || param.takes == Takes::Route ||
                    (param.takes == Takes::DimName && !*param.words) ||
                    (param.fallback == kNone &&
                     (param.takes == Takes::Number || param.takes == Takes::Integer));
    names.push_back({param.name, required, param.takes == Takes::Flag});
  }
  auto matched = matchArgs(call, names, Loc());
  if (!matched) return poison();
  BoundArgs args{call, wanted, std::vector<Bound>(builtin.params.size())};
  bool good = true;
  auto wrong = [&](Loc loc, Diag id, auto&&... what) -> Diagnostic& {
    good = false;
    return error(loc, id, what...);
  };
  for (size_t i = 0; i < builtin.params.size(); ++i) {
    const Param& param = builtin.params[i];
    Bound& bound = args.list[i];
    const ast::Expr* value = (*matched)[i] ? (*matched)[i]->value.get() : nullptr;
    bound.loc = value ? value->loc : call.loc;
    bool isBareFlag = value && (*matched)[i]->key.text.empty();
    switch (param.takes) {
      case Takes::Tensor:
        break;
      case Takes::Route: {
        Item item = eval(*value, {});
        if (item.kind == Item::Route) bound.item = item;
        else if (item.kind != Item::Poison)
          wrong(value->loc, Diag::NotARoute, builtin.name)
              .suggest("give it the result of: r = route(scores, top = 2)");
        good &= item.kind == Item::Route;
        break;
      }
      case Takes::Balanced: {
        if (!value) break;
        bound.item = eval(*value, {});
        bool isBalanced = bound.item.kind == Item::Weight && bound.item.var->balance > 0;
        if (!isBalanced && bound.item.kind != Item::Poison)
          wrong(value->loc, Diag::NotBalanced, param.name)
              .suggest("declare it: weight bias [expert] init zeros balanced(0.001)");
        good &= isBalanced;
        break;
      }
      case Takes::Documents: {
        bool isName = value && value->kind == ast::ExprKind::Name;
        const Item* named = isName ? findName(value->text) : nullptr;
        if (!value || (named ? named->kind == Item::Word && named->word == "none"
                             : isName && value->text == "none"))
          break;
        Item item = eval(*value, {});
        bool fits = item.kind == Item::Input && !item.var->documents.empty();
        if (fits) bound.item = item;
        else if (item.kind != Item::Poison)
          wrong(value->loc, Diag::NotDocuments, builtin.name)
              .suggest("declare them: input documents[batch, seq] : document(tokens, SEPARATOR)");
        good &= fits;
        break;
      }
      case Takes::Number:
      case Takes::Integer: {
        if (!value) {
          bound.number = param.fallback;
          break;
        }
        std::optional<double> number;
        if (param.takes == Takes::Number) number = evalNumber(*value);
        else if (auto n = evalInteger(*value, "'" + std::string(param.name) + "'")) number = *n;
        good &= number.has_value();
        if (!number) break;
        bool inRange = *number >= param.low && *number <= param.high && std::isfinite(*number) &&
                       !(param.above && *number == param.low);
        if (!inRange) {
          std::string range = (param.above ? "above " : "at least ") + printNumber(param.low);
          if (std::isfinite(param.high)) range += " and at most " + printNumber(param.high);
          wrong(value->loc, Diag::NumberRange, param.name, range, printNumber(*number));
        }
        bound.number = *number;
        break;
      }
      case Takes::DimName: {
        llvm::StringRef fallback = param.words;
        if (!value && fallback == "?") break;
        std::optional<Dim> dim;
        if (value && value->kind != ast::ExprKind::Name)
          wrong(value->loc, Diag::NotADim, param.name).suggest("give the name of a dim");
        else if (value) dim = dimNamed({value->text, value->loc});
        else if (const DimEntry* entry = findDim(fallback)) dim = entry->dim;
        else
          wrong(call.loc, Diag::DefaultDim, builtin.name, param.name, fallback)
              .suggest("give it: " + std::string(param.name) + " = NAME");
        good &= dim.has_value();
        if (dim) bound.dim = *dim;
        break;
      }
      case Takes::Flag: {
        bound.number = value || param.fallback == 1;
        if (!value || isBareFlag) break;
        auto item = evalStatic(*value);
        if (item && item->kind != Item::Truth)
          wrong(value->loc, Diag::NotATruth)
              .suggest("'" + std::string(param.name) + "' is true or false");
        good &= item.has_value();
        if (item) bound.number = item->number;
        break;
      }
      case Takes::Word: {
        llvm::SmallVector<llvm::StringRef, 3> words;
        llvm::StringRef(param.words).split(words, ' ');
        bound.word = words[0].str();
        if (!value) break;
        const Item* named = value->kind == ast::ExprKind::Name ? findName(value->text) : nullptr;
        bound.word = named && named->kind == Item::Word ? named->word : value->text;
        if (named && named->kind == Item::Number) bound.word = printNumber(named->number);
        if (value->kind != ast::ExprKind::Name ||
            std::find(words.begin(), words.end(), bound.word) == words.end())
          wrong(value->loc, Diag::WordUnknown, param.name, bound.word)
              .suggest("use " + llvm::join(words, " or "));
        break;
      }
    }
  }
  Wanted inner = wanted.unknown();
  if (builtin.shape != Shape::None) inner = wanted;
  if (builtin.shape == Shape::Reduced && inner.known) {
    if (!args[1].dim.name.empty()) inner = inner.with(args[1].dim);
    else inner = wanted.unknown();
  }
  bool allNumbers = true;
  for (size_t i = 0; i < builtin.params.size(); ++i) {
    if (builtin.params[i].takes != Takes::Tensor) continue;
    args.list[i].item = eval(*(*matched)[i]->value, inner);
    allNumbers &= args.list[i].item.kind == Item::Number;
  }
  for (size_t i = 0; i < builtin.params.size(); ++i) {
    if (builtin.params[i].takes != Takes::Tensor) continue;
    Item& item = args.list[i].item;
    if (!allNumbers) item = toTensor(item, args.list[i].loc);
    good &= item.kind != Item::Poison;
  }
  return good ? builtin.lower(*this, args) : poison();
}

Item Lowering::lowerUnary(OpKind kind, BoundArgs& args) {
  const Item& x = args[0].item;
  Loc loc = args.call.loc;
  if (x.kind == Item::Number) {
    double n = x.number;
    switch (kind) {
      case OpKind::Exp:
        return Item::ofNumber(std::exp(n));
      case OpKind::Log:
        return Item::ofNumber(std::log(n));
      case OpKind::Sqrt:
        return Item::ofNumber(std::sqrt(n));
      case OpKind::Rsqrt:
        return Item::ofNumber(1 / std::sqrt(n));
      case OpKind::Square:
        return Item::ofNumber(n * n);
      case OpKind::Tanh:
        return Item::ofNumber(std::tanh(n));
      default:
        error(args[0].loc, Diag::NotATensor, "a number");
        return poison();
    }
  }
  return Item::tensor(emit(kind, {x.value}, x.value->type, {}, loc), x.offsets);
}

Item Lowering::lowerMaxMin(OpKind kind, BoundArgs& args) {
  Item a = args[0].item, b = args[1].item;
  if (a.kind == Item::Number && b.kind == Item::Number)
    return Item::ofNumber(kind == OpKind::Max ? std::max(a.number, b.number)
                                              : std::min(a.number, b.number));
  return elementwise(kind, a, b, args.wanted, args.call.loc);
}

// Along packed rows or their groups there is nothing to go over: how they are dealt out is known at run
// time only.
bool Lowering::goesOverGroups(const Item& x, const Dim& over, const ast::Expr& call) {
  const Type& type = x.value->type;
  if (over.name != type.grouping() && !type.dims[size_t(type.find(over.name))].isRagged())
    return false;
  error(call.loc, Diag::OverGroups, call.text, over.name);
  return true;
}

Item Lowering::lowerNorm(bool center, BoundArgs& args) {
  const Item& x = args[0].item;
  const Dim& over = args[1].dim;
  if (!hasDim(args[0], over)) {
    error(args.call.loc, Diag::LacksDim, args.call.text, over.name, dimList(dimsOf(x)))
        .suggest("give the dim to normalise: over = NAME");
    return poison();
  }
  if (goesOverGroups(x, over, args.call)) return poison();
  Attrs attrs{{"over", over.name}, {"eps", args[2].number}};
  if (center) attrs.set("center", int64_t{1});
  const Type& type = x.value->type;
  Op* op = at(args.call.loc)
               .create(OpKind::Norm, {x.value}, {type, type.without(over.name).withElem(scalar_)},
                       attrs);
  return Item::tensor(op->result(0), x.offsets);
}

Item Lowering::lowerSoftmax(BoundArgs& args) {
  const Item& x = args[0].item;
  const Dim& over = args[1].dim;
  if (!hasDim(args[0], over)) {
    error(args.call.loc, Diag::LacksDim, "softmax", over.name, dimList(dimsOf(x)));
    return poison();
  }
  if (goesOverGroups(x, over, args.call)) return poison();
  return Item::tensor(
      emit(OpKind::Softmax, {x.value}, x.value->type, {{"over", over.name}}, args.call.loc),
      x.offsets);
}

// Without `over`, all names go that the declared result lacks.
Item Lowering::lowerSum(bool mean, BoundArgs& args) {
  const Item& x = args[0].item;
  const Dim& over = args[1].dim;
  Loc loc = args.call.loc;
  if (x.kind != Item::Tensor) {
    error(args[0].loc, Diag::NotATensor, "a number");
    return poison();
  }
  if (!over.name.empty() && !x.value->type.has(over.name)) {
    error(args[1].loc, Diag::LacksDim, args.call.text, over.name, dimList(dimsOf(x)));
    return poison();
  }
  if (over.name.empty() && !args.wanted.known) {
    if (!args.wanted.broken) error(loc, Diag::SumUnclear).suggest("say over which: over = NAME");
    return poison();
  }
  llvm::SmallVector<Dim, 4> kept;
  double count = 1;
  for (const Dim& dim : x.value->type.dims) {
    bool goes = over.name.empty() ? !args.wanted.find(dim.name) : dim.name == over.name;
    if (!goes) kept.push_back(dim);
    else if (dim.isRagged() && mean) {
      error(loc, Diag::MeanOfRows, dim.name)
          .suggest("how many rows a group has is known only at run time");
      return poison();
    } else count *= double(dim.size);
  }
  Item from = x;
  const Type& type = x.value->type;
  if (kept.empty() && type.elem != scalar_)  // a sum of everything is a statistic: not rounded
    from = Item::tensor(at(loc).value(OpKind::Cast, {x.value}, type.withElem(scalar_)), x.offsets);
  Item result = sumTo(from, ordered(kept, args.wanted), loc);
  if (!mean || result.kind == Item::Poison) return result;
  Type summed = result.value->type;
  Value* factor = builder_.constant(1 / count, Type{summed.elem, {}});
  return Item::tensor(emit(OpKind::Mul, {result.value, factor}, summed, {}, loc), result.offsets);
}

Item Lowering::lowerDropout(BoundArgs& args) {
  const Item& x = args[0].item;
  double rate = args[1].number;
  if (rate == 1) {
    error(args[1].loc, Diag::NumberRange, "rate", "below 1", printNumber(rate));
    return poison();
  }
  if (x.kind == Item::Number || rate == 0) return x;
  return Item::tensor(emit(OpKind::Dropout, {x.value}, x.value->type,
                           {{"rate", rate}, {"site", instancePath("dropout")}}, args.call.loc),
                      x.offsets);
}

}  // namespace planc::lowering
