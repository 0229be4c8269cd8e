// The rule of sharding. Tested by tests/unit/sharding_test.cpp and every `planrun verify`.
#include "ir/sharding.h"

#include "llvm/ADT/STLExtras.h"

namespace planc {

llvm::ArrayRef<Axis> Assignment::of(llvm::StringRef name) const {
  for (const auto& [dim, axes] : names)
    if (dim == name) return axes;
  return {};
}

void Assignment::add(llvm::StringRef name, llvm::ArrayRef<Axis> axes) {
  for (auto& [dim, mine] : names)
    if (dim == name) {
      mine.append(axes.begin(), axes.end());
      return;
    }
  names.push_back({name.str(), Axes(axes.begin(), axes.end())});
}

bool Assignment::has(llvm::StringRef axis) const {
  return llvm::any_of(names, [&](const auto& entry) { return hasAxis(entry.second, axis); });
}

Type Assignment::apply(Type type) const {
  for (Dim& dim : type.dims) {
    dim = splitDim(dim, of(dim.name));
    for (const auto& [rows, most] : room)
      if (rows == dim.name && dim.isRagged()) dim = limitRows(dim, most);
  }
  return type;
}

Type Assignment::operand(const Op& op, unsigned i) const {
  bool isOfKeys = isOperandOfKeys(op, i);
  Type type = inOwnNames(op, apply(inNamesOf(op, op.operand(i)->type.whole(), isOfKeys)), isOfKeys);
  if (int(i) == offsetsOperand(op) && !op.has(Packs) && !type.dims.empty())
    for (const Dim& dim : dimsOf(op))
      if (dim.isRagged()) type.dims.front() = splitDim(type.dims.front(), of(dim.over));
  return type;
}

Type Assignment::result(const Op& op, unsigned i) const {
  bool isOfKeys = isResultOfKeys(op, i);
  return inOwnNames(op, apply(inNamesOf(op, op.result(i)->type.whole(), isOfKeys)), isOfKeys);
}

bool isAttention(const Op& op) {
  return op.kind == OpKind::Attend || op.kind == OpKind::AttendBlock ||
         op.kind == OpKind::AttendGrad;
}

std::string keysName(const Op& op) {
  return isAttention(op) ? keysName(op.attrs.word("seq")) : std::string();
}

// q, k, v, what the kind has behind them, then the documents of the queries and of the keys.
bool isOperandOfKeys(const Op& op, unsigned operand) {
  if (!isAttention(op)) return false;
  if (operand == 1 || operand == 2) return true;
  return op.operands().size() > unsigned(op.info().minOperands) &&
         operand + 1 == op.operands().size();
}

bool isResultOfKeys(const Op& op, unsigned result) {
  return op.kind == OpKind::AttendGrad && result > 0;
}

static Type renamed(Type type, llvm::StringRef from, llvm::StringRef to) {
  for (Dim& dim : type.dims)
    if (dim.name == from) dim.name = to.str();
  return type;
}

Type inNamesOf(const Op& op, Type type, bool isOfKeys) {
  return isOfKeys ? renamed(std::move(type), op.attrs.word("seq"), keysName(op)) : type;
}

Type inOwnNames(const Op& op, Type type, bool isOfKeys) {
  return isOfKeys ? renamed(std::move(type), keysName(op), op.attrs.word("seq")) : type;
}

Words dimsByNumber(const Op& op) {
  switch (op.kind) {
    case OpKind::Slice:
      return {op.attrs.word("over"), op.attrs.word("part")};
    case OpKind::Concat: {
      Words dims = op.attrs.words("parts");
      dims.push_back(op.attrs.word("over"));
      return dims;
    }
    case OpKind::Lookup:
    case OpKind::LookupGrad:
    case OpKind::CrossEntropy:
    case OpKind::CrossEntropyPart:
    case OpKind::CrossEntropyGrad:
    case OpKind::Route:
    case OpKind::RouteGrad:
    case OpKind::Dispatch:
    case OpKind::DispatchGrad:
    case OpKind::Combine:
    case OpKind::CombineGrad:
      return {op.attrs.word("over")};
    case OpKind::Rope:
      return {op.attrs.word("by")};
    case OpKind::Attend:
    case OpKind::AttendBlock:
    case OpKind::AttendGrad:
      return {op.attrs.word("head"), op.attrs.word("kv")};
    default:
      return {};
  }
}

llvm::SmallVector<Dim, 8> dimsOf(const Op& op) {
  llvm::SmallVector<Dim, 8> dims;
  auto add = [&](const Type& type) {
    for (const Dim& dim : type.dims)
      if (llvm::none_of(dims, [&](const Dim& other) { return other.name == dim.name; }))
        dims.push_back(dim);
  };
  for (unsigned i = 0; i < op.operands().size(); ++i)
    add(inNamesOf(op, op.operand(i)->type, isOperandOfKeys(op, i)));
  for (unsigned i = 0; i < op.results().size(); ++i)
    add(inNamesOf(op, op.result(i)->type, isResultOfKeys(op, i)));
  if (op.var) add(op.var->slice(op.parent()->enclosing()));
  return dims;
}

bool mayShareAxes(const Op& op, llvm::StringRef a, llvm::StringRef b) {
  auto are = [&](llvm::StringRef x, llvm::StringRef y) {
    return (a == x && b == y) || (a == y && b == x);
  };
  switch (op.kind) {
    case OpKind::Attend:
    case OpKind::AttendBlock:
    case OpKind::AttendGrad:
      return are(op.attrs.word("head"), op.attrs.word("kv")) ||
             are(op.attrs.word("seq"), keysName(op));
    case OpKind::CrossEntropyPart:
      return are(op.attrs.word("over"), op.attrs.word("part"));
    default:
      break;
  }
  // Where an expert's rows begin goes with the expert.
  if (int offsets = offsetsOperand(op); offsets >= 0 && !op.operand(offsets)->type.dims.empty())
    for (const Dim& dim : dimsOf(op))
      if (dim.isRagged() && are(op.operand(offsets)->type.dims.front().name, dim.over)) return true;
  if (!op.has(Packs)) return false;
  // The rows are the ragged dim; the tokens they are made of are dims that no packed value has.
  llvm::StringRef rows;
  for (const Dim& dim : dimsOf(op))
    if (dim.isRagged()) rows = dim.name;
  if (rows.empty() || (a != rows && b != rows)) return false;
  llvm::StringRef other = a == rows ? b : a;
  auto hasBoth = [&](const Value* v) { return v->type.has(rows) && v->type.has(other); };
  return llvm::none_of(op.operands(), hasBoth) && llvm::none_of(op.results(), hasBoth);
}

Axes summedAxes(const Grid& grid, const Assignment& assignment, const Type& result) {
  Axes axes;
  for (const auto& [name, mine] : assignment.names) {
    if (result.has(name)) continue;
    for (const Axis& axis : mine)
      if (!hasAxis(axes, axis.name)) axes.push_back(axis);
  }
  llvm::erase_if(axes, [&](const Axis& axis) {
    return llvm::any_of(
        result.dims, [&](const Dim& dim) { return hasAxis(assignment.of(dim.name), axis.name); });
  });
  grid.sort(axes);
  return axes;
}

Linear linearIn(const Op& op, unsigned operand) {
  llvm::StringRef linear = op.info().linear;
  if (linear == "all") return Linear::Together;
  llvm::SmallVector<llvm::StringRef, 3> numbers;
  linear.split(numbers, ',', -1, false);
  for (llvm::StringRef number : numbers)
    if (number == std::to_string(operand)) return Linear::Alone;
  return Linear::No;
}

int offsetsOperand(const Op& op) {
  auto at = [&]() -> int {
    switch (op.kind) {
      case OpKind::Sum:
      case OpKind::Spread:
        return 1;
      case OpKind::Einsum:
      case OpKind::Dispatch:
      case OpKind::DispatchGrad:
        return 2;
      case OpKind::Combine:
        return 3;
      case OpKind::CombineGrad:
        return 4;
      default:
        return -1;
    }
  }();
  return at < int(op.operands().size()) ? at : -1;
}

}  // namespace planc
