// Lowering, experts: `route`, `dispatch`, `combine`. The rows that a dispatch packs are a ragged
// dim that its statement names; which expert they belong to is known only at run time, by the
// offsets that travel with each tensor made of them. Tested by tests/unit/lower_test.cpp and
// tests/frontend/errors/lower_builtins.plan.
#include <algorithm>
#include <cmath>

#include "frontend/lower_builtins.h"
#include "ir/verify_shapes.h"
#include "llvm/ADT/STLExtras.h"

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
  auto limits = groupsOf(args, over.size);
  if (!limits) return poison();
  Type choice{Elem::I32, routing->tokens};
  choice.dims.push_back(Dim{"choice", top, ""});
  if (!fits(choice, loc)) return poison();
  Attrs attrs{{"over", over.name},       {"top", top},
              {"score", args[4].word},   {"normalise", int64_t(args[5].number)},
              {"scale", args[6].number}, {"per", args[8].word}};
  for (const auto& [key, value] : *limits) attrs.set(key, value);
  if (perSequence) attrs.set("seq", "seq");
  Type sums{scalar_, {over}};  // the groups of the penalty, and the experts
  if (perSequence) sums = s.value->type.without("seq").withElem(scalar_);
  llvm::SmallVector<Value*, 2> operands{s.value};
  if (Variable* bias = args[13].item.var) {
    if (auto own = bias->slice(bias->stack).dims; own.size() != 1 || own[0].name != over.name) {
      error(args[13].loc, Diag::BiasDims, dimList(own), over.name);
      return poison();
    }
    operands.push_back(readVar(bias, args[13].loc));
  }
  Op* op = at(loc).create(OpKind::Route, operands, {choice, choice.withElem(scalar_), sums, sums},
                          attrs);
  unsigned i = 0;
  for (const char* name : {"choice", "gate", "load", "share"}) op->result(i++)->name = name;
  lowerPacking(*op, capacity, *routing);
  countLoads(*op, routing->gate);
  if (args[2].number > 0) {
    double groups = double(perSequence ? sequences : 1), perGroup = double(tokens) / groups;
    double load = double(over.size) / (double(top) * perGroup);
    lowerBalance(*op, args[2].number * load / perGroup / groups);
  }
  if (args[12].number > 0) lowerLogits(*op, args[12].number / double(tokens));
  Item item;
  item.kind = Item::Route;
  item.routing = std::move(routing);
  return item;
}

// What the groups of experts add to a route's attributes: nothing when a token may choose from all.
std::optional<Attrs> Lowering::groupsOf(const BoundArgs& args, int64_t experts) {
  int64_t top = int64_t(args[1].number), groups = int64_t(args[9].number);
  int64_t kept = args[10].number > 0 ? int64_t(args[10].number) : groups;
  if (groups > experts || experts % groups != 0) {
    error(args[9].loc, Diag::ExpertGroups, groups, experts)
        .suggest("'groups' must divide " + std::to_string(experts));
    return std::nullopt;
  }
  int64_t size = experts / groups;
  if (kept > groups) {
    error(args[10].loc, Diag::KeptGroups, kept, groups)
        .suggest("'kept' may be 1 to " + std::to_string(groups));
    return std::nullopt;
  }
  if (top > kept * size) {
    error(args[1].loc, Diag::TopKept, top, kept * size, kept)
        .suggest("keep at least " + std::to_string((top + size - 1) / size) + " groups");
    return std::nullopt;
  }
  if (args[11].word == "best2" && size < 2) {
    error(args[11].loc, Diag::GroupOfOne).suggest("use group_score = best, or fewer groups");
    return std::nullopt;
  }
  if (kept == groups) return Attrs{};
  return Attrs{{"groups", groups}, {"kept", kept}, {"group_score", args[11].word}};
}

