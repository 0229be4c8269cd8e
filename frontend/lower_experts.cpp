// Lowering, experts: `route`, `dispatch`, `combine`. The rows that a dispatch packs are a ragged
// dim that its statement names; which expert they belong to is known only at run time, by the
// offsets that travel with each tensor made of them. Tested by tests/unit/lower_test.cpp and
// tests/frontend/errors/lower_builtins.plan.
#include <algorithm>
#include <cmath>

#include "frontend/lower_builtins.h"

namespace planc::lowering {

Item Lowering::lowerRoute(BoundArgs& args) {
  const Item& s = args[0].item;
  const Dim& over = args[3].dim;
  Loc loc = args.call.loc;
  int64_t top = int64_t(args[1].number);
  noteUse(over.name, kRouted);
  if (!hasDim(args[0], over) || s.offsets) {
    error(loc, Diag::LacksDim, "route", over.name, dimList(dimsOf(s)));
    return poison();
  }
  if (top > over.size) {
    error(args[1].loc, Diag::TopExperts, top, over.size)
        .suggest("'top' may be 1 to " + std::to_string(over.size));
    return poison();
  }
  // A token goes to an expert at most once, so more than the experts' number limits nothing.
  double capacity = std::min(args[7].number, double(over.size));
  bool perSequence = args[8].word == "sequence";
  auto routing = std::make_shared<Routing>();
  routing->expert = over;
  int64_t tokens = 1, sequences = 1, length = 0;
  for (const Dim& dim : s.value->type.dims) {
    if (dim.name == over.name) continue;
    routing->tokens.push_back(dim);
    tokens = saturatingMul(tokens, dim.size);
    if (dim.name == "seq") length = dim.size;
    else sequences = saturatingMul(sequences, dim.size);
  }
  if ((capacity > 0 || perSequence) && !length) {
    error(loc, Diag::LacksDim, "route", "seq", dimList(dimsOf(s)))
        .suggest("'capacity' and 'per = sequence' count within sequences");
    return poison();
  }
  routing->rows = saturatingMul(tokens, top);
  if (capacity > 0) {
    double perExpert = std::ceil(capacity * double(length) * double(top) / double(over.size));
    double bound = double(over.size) * double(sequences) * perExpert;
    if (bound < double(routing->rows)) routing->rows = int64_t(bound);
  }
  Type choice{Elem::I32, routing->tokens};
  choice.dims.push_back(Dim{"choice", top, ""});
  if (!fits(choice, loc)) return poison();
  Attrs attrs{{"over", over.name},       {"top", top},
              {"score", args[4].word},   {"normalise", int64_t(args[5].number)},
              {"scale", args[6].number}, {"per", args[8].word},
              {"capacity", capacity}};
  if (length) attrs.set("seq", "seq");
  Type offsets{Elem::I32, {Dim{"bound", over.size + 1, ""}}};
  Type sums{scalar_, {over}};  // the groups of the penalty, and the experts
  if (perSequence) sums = s.value->type.without("seq").withElem(scalar_);
  Op* op = at(loc).create(OpKind::Route, {s.value},
                          {choice, choice.withElem(scalar_), choice, offsets, sums, sums}, attrs);
  unsigned i = 0;
  for (const char* name : {"choice", "gate", "row", "offsets", "load", "share"})
    op->result(i++)->name = name;
  routing->gate = op->result(1);
  routing->row = op->result(2);
  routing->offsets = op->result(3);
  if (args[2].number > 0) {
    double groups = double(perSequence ? sequences : 1), perGroup = double(tokens) / groups;
    double load = double(over.size) / (double(top) * perGroup);
    lowerPenalty(*op, args[2].number * load / perGroup / groups);
  }
  Item item;
  item.kind = Item::Route;
  item.routing = std::move(routing);
  return item;
}

// The mean over groups of sum_e f_e P_e, where f_e = experts/(top*T) * load and P_e = share/T for a
// group of T tokens. `factor` is all that does not depend on the tokens.
void Lowering::lowerPenalty(const Op& route, double factor) {
  Type scalar{scalar_, {}};
  Value* product = builder_.elementwise(OpKind::Mul, {route.result(4), route.result(5)});
  Value* sum = builder_.value(OpKind::Sum, {product}, scalar);
  Value* penalty =
      builder_.value(OpKind::Mul, {sum, builder_.constant(factor, scalar)}, scalar, {}, "penalty");
  addLoss(penalty, true);
  if (settings_.microbatches > 1)
    penalty = builder_.value(
        OpKind::Mul, {penalty, builder_.constant(1.0 / double(settings_.microbatches), scalar)},
        scalar);
  builder_.create(OpKind::Accum, {penalty}, {}, {}, metric("penalty", scalar_));
}

// [expert, slot, ...]: the slot is the declared dim that is neither the experts' nor the operand's.
Item Lowering::lowerDispatch(BoundArgs& args) {
  const Item& x = args[0].item;
  const Routing& routing = *args[1].item.routing;
  Loc loc = args.call.loc;
  for (const Dim& dim : routing.tokens)
    if (!x.value || !x.value->type.has(dim.name)) {
      error(args[0].loc, Diag::LacksDim, "dispatch", dim.name, dimList(dimsOf(x)))
          .suggest("it takes the tokens that the scores were computed for");
      return poison();
    }
  auto isToken = [&](const Dim& dim) {
    return std::any_of(routing.tokens.begin(), routing.tokens.end(),
                       [&](const Dim& t) { return t.name == dim.name; });
  };
  Type type{compute_, {routing.expert}};
  std::vector<Dim> slots, others;
  for (const Dim& dim : x.value->type.dims)
    if (!isToken(dim)) others.push_back(dim);
  for (const Dim& dim : args.wanted.dims)
    if (dim.name != routing.expert.name && !x.value->type.has(dim.name)) slots.push_back(dim);
  if (slots.size() != 1) {
    if (args.wanted.broken) return poison();
    if (!args.wanted.known)
      error(loc, Diag::DimsUnclear, "dispatch")
          .suggest("declare them, with a name for the packed rows: t[expert, slot, model] = ...");
    else
      error(loc, Diag::DispatchResult, dimList(args.wanted.dims), slots.size(),
            routing.expert.name);
    return poison();
  }
  Dim slot{slots[0].name, routing.rows, routing.expert.name};
  if (DimEntry* seen = const_cast<DimEntry*>(findDim(slot.name)); seen && seen->dim.isRagged())
    seen->dim = slot;
  else if (seen) {
    error(loc, Diag::SlotIsDim, slot.name).note(seen->loc, Diag::DeclaredHere, slot.name);
    return poison();
  } else dims_.push_back({slot.name, slot, loc});
  type.dims.push_back(slot);
  type.dims.append(others.begin(), others.end());
  if (!fits(type, loc)) return poison();
  Value* t = at(loc).value(OpKind::Dispatch, {x.value, routing.row, routing.offsets}, type,
                           {{"over", routing.expert.name}});
  return Item::tensor(t, routing.offsets);
}

Item Lowering::lowerCombine(BoundArgs& args) {
  const Item& o = args[0].item;
  const Routing& routing = *args[1].item.routing;
  Loc loc = args.call.loc;
  if (!o.offsets) {
    error(args[0].loc, Diag::CombineRows, dimList(dimsOf(o)))
        .suggest("it takes the experts' rows: t[expert, slot, model] = dispatch(x, r), ...");
    return poison();
  }
  if (o.offsets != routing.offsets) {
    error(loc, Diag::OtherRouting);
    return poison();
  }
  Type type{compute_, routing.tokens};
  for (const Dim& dim : o.value->type.dims) {
    if (dim.isRagged() || dim.name == routing.expert.name) continue;
    if (type.has(dim.name)) {
      error(loc, Diag::LookupShares, "the rows", "the tokens", dim.name);
      return poison();
    }
    type.dims.push_back(dim);
  }
  type.dims = ordered(type.dims, args.wanted);
  return Item::tensor(emit(OpKind::Combine, {o.value, routing.gate, routing.row}, type,
                           {{"over", routing.expert.name}}, loc));
}

}  // namespace planc::lowering
