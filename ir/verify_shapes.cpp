// Shape rules, one small function per family of ops, found through a switch. Rules compare dims as
// sets: order is layout, not meaning. Tested by tests/unit/verify_test.cpp.
#include "ir/verify_shapes.h"

#include <algorithm>
#include <cmath>

#include "ir/broken.h"
#include "ir/sharding.h"
#include "llvm/ADT/DenseSet.h"

namespace planc {

using llvm::Error;
using llvm::StringRef;
using llvm::Twine;

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

int64_t admitted(const Op& admit) {
  const Type& choice = admit.operand(0)->type;
  auto sizeOf = [&](StringRef key) {
    int at = choice.find(admit.attrs.word(key));
    return at < 0 ? 1.0 : double(choice.dims[size_t(at)].all());
  };
  double limit = std::ceil(admit.attrs.number("capacity") * sizeOf("seq") * sizeOf("choice") /
                           double(std::max<int64_t>(admit.attrs.integer("experts"), 1)));
  return limit < 1 ? 1 : limit > 1e15 ? int64_t(1e15) : int64_t(limit);
}

int64_t packedRows(const Op& pack, const Op* admit) {
  const Type& choice = pack.operand(0)->type;
  int64_t rows = choice.elements();
  if (!admit) return rows;
  for (StringRef key : {"seq", "choice"})
    if (!choice.has(admit->attrs.word(key))) return rows;
  int64_t sequences =
      rows / choice.size(admit->attrs.word("seq")) / choice.size(admit->attrs.word("choice"));
  int64_t taken =
      saturatingMul(saturatingMul(sequences, pack.attrs.integer("experts")), admitted(*admit));
  return std::min(rows, taken);
}

namespace {

using Dims = llvm::SmallVector<Dim, 4>;

const Dim* findDim(const Dims& dims, StringRef name) {
  for (const Dim& dim : dims)
    if (dim.name == name) return &dim;
  return nullptr;
}

bool sameSet(const Dims& a, const Dims& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const Dim& dim) {
           const Dim* other = findDim(b, dim.name);
           return other && *other == dim;
         });
}

Dims unite(const Dims& a, const Dims& b) {
  Dims all = a;
  for (const Dim& dim : b)
    if (!findDim(all, dim.name)) all.push_back(dim);
  return all;
}

Dims less(Dims dims, std::initializer_list<StringRef> names) {
  for (StringRef name : names)
    llvm::erase_if(dims, [&](const Dim& dim) { return dim.name == name; });
  return dims;
}

std::string list(const Dims& dims) {
  std::string text = Type{Elem::F32, dims}.str();
  return text.substr(text.find('['));
}

Error expectDims(StringRef what, const Dims& is, const Dims& wanted) {
  if (sameSet(is, wanted)) return Error::success();
  return broken(what + " has dims " + list(is) + ", not " + list(wanted));
}

Error expectElem(StringRef what, const Type& type, bool isInt) {
  if ((type.elem == Elem::I32) == isInt) return Error::success();
  return broken(what + (isInt ? " must hold i32" : " must hold floating-point numbers"));
}

#define TRY(expression) \
  if (Error error = (expression)) return error

// Whether rows lie alike in both types: the same pieces of the same experts.
bool sameRows(const Type& a, const Type& b) {
  for (const Dim& dim : a.dims)
    if (dim.isRagged() || dim.name == a.grouping()) {
      const Dim* other = findDim(b.dims, dim.name);
      if (!other || *other != dim) return false;
    }
  return true;
}

class Shapes {
 public:
  Shapes(const Op& op, const Words& enclosing, const ValueSources& sources)
      : op_(op), enclosing_(enclosing), sources_(sources) {}

  Error run();

 private:
  const Dims& in(unsigned i) const { return op_.operand(i)->type.dims; }
  const Dims& out(unsigned i = 0) const { return op_.result(i)->type.dims; }
  // The result's type, or the slice that an accumulating op adds to.
  Type outcome() const { return op_.var ? op_.var->slice(enclosing_) : op_.result()->type; }
  std::string word(StringRef key) const { return op_.attrs.word(key); }
  Error needs(StringRef key, unsigned operand) const;
  Error elements() const;
  Error consistent() const;
  Error ids(unsigned operand, const Dim& dim, StringRef what) const;
  const Op* packOf(const Value* value, unsigned result) const;
  int64_t rowsOf(const Op& pack) const;
  Error routed(unsigned row, unsigned offsets, const Dims& rows) const;
  Error offsetsOf(unsigned operand, const Type& ragged) const;

