// Shape rules, one small function per family of ops, found through a switch. Rules compare dims as
// sets: order is layout, not meaning. Tested by tests/unit/verify_test.cpp.
#include "ir/verify_shapes.h"

#include <algorithm>
#include <cmath>

#include "ir/shapes.h"
#include "llvm/ADT/DenseSet.h"

namespace planc {

using llvm::Error;
using llvm::StringRef;
using llvm::Twine;
using namespace shapes;

ValueSources::ValueSources(const Module& module) {
  for (const auto& function : module.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->kind != OpKind::Write || !op->var || op->var->kind != VarKind::Slot ||
          op->operands().empty())
        return;
      auto [at, isNew] = writes_.try_emplace(op->var, op->operand(0));
      if (!isNew) at->second = nullptr;
    });
}

// Casts that only move elements between ranks; what is taken from them is the same value.
static bool moves(const Op& op) {
  switch (op.kind) {
    case OpKind::Reshard:
    case OpKind::AllGather:
    case OpKind::AllToAll:
    case OpKind::ShardSlice:
    case OpKind::Wait:
      return true;
    case OpKind::Sum:  // of integers: it puts dims in another order
      return !op.results().empty() && !isFloat(op.result()->type.elem);
    default:
      return false;
  }
}

const Value* ValueSources::source(const Value* value) const {
  for (int hops = 0; hops < 12 && value && value->def(); ++hops) {
    const Op* op = value->def();
    if (moves(*op) && value->index() < op->operands().size()) {
      value = op->operand(value->index());
      continue;
    }
    if (op->kind != OpKind::Read || !op->var || op->var->kind != VarKind::Slot) return value;
    value = writes_.lookup(op->var);
  }
  return nullptr;
}

const Variable* ValueSources::input(const Value* value) const {
  const Value* from = source(value);
  const Op* op = from ? from->def() : nullptr;
  return op && op->kind == OpKind::Read && op->var->kind == VarKind::Input ? op->var : nullptr;
}

