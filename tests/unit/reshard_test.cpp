// Pass `collectives` on every pair of types over small grids: what it makes of a `reshard` verifies,
// whatever the two types are, and what only changes places is one message.
#include <algorithm>
#include <functional>

#include "compile.h"
#include "ir/traffic.h"
#include "llvm/ADT/STLExtras.h"
#include "ranks.h"

namespace planc {
namespace {

// Every type of these dims over the grid: each axis is unused, summed over, or splits a dim, in any
// order. The grid's axes divide each dim.
std::vector<Type> typesOver(const Grid& grid, int dims) {
  std::vector<Type> types;
  Type whole;
  for (int i = 0; i < dims; ++i) whole.dims.push_back({std::string(1, char('a' + i)), 12});
  std::vector<Axes> splits(dims, Axes{});
  Axes partial;
  std::function<void(size_t)> place = [&](size_t next) {
    if (next == grid.axes.size()) {
      Type type = whole;
      for (size_t i = 0; i < splits.size(); ++i) type.dims[i] = splitDim(type.dims[i], splits[i]);
      type.partial = partial;
      types.push_back(type);
      return;
    }
    Axis axis{grid.axes[next].name, grid.axes[next].size};
    place(next + 1);
    partial.push_back(axis);
    place(next + 1);
    partial.pop_back();
    for (Axes& split : splits)
      for (size_t at = 0; at <= split.size(); ++at) {
        split.insert(split.begin() + long(at), axis);
        place(next + 1);
        split.erase(split.begin() + long(at));
      }
  };
  place(0);
  return types;
}

// A function that reads `from` and writes it as each of `to`; what was made for each, in order.
struct Made {
  std::unique_ptr<Module> module;
  // The collectives and local casts behind each other, from the read to each write.
  std::vector<std::vector<const Op*>> ways;
};

Made lower(const Grid& grid, const Type& from, llvm::ArrayRef<Type> to) {
  Made made;
  made.module = std::make_unique<Module>();
  Module& module = *made.module;
  module.level = Level::Sharded;
  module.grid = grid;
  auto slot = [&](const Type& type, const std::string& name) {
    Variable var;
    var.name = name;
    var.kind = VarKind::Slot;
    var.type = type;
    return module.addVar(std::move(var));
  };
  Builder b(module.addFunction("f")->body.get());
  Value* value = b.read(slot(from, "from"));
  for (const Type& type : to)
    b.write(slot(type, "to"), type == from ? value : b.value(OpKind::Reshard, {value}, type));
  EXPECT_FALSE(bool(verify(module)));
  test::runAll(module, {"collectives"});
  for (const Op* op : module.findFunction("f")->body->ops)
    if (op->kind == OpKind::Write) {
      std::vector<const Op*> way;
      for (const Op* at = op->operand(0)->def(); at->kind != OpKind::Read;
           at = at->operand(0)->def())
        way.push_back(at);
      std::reverse(way.begin(), way.end());
      made.ways.push_back(std::move(way));
    }
  return made;
}

std::string text(const std::vector<const Op*>& way) {
  std::string text;
  for (const Op* op : way) text += printOp(*op) + "\n";
  return text;
}

// Elements that a rank gets from others on the way.
int64_t received(const std::vector<const Op*>& way) {
  int64_t elements = 0;
  for (const Op* op : way)
    if (op->has(Comm)) elements += bytesSent(*op) / 4;
  return elements;
}

TEST(Reshard, EveryPairOfTypesVerifies) {
  struct {
    Grid grid;
    int dims;
  } cases[] = {{test::gridOf({{"x", 2}, {"y", 2}, {"z", 3}}), 2},
               {test::gridOf({{"x", 2}, {"y", 2}, {"z", 3}}), 3}};
  for (const auto& c : cases) {
    std::vector<Type> types = typesOver(c.grid, c.dims);
    ASSERT_GT(types.size(), 90u);
    for (const Type& from : types) {
      Made made = lower(c.grid, from, types);  // the runner verifies
      ASSERT_EQ(made.ways.size(), types.size());
      for (size_t i = 0; i < types.size(); ++i) {
        const Type& to = types[i];
        std::string what = from.str() + " to " + to.str() + ":\n" + text(made.ways[i]);
        EXPECT_EQ(made.ways[i].empty() ? from : made.ways[i].back()->result()->type, to) << what;
        // Never more than to add everything up and gather it.
        int64_t all = received(lower(c.grid, from, {from.whole()}).ways[0]);
        EXPECT_LE(received(made.ways[i]), all) << what;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// What splits the same axes elsewhere: one message, and a rank gets no more than what it then holds.
TEST(Reshard, WhatMovesIsOneMessage) {
  Grid grid = test::gridOf({{"x", 2}, {"y", 2}, {"z", 3}});
  auto sorted = [&](Axes axes) {
    grid.sort(axes);
    return axes;
  };
  std::vector<Type> types = typesOver(grid, 3);
  for (const Type& from : types) {
    std::vector<Type> to;
    for (const Type& type : types)
      if (type != from && type.partial == from.partial &&
          sorted(type.splitAxes()) == sorted(from.splitAxes()))
        to.push_back(type);
    Made made = lower(grid, from, to);
    for (size_t i = 0; i < to.size(); ++i) {
      std::string what = from.str() + " to " + to[i].str() + ":\n" + text(made.ways[i]);
      EXPECT_EQ(made.ways[i].size(), 1u) << what;
      EXPECT_EQ(made.ways[i].front()->kind, OpKind::AllToAll) << what;
      EXPECT_LE(received(made.ways[i]), to[i].elements()) << what;
    }
  }
}

// From the second axis on dim 0 and the first on dim 2 to both on dim 1 (openxla/xla #15207).
TEST(Reshard, TwoAxesComeToOneDim) {
  Grid grid = test::gridOf({{"x", 4}, {"y", 2}});
  Axis x{"x", 4}, y{"y", 2};
  auto type = [](Axes i, Axes j, Axes k) {
    return Type{Elem::F32,
                {splitDim({"i", 16}, i), splitDim({"j", 16}, j), splitDim({"k", 16}, k)}};
  };
  Type from = type({y}, {}, {x});
  for (const Axes& both : {Axes{x, y}, Axes{y, x}}) {
    Made made = lower(grid, from, {type({}, both, {})});
    const std::vector<const Op*>& way = made.ways[0];
    ASSERT_EQ(way.size(), 1u) << text(way);
    EXPECT_EQ(way[0]->kind, OpKind::AllToAll);
    EXPECT_EQ(way[0]->result()->type.elements(), 512);
    EXPECT_LE(received(way), 512);
  }
}

}  // namespace
}  // namespace planc
