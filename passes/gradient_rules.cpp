// A gradient rule for every op of the model level, in named dims: a rule never asks where a dim
// lies. Checked by tests/unit/gradient_test.cpp against finite differences of each builtin.
#include "ir/sharding.h"
#include "llvm/Support/ErrorHandling.h"
#include "passes/autodiff.h"

namespace planc {

void Autodiff::elementwiseRule(Op& op, Value* dy) {
  Value* a = op.operand(0);
  Value* b = op.operands().size() > 1 ? op.operand(1) : nullptr;
  Elem elem = op.result()->type.elem;
  Type scalar{elem == Elem::BF16 ? Elem::F32 : elem, {}};
  auto x = [&] { return saved(a); };
  auto y = [&] { return saved(op.result()); };
  auto number = [&](double value) { return back_->constant(value, scalar); };
  auto mul = [&](Value* l, Value* r) { return ew(OpKind::Mul, {l, r}, elem); };
  auto sub = [&](Value* l, Value* r) { return ew(OpKind::Sub, {l, r}, elem); };
  switch (op.kind) {
    case OpKind::Cast:
      return addGradient(a, dy);
    case OpKind::Add:
      addGradient(a, dy);
      return addGradient(b, dy);
    case OpKind::Sub:
      addGradient(a, dy);
      if (isActive(b)) addGradient(b, ew(OpKind::Neg, {dy}, elem));
      return;
    case OpKind::Mul:
      if (isActive(a)) addGradient(a, mul(dy, saved(b)));
      if (isActive(b)) addGradient(b, mul(dy, saved(a)));
      return;
    case OpKind::Div:
      if (isActive(a)) addGradient(a, ew(OpKind::Div, {dy, saved(b)}, elem));
      if (isActive(b))
        addGradient(b, ew(OpKind::Neg, {mul(dy, ew(OpKind::Div, {y(), saved(b)}, elem))}, elem));
      return;
    case OpKind::Max:
    case OpKind::Min: {
      // Where both are equal the gradient goes to the first.
      bool isMax = op.kind == OpKind::Max;
      Value* first = ew(OpKind::Ge, {saved(isMax ? a : b), saved(isMax ? b : a)}, elem);
      Value* toFirst = mul(dy, first);
      addGradient(a, toFirst);
      if (isActive(b)) addGradient(b, sub(dy, toFirst));
      return;
    }
    case OpKind::Neg:
      return addGradient(a, ew(OpKind::Neg, {dy}, elem));
    case OpKind::Exp:
      return addGradient(a, mul(dy, y()));
    case OpKind::Log:
      return addGradient(a, ew(OpKind::Div, {dy, x()}, elem));
    case OpKind::Sqrt:
      return addGradient(a, ew(OpKind::Div, {mul(dy, number(0.5)), y()}, elem));
    case OpKind::Rsqrt: {
      Value* cube = mul(y(), ew(OpKind::Square, {y()}, elem));
      return addGradient(a, mul(mul(dy, number(-0.5)), cube));
    }
    case OpKind::Square:
      return addGradient(a, mul(mul(dy, number(2)), x()));
    case OpKind::Tanh:
      return addGradient(a, mul(dy, sub(number(1), ew(OpKind::Square, {y()}, elem))));
    case OpKind::Sigmoid:
      return addGradient(a, mul(dy, mul(y(), sub(number(1), y()))));
    case OpKind::Relu:
      return addGradient(a, ew(OpKind::ReluGrad, {x(), dy}, elem));
    case OpKind::Silu:
      return addGradient(a, ew(OpKind::SiluGrad, {x(), dy}, elem));
    case OpKind::Gelu:
      return addGradient(a, ew(OpKind::GeluGrad, {x(), dy}, elem));
    case OpKind::GeluTanh:
      return addGradient(a, ew(OpKind::GeluTanhGrad, {x(), dy}, elem));
    default:
      llvm_unreachable("elementwise op without a gradient rule");
  }
}

// Groups' gradients repeated for their rows: those dims of the ragged `type` that `gradient` has, and
// the rows.
Value* Autodiff::spread(Value* gradient, const Type& type, Value* offsets) {
  Type rows = type.withElem(gradient->type.elem);
  llvm::erase_if(rows.dims,
                 [&](const Dim& dim) { return !dim.isRagged() && !gradient->type.has(dim.name); });
  return back_->value(OpKind::Spread, {gradient, offsets}, rows);
}

// The offsets of packed rows: those of the op that made them, or of the rows that it made them of.
Value* Autodiff::offsetsOf(const Value* rows) {
  if (rows->type.grouping().empty()) return nullptr;
  const Op* def = rows->def();
  if (!def) {
    const Op* repeat = rows->block()->owner();
    return repeat && rows->index() < repeat->operands().size()
               ? offsetsOf(repeat->operand(rows->index()))
               : nullptr;
  }
  if (int at = offsetsOperand(*def); at >= 0) return def->operand(unsigned(at));
  for (const Value* operand : def->operands())
    if (Value* offsets = offsetsOf(operand)) return offsets;
  return nullptr;
}

// A gradient by group as one for all groups, in these dims.
Value* Autodiff::sumGroups(Value* gradient, const Type& type) {
  return back_->value(OpKind::Sum, {gradient}, type.withElem(gradient->type.elem));
}

void Autodiff::contractionRule(Op& op, Value* dy) {
  llvm::SmallVector<Value*, 1> offsets;
  unsigned at = op.kind == OpKind::Einsum ? 2 : 1;
  if (op.operands().size() > at) offsets.push_back(saved(op.operand(at)));
  if (op.kind == OpKind::Sum) {
    Value* x = op.operand(0);
    return addGradient(x, offsets.empty() ? dy : spread(dy, x->type, offsets[0]));
  }
  if (op.kind == OpKind::Spread) {
    return addGradient(op.operand(0),
                       back_->value(OpKind::Sum, {dy, offsets[0]}, op.operand(0)->type));
  }
  for (unsigned i = 0; i < 2; ++i) {
    Value* operand = op.operand(i);
    if (!isActive(operand)) continue;
    Value* other = op.operand(1 - i);
    // A name that only this operand has was summed: its gradient is the same along it.
    Type type = operand->type;
    llvm::erase_if(type.dims, [&](const Dim& dim) {
      return !other->type.has(dim.name) && !dy->type.has(dim.name);
    });
    llvm::SmallVector<Value*, 3> operands{dy, saved(other)};
    bool isRagged = !dy->type.grouping().empty() || !other->type.grouping().empty();
    if (isRagged) operands.append(offsets.begin(), offsets.end());
    // What all groups share has a gradient from each: their rows are summed first.
    llvm::StringRef group =
        !dy->type.grouping().empty() ? dy->type.grouping() : other->type.grouping();
    bool isShared = isRagged && type.grouping().empty() && !type.has(group);
    Type wide = type;
    if (isShared) {
      const Type& rows = !dy->type.grouping().empty() ? dy->type : other->type;
      wide.dims.insert(wide.dims.begin(), rows.dims[size_t(rows.find(group))]);
    }
    Value* gradient = back_->value(OpKind::Einsum, operands, wide);
    if (isShared) gradient = sumGroups(gradient, type);
    // The same for all rows of a group.
    bool lacksRows = !operand->type.grouping().empty() && type.grouping().empty();
    addGradient(operand, lacksRows ? spread(gradient, operand->type, offsets[0]) : gradient);
  }
}

void Autodiff::joinRule(Op& op, Value* dy) {
  std::string over = op.attrs.word("over");
  if (op.kind == OpKind::Concat) {
    Words parts = op.attrs.words("parts");
    int64_t offset = 0;
    for (unsigned i = 0; i < op.operands().size(); ++i) {
      Value* operand = op.operand(i);
      Dim part = operand->type.dims[operand->type.find(parts[i])];
      Type type = dy->type;
      type.dims[type.find(over)] = part;
      if (isActive(operand))
        addGradient(operand,
                    back_->value(OpKind::Slice, {dy}, type,
                                 {{"over", over}, {"offset", offset}, {"part", parts[i]}}));
      offset += part.size;
    }
    return;
  }
  // The gradient of a slice: zeros on both sides of it.
  Value* x = op.operand(0);
  std::string part = op.attrs.word("part");
  int64_t offset = op.attrs.integer("offset");
  int64_t after = x->type.size(over) - offset - dy->type.size(part);
  llvm::SmallVector<Value*, 3> pieces;
  Words parts;
  auto zeros = [&](int64_t size, llvm::StringRef name) {
    if (size == 0) return;
    Type type = dy->type;
    type.dims[type.find(part)] = {name.str(), size, ""};
    pieces.push_back(back_->constant(0, type));
    parts.push_back(name.str());
  };
  zeros(offset, "zeros.before");
  pieces.push_back(dy);
  parts.push_back(part);
  zeros(after, "zeros.after");
  addGradient(x, back_->value(OpKind::Concat, pieces, x->type, {{"over", over}, {"parts", parts}}));
}

// A bias is moved by the loads, whatever the loss.
void Autodiff::routeRule(Op& op) {
  Value* gate = op.result(1);
  Value* share = op.result(3);
  if (op.operands().size() > 1) addGradient(op.operand(1), saved(op.result(2)));
  if (!gradients_.lookup(gate) && !gradients_.lookup(share)) return;
  auto gradientOf = [&](Value* value) {
    Value* gradient = gradients_.lookup(value);
    return gradient ? gradient : back_->constant(0, value->type);
  };
  Value* dgate = gradientOf(gate);
  Value* dshare = gradientOf(share);
  Value* scores = op.operand(0);
  addGradient(scores,
              back_->value(OpKind::RouteGrad, {saved(scores), saved(op.result(0)), dgate, dshare},
                           scores->type, op.attrs));
}

void Autodiff::rule(Op& op) {
  rows_ = nullptr;
  for (const Value* result : op.results())
    if (!result->type.grouping().empty()) rows_ = result;
  Value* dy = op.results().empty() ? nullptr : gradients_.lookup(op.result());
  if (op.kind == OpKind::Route) return routeRule(op);
  if (!dy) return;  // only a statistic (rstd, lse) has a gradient: nobody uses those
  if (op.has(Elementwise)) return elementwiseRule(op, dy);
  Value* x = op.operands().empty() ? nullptr : op.operand(0);
  switch (op.kind) {
    case OpKind::Read:
    case OpKind::Const:
      return;
    case OpKind::Einsum:
    case OpKind::Sum:
    case OpKind::Spread:
      return contractionRule(op, dy);
    case OpKind::Concat:
    case OpKind::Slice:
      return joinRule(op, dy);
    case OpKind::Softmax:
      return addGradient(
          x, back_->value(OpKind::SoftmaxGrad, {saved(op.result()), dy}, x->type, op.attrs));
    case OpKind::LogSumExp:
      return addGradient(
          x, ew(OpKind::Mul, {back_->value(OpKind::Softmax, {saved(x)}, x->type, op.attrs), dy},
                x->type.elem));
    case OpKind::Norm:
      return addGradient(
          x, back_->value(OpKind::NormGrad, {dy, saved(op.result(0)), saved(op.result(1))}, x->type,
                          op.attrs));
    case OpKind::Lookup:
      return addGradient(
          x, back_->value(OpKind::LookupGrad, {saved(op.operand(1)), dy}, x->type, op.attrs));
    case OpKind::CrossEntropy:
      return addGradient(x, back_->value(OpKind::CrossEntropyGrad,
                                         {saved(x), saved(op.operand(1)), saved(op.operand(2)),
                                          saved(op.result(1)), dy},
                                         x->type, op.attrs));
    case OpKind::Rope: {
      Attrs attrs = op.attrs;
      attrs.set("inverse", int64_t{!op.isFlag("inverse")});
      return addGradient(x, back_->value(OpKind::Rope, {dy}, x->type, attrs));
    }
    case OpKind::Dropout:
      return addGradient(x, back_->value(OpKind::Dropout, {dy}, x->type, op.attrs));
    case OpKind::Attend: {
      llvm::SmallVector<Value*, 8> operands{saved(x),
                                            saved(op.operand(1)),
                                            saved(op.operand(2)),
                                            saved(op.result(0)),
                                            saved(op.result(1)),
                                            dy};
      for (Value* documents : op.operands().drop_front(3)) operands.push_back(saved(documents));
      Op* gradient = back_->create(OpKind::AttendGrad, operands,
                                   {x->type, op.operand(1)->type, op.operand(2)->type}, op.attrs);
      for (unsigned i = 0; i < 3; ++i) addGradient(op.operand(i), gradient->result(i));
      return;
    }
    case OpKind::Dispatch:
      return addGradient(
          x, back_->value(OpKind::DispatchGrad, {dy, saved(op.operand(1)), saved(op.operand(2))},
                          x->type, op.attrs));
    case OpKind::Combine: {
      Op* gradient = back_->create(
          OpKind::CombineGrad,
          {dy, saved(x), saved(op.operand(1)), saved(op.operand(2)), saved(op.operand(3))},
          {x->type, op.operand(1)->type}, op.attrs);
      for (unsigned i = 0; i < 2; ++i) addGradient(op.operand(i), gradient->result(i));
      return;
    }
    case OpKind::CountValid:
      return;
    default:
      llvm_unreachable("op without a gradient rule");
  }
}

}  // namespace planc