// What follows from the choices: who finds room, and which packed row each has.
void Lowering::lowerPacking(Op& route, double capacity, Routing& routing) {
  Value *choice = route.result(0), *gate = route.result(1);
  int64_t experts = routing.expert.size;
  llvm::SmallVector<Value*, 2> operands{choice};
  Op* admit = nullptr;
  if (capacity > 0) {
    admit = builder_.create(
        OpKind::Admit, {choice}, {gate->type},
        {{"capacity", capacity}, {"experts", experts}, {"seq", "seq"}, {"choice", "choice"}},
        nullptr, "fit");
    operands.push_back(admit->result());
    gate = builder_.value(OpKind::Mul, {gate, admit->result()}, gate->type, {}, "admitted");
  }
  Op* pack = builder_.create(OpKind::Pack, operands,
                             {choice->type, Type{Elem::I32, {Dim{"bound", experts + 1, ""}}}},
                             {{"experts", experts}, {"choice", "choice"}});
  pack->result(0)->name = "row";
  pack->result(1)->name = "offsets";
  routing.gate = gate;
  routing.row = pack->result(0);
  routing.offsets = pack->result(1);
  // A rank that has a piece of a sequence may have all of the tokens that an expert takes of it.
  bool isCut =
      llvm::any_of(settings_.splits, [](const Split& split) { return split.dim == "seq"; });
  routing.rows = packedRows(*pack, isCut ? nullptr : admit);
  if (routing.rows > INT32_MAX)
    error(route.loc, Diag::TooManyRows, routing.rows)
        .suggest("a smaller batch a microbatch, or a smaller 'top', makes fewer");
}

// The step's metrics of a routing, `load.layer.moe` by layer and expert and, with a capacity,
// `dropped.layer.moe` by layer: one instance of a module has one slice for each iteration around it.
void Lowering::countLoads(const Op& route, const Value* gate) {
  std::string path =
      scope().path.empty() ? "route" : scope().path.substr(0, scope().path.size() - 1);
  auto count = [&](const char* kind, Value* value, llvm::ArrayRef<Dim> dims) {
    Variable var;
    var.name = kind + ("." + path);
    var.kind = VarKind::Metric;
    var.stack = builder_.block()->enclosing();
    var.type.elem = scalar_;
    for (const std::string& dim : var.stack) var.type.dims.push_back(findDim(dim)->dim);
    var.type.dims.append(dims.begin(), dims.end());
    if (value->type.dims.size() != dims.size())
      value = builder_.value(OpKind::Sum, {value},
                             {scalar_, llvm::SmallVector<Dim, 4>(dims.begin(), dims.end())});
    builder_.create(OpKind::Accum, {value}, {}, {}, module_.addVar(std::move(var)));
  };
  Value* load = route.result(2);
  count("load", load, load->type.dims[size_t(load->type.find(route.attrs.word("over")))]);
  if (gate == route.result(1)) return;
  Value* fit = gate->def()->operand(1);
  count("dropped", builder_.elementwise(OpKind::Sub, {builder_.constant(1, fit->type), fit}), {});
}

// Adds a penalty of a microbatch to the loss, and shows the step's mean.
void Lowering::addPenalty(Value* penalty) {
  addLoss(penalty, true);
  Type scalar{scalar_, {}};
  if (settings_.microbatches > 1)
    penalty = builder_.value(
        OpKind::Mul, {penalty, builder_.constant(1.0 / double(settings_.microbatches), scalar)},
        scalar);
  addUp(penalty, "penalty");
}

// The mean over groups of sum_e f_e P_e, where f_e = experts/(top*T) * load and P_e = share/T for a
// group of T tokens. `factor` is all that does not depend on the tokens.
void Lowering::lowerBalance(const Op& route, double factor) {
  Type scalar{scalar_, {}};
  Value* product = builder_.elementwise(OpKind::Mul, {route.result(2), route.result(3)});
  Value* sum = builder_.value(OpKind::Sum, {product}, scalar);
  addPenalty(
      builder_.value(OpKind::Mul, {sum, builder_.constant(factor, scalar)}, scalar, {}, "penalty"));
}

// The z-loss (Zoph et al. 2022): the sum over tokens of the squared log-sum-exp of the scores, times
// `factor`.
void Lowering::lowerLogits(const Op& route, double factor) {
  Type scalar{scalar_, {}};
  Value* scores = route.operand(0);
  std::string over = route.attrs.word("over");
  Type byToken = scores->type.without(over).withElem(scalar_);
  Value* lse = builder_.value(OpKind::LogSumExp, {scores}, byToken, {{"over", over}}, "lse");
  Value* sum = builder_.value(OpKind::Sum, {builder_.elementwise(OpKind::Square, {lse})}, scalar);
  addPenalty(
      builder_.value(OpKind::Mul, {sum, builder_.constant(factor, scalar)}, scalar, {}, "z_loss"));
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
  return Item::tensor(emit(OpKind::Combine, {o.value, routing.gate, routing.row, routing.offsets},
                           type, {{"over", routing.expert.name}}, loc));
}

}  // namespace planc::lowering
