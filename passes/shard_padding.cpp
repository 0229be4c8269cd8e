// Uneven pieces are padded, and padding must never show. Most ops cannot let it: weights are zero
// there, so is the gradient that a cross-entropy makes, and both stay so through what maps zero to
// zero. An op that would count padding (a sum of exponentials over a vocabulary, say), or that needs
// such a dim whole, is refused: the plan can choose a size that divides.
#include "llvm/ADT/STLExtras.h"
#include "passes/shard.h"

namespace planc {
namespace {

class Padding {
 public:
  Padding(const Module& module, Diagnostics& diags) : diags_(diags) {
    for (const auto& function : module.functions)
      walk(*function->body, [&](const Op* op) {
        if (op->kind == OpKind::Write) written_[op->var] = op->operand(0);
      });
  }

  void check(const Op& op) {
    if (op.kind == OpKind::Lookup || op.kind == OpKind::LookupGrad ||
        op.kind == OpKind::CrossEntropyPart || op.kind == OpKind::CrossEntropyGrad)
      return;  // their kernels leave padding out
    for (const Value* operand : op.operands())
      for (const Dim& dim : operand->type.dims) {
        // Pieces of offsets overlap by one: that is no padding.
        if (!dim.isPadded() || operand->type.elem == Elem::I32) continue;
        if (op.kind == OpKind::Reshard) {
          const Type& to = op.result()->type;
          if (to.dims[size_t(to.find(dim.name))].axes.size() < dim.axes.size())
            report(*op.result()->uses()[0].op, dim);
          continue;
        }
        // Variables stay zero there, and an infinity would not vanish in a product with zero.
        bool isKept =
            (op.kind == OpKind::Accum || op.kind == OpKind::Write) && op.var->kind != VarKind::Slot;
        bool isPole = op.kind == OpKind::Log || op.kind == OpKind::Rsqrt ||
                      (op.kind == OpKind::Div && operand == op.operand(1));
        if (isPole || (isKept && !isZero(operand, dim.name, 0))) {
          report(op, dim);
          continue;
        }
        bool isSummed = !op.results().empty() && op.kind != OpKind::Repeat &&
                        dimRole(op, dim.name) == DimRole::Summed;
        if (isSummed && !anyIsZero(op, dim.name)) report(op, dim);
      }
  }

 private:
  void report(const Op& op, const Dim& dim) {
    std::string axes;
    for (const Axis& axis : dim.axes) axes += (axes.empty() ? "" : ", ") + axis.name;
    diags_.report(op.loc, Diag::PaddedUse, dim.name, dim.all(), axes, op.info().text)
        .suggest("choose a size that the ranks divide, or leave '" + dim.name + "' whole");
  }

  bool anyIsZero(const Op& op, llvm::StringRef dim) {
    return llvm::any_of(op.operands(), [&](const Value* value) {
      return value->type.has(dim) && isZero(value, dim, 0);
    });
  }

  // Whether a value is zero in a dim's padding.
  bool isZero(const Value* value, llvm::StringRef dim, int depth) {
    const Op* op = value->def();
    if (!op || depth > 64) return false;
    auto all = [&] {
      return llvm::all_of(op->operands(), [&](const Value* v) {
        return v->type.has(dim) && isZero(v, dim, depth + 1);
      });
    };
    auto any = [&] {
      return llvm::any_of(op->operands(), [&](const Value* v) {
        return v->type.has(dim) && isZero(v, dim, depth + 1);
      });
    };
    auto operand = [&](unsigned i) { return isZero(op->operand(i), dim, depth + 1); };
    switch (op->kind) {
      case OpKind::Read:
        if (op->var->kind != VarKind::Slot) return true;
        return written_.lookup(op->var) && isZero(written_.lookup(op->var), dim, depth + 1);
      case OpKind::Const:
        return op->attrs.number("value") == 0;
      case OpKind::LookupGrad:
      case OpKind::CrossEntropyGrad:
      case OpKind::AdamW:
      case OpKind::Sgd:
        return true;
      case OpKind::Einsum:
      case OpKind::Mul:
        return any();
      case OpKind::Add:
      case OpKind::Sub:
        return all();
      case OpKind::Div:  // a divisor that may be zero is refused
      case OpKind::Norm:
      case OpKind::NormGrad:
      case OpKind::Cast:
      case OpKind::Neg:
      case OpKind::Square:
      case OpKind::Sqrt:
      case OpKind::Tanh:
      case OpKind::Relu:
      case OpKind::Silu:
      case OpKind::Gelu:
      case OpKind::GeluTanh:
      case OpKind::Dropout:
      case OpKind::Sum:
      case OpKind::Reshard:
        return operand(0);
      case OpKind::SoftmaxGrad:
      case OpKind::ReluGrad:
      case OpKind::SiluGrad:
      case OpKind::GeluGrad:
      case OpKind::GeluTanhGrad:
        return operand(1);
      default:
        return false;
    }
  }

  Diagnostics& diags_;
  llvm::DenseMap<const Variable*, const Value*> written_;
};

}  // namespace

void checkPadding(const Module& module, Diagnostics& diags) {
  Padding padding(module, diags);
  for (const auto& function : module.functions)
    walk(*function->body, [&](const Op* op) { padding.check(*op); });
}

}  // namespace planc