  Error variableOp() const;
  Error elementwise() const;
  Error einsum() const;
  Error sum() const;
  Error spread() const;
  Error over() const;
  Error lookup() const;
  Error crossEntropy() const;
  Error crossEntropyPart() const;
  Error crossEntropyTotal() const;
  Error attend() const;
  Error keysPositions() const;
  Error documents() const;
  Error concat() const;
  Error slice() const;
  Error route() const;
  Error routeGrad() const;
  Error groupedChoice(int64_t experts) const;
  Error admit() const;
  Error pack() const;
  Error dispatch() const;
  Error combine() const;
  Error rowCounts() const;
  Error rowOffsets() const;
  Error counted(unsigned operand) const;
  Error optimizer() const;

  const Op& op_;
  const Words& enclosing_;
  const ValueSources& sources_;
};

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

// The `pack` that made rows or offsets; null: none did.
const Op* Shapes::packOf(const Value* value, unsigned result) const {
  const Value* from = sources_.source(value);
  bool isPack = from && from->def()->kind == OpKind::Pack && from->index() == result;
  return isPack ? from->def() : nullptr;
}

// What `admit` let in, as far as that is known.
int64_t Shapes::rowsOf(const Op& pack) const {
  const Value* fit = pack.operands().size() > 1 ? sources_.source(pack.operand(1)) : nullptr;
  return packedRows(pack, fit && fit->def()->kind == OpKind::Admit ? fit->def() : nullptr);
}

// Rows must come from `pack`, and the ragged dim must have room for all of them.
Error Shapes::routed(unsigned row, unsigned offsets, const Dims& ragged) const {
  const Op* pack = packOf(op_.operand(row), 0);
  if (!pack) return broken("rows must come from a pack");
  if (const Op* other = packOf(op_.operand(offsets), 1); other && other != pack)
    return broken("its rows and offsets come from different packs");
  std::string group = word("over");
  if (group.empty() || ragged.size() < 2 || ragged[0].name != group || ragged[1].over != group)
    return broken("packed rows must start with [over, slot~over, ...]");
  if (ragged[0].all() != pack->attrs.integer("experts"))
    return broken("has " + Twine(ragged[0].all()) + " groups, but the pack has " +
                  Twine(pack->attrs.integer("experts")));
  if (ragged[1].size < rowsOf(*pack))
    return broken("has room for " + Twine(ragged[1].size) + " rows, but the pack makes up to " +
                  Twine(rowsOf(*pack)));
  return offsetsOf(offsets, {Elem::F32, ragged});
}