namespace shapes {

Error Shapes::needs(StringRef key, unsigned operand) const {
  std::string dim = word(key);
  if (dim.empty()) return broken("has no '" + key + "'");
  if (!op_.operand(operand)->type.has(dim))
    return broken("'" + key + "' is '" + dim + "', which operand " + Twine(operand) + " lacks");
  return Error::success();
}

// Which operands and results hold integers; everything else is floating point.
Error Shapes::elements() const {
  auto operand = [&](unsigned i, bool isInt) {
    return i < op_.operands().size()
               ? expectElem(("operand " + Twine(i)).str(), op_.operand(i)->type, isInt)
               : Error::success();
  };
  // A sum that sums nothing only puts dims in another order.
  bool isIntSum = op_.kind == OpKind::Sum && !op_.var && op_.operands().size() == 1 &&
                  op_.operand(0)->type.elem == Elem::I32 && sameSet(in(0), out());
  if (isIntSum) return expectElem("result 0", op_.result()->type, true);
  auto isIntOperand = [&](unsigned i) {
    switch (op_.kind) {
      case OpKind::Attend:
      case OpKind::AttendBlock:
      case OpKind::AttendGrad:
        return i >= unsigned(op_.info().minOperands);  // documents
      case OpKind::Einsum:
        return i == 2;
      case OpKind::Sum:
      case OpKind::Spread:
      case OpKind::Lookup:
      case OpKind::RouteGrad:
      case OpKind::CrossEntropyPart:
        return i == 1;
      case OpKind::CrossEntropyTotal:
        return i == 0 || i == 3;
      case OpKind::LookupGrad:
      case OpKind::CountValid:
      case OpKind::Admit:
      case OpKind::Pack:
      case OpKind::LearningRate:
      case OpKind::RowCounts:
      case OpKind::RowOffsets:
        return i == 0;
      case OpKind::CrossEntropy:
      case OpKind::CrossEntropyGrad:
      case OpKind::Dispatch:
      case OpKind::DispatchGrad:
        return i == 1 || i == 2;
      case OpKind::Combine:
        return i == 2 || i == 3;
      case OpKind::CombineGrad:
        return i == 3 || i == 4;
      case OpKind::AdamW:
        return i == 6;
      default:
        return false;
    }
  };
  auto isIntResult = [&](unsigned i) {
    return op_.kind == OpKind::CountValid || op_.kind == OpKind::Pack ||
           op_.kind == OpKind::RowCounts || op_.kind == OpKind::RowOffsets ||
           (op_.kind == OpKind::Route && i == 0);
  };
  if (op_.var && !isFloat(op_.var->type.elem)) return broken("accumulates into integers");
  for (unsigned i = 0; i < op_.operands().size(); ++i) TRY(operand(i, isIntOperand(i)));
  for (unsigned i = 0; i < op_.results().size(); ++i)
    TRY(expectElem(("result " + Twine(i)).str(), op_.result(i)->type, isIntResult(i)));
  return Error::success();
}

// Within one op a name has one size. The keys' positions are a name of their own.
Error Shapes::consistent() const {
  std::string seq = keysName(op_).empty() ? "" : word("seq");
  Dims named, keys;
  auto check = [&](const Type& type, bool isOfKeys) -> Error {
    for (const Dim& dim : type.dims) {
      Dims& seen = isOfKeys && dim.name == seq ? keys : named;
      const Dim* other = findDim(seen, dim.name);
      if (!other) seen.push_back(dim);
      else if (other->size != dim.size)
        return broken("dim '" + dim.name + "' has sizes " + Twine(other->size) + " and " +
                      Twine(dim.size));
      else if (*other != dim)
        return broken("dim '" + dim.name + "' is held as " + list({*other}) + " and " +
                      list({dim}));
    }
    return Error::success();
  };
  for (unsigned i = 0; i < op_.operands().size(); ++i)
    TRY(check(op_.operand(i)->type, isOperandOfKeys(op_, i)));
  for (unsigned i = 0; i < op_.results().size(); ++i)
    TRY(check(op_.result(i)->type, isResultOfKeys(op_, i)));
  return Error::success();
}

// Integers that index a dim must be tokens of an input whose vocabulary fits all of it.
Error Shapes::ids(unsigned operand, const Dim& dim, StringRef what) const {
  int64_t size = dim.all();
  const Variable* input = sources_.input(op_.operand(operand));
  if (!input) return broken(what + " must be read from an input");
  if (input->vocab > size)
    return broken(what + " are below " + Twine(input->vocab) + ", but the dim has " + Twine(size));
  return Error::success();
}

Error Shapes::variableOp() const {
  const Variable& var = *op_.var;
  if (op_.kind == OpKind::Zero) return Error::success();
  Type slice = var.slice(enclosing_);
  if (op_.kind == OpKind::Read) {
    const Type& type = op_.result()->type;
    // An input of several microbatches reads whole (once a step) or as the current one's slice.
    bool isCurrent = var.kind == VarKind::Input && type == var.slice({"microbatch"});
    if (op_.attrs.has("index")) slice = var.slice({var.stack.front()});
    if (type == slice || isCurrent) return Error::success();
    return broken("reads " + type.str() + ", but the slice is " + slice.str());
  }
  const Type& type = op_.operand(0)->type;
  if (var.kind == VarKind::Input || var.kind == VarKind::Step)
    return broken("sets '@" + var.name + "', which only the runtime sets");
  // Accumulating may convert between floating-point types; writing copies.
  bool elemFits = op_.kind == OpKind::Accum ? isFloat(type.elem) && isFloat(slice.elem)
                                            : type.elem == slice.elem;
  if (!elemFits || type.dims != slice.dims)
    return broken("writes " + type.str() + " into " + slice.str());
  return Error::success();
}

Error Shapes::elementwise() const {
  Dims all;
  for (unsigned i = 0; i < op_.operands().size(); ++i) all = unite(all, in(i));
  TRY(expectDims("the result", out(), all));
  StringRef group = op_.result()->type.grouping();
  if (!group.empty())
    for (const Value* operand : op_.operands())
      if (operand->type.has(group) && operand->type.grouping() != group)
        return broken("an operand has '" + group + "' without its rows; 'spread' it first");
  return Error::success();
}

Error Shapes::einsum() const {
  Type result = outcome();
  Dims all = unite(in(0), in(1));
  for (const Dim& dim : result.dims) {
    const Dim* from = findDim(all, dim.name);
    if (!from || *from != dim)
      return broken("the result's dim '" + dim.name + "' is in no operand");
  }
  StringRef group;
  const Type* ragged = nullptr;
  for (unsigned i = 0; i < 2; ++i)
    if (StringRef g = op_.operand(i)->type.grouping(); !g.empty()) {
      if (ragged && *ragged->dims.begin() != op_.operand(i)->type.dims[0])
        return broken("operands are grouped by different dims");
      if (ragged && ragged->dims[1] != op_.operand(i)->type.dims[1])
        return broken("operands have different rows");
      group = g;
      ragged = &op_.operand(i)->type;
    }
  if (!ragged)
    return op_.operands().size() == 2 ? Error::success() : broken("takes offsets only for rows");
  if (op_.operands().size() != 3) return broken("needs the rows' offsets");
  if (!result.has(group)) return broken("must keep the groups '" + group + "'");
  // Rows are summed in a product of both operands' rows; those of one alone take a `sum`.
  bool both = op_.operand(0)->type.has(ragged->dims[1].name) &&
              op_.operand(1)->type.has(ragged->dims[1].name);
  if (!both && !result.has(ragged->dims[1].name))
    return broken("sums rows that only one operand has");
  return offsetsOf(2, *ragged);
}

Error Shapes::sum() const {
  Type result = outcome();
  const Type& x = op_.operand(0)->type;
  for (const Dim& dim : result.dims) {
    const Dim* from = findDim(x.dims, dim.name);
    if (!from || *from != dim)
      return broken("the result's dim '" + dim.name + "' is not in the operand");
  }
  StringRef group = x.grouping();
  bool sumsRows = !group.empty() && result.grouping().empty();
  if (!group.empty() && !result.has(group)) return broken("must keep the groups '" + group + "'");
  if (sumsRows != (op_.operands().size() == 2))
    return broken(sumsRows ? "needs the rows' offsets" : "takes offsets only to sum rows");
  return sumsRows ? offsetsOf(1, x) : Error::success();
}

Error Shapes::spread() const {
  const Type& result = op_.result()->type;
  StringRef group = result.grouping();
  if (group.empty()) return broken("its result has no rows");
  TRY(expectDims("the operand", in(0), less(result.dims, {result.dims[1].name})));
  return offsetsOf(1, result);
}

Error Shapes::over() const {
  TRY(needs("over", 0));
  switch (op_.kind) {
    case OpKind::Softmax:
      return expectDims("the result", out(), in(0));
    case OpKind::LogSumExp:
      return expectDims("the result", out(), less(in(0), {word("over")}));
    case OpKind::SoftmaxGrad:
      TRY(expectDims("operand 1", in(1), in(0)));
      return expectDims("the result", out(), in(0));
    case OpKind::Norm:
      TRY(expectDims("result 0", out(0), in(0)));
      return expectDims("result 1", out(1), less(in(0), {word("over")}));
    default:  // NormGrad
      TRY(expectDims("operand 1", in(1), in(0)));
      TRY(expectDims("operand 2", in(2), less(in(0), {word("over")})));
      return expectDims("the result", out(), in(0));
  }
}

Error Shapes::lookup() const {
  bool isGrad = op_.kind == OpKind::LookupGrad;
  Type table = isGrad ? outcome() : op_.operand(0)->type;
  const Dims& tokens = in(isGrad ? 0 : 1);
  std::string over = word("over");
  if (over.empty() || !table.has(over)) return broken("'over' is no dim of the table");
  Dims rows = less(table.dims, {over});
  for (const Dim& dim : tokens)
    if (findDim(table.dims, dim.name)) return broken("ids and table share '" + dim.name + "'");
  TRY(expectDims(isGrad ? "operand 1" : "the result", isGrad ? in(1) : out(), unite(rows, tokens)));
  return ids(isGrad ? 0 : 1, *findDim(table.dims, over), "ids");
}

Error Shapes::crossEntropy() const {
  TRY(needs("over", 0));
  Dims rows = less(in(0), {word("over")});
  TRY(expectDims("the targets", in(1), rows));
  TRY(expectDims("the count", in(2), {}));
  if (op_.kind == OpKind::CrossEntropy) {
    TRY(expectDims("the loss", out(0), {}));
    TRY(expectDims("the log-sum-exp", out(1), rows));
  } else {
    TRY(expectDims("the log-sum-exp", in(3), rows));
    TRY(expectDims("the loss's gradient", in(4), {}));
    TRY(expectDims("the result", out(), in(0)));
  }
  return ids(1, *findDim(in(0), word("over")), "targets");
}

Error Shapes::crossEntropyPart() const {
  TRY(needs("over", 0));
  Dims rows = less(in(0), {word("over")});
  TRY(expectDims("the targets", in(1), rows));
  TRY(expectDims("what is picked", out(1), rows));
  const Dim& over = *findDim(in(0), word("over"));
  std::string part = word("part");
  if (part.empty() || findDim(in(0), part)) return broken("'part' must name a dim of its own");
  // One element a rank that holds a piece.
  rows.push_back(splitDim({part, ranksOver(over.axes)}, over.axes));
  TRY(expectDims("the log-sum-exp", out(0), rows));
  return ids(1, over, "targets");
}

Error Shapes::crossEntropyTotal() const {
  TRY(expectDims("the log-sum-exp", in(1), in(0)));
  TRY(expectDims("what is picked", in(2), in(0)));
  TRY(expectDims("the count", in(3), {}));
  return expectDims("the loss", out(), {});
}

Error Shapes::concat() const {
  std::string over = word("over");
  Words parts = op_.attrs.words("parts");
  const Dim* joined = findDim(out(), over);
  if (!joined) return broken("'over' is no dim of the result");
  if (parts.size() != op_.operands().size()) return broken("names not one part an operand");
  int64_t size = 0;
  Dims others;
  for (unsigned i = 0; i < parts.size(); ++i) {
    const Dim* part = findDim(in(i), parts[i]);
    if (!part || part->isRagged())
      return broken("operand " + Twine(i) + " lacks '" + parts[i] + "'");
    size += part->size;
    others = unite(others, less(in(i), {parts[i]}));
  }
  if (joined->zigzag != 0) return broken("joins '" + over + "' in zigzag order");
  if (size != joined->size || joined->isRagged())
    return broken("the parts have " + Twine(size) + " elements, not " + Twine(joined->size));
  others.push_back(*joined);
  return expectDims("the result", out(), others);
}

Error Shapes::slice() const {
  TRY(needs("over", 0));
  std::string part = word("part");
  const Dim* cut = findDim(out(), part);
  if (!cut || cut->isRagged()) return broken("'part' is no dim of the result");
  if (findDim(in(0), word("over"))->zigzag != 0)
    return broken("cuts '" + word("over") + "', which lies in zigzag order");
  int64_t offset = op_.attrs.integer("offset"), size = op_.operand(0)->type.size(word("over"));
  if (offset < 0 || offset > size || cut->size > size - offset)
    return broken("cuts elements " + Twine(offset) + " to " + Twine(offset + cut->size) + " of " +
                  Twine(size));
  Dims wanted = less(in(0), {word("over")});
  wanted.push_back(*cut);
  return expectDims("the result", out(), wanted);
}

Error Shapes::optimizer() const {
  unsigned state = op_.kind == OpKind::AdamW ? 4 : 3;
  for (unsigned i = 1; i < state; ++i)
    if (in(i) != in(0)) return broken("operand " + Twine(i) + " is not shaped like the weight");
  for (unsigned i = state; i < op_.operands().size(); ++i)
    TRY(expectDims(("operand " + Twine(i)).str(), in(i), {}));
  for (unsigned i = 0; i < op_.results().size(); ++i)
    if (out(i) != in(0)) return broken("result " + Twine(i) + " is not shaped like the weight");
  return Error::success();
}

Error Shapes::run() {
  switch (op_.kind) {
    case OpKind::Read:
    case OpKind::Write:
    case OpKind::Accum:
    case OpKind::Zero:
      return variableOp();
    case OpKind::Repeat:
    case OpKind::Yield:
    case OpKind::Fused:
      return Error::success();
    case OpKind::Reshard:
      return op_.operands().size() > 1 || op_.operand(0)->type.grouping().empty() ||
                     op_.operand(0)->type.whole().dims != op_.result()->type.whole().dims ||
                     sameRows(op_.operand(0)->type, op_.result()->type)
                 ? Error::success()
                 : broken("moves packed rows without their offsets");
    case OpKind::Send:
    case OpKind::Receive:
      return Error::success();
    case OpKind::StageShare:
      return op_.result()->type.whole() == op_.operand(0)->type.whole()
                 ? Error::success()
                 : broken("changes elements");
    case OpKind::AllReduce:
    case OpKind::ReduceScatter:
    case OpKind::AllGather:
    case OpKind::AllToAll:
    case OpKind::Rotate:
    case OpKind::ShardSlice:
    case OpKind::OneCopy:
    case OpKind::Wait:
      return verifyCast(op_);
    case OpKind::ExchangeRows:
      TRY(counted(1));
      TRY(counted(2));
      return verifyCast(op_);
    default:
      break;
  }
  TRY(elements());
  TRY(consistent());
  if (op_.has(Elementwise)) return elementwise();
  switch (op_.kind) {
    case OpKind::Const:
      return Error::success();
    case OpKind::Einsum:
      return einsum();
    case OpKind::Sum:
      return sum();
    case OpKind::Spread:
      return spread();
    case OpKind::Softmax:
    case OpKind::SoftmaxGrad:
    case OpKind::Norm:
    case OpKind::NormGrad:
    case OpKind::LogSumExp:
      return over();
    case OpKind::Lookup:
    case OpKind::LookupGrad:
      return lookup();
    case OpKind::CountValid:
    case OpKind::SumSquares:
      return expectDims("the result", out(), {});
    case OpKind::CrossEntropy:
    case OpKind::CrossEntropyGrad:
      return crossEntropy();
    case OpKind::CrossEntropyPart:
      return crossEntropyPart();
    case OpKind::CrossEntropyTotal:
      return crossEntropyTotal();
    case OpKind::Rope: {
      TRY(needs("seq", 0));
      TRY(needs("by", 0));
      if (op_.operand(0)->type.size(word("by")) % 2 != 0) return broken("turns an odd dim");
      std::string style = word("style");
      if (style != "half" && style != "pairs") return broken("unknown style '" + style + "'");
      if (word("seq") == word("by")) return broken("turns its positions");
      return expectDims("the result", out(), in(0));
    }
    case OpKind::Attend:
    case OpKind::AttendBlock:
    case OpKind::AttendGrad:
      return attend();
    case OpKind::Dropout: {
      double rate = op_.attrs.number("rate", -1);
      if (!(rate >= 0 && rate < 1)) return broken("drops at a rate outside [0, 1)");
      return expectDims("the result", out(), in(0));
    }
    case OpKind::Concat:
      return concat();
    case OpKind::Slice:
      return slice();
    case OpKind::Route:
      return route();
    case OpKind::RouteGrad:
      return routeGrad();
    case OpKind::Admit:
      return admit();
    case OpKind::Pack:
      return pack();
    case OpKind::Dispatch:
    case OpKind::DispatchGrad:
      return dispatch();
    case OpKind::Combine:
    case OpKind::CombineGrad:
      return combine();
    case OpKind::RowCounts:
      return rowCounts();
    case OpKind::RowOffsets:
      return rowOffsets();
    case OpKind::LearningRate:
      TRY(expectDims("the step", in(0), {}));
      return expectDims("the result", out(), {});
    case OpKind::AdamW:
    case OpKind::Sgd:
      return optimizer();
    default:
      return broken("has no shape rule");
  }
}

}  // namespace shapes

