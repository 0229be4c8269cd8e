// Shape rules of routing and of packed rows. Tested by tests/unit/verify_test.cpp and
// verify_casts_test.cpp.
#include <cmath>

#include "ir/shapes.h"

namespace planc {

using llvm::Error;
using llvm::StringRef;
using llvm::Twine;

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

namespace shapes {

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

}  // namespace shapes
}  // namespace planc