// Offsets of all experts come from `pack`; those of a rank's own from `row_offsets`, and whether there
// is room for their rows is known when they have come.
Error Shapes::offsetsOf(unsigned operand, const Type& ragged) const {
  const Value* from = sources_.source(op_.operand(operand));
  const Dim& groups = ragged.dims[0];
  const Op* pack = packOf(op_.operand(operand), 1);
  if (!pack && !(from && from->def()->kind == OpKind::RowOffsets))
    return broken("offsets must come from a pack");
  const Dims& dims = in(operand);
  bool isOfOwn = dims.size() == 1 && dims[0].isSplit();
  if (isOfOwn && op_.has(Packs)) return broken("needs the offsets of all experts");
  if (!isOfOwn && groups.isSplit() && !op_.has(Packs))
    return broken("needs the offsets of this rank's own experts");
  int64_t size = (isOfOwn ? groups.size : groups.all()) + 1;
  if (dims.size() != 1 || dims[0].size != size)
    return broken("offsets have dims " + list(dims) + " for " + Twine(size - 1) + " groups");
  // Whether there is room for rows that ranks send each other is known only when they come.
  if (pack && !isOfOwn && ragged.dims[1].size < rowsOf(*pack))
    return broken("the ragged dim has no room for the pack's rows");
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

Error Shapes::attend() const {
  std::string seq = word("seq"), by = word("by"), head = word("head"), kv = word("kv");
  for (unsigned i = 0; i < 2; ++i)
    for (StringRef key : {"seq", "by"}) TRY(needs(key, i));
  if (head.empty() != kv.empty()) return broken("names only one of 'head' and 'kv'");
  if (!head.empty()) {
    TRY(needs("head", 0));
    TRY(needs("kv", 1));
    const Dim &heads = *findDim(in(0), head), &kvs = *findDim(in(1), kv);
    if (heads.all() % kvs.all() != 0)
      return broken("has " + Twine(heads.all()) + " heads, no multiple of " + Twine(kvs.all()) +
                    " kv heads");
    // A rank must hold the keys of all its heads.
    if (heads.isPadded() || kvs.isPadded()) return broken("its heads are cut into unequal pieces");
    if (kvs.axes.size() > heads.axes.size() ||
        !std::equal(kvs.axes.begin(), kvs.axes.end(), heads.axes.begin()))
      return broken("its kv heads are cut otherwise than its heads: " + list({kvs}) + " for " +
                    list({heads}));
  }
  Dims base = less(in(0), {seq, by, head});
  TRY(expectDims("the keys less seq, by and kv", less(in(1), {seq, by, kv}), base));
  Dims values = less(in(2), {seq, kv});
  for (const Dim& dim : base) values = less(values, {dim.name});
  if (values.size() != 1) return broken("the values need exactly one dim of their own");
  Dims keyRows = less(in(1), {by});
  TRY(expectDims("the values", in(2), unite(less(keyRows, {values[0].name}), values)));
  Dims rows = less(in(0), {by});
  Dims result = unite(rows, values);
  TRY(keysPositions());
  TRY(documents());
  if (op_.kind != OpKind::Attend) {
    TRY(expectDims("operand 3", in(3), result));
    TRY(expectDims("operand 4", in(4), rows));
  }
  if (op_.kind == OpKind::AttendGrad) {
    TRY(expectDims("operand 5", in(5), result));
    for (unsigned i = 0; i < 3; ++i) TRY(expectDims(("result " + Twine(i)).str(), out(i), in(i)));
    return Error::success();
  }
  TRY(expectDims("the result", out(0), result));
  TRY(expectDims("the log-sum-exp", out(1), rows));
  if (op_.kind == OpKind::Attend) return Error::success();
  // What blocks add up to is rounded once, when all have been.
  for (unsigned i = 0; i < 2; ++i) {
    Elem before = op_.operand(3 + i)->type.elem, after = op_.result(i)->type.elem;
    if (before != after || after == Elem::BF16)
      return broken("adds to " + name(before) + " and makes " + name(after) +
                    ", where both must be f32 or f64");
  }
  return Error::success();
}

// Keys have all the queries' positions, or are a rank's block of them, its own or one that came.
Error Shapes::keysPositions() const {
  const Dim &queries = *findDim(in(0), word("seq")), &keys = *findDim(in(1), word("seq"));
  bool isBlock = op_.kind == OpKind::AttendBlock || op_.isFlag("block");
  if (queries.isMoved()) return broken("its queries are another rank's: " + list({queries}));
  Dim wanted = splitDim(queries, {});
  // Ranks with pieces of the same queries' block may share its keys.
  if ((isBlock || op_.isFlag("ring")) && keys.axes.size() <= queries.axes.size())
    wanted = splitDim(queries, llvm::ArrayRef<Axis>(queries.axes).take_front(keys.axes.size()));
  if (isBlock) {
    wanted.moved = keys.moved;
    wanted.moves = keys.moves;
  }
  if (keys == wanted) return Error::success();
  return broken("its keys are at " + list({keys}) + ", and its queries at " + list({queries}));
}

// By position, and by other dims that queries and keys both have.
Error Shapes::documents() const {
  unsigned first = unsigned(op_.info().minOperands), count = unsigned(op_.operands().size());
  if (count == first) return Error::success();
  if (count == first + 1) return broken("has the documents of its queries and not of its keys");
  std::string seq = word("seq"), by = word("by"), head = word("head"), kv = word("kv");
  for (unsigned i : {0u, 1u}) {
    Dims dims = less(in(i), {by, head, kv}), mine = in(first + i);
    for (const Dim& dim : less(dims, {seq}))
      if (!findDim(in(first), dim.name)) dims = less(dims, {dim.name});
    TRY(expectDims(i == 0 ? "the documents" : "the documents of the keys", mine, dims));
  }
  return Error::success();
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

Error Shapes::route() const {
  TRY(needs("over", 0));
  std::string over = word("over");
  int64_t experts = op_.operand(0)->type.size(over), top = op_.attrs.integer("top");
  if (top < 1 || top > experts) return broken("chooses " + Twine(top) + " of " + Twine(experts));
  std::string score = word("score"), per = word("per");
  if (score != "softmax" && score != "sigmoid") return broken("unknown score '" + score + "'");
  if (per != "sequence" && per != "microbatch") return broken("unknown group '" + per + "'");
  if (per == "sequence") TRY(needs("seq", 0));
  TRY(groupedChoice(experts));
  if (!op_.operand(0)->type.grouping().empty()) return broken("cannot route packed rows");
  const Dims own{*findDim(in(0), over)};
  if (op_.operands().size() > 1) TRY(expectDims("the bias", in(1), own));
  Dims choices = less(in(0), {over});
  if (findDim(choices, "choice")) return broken("the scores have a dim 'choice'");
  choices.push_back({"choice", top, ""});
  for (unsigned i = 0; i < 2; ++i) TRY(expectDims(("result " + Twine(i)).str(), out(i), choices));
  Dims sums = per == "sequence" ? less(in(0), {word("seq")}) : own;
  TRY(expectDims("the load", out(2), sums));
  return expectDims("the share", out(3), sums);
}

// The experts that are left to choose from must be enough.
Error Shapes::groupedChoice(int64_t experts) const {
  int64_t groups = op_.attrs.integer("groups", 1), kept = op_.attrs.integer("kept", groups);
  if (groups < 1 || experts % groups != 0)
    return broken("cuts " + Twine(experts) + " experts into " + Twine(groups) + " groups");
  if (kept < 1 || kept > groups || kept * (experts / groups) < op_.attrs.integer("top"))
    return broken("keeps " + Twine(kept) + " of " + Twine(groups) + " groups for " +
                  Twine(op_.attrs.integer("top")) + " choices");
  if (groups == 1) return Error::success();
  std::string score = word("group_score");
  if (score != "best" && score != "best2") return broken("unknown group score '" + score + "'");
  if (score == "best2" && experts / groups < 2)
    return broken("scores a group by two experts, but has one a group");
  return Error::success();
}

Error Shapes::routeGrad() const {
  TRY(needs("over", 0));
  const Value* choice = sources_.source(op_.operand(1));
  if (!choice || choice->def()->kind != OpKind::Route || choice->index() != 0)
    return broken("choices must come from a route");
  const Op& route = *choice->def();
  if (route.operand(0)->type.whole().dims != op_.operand(0)->type.whole().dims ||
      route.attrs.word("over") != word("over"))
    return broken("the scores are not those of the route");
  for (StringRef key : {"top", "score", "per", "normalise", "scale", "seq"}) {
    const Attr *mine = op_.attrs.find(key), *its = route.attrs.find(key);
    if (bool(mine) != bool(its) || (mine && *mine != *its))
      return broken("'" + key + "' differs from the route's");
  }
  Dims choices = less(in(0), {word("over")});
  choices.push_back({"choice", op_.attrs.integer("top"), ""});
  Dims sums =
      word("per") == "sequence" ? less(in(0), {word("seq")}) : Dims{*findDim(in(0), word("over"))};
  TRY(expectDims("operand 1", in(1), choices));
  TRY(expectDims("operand 2", in(2), choices));
  TRY(expectDims("operand 3", in(3), sums));
  return expectDims("the result", out(), in(0));
}

Error Shapes::admit() const {
  for (StringRef key : {"seq", "choice"}) TRY(needs(key, 0));
  if (!(op_.attrs.number("capacity") > 0)) return broken("has no 'capacity'");
  if (op_.attrs.integer("experts") < 1) return broken("has no 'experts'");
  return expectDims("the result", out(), in(0));
}

Error Shapes::pack() const {
  int64_t experts = op_.attrs.integer("experts");
  const Value* choice = sources_.source(op_.operand(0));
  if (!choice || choice->def()->kind != OpKind::Route || choice->index() != 0)
    return broken("choices must come from a route");
  const Op& route = *choice->def();
  const Dim* over = findDim(route.operand(0)->type.dims, route.attrs.word("over"));
  if (!over || over->all() != experts)
    return broken("packs for " + Twine(experts) + " experts, but the route has others");
  TRY(needs("choice", 0));
  if (op_.operands().size() > 1) TRY(expectDims("what fits", in(1), in(0)));
  TRY(expectDims("the rows", out(0), in(0)));
  if (out(1).size() != 1 || out(1)[0].size != experts + 1)
    return broken("offsets must have " + Twine(experts + 1) + " elements");
  return rowsOf(op_) <= INT32_MAX ? Error::success() : broken("makes more rows than an i32 counts");
}

Error Shapes::dispatch() const {
  bool isGrad = op_.kind == OpKind::DispatchGrad;
  const Dims& packed = isGrad ? in(0) : out();
  const Dims& x = isGrad ? out() : in(0);
  Dims tokens = less(in(1), {"choice"});
  if (tokens.size() + 1 != in(1).size()) return broken("rows lack dim 'choice'");
  TRY(routed(1, 2, packed));
  Dims rest(packed.begin() + 2, packed.end());
  TRY(expectDims(isGrad ? "the result" : "operand 0", x, unite(tokens, rest)));
  return tokens.size() + rest.size() == x.size() ? Error::success()
                                                 : broken("token dims stand in the rows");
}

Error Shapes::combine() const {
  bool isGrad = op_.kind == OpKind::CombineGrad;
  unsigned o = isGrad ? 1 : 0, gate = o + 1, row = o + 2;
  Dims tokens = less(in(row), {"choice"});
  if (tokens.size() + 1 != in(row).size()) return broken("rows lack dim 'choice'");
  TRY(expectDims("the gates", in(gate), in(row)));
  TRY(routed(row, row + 1, in(o)));
  Dims rest(in(o).begin() + 2, in(o).end());
  Dims y = unite(tokens, rest);
  if (y.size() != tokens.size() + rest.size()) return broken("token dims stand in the rows");
  TRY(expectDims(isGrad ? "operand 0" : "the result", isGrad ? in(0) : out(), y));
  if (!isGrad) return Error::success();
  TRY(expectDims("result 0", out(0), in(o)));
  return expectDims("result 1", out(1), in(gate));
}

// Counts are by part (absent where nothing is to be told apart) and by expert.
Error Shapes::rowCounts() const {
  if (!packOf(op_.operand(0), 1)) return broken("offsets must come from a pack");
  if (out().empty() || out().size() > 2)
    return broken("counts have dims [part, expert] or [expert], not " + list(out()));
  const Dim& experts = out().back();
  if (in(0).size() != 1 || in(0)[0].isSplit() || in(0)[0].size != experts.all() + 1)
    return broken("offsets have dims " + list(in(0)) + " for " + Twine(experts.all()) + " experts");
  if (experts.isPadded()) return broken("its experts are cut into unequal pieces");
  if (out().size() == 2 &&
      out()[0] != splitDim({out()[0].name, ranksOver(out()[0].axes)}, out()[0].axes))
    return broken("'" + out()[0].name + "' has not one element a rank");
  return Error::success();
}

Error Shapes::counted(unsigned operand) const {
  const Value* from = sources_.source(op_.operand(operand));
  return from && from->def()->kind == OpKind::RowCounts
             ? Error::success()
             : broken("operand " + Twine(operand) + " must come from 'row_counts'");
}

Error Shapes::rowOffsets() const {
  TRY(counted(0));
  if (in(0).size() == 2 && in(0)[0].isSplit())
    return broken("needs the counts of all of '" + in(0)[0].name + "'");
  const Dim& experts = in(0).back();
  if (experts.isPadded()) return broken("its experts are cut into unequal pieces");
  // So many that each rank has one more than it has experts: neighbours' pieces overlap by one.
  Dims wanted{splitDim({out().empty() ? "" : out()[0].name, experts.all() + 1}, experts.axes)};
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

}  // namespace

Error verifyShapes(const Op& op, const Words& enclosing, const ValueSources& sources) {
  return Shapes(op, enclosing, sources).run();
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