Error verifyShapes(const Op& op, const Words& enclosing, const ValueSources& sources) {
  return shapes::Shapes(op, enclosing, sources).run();
}

// Elementwise ops over one domain (the union of the operands' dims), and at most one `sum`, which
// ends it. Yields: values of the whole domain, or the sum.
Error verifyFused(const Op& op) {
  const Block& body = *op.body;
  llvm::DenseSet<const Value*> defined;
  Dims domain;
  const Op* sum = nullptr;
  for (const Value* arg : body.args()) {
    defined.insert(arg);
    domain = unite(domain, arg->type.dims);
  }
  ValueSources none{Module()};
  for (const Op* inner : body.ops) {
    for (const Value* operand : inner->operands())
      if (!defined.contains(operand)) return broken("its body uses a value from outside");
    if (inner->kind == OpKind::Yield) break;
    if (sum) return broken("its body goes on behind the sum");
    bool isSum = inner->kind == OpKind::Sum && inner->operands().size() == 1 && !inner->var;
    bool isConst = inner->kind == OpKind::Const && inner->result()->type.dims.empty();
    if (!isSum && !isConst && !inner->has(Elementwise))
      return broken("its body holds '" + inner->info().text + "'");
    if (inner->body || int(inner->operands().size()) < inner->info().minOperands ||
        int(inner->operands().size()) > inner->info().maxOperands || inner->results().size() != 1)
      return broken("its body holds a malformed '" + inner->info().text + "'");
    if (inner->result()->uses().empty()) return broken("its body makes a value that no one reads");
    TRY(verifyShapes(*inner, {}, none));
    if (isSum) sum = inner;
    defined.insert(inner->result());
  }
  const Op& yield = *body.ops.back();
  size_t yields = op.var ? 1 : op.results().size();
  if (yield.operands().size() != yields) return broken("yields not one value a result");
  for (size_t i = 0; i < yields; ++i) {
    const Value* value = yield.operands()[i];
    bool isSum = sum && value == sum->result();
    if (op.var && !isSum) return broken("accumulates a value that is no sum");
    if (op.var ? value->type.dims != op.var->slice(op.parent()->enclosing()).dims
               : value->type != op.results()[i]->type)
      return broken("yields value " + Twine(i) + " of another type than its result");
    if (!isSum && !sameSet(value->type.dims, domain))
      return broken("yields value " + Twine(i) + ", which does not cover its domain");
  }
  return Error::success();
}

}  // namespace planc
