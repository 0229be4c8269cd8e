// Shape rules of casts between sharded types: collectives, what cuts or masks without traffic, and
// `wait`. Casts keep the order of dims, since messages are memory as it lies, and pieces must fill it
// without gaps; partial sums and axes are ir/verify_sharding.cpp's business. Tested by
// tests/unit/verify_casts_test.cpp.
#include "ir/verify_shapes.h"

#include "ir/broken.h"

namespace planc {
namespace {

using llvm::Error;
using llvm::StringRef;
using llvm::Twine;

#define TRY(expression) \
  if (Error error = (expression)) return error

// The coarser dim cut over further axes, the innermost, is the finer one.
Error expectFiner(const Dim& coarse, const Dim& fine, const Words& axes) {
  llvm::ArrayRef<Axis> all = fine.axes;
  bool fits = coarse.axes.size() + axes.size() == all.size() &&
              llvm::ArrayRef<Axis>(coarse.axes) == all.take_front(coarse.axes.size());
  for (size_t i = 0; fits && i < axes.size(); ++i)
    fits = all[coarse.axes.size() + i].name == axes[i];
  if (fits && fine == splitDim(coarse, all)) return Error::success();
  return broken("dim '" + coarse.name +
                "' is not cut over the axes in one type, innermost, and not " + "in the other");
}

// Whether the ranks' pieces, one behind the other, are just the coarser piece: no padding stands
// between or behind them.
bool fills(const Dim& coarse, const Dim& fine) {
  return saturatingMul(fine.size, ranksOver(fine.axes) / ranksOver(coarse.axes)) == coarse.size;
}

// Dims that lie in memory as rows of their own: all but packed rows and their groups.
bool isPlain(const Type& type, const Dim& dim) {
  return !dim.isRagged() && type.grouping() != dim.name;
}

// The finer type is the coarser one with dim `name` cut over axes.
Error expectCut(const Type& coarse, const Type& fine, StringRef name, const Words& axes) {
  int at = coarse.find(name);
  if (at < 0) return broken("'dim' is '" + name + "', which an operand lacks");
  Type wanted = fine;
  if (coarse.dims.size() != fine.dims.size() || fine.find(name) != at)
    return broken("has " + coarse.str() + " for " + fine.str());
  TRY(expectFiner(coarse.dims[at], fine.dims[at], axes));
  wanted.dims[at] = coarse.dims[at];
  if (wanted.dims != coarse.dims) return broken("has " + coarse.str() + " for " + fine.str());
  if (!isPlain(coarse, coarse.dims[at])) return broken("cuts the packed rows '" + name + "'");
  return Error::success();
}

// all_gather and reduce_scatter: the ranks' pieces are one behind the other in the whole.
Error concatenation(const Op& op, unsigned i, StringRef name, const Words& axes) {
  const Type &operand = op.operand(i)->type, &result = op.result(i)->type;
  bool gathers = op.kind == OpKind::AllGather;
  const Type &coarse = gathers ? result : operand, &fine = gathers ? operand : result;
  TRY(expectCut(coarse, fine, name, axes));
  int at = coarse.find(name);
  if (!fills(coarse.dims[at], fine.dims[at]))
    return broken("the pieces of '" + name + "' are padded: " + fine.str());
  for (const Dim& outer : llvm::ArrayRef<Dim>(fine.dims).take_front(at))
    if (outer.size != 1 && fine.grouping() != outer.name)
      return broken("'" + name + "' is not outermost in memory: '" + outer.name + "' is");
  return Error::success();
}

// Dims may be cut anew, but no piece may be padded: each rank sends and gets equal parts. Which axis
// goes where is the rule of sharding.
Error allToAll(const Op& op) {
  const Type &operand = op.operand(0)->type, &result = op.result(0)->type;
  bool fits = operand.dims.size() == result.dims.size();
  for (size_t i = 0; fits && i < operand.dims.size(); ++i) {
    const Dim &was = operand.dims[i], &is = result.dims[i];
    if (was == is) continue;
    fits = splitDim(was, {}) == splitDim(is, {});
    if (was.isPadded() || is.isPadded())
      return broken("the pieces of '" + is.name + "' are padded");
    if (!isPlain(operand, was)) return broken("cuts the packed rows '" + is.name + "'");
  }
  if (fits && operand.elements() == result.elements()) return Error::success();
  return broken("has " + operand.str() + " for " + result.str());
}

// Pieces of the dim that is cut over just these axes go round their ring.
Error rotation(const Op& op, unsigned i, const Words& axes) {
  const Type &operand = op.operand(i)->type, &result = op.result(i)->type;
  Type wanted = operand;
  auto dim = llvm::find_if(wanted.dims, [&](const Dim& d) {
    return d.axes.size() == axes.size() &&
           std::equal(axes.begin(), axes.end(), d.axes.begin(),
                      [](const std::string& name, const Axis& axis) { return axis.name == name; });
  });
  if (dim == wanted.dims.end())
    return broken("no dim of " + operand.str() + " is cut over just its axes");
  int64_t ranks = ranksOver(dim->axes), by = op.attrs.integer("by", 1) % ranks;
  if (by == 0) return broken("moves every piece to its own rank");
  dim->moved = (dim->moved + by + ranks) % ranks;
  return wanted.dims == result.dims ? Error::success()
                                    : broken("makes " + wanted.str() + ", not " + result.str());
}

// exchange_rows(rows, counts, counts there) -> rows, spare: the side of the tokens has rows of all
// experts, the other those of the rank's own. Which axes cut the rows is the rule of sharding.
Error exchangeRows(const Op& op, const Words& axes) {
  bool isHome = op.isFlag("home");
  const Type &rows = op.operand(0)->type, &result = op.result()->type;
  const Type &all = isHome ? result : rows, &own = isHome ? rows : result;
  for (const Type* type : {&all, &own})
    if (type->dims.size() < 2 || type->dims[1].over != type->dims[0].name)
      return broken("packed rows must start with [expert, slot~expert, ...]: " + type->str());
  auto rest = [](const Type& type) { return llvm::ArrayRef<Dim>(type.dims).drop_front(2); };
  if (rows.elem != result.elem || rest(rows) != rest(result) ||
      all.dims[1].name != own.dims[1].name)
    return broken("has " + rows.str() + " for " + result.str());
  if (op.result(1)->type.elem != own.elem || op.result(1)->type.dims != own.dims)
    return broken("the spare room is " + op.result(1)->type.str() + ", not that of the own " +
                  "experts' rows: " + own.str());
  TRY(expectFiner(all.dims[0], own.dims[0], axes));
  if (own.dims[0].isPadded() || !fills(all.dims[0], own.dims[0]))
    return broken("its experts are cut into unequal pieces: " + own.str());
  auto counts = [&](unsigned operand, const Dim& experts, bool isCut) -> Error {
    const Type& type = op.operand(operand)->type;
    Axes ranks(own.dims[0].axes.end() - ptrdiff_t(axes.size()), own.dims[0].axes.end());
    Dim part{type.dims.empty() ? "" : type.dims[0].name, ranksOver(ranks)};
    if (isCut) part = splitDim(part, ranks);
    Type wanted{Elem::I32, {part, experts}};
    if (type.elem == wanted.elem && type.dims == wanted.dims) return Error::success();
    return broken("operand " + Twine(operand) + " is " + type.str() + ", not counts like " +
                  wanted.str());
  };
  TRY(counts(isHome ? 2 : 1, all.dims[0], true));
  return counts(isHome ? 1 : 2, own.dims[0], false);
}

// wait(started..., sources...): all of one op that was started, in its order.
Error wait(const Op& op) {
  size_t n = op.results().size();
  const Op* started = n > 0 && op.operands().size() > n ? op.operand(0)->def() : nullptr;
  if (!started || !started->has(Comm) || started->kind == OpKind::Wait ||
      !started->isFlag("start") || started->results().size() != n ||
      op.operands().size() != n + started->operands().size())
    return broken("must take the results of one started collective, then its operands");
  for (unsigned i = 0; i < op.operands().size(); ++i)
    if (op.operand(i) != (i < n ? started->result(i) : started->operand(i - unsigned(n))))
      return broken("takes other values than those of the collective, in its order");
  for (unsigned i = 0; i < n; ++i)
    if (op.result(i)->type != started->result(i)->type)
      return broken("result " + Twine(i) + " is not of the type that was started");
  return Error::success();
}

}  // namespace

Error verifyCast(const Op& op) {
  if (op.kind == OpKind::Wait) return wait(op);
  if (op.kind == OpKind::ExchangeRows) {
    Words axes = op.attrs.words("axes");
    return axes.empty() ? broken("has no 'axes'") : exchangeRows(op, axes);
  }
  if (op.results().size() != op.operands().size())
    return broken("has " + Twine(op.results().size()) + " results for " +
                  Twine(op.operands().size()) + " operands");
  for (unsigned i = 0; i < op.operands().size(); ++i)
    if (op.operand(i)->type.elem != op.result(i)->type.elem)
      return broken("result " + Twine(i) + " has other elements than operand " + Twine(i));
  Words axes = op.attrs.words("axes");
  if (axes.empty()) return broken("has no 'axes'");
  if (op.kind == OpKind::AllToAll) return allToAll(op);
  if (op.kind == OpKind::Rotate) {
    for (unsigned i = 0; i < op.operands().size(); ++i) TRY(rotation(op, i, axes));
    return Error::success();
  }
  bool cuts = op.kind != OpKind::AllReduce && op.kind != OpKind::OneCopy;
  Words cut = op.kind == OpKind::ShardSlice ? Words{op.attrs.word("dim")} : op.attrs.words("dim");
  if (cuts && cut.size() != op.operands().size()) return broken("names not one 'dim' an operand");
  for (unsigned i = 0; i < op.operands().size(); ++i) {
    const Type &operand = op.operand(i)->type, &result = op.result(i)->type;
    if (!cuts && result.dims != operand.dims)
      return broken("result " + Twine(i) + " has dims of " + result.str() + ", not " +
                    operand.str());
    if (!cuts) continue;
    if (op.kind != OpKind::ShardSlice) {
      TRY(concatenation(op, i, cut[i], axes));
      continue;
    }
    TRY(expectCut(operand, result, cut[i], axes));
    // The padding of a whole dim is cut off; that of a piece stands between other pieces.
    const Dim& coarse = operand.dims[operand.find(cut[i])];
    if (coarse.isSplit() && !fills(coarse, result.dims[operand.find(cut[i])]))
      return broken("the pieces of '" + cut[i] + "' do not lie in the operand's piece");
  }
  return Error::success();
}

}  // namespace planc
