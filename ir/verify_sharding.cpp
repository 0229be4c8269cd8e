// The rule of sharding, checked from the types alone: it knows nothing of how `shard` chose them.
// Tested by tests/unit/sharding_mutants_test.cpp, which breaks programs in the ways of others.
#include "ir/verify_sharding.h"

#include "ir/broken.h"
#include "ir/sharding.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"

namespace planc {
namespace {

using llvm::Error;
using llvm::StringRef;
using llvm::Twine;

constexpr int64_t kMaxRanks = 1 << 20;

std::string list(llvm::ArrayRef<Axis> axes) {
  std::string text;
  for (const Axis& axis : axes) text += (text.empty() ? "" : ", ") + axis.name;
  return text.empty() ? "no axis" : text;
}

class Sharding {
 public:
  Sharding(const Op& op, const Grid& grid) : op_(op), grid_(grid) {}
  Error run();

 private:
  Error gather();
  Error operands();
  Error results();
  Error comm();
  Error transfer();
  Error among(const Axes& axes);
  Error moved();
  Error rowCounts();
  Error rowOffsets();
  Error exchangeRows();
  Error commOperand(const Type& from, const Type& to, StringRef dim, const Axes& axes);

  const Op& op_;
  const Grid& grid_;
  Assignment names_;
  Axes partial_;  // of linear operands
};

// Which axes split which names; an axis may split only names that stand for the same elements.
Error Sharding::gather() {
  for (const Dim& dim : dimsOf(op_))
    if (dim.isSplit()) names_.add(dim.name, dim.axes);
  for (size_t i = 0; i < names_.names.size(); ++i)
    for (size_t k = 0; k < i; ++k)
      for (const Axis& axis : names_.names[i].second)
        if (hasAxis(names_.names[k].second, axis.name) &&
            !mayShareAxes(op_, names_.names[i].first, names_.names[k].first))
          return broken("axis '" + axis.name + "' splits both '" + names_.names[k].first +
                        "' and '" + names_.names[i].first + "'");
  for (const auto& [name, axes] : names_.names)
    if (dimRole(op_, name) == DimRole::Special)
      return broken("needs '" + name + "' whole, but '" + list(axes) + "' splits it");
  return Error::success();
}

// A piece of another rank meets only pieces of the same one, but where keys' blocks travel.
Error Sharding::moved() {
  llvm::SmallVector<Dim, 8> seen;
  auto check = [&](const Type& type, bool isOfKeys) -> Error {
    for (const Dim& dim : inNamesOf(op_, type, isOfKeys).dims) {
      auto other = llvm::find_if(seen, [&](const Dim& d) { return d.name == dim.name; });
      if (other == seen.end()) seen.push_back(dim);
      else if (other->moved != dim.moved || other->moves != dim.moves)
        return broken("takes pieces of '" + dim.name + "' of two ranks: " + type.str());
      else if (other->zigzag != dim.zigzag)
        return broken("takes '" + dim.name + "' in two orders: " + type.str());
      if (dim.isMoved() && !isOfKeys && !op_.has(Elementwise) && op_.kind != OpKind::Const)
        return broken("takes another rank's piece for its own: " + type.str());
      if (dim.zigzag > 0 && llvm::is_contained(dimsByNumber(op_), dim.name))
        return broken("takes elements by number of '" + dim.name + "', which is in zigzag order");
    }
    return Error::success();
  };
  for (unsigned i = 0; i < op_.operands().size(); ++i)
    if (Error error = check(op_.operand(i)->type, isOperandOfKeys(op_, i))) return error;
  for (unsigned i = 0; i < op_.results().size(); ++i)
    if (Error error = check(op_.result(i)->type, isResultOfKeys(op_, i))) return error;
  return Error::success();
}

Error Sharding::operands() {
  int offsets = offsetsOperand(op_);
  for (unsigned i = 0; i < op_.operands().size(); ++i) {
    const Axes& partial = op_.operand(i)->type.partial;
    Linear linear = linearIn(op_, i);
    if (int(i) == offsets) {
      Axes wanted;
      for (const Dim& dim : dimsOf(op_))
        if (dim.isRagged()) wanted = dim.axes;
      grid_.sort(wanted);
      Axes cut, experts;
      if (!op_.operand(i)->type.dims.empty()) cut = op_.operand(i)->type.dims.front().axes;
      for (const Dim& dim : dimsOf(op_))
        if (dim.isRagged() && !op_.has(Packs))
          experts = Axes(names_.of(dim.over).begin(), names_.of(dim.over).end());
      if (cut != experts)
        return broken("its offsets are cut over " + list(cut) + ", but " + list(experts) +
                      " splits the experts");
      if (partial != wanted)
        return broken("its offsets are partial over " + list(partial) + ", but " + list(wanted) +
                      " splits the rows");
      continue;
    }
    if (linear == Linear::No && !partial.empty())
      return broken("needs a whole sum, but operand " + Twine(i) + " is partial over " +
                    list(partial));
    if (linear == Linear::Together && partial != op_.operand(0)->type.partial)
      return broken("adds what is partial over " + list(op_.operand(0)->type.partial) +
                    " to what is partial over " + list(partial));
    for (const Axis& axis : partial) {
      if (names_.has(axis.name))
        return broken("operand " + Twine(i) + " is partial over '" + axis.name +
                      "', which splits a dim of the op");
      if (linear == Linear::Alone && hasAxis(partial_, axis.name))
        return broken("two operands are partial over '" + axis.name + "'");
    }
    if (linear == Linear::Alone || partial_.empty())
      partial_.append(partial.begin(), partial.end());
  }
  return Error::success();
}

Error Sharding::results() {
  auto check = [&](const Type& type, const Twine& what, bool isOfKeys = false) {
    Axes wanted = summedAxes(grid_, names_, inNamesOf(op_, type, isOfKeys));
    for (const Axis& axis : partial_)
      if (!hasAxis(wanted, axis.name)) wanted.push_back(axis);
    grid_.sort(wanted);
    return wanted == type.partial ? Error::success()
                                  : broken(what + " is partial over " + list(wanted) +
                                           ", but its type says " + list(type.partial));
  };
  for (const Value* result : op_.results())
    if (Error error = check(result->type, "result " + Twine(result->index()),
                            isResultOfKeys(op_, result->index())))
      return error;
  if (op_.var) return check(op_.var->type, "what it adds to '@" + op_.var->name + "'");
  return Error::success();
}

// One operand of a collective: the result must be exactly what the collective makes of it.
Error Sharding::commOperand(const Type& from, const Type& to, StringRef name, const Axes& axes) {
  Type wanted = from;
  int at = from.find(name);
  auto needsDim = [&] {
    return at >= 0 ? Error::success() : broken("has no dim '" + name + "' to work on");
  };
  auto dropPartial = [&]() -> Error {
    for (const Axis& axis : axes) {
      if (!hasAxis(from.partial, axis.name))
        return broken("sums over '" + axis.name + "', but its operand is not partial over it");
      llvm::erase_if(wanted.partial, [&](const Axis& a) { return a.name == axis.name; });
    }
    return Error::success();
  };
  auto addSplit = [&] {
    Axes all = wanted.dims[size_t(at)].axes;
    all.append(axes.begin(), axes.end());
    wanted.dims[size_t(at)] = splitDim(wanted.dims[size_t(at)], all);
  };
  switch (op_.kind) {
    case OpKind::AllReduce:
      if (Error error = dropPartial()) return error;
      break;
    case OpKind::ReduceScatter:
      if (Error error = needsDim()) return error;
      if (Error error = dropPartial()) return error;
      addSplit();
      break;
    case OpKind::ShardSlice:
      if (Error error = needsDim()) return error;
      for (const Axis& axis : axes)
        if (hasAxis(from.splitAxes(), axis.name) || hasAxis(from.partial, axis.name))
          return broken("cuts over '" + axis.name + "', along which ranks do not hold the same");
      addSplit();
      break;
    case OpKind::AllGather: {
      if (Error error = needsDim()) return error;
      Axes mine = from.dims[size_t(at)].axes;
      if (mine.size() < axes.size() ||
          !std::equal(axes.begin(), axes.end(), mine.end() - long(axes.size())))
        return broken("gathers '" + name + "' over " + list(axes) + ", but " + list(mine) +
                      " splits it");
      mine.resize(mine.size() - axes.size());
      wanted.dims[size_t(at)] = splitDim(wanted.dims[size_t(at)], mine);
      break;
    }
    case OpKind::Rotate:
      // Its own shape rule says where which piece goes.
      return Error::success();
    case OpKind::OneCopy:
    case OpKind::StageShare:
      for (const Axis& axis : axes) {
        if (hasAxis(from.splitAxes(), axis.name) || hasAxis(from.partial, axis.name))
          return broken("makes a sum over '" + axis.name +
                        "', along which ranks do not hold the same");
        wanted.partial.push_back(axis);
      }
      grid_.sort(wanted.partial);
      break;
    default:
      break;
  }
  return wanted == to ? Error::success()
                      : broken("makes " + wanted.str() + ", but its type says " + to.str());
}

Error Sharding::comm() {
  Axes axes;
  for (const Value* operand : op_.operands())
    for (const Dim& dim : operand->type.dims)
      if (dim.isMoved() && op_.kind != OpKind::Rotate)
        return broken("takes another rank's piece for its own: " + operand->type.str());
  for (const std::string& name : op_.attrs.words("axes")) {
    auto axis = llvm::find_if(grid_.axes, [&](const GridAxis& a) { return a.name == name; });
    if (axis == grid_.axes.end()) return broken("the grid has no axis '" + name + "'");
    if (hasAxis(axes, name)) return broken("names axis '" + name + "' twice");
    axes.push_back({axis->name, axis->size});
  }
  if (axes.empty()) return broken("names no axes");
  if (Error error = among(axes)) return error;
  if (op_.kind == OpKind::AllToAll) {
    Type wanted = op_.operand(0)->type;
    Words from = op_.attrs.words("from"), to = op_.attrs.words("to");
    if (from.size() != axes.size() || to.size() != axes.size())
      return broken("names not one dim an axis");
    // From the innermost on: each axis must be the last that splits its dim.
    for (size_t i = axes.size(); i-- > 0;) {
      int at = wanted.find(from[i]);
      if (at < 0 || wanted.dims[size_t(at)].axes.empty() ||
          wanted.dims[size_t(at)].axes.back() != axes[i])
        return broken("moves '" + axes[i].name + "', which is not the innermost axis of '" +
                      from[i] + "'");
      Axes rest = wanted.dims[size_t(at)].axes;
      rest.pop_back();
      if (wanted.dims[size_t(at)].isPadded()) return broken("moves pieces of a padded dim");
      wanted.dims[size_t(at)] = splitDim(wanted.dims[size_t(at)], rest);
    }
    const Type& result = op_.result()->type;
    for (const Dim& dim : result.dims) {
      int at = wanted.find(dim.name);
      if (at < 0) return broken("makes a dim '" + dim.name + "' that its operand lacks");
      Axes& mine = wanted.dims[size_t(at)].axes;
      Axes all = mine;
      for (size_t i = all.size(); i < dim.axes.size(); ++i) {
        size_t move = size_t(llvm::find(axes, dim.axes[i]) - axes.begin());
        if (move == axes.size() || to[move] != dim.name)
          return broken("splits '" + dim.name + "' over '" + dim.axes[i].name +
                        "', which does not come there");
        all.push_back(dim.axes[i]);
      }
      if (all == mine) continue;
      wanted.dims[size_t(at)] = splitDim(wanted.dims[size_t(at)], all);
      if (wanted.dims[size_t(at)].isPadded()) return broken("moves pieces of a padded dim");
    }
    return wanted == result
               ? Error::success()
               : broken("makes " + wanted.str() + ", but its type says " + result.str());
  }
  Words dims = op_.attrs.words("dim");
  if (op_.kind == OpKind::ShardSlice) dims = {op_.attrs.word("dim")};
  for (unsigned i = 0; i < op_.operands().size(); ++i) {
    if (i >= op_.results().size()) return broken("has not one result an operand");
    StringRef dim = i < dims.size() ? StringRef(dims[i]) : StringRef();
    if (Error error = commOperand(op_.operand(i)->type, op_.result(i)->type, dim, axes))
      return error;
  }
  if (op_.isFlag("start"))
    for (const Value* result : op_.results())
      if (result->uses().size() != 1 || result->uses()[0].op->kind != OpKind::Wait)
        return broken("is started, but result " + Twine(result->index()) +
                      " has not one 'wait' as its only use");
  return Error::success();
}

// Offsets of rows that are cut over axes T: counts of the ranks along `part`'s axes apart, still
// partial over the rest of T; of the experts that this rank's rows are of.
Error Sharding::rowCounts() {
  const Type &from = op_.operand(0)->type, &to = op_.result()->type;
  int part = to.dims.size() == 2 ? 0 : -1;
  Axes wanted = from.partial;
  for (const Axis& axis : part < 0 ? Axes() : to.dims[size_t(part)].axes) {
    if (!hasAxis(from.partial, axis.name))
      return broken("tells ranks along '" + axis.name + "' apart, over which rows are not cut");
    llvm::erase_if(wanted, [&](const Axis& a) { return a.name == axis.name; });
  }
  for (const Dim& dim : to.dims)
    for (const Axis& axis : dim.axes)
      if ((part < 0 || dim.name != to.dims[0].name) && hasAxis(from.partial, axis.name))
        return broken("cuts experts over '" + axis.name + "', over which rows are cut");
  return to.partial == wanted ? Error::success()
                              : broken("its result is partial over " + list(wanted) +
                                       ", but its type says " + list(to.partial));
}

Error Sharding::rowOffsets() {
  const Type &from = op_.operand(0)->type, &to = op_.result()->type;
  if (from.partial != to.partial)
    return broken("its result is partial over " + list(from.partial) + ", but its type says " +
                  list(to.partial));
  Axes experts;
  if (from.dims.size() == 2 && from.dims[0].isSplit())
    return broken("lacks the counts of other ranks");
  if (!from.dims.empty()) experts = from.dims.back().axes;
  return !to.dims.empty() && to.dims.front().axes == experts
             ? Error::success()
             : broken("cuts the offsets otherwise than the experts");
}

// Rows cut over T with experts cut over X, and rows cut over T less Y with experts cut over X and then
// Y: the axes along which they go.
Error Sharding::exchangeRows() {
  bool isHome = op_.isFlag("home");
  const Type& packed = isHome ? op_.result()->type : op_.operand(0)->type;
  const Type& sorted = isHome ? op_.operand(0)->type : op_.result()->type;
  Axes axes;
  for (const std::string& name : op_.attrs.words("axes")) {
    auto axis = llvm::find_if(grid_.axes, [&](const GridAxis& a) { return a.name == name; });
    if (axis == grid_.axes.end()) return broken("the grid has no axis '" + name + "'");
    axes.push_back({axis->name, axis->size});
  }
  if (axes.empty()) return broken("names no axes");
  std::string expert = packed.grouping().str();
  for (size_t i = 0; i < packed.dims.size() && i < sorted.dims.size(); ++i) {
    const Dim &from = packed.dims[i], &to = sorted.dims[i];
    Axes wanted = from.axes;
    if (from.name == expert) wanted.append(axes.begin(), axes.end());
    if (from.isRagged()) {
      for (const Axis& axis : axes)
        if (!hasAxis(from.axes, axis.name))
          return broken("moves rows along '" + axis.name + "', over which they are not cut");
      llvm::erase_if(wanted, [&](const Axis& axis) { return hasAxis(axes, axis.name); });
    }
    if (to.axes != wanted)
      return broken("has " + to.name + " over " + list(to.axes) + ", not " + list(wanted));
  }
  return packed.partial == sorted.partial ? Error::success() : broken("changes what is partial");
}

// Another coordinate of one axis, which the module itself has a coordinate on.
Error Sharding::transfer() {
  Words axes = op_.attrs.words("axes");
  if (axes.size() != 1) return broken("goes along " + Twine(axes.size()) + " axes, not one");
  auto axis = llvm::find_if(grid_.axes, [&](const GridAxis& a) { return a.name == axes[0]; });
  if (axis == grid_.axes.end()) return broken("the grid has no axis '" + axes[0] + "'");
  StringRef key = op_.kind == OpKind::Send ? "to" : "from";
  int64_t peer = op_.attrs.integer(key, -1);
  if (peer < 0 || peer >= axis->size)
    return broken("the grid has no '" + axes[0] + "' " + Twine(peer));
  for (const auto& [name, at] : op_.parent()->module().where)
    if (name == axes[0]) return at == peer ? broken("is for its own rank") : Error::success();
  return broken("is in a program that all of '" + axes[0] + "' run");
}

// The coordinates that take part are some of the first axis, in order.
Error Sharding::among(const Axes& axes) {
  int64_t last = -1;
  for (const std::string& word : op_.attrs.words("among")) {
    int64_t at;
    if (op_.kind != OpKind::AllReduce || StringRef(word).getAsInteger(10, at) || at <= last ||
        at >= axes[0].size)
      return broken("has '" + word + "' among the coordinates of '" + axes[0].name + "'");
    last = at;
  }
  return Error::success();
}

Error Sharding::run() {
  switch (op_.kind) {
    case OpKind::Read:
    case OpKind::Write:
    case OpKind::Accum: {
      const Type& type = op_.kind == OpKind::Read ? op_.result()->type : op_.operand(0)->type;
      if (type.partial == op_.var->type.partial) return Error::success();
      return broken("'@" + op_.var->name + "' is partial over " + list(op_.var->type.partial) +
                    ", the value over " + list(type.partial));
    }
    case OpKind::Const:
      return op_.result()->type.partial.empty() || op_.attrs.number("value") == 0
                 ? Error::success()
                 : broken("is a partial sum, but not zero");
    case OpKind::Zero:
    case OpKind::Repeat:  // the types of what is carried are equal: the verifier's walk sees to it
    case OpKind::Yield:
      return Error::success();
    case OpKind::Wait:
      for (unsigned i = 0; i < op_.results().size(); ++i) {
        const Op* def = i < op_.operands().size() ? op_.operand(i)->def() : nullptr;
        if (!def || !def->isFlag("start") || op_.operand(i)->type != op_.result(i)->type)
          return broken("waits for what was not started");
      }
      return Error::success();
    case OpKind::Reshard:
      if (op_.isFlag("offsets")) return Error::success();  // the rule of those that take them
      return op_.operand(0)->type.whole() == op_.result()->type.whole()
                 ? Error::success()
                 : broken("changes elements, not only who holds them");
    case OpKind::Fused:
      for (const Op* inner : op_.body->ops)
        if (inner->kind != OpKind::Yield)
          if (Error error = Sharding(*inner, grid_).run()) return error;
      if (op_.var && op_.body->ops.back()->operand(0)->type.partial != op_.var->type.partial)
        return broken("adds what is partial over " +
                      list(op_.body->ops.back()->operand(0)->type.partial) + " to '@" +
                      op_.var->name + "'");
      return Error::success();
    case OpKind::AllReduce:
    case OpKind::ReduceScatter:
    case OpKind::AllGather:
    case OpKind::AllToAll:
    case OpKind::ShardSlice:
    case OpKind::OneCopy:
    case OpKind::StageShare:
      return comm();
    case OpKind::Rotate: {
      const Type &from = op_.operand(0)->type, &to = op_.result()->type;
      if (from.partial != to.partial) return broken("changes what is partial");
      return comm();
    }
    case OpKind::Send:
    case OpKind::Receive:
      return transfer();
    case OpKind::RowCounts:
      return rowCounts();
    case OpKind::RowOffsets:
      return rowOffsets();
    case OpKind::ExchangeRows:
      return exchangeRows();
    default:
      break;
  }
  if (Error error = moved()) return error;
  if (Error error = gather()) return error;
  if (Error error = operands()) return error;
  return results();
}

}  // namespace

Error verifySharding(const Op& op, const Grid& grid) { return Sharding(op, grid).run(); }

Error verifyGrid(const Grid& grid) {
  llvm::StringSet<> names;
  for (const GridAxis& axis : grid.axes) {
    if (axis.size < 1) return broken("axis '" + axis.name + "' has " + Twine(axis.size) + " ranks");
    if (axis.name.empty() || !names.insert(axis.name).second)
      return broken("the grid has axis '" + axis.name + "' twice");
  }
  if (grid.ranks() > kMaxRanks) return broken("the grid has more than 2^20 ranks");
  return Error::success();
}

Error verifyHeld(const Type& type, const Grid& grid) {
  llvm::StringSet<> seen;
  for (const Dim& dim : type.dims)
    for (const Axis& axis : dim.axes)
      if (!seen.insert(axis.name).second)
        return broken("axis '" + axis.name + "' splits two dims of " + type.str());
  for (const Dim& dim : type.dims) {
    if (dim.isMoved() &&
        (!dim.isSplit() || dim.isPadded() || dim.moved < 0 || dim.moved >= ranksOver(dim.axes)))
      return broken("'" + dim.name + "' of " + type.str() + " is moved, but no piece of a ring");
    if (dim.zigzag != 0 &&
        (dim.zigzag < 0 || dim.zigzag > dim.all() / 2 || dim.all() % (2 * dim.zigzag) != 0))
      return broken("'" + dim.name + "' of " + type.str() + " has no blocks in zigzag order");
  }
  Axes sorted = type.partial;
  grid.sort(sorted);
  if (sorted != type.partial)
    return broken("the partial axes of " + type.str() + " are not in order");
  for (const Axis& axis : type.partial)
    if (!seen.insert(axis.name).second)
      return broken("axis '" + axis.name + "' is used twice in " + type.str());
  return Error::success();
}

}  // namespace planc
