// What the functions that lower builtins share: their bound arguments.
#pragma once

#include <string>
#include <vector>

#include "frontend/lower.h"

namespace planc::lowering {

// One argument, by the kind of its parameter.
struct Bound {
  Item item;
  Dim dim;
  double number = 0;
  std::string word;
  Loc loc;
};

struct BoundArgs {
  const ast::Expr& call;
  const Wanted& wanted;
  std::vector<Bound> list;
  Value* tensor(size_t i) const { return list[i].item.value; }
  const Bound& operator[](size_t i) const { return list[i]; }
};

// Whether an argument is a tensor with a dim, which may not be the packed rows of groups.
inline bool hasDim(const Bound& x, const Dim& dim) {
  return x.item.kind == Item::Tensor && x.item.value->type.has(dim.name) && !dim.isRagged();
}

}  // namespace planc::lowering
