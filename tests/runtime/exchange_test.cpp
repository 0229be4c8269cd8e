// Ops between ranks as the interpreter runs them: each rank's result is its piece of what one rank
// would hold; with `start` and `wait`, in buckets, of padded dims, over several axes; rows to their
// experts and home.
#include <numeric>
#include <random>

#include "ir/traffic.h"
#include "llvm/Support/FormatVariadic.h"
#include "runtime/interpreter.h"
#include "tests/runtime/ranks.h"
#include "tests/unit/temporary.h"

namespace planc {
namespace {

using test::axes;
using test::dim;

// Partial operands hold 1, 2, ... times this on the ranks that add up.
double valueOf(int64_t element) { return double(element * 3 % 251 + 1); }

struct Case {
  const char* name;
  Grid grid;
  OpKind kind;
  Words axes;
  std::vector<std::pair<Type, Type>> parts;  // operand, result
  int64_t by = 1;                            // rotate
};

std::vector<Case> cases() {
  Grid line{{{"x", 4}}};
  Grid plane{{{"data", 2}, {"x", 2}, {"y", 3}}};
  auto partial = [](Type type, Axes axes) {
    type.partial = std::move(axes);
    return type;
  };
  auto type = [](Elem elem, std::vector<Dim> dims) {
    return Type{elem, llvm::SmallVector<Dim, 4>(dims.begin(), dims.end())};
  };
  std::vector<Case> list;
  for (Elem elem : {Elem::F32, Elem::BF16, Elem::F64, Elem::I32}) {
    Type w = type(elem, {dim(line, "a", 5), dim(line, "b", 3)});
    list.push_back(
        {"reduce", line, OpKind::AllReduce, {"x"}, {{partial(w, axes(line, {"x"})), w}}});
    list.push_back({"gather",
                    line,
                    OpKind::AllGather,
                    {"x"},
                    {{type(elem, {dim(line, "a", 8, {"x"}), dim(line, "b", 3)}),
                      type(elem, {dim(line, "a", 8), dim(line, "b", 3)})}}});
    list.push_back({"padded_gather",
                    line,
                    OpKind::AllGather,
                    {"x"},
                    {{type(elem, {dim(line, "a", 17, {"x"}), dim(line, "b", 3)}),
                      type(elem, {dim(line, "a", 17), dim(line, "b", 3)})}}});
    list.push_back({"scatter",
                    line,
                    OpKind::ReduceScatter,
                    {"x"},
                    {{partial(type(elem, {dim(line, "a", 8)}), axes(line, {"x"})),
                      type(elem, {dim(line, "a", 8, {"x"})})}}});
    list.push_back(
        {"padded_scatter",
         line,
         OpKind::ReduceScatter,
         {"x"},
         {{partial(type(elem, {dim(line, "a", 6), dim(line, "b", 2)}), axes(line, {"x"})),
           type(elem, {dim(line, "a", 6, {"x"}), dim(line, "b", 2)})}}});
    list.push_back(
        {"transpose",
         line,
         OpKind::AllToAll,
         {"x"},
         {{type(elem, {dim(line, "a", 3), dim(line, "b", 8, {"x"}), dim(line, "c", 4)}),
           type(elem, {dim(line, "a", 3), dim(line, "b", 8), dim(line, "c", 4, {"x"})})}}});
    list.push_back({"padded_transpose",
                    line,
                    OpKind::AllToAll,
                    {"x"},
                    {{type(elem, {dim(line, "b", 9, {"x"}), dim(line, "c", 6)}),
                      type(elem, {dim(line, "b", 9), dim(line, "c", 6, {"x"})})}}});
  }
  // A bucket; one rank's group among several; axes that are not the innermost of the grid.
  Type u = type(Elem::F32, {dim(plane, "a", 4, {"data"}), dim(plane, "b", 5)});
  Type v = type(Elem::BF16, {dim(plane, "c", 7)});
  Axes both = axes(plane, {"x", "y"});
  list.push_back({"bucket",
                  plane,
                  OpKind::AllReduce,
                  {"x", "y"},
                  {{partial(u, both), u}, {partial(v, both), v}}});
  list.push_back({"inner",
                  plane,
                  OpKind::AllGather,
                  {"y"},
                  {{type(Elem::F32, {dim(plane, "a", 12, {"x", "y"}), dim(plane, "b", 2)}),
                    type(Elem::F32, {dim(plane, "a", 12, {"x"}), dim(plane, "b", 2)})}}});
  list.push_back({"two_axes",
                  plane,
                  OpKind::AllGather,
                  {"x", "y"},
                  {{type(Elem::F32, {dim(plane, "a", 12, {"x", "y"}), dim(plane, "b", 2)}),
                    type(Elem::F32, {dim(plane, "a", 12), dim(plane, "b", 2)})}}});
  list.push_back({"swapped_axes",
                  plane,
                  OpKind::AllGather,
                  {"y", "x"},
                  {{type(Elem::F32, {dim(plane, "a", 12, {"y", "x"})}),
                    type(Elem::F32, {dim(plane, "a", 12)})}}});
  list.push_back({"some_stay_partial",
                  plane,
                  OpKind::ReduceScatter,
                  {"y"},
                  {{partial(type(Elem::F32, {dim(plane, "a", 6)}), both),
                    partial(type(Elem::F32, {dim(plane, "a", 6, {"y"})}), axes(plane, {"x"}))}}});
  list.push_back({"two_moves",
                  plane,
                  OpKind::AllToAll,
                  {"x", "y"},
                  {{type(Elem::F32, {dim(plane, "a", 4, {"data", "x"}), dim(plane, "b", 6, {"y"}),
                                     dim(plane, "c", 4), dim(plane, "d", 3)}),
                    type(Elem::F32, {dim(plane, "a", 4, {"data"}), dim(plane, "b", 6),
                                     dim(plane, "c", 4, {"x"}), dim(plane, "d", 3, {"y"})})}}});
  // Round a ring: one on, two back in a bucket that has come before, padded, over two axes.
  auto moved = [](Type type, size_t dim, int64_t places) {
    type.dims[dim].moved = places;
    return type;
  };
  for (Elem elem : {Elem::F32, Elem::BF16, Elem::I32}) {
    Type k = type(elem, {dim(line, "a", 3), dim(line, "b", 8, {"x"})});
    Type z = type(elem, {dim(line, "a", 13, {"x"}), dim(line, "b", 5)});
    k.dims[1].zigzag = 4;
    list.push_back({"rotate", line, OpKind::Rotate, {"x"}, {{k, moved(k, 1, 1)}}});
    list.push_back({"rotate_padded", line, OpKind::Rotate, {"x"}, {{z, moved(z, 0, 1)}}});
    list.push_back({"rotate_back",
                    line,
                    OpKind::Rotate,
                    {"x"},
                    {{moved(k, 1, 1), moved(k, 1, 3)}, {moved(z, 0, 2), z}},
                    -2});
  }
  Type plaid = type(Elem::F32, {dim(plane, "a", 4, {"data"}), dim(plane, "b", 12, {"y", "x"})});
  for (int64_t by : {1, 4, -1})
    list.push_back({"rotate_two_axes",
                    plane,
                    OpKind::Rotate,
                    {"y", "x"},
                    {{plaid, moved(plaid, 1, (by + 6) % 6)}},
                    by});
  Type two = type(Elem::F64, {dim(plane, "a", 4, {"x"})});
  list.push_back({"rotate_two", plane, OpKind::Rotate, {"x"}, {{two, moved(two, 0, 1)}}});
  return list;
}

// The factor that a rank's share of a partial value has, and the sum of those that are added.
double factor(const Type& type, const Coordinates& rank) {
  return double(rank.index(type.partial) + 1);
}

// @begin reads each operand, runs the op (apart, if it starts only), writes each result.
void build(const Case& c, bool isApart, Module& module) {
  module.grid = c.grid;
  Builder builder(module.addFunction("begin")->body.get());
  std::vector<Value*> operands;
  std::vector<Type> results;
  std::vector<Variable*> outs;
  for (size_t i = 0; i < c.parts.size(); ++i) {
    Variable in, out;
    in.name = "in" + std::to_string(i);
    in.type = c.parts[i].first;
    out.name = "out" + std::to_string(i);
    out.type = c.parts[i].second;
    operands.push_back(builder.read(module.addVar(in)));
    outs.push_back(module.addVar(out));
    results.push_back(out.type);
  }
  Attrs attrs{{"axes", c.axes}};
  if (c.by != 1) attrs.set("by", c.by);
  if (isApart) attrs.set("start", int64_t{1});
  Op* op = builder.create(c.kind, operands, results, attrs);
  if (isApart) {
    llvm::SmallVector<Value*, 4> all(op->results().begin(), op->results().end());
    all.append(operands.begin(), operands.end());
    op = builder.create(OpKind::Wait, all, results);
  }
  for (size_t i = 0; i < outs.size(); ++i) builder.write(outs[i], op->result(unsigned(i)));
  test::place(module);
}

TEST(Exchange, GivesEachRankItsPiece) {
  for (const Case& c : cases()) {
    for (bool isApart : {false, true}) {
      Module module;
      build(c, isApart, module);
      test::onGoodRanks(c.grid.ranks(), [&](Communicator& comm) -> llvm::Error {
        Coordinates rank(c.grid, comm.rank());
        auto device = makeCpuDevice(1, rank);
        auto interpreter = Interpreter::create(module, *device, &comm);
        if (!interpreter) return interpreter.takeError();
        for (int64_t step = 1; step <= 2; ++step) {
          // What lay there before shows nowhere, least of all in padding.
          std::byte* arena = (*interpreter)->data(*module.vars[0]) - module.vars[0]->place->offset;
          memset(arena, 7, size_t(module.arenaBytes));
          for (size_t i = 0; i < c.parts.size(); ++i) {
            const Type& type = c.parts[i].first;
            test::fill(
                type, rank, (*interpreter)->data(*module.findVar("in" + std::to_string(i))),
                [&](int64_t e) { return valueOf(e) * factor(type, rank) * double(step); },
                c.kind == OpKind::Rotate ? 0 : -9);  // what travels is sent as it is
          }
          if (llvm::Error error = (*interpreter)->run({"begin", -1}, 0, step)) return error;
          for (size_t i = 0; i < c.parts.size(); ++i) {
            const auto& [from, to] = c.parts[i];
            // What is left of the partial sum on this rank: all of the group's factors.
            double sum = from.partial.empty() ? 1 : 0;
            for (int64_t other : rank.group(from.partial)) {
              Coordinates there(c.grid, other);
              if (there.index(to.partial) == rank.index(to.partial) && !from.partial.empty())
                sum += factor(from, there);
            }
            test::expectPiece(
                to, rank, (*interpreter)->data(*module.findVar("out" + std::to_string(i))),
                [&](int64_t e) {
                  double value = valueOf(e) * sum * double(step);
                  // Sums of bf16 are rounded once.
                  return to.elem == Elem::BF16 ? double(toFloat(toBf16(float(value)))) : value;
                },
                std::string(c.name) + (isApart ? ", apart" : ""));
          }
        }
        // Nothing was written to an operand.
        for (size_t i = 0; i < c.parts.size(); ++i) {
          const Type& type = c.parts[i].first;
          const std::byte* data = (*interpreter)->data(*module.findVar("in" + std::to_string(i)));
          Runs runs = pieceRuns(type, rank);
          runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t) {
            double value = valueOf(b) * factor(type, rank) * 2;
            if (type.elem == Elem::BF16) value = double(toFloat(toBf16(float(value))));
            EXPECT_EQ(fetch(type.elem, data, a), value) << c.name;
          });
        }
        double waited = (*interpreter)->secondsByKind()[size_t(OpKind::Wait)];
        EXPECT_EQ(waited > 0, isApart) << c.name;
        EXPECT_GT((*interpreter)->secondsByKind()[size_t(c.kind)], 0) << c.name;
        return llvm::Error::success();
      });
    }
  }
}

TEST(Exchange, TracesTheWait) {
  Case c = cases().front();
  for (bool isApart : {false, true}) {
    Module module;
    build(c, isApart, module);
    test::onGoodRanks(c.grid.ranks(), [&](Communicator& comm) -> llvm::Error {
      auto device = makeCpuDevice(1, Coordinates(c.grid, comm.rank()));
      auto interpreter = Interpreter::create(module, *device, &comm);
      if (!interpreter) return interpreter.takeError();
      Trace trace(comm.rank());
      (*interpreter)->setTrace(&trace);
      if (llvm::Error error = (*interpreter)->run({"begin", -1}, 0, 1)) return error;
      EXPECT_HAS(trace.events(), "\"cat\":\"all_reduce\"");
      EXPECT_HAS(trace.events(), "\"cat\":\"wait\"");
      EXPECT_HAS(trace.events(), "\"tid\":" + std::to_string(comm.rank()));
      return llvm::Error::success();
    });
  }
}

// A ring: in each iteration ranks work with a block while they pass it on; the last iteration does not.
TEST(Exchange, BlocksTravelRoundARing) {
  Grid grid{{{"data", 2}, {"x", 3}}};
  Type block{Elem::F32, {dim(grid, "b", 12, {"x"}), dim(grid, "c", 5)}}, coming = block,
                                                                         moved = block;
  block.dims[0].zigzag = coming.dims[0].zigzag = moved.dims[0].zigzag = 3;
  coming.dims[0].moves = moved.dims[0].moves = "ring";
  moved.dims[0].moved = 1;
  for (bool isApart : {false, true}) {
    Module module;
    module.grid = grid;
    Builder builder(module.addFunction("begin")->body.get());
    Variable in, seen;
    in.name = "in";
    in.type = block;
    seen.name = "seen";
    seen.type = coming;
    seen.type.dims.insert(seen.type.dims.begin(), Dim{"ring", 3});
    seen.stack = {"ring"};
    Value* first = builder.read(module.addVar(in));
    Op* ring = builder.repeat("ring", 3, false, {first});
    Builder body(ring->body.get());
    Value* now = ring->body->args()[0];
    now->type = coming;
    Attrs attrs{{"axes", Words{"x"}}, {"unless_last", int64_t{1}}};
    if (isApart) attrs.set("start", int64_t{1});
    Op* op = body.create(OpKind::Rotate, {now}, {moved}, attrs);
    body.write(module.addVar(seen), now);
    if (isApart)
      op = body.create(OpKind::Wait, {op->result(), now}, {moved}, {{"unless_last", int64_t{1}}});
    body.create(OpKind::Yield, {op->result()}, {});
    test::place(module);
    auto take = [&](Value* value) {
      value->place = Place{module.arenaBytes, {}};
      module.arenaBytes += 64 * (1 + value->type.bytes() / 64);
    };
    take(now);
    ring->result()->place = now->place;
    test::onGoodRanks(grid.ranks(), [&](Communicator& comm) -> llvm::Error {
      Coordinates rank(grid, comm.rank());
      auto device = makeCpuDevice(1, rank);
      auto interpreter = Interpreter::create(module, *device, &comm);
      if (!interpreter) return interpreter.takeError();
      test::fill(block, rank, (*interpreter)->data(*module.findVar("in")), valueOf);
      int64_t before = comm.bytesSent();
      if (llvm::Error error = (*interpreter)->run({"begin", -1}, 0, 1)) return error;
      for (int64_t i = 0; i < 3; ++i) {
        Type then = block;
        then.dims[0].moved = i;
        test::expectPiece(then, rank,
                          (*interpreter)->data(*module.findVar("seen")) + i * block.bytes(),
                          valueOf, "iteration " + std::to_string(i));
      }
      EXPECT_EQ(comm.bytesSent() - before, 2 * block.bytes());
      EXPECT_EQ(bytesSent(*ring->body->ops[0]), block.bytes());
      return llvm::Error::success();
    });
  }
}

TEST(Exchange, RefusesWhatHasNoEqualPieces) {
  // A padded dim that stays split: rank 0 would need a row that another holds.
  Grid grid{{{"x", 2}, {"y", 2}}};
  Type from{Elem::F32, {dim(grid, "a", 17, {"x", "y"})}},
      to{Elem::F32, {dim(grid, "a", 17, {"x"})}};
  Module module;
  build({"", grid, OpKind::AllGather, {"y"}, {{from, to}}}, false, module);
  for (const std::string& error : test::onRanks(4, [&](Communicator& comm) -> llvm::Error {
         auto device = makeCpuDevice(1, Coordinates(grid, comm.rank()));
         auto interpreter = Interpreter::create(module, *device, &comm);
         return interpreter ? llvm::Error::success() : interpreter.takeError();
       }))
    EXPECT_HAS(error, "cannot run 'all_gather': f32[a 17/x] has no 2 equal pieces");
  auto device = makeCpuDevice(1);
  EXPECT_HAS(text(Interpreter::create(module, *device)), "is for 4 ranks, and 1 run");
}

// Tokens' rows of each rank go to their experts' ranks and home again.
struct Routed {
  Grid grid;
  Words axes;           // that the experts are cut over
  Words outer = {};     // that they are cut over on both sides
  int64_t experts = 2;  // of each rank
  int64_t room = 0;     // for rows of a rank's own experts; 0: for all that could come
  Elem elem = Elem::F32;
  static constexpr int64_t kRows = 9, kWidth = 3;  // of each rank

  int64_t parts() const { return ranksOver(test::axes(grid, axes)); }
  // How many rows a rank has for each of the experts that its tokens' side has.
  std::vector<int64_t> counts(int64_t rank, unsigned seed) const {
    std::mt19937 random(seed * 100 + unsigned(rank));
    std::vector<int64_t> counts(size_t(experts * parts()), 0);
    // Few rows, all there can be, or all of one expert.
    int64_t rows = seed % 3 == 0 ? random() % 3 : seed % 3 == 1 ? kRows : random() % (kRows + 1);
    size_t favourite = random() % counts.size();
    for (int64_t i = 0; i < rows; ++i)
      ++counts[seed % 4 == 3 ? favourite : random() % counts.size()];
    return counts;
  }
};

// The number that a row of a rank has in a column.
double rowValue(int64_t rank, int64_t row, int64_t column) {
  return double((rank * Routed::kRows + row) * Routed::kWidth + column + 1);
}

void build(const Routed& c, bool isApart, Module& module) {
  module.grid = c.grid;
  Words all = c.outer, slots;
  all.insert(all.end(), c.axes.begin(), c.axes.end());
  for (const GridAxis& axis : c.grid.axes) slots.push_back(axis.name);
  int64_t ranks = c.grid.ranks(), experts = c.experts * ranksOver(test::axes(c.grid, all));
  int64_t room = c.room > 0 ? c.room : c.kRows * c.parts();
  auto rows = [&](const Words& expertAxes, int64_t slotSize, const Words& slotAxes) {
    Dim slot = dim(c.grid, "slot", slotSize, slotAxes);
    slot.over = "expert";
    return Type{c.elem,
                {dim(c.grid, "expert", experts, expertAxes), slot, dim(c.grid, "m", c.kWidth)}};
  };
  Words kept;
  for (const std::string& axis : slots)
    if (!llvm::is_contained(c.axes, axis)) kept.push_back(axis);
  Type tokens = rows(c.outer, c.kRows * ranks, slots);
  Type own = rows(all, room * ranksOver(test::axes(c.grid, kept)), kept);
  auto variable = [&](const char* name, Type type) {
    Variable var;
    var.name = name;
    var.type = std::move(type);
    return module.addVar(var);
  };
  Builder b(module.addFunction("begin")->body.get());
  auto ints = [](std::vector<Dim> dims) {
    return Type{Elem::I32, llvm::SmallVector<Dim, 4>(dims.begin(), dims.end())};
  };
  Value* offsets = b.read(variable("offsets", ints({{"bound", experts + 1}})));
  Value* packed = b.read(variable("rows", tokens));
  Value* n = b.value(OpKind::RowCounts, {offsets},
                     ints({dim(c.grid, "part", c.parts(), c.axes), tokens.dims[0]}));
  Value* there = b.value(OpKind::AllToAll, {n}, ints({dim(c.grid, "part", c.parts()), own.dims[0]}),
                         {{"axes", c.axes},
                          {"from", Words(c.axes.size(), "part")},
                          {"to", Words(c.axes.size(), "expert")}});
  Value* begins =
      b.value(OpKind::RowOffsets, {there}, ints({dim(c.grid, "bound", experts + 1, all)}));
  auto exchange = [&](Value* rows, Value* sent, Value* coming, Type type, bool isHome) {
    Attrs attrs{{"axes", c.axes}};
    if (isHome) attrs.set("home", int64_t{1});
    if (isApart) attrs.set("start", int64_t{1});
    Op* op = b.create(OpKind::ExchangeRows, {rows, sent, coming}, {type, own}, attrs, nullptr, "t");
    if (!isApart) return op->result();
    return b.create(OpKind::Wait, {op->result(0), op->result(1), rows, sent, coming}, {type, own})
        ->result();
  };
  Value* sorted = exchange(packed, n, there, own, false);
  Value* back = exchange(sorted, there, n, tokens, true);
  b.write(variable("begins", begins->type), begins);
  b.write(variable("own", own), sorted);
  b.write(variable("back", tokens), back);
  test::place(module);
}

llvm::Error runRouted(const Routed& c, const Module& module, unsigned seed, Communicator& comm) {
  Coordinates rank(c.grid, comm.rank());
  auto device = makeCpuDevice(1, rank);
  auto interpreter = Interpreter::create(module, *device, &comm);
  if (!interpreter) return interpreter.takeError();
  auto at = [&](const char* name) { return (*interpreter)->data(*module.findVar(name)); };
  std::memset(at("offsets") - module.findVar("offsets")->place->offset, 7,
              size_t(module.arenaBytes));
  // Offsets are of all experts; a rank whose side has a part of them has rows of those only.
  std::vector<int64_t> mine = c.counts(comm.rank(), seed);
  int64_t first = rank.offset(module.findVar("rows")->type.dims[0]);
  int32_t* offsets = reinterpret_cast<int32_t*>(at("offsets"));
  for (int64_t e = 0; e <= int64_t(mine.size()); ++e)
    offsets[first + e] = int32_t(std::accumulate(mine.begin(), mine.begin() + e, int64_t{0}));
  std::vector<double> expected;
  int64_t used = offsets[first + int64_t(mine.size())];
  for (int64_t row = 0; row < c.kRows; ++row)
    for (int64_t m = 0; m < c.kWidth; ++m) {
      store(c.elem, at("rows"), row * c.kWidth + m, rowValue(comm.rank(), row, m));
      expected.push_back(row < used ? rowValue(comm.rank(), row, m) : 0);
    }
  if (llvm::Error error = (*interpreter)->run({"begin", -1}, 0, 1)) return error;

  std::string what = "rank " + std::to_string(comm.rank()) + ", seed " + std::to_string(seed);
  auto values = [&](const char* name) {
    std::vector<double> list;
    const Type& type = module.findVar(name)->type;
    for (int64_t i = 0; i < type.elements(); ++i) list.push_back(fetch(type.elem, at(name), i));
    return list;
  };
  EXPECT_EQ(values("back"), expected) << what;
  // By own expert, then by rank, then as they lay; behind them zeros.
  std::vector<double> own, begins{0};
  Axes along = test::axes(c.grid, c.axes);
  for (int64_t e = 0; e < c.experts; ++e) {
    for (int64_t other : rank.group(along)) {
      std::vector<int64_t> theirs = c.counts(other, seed);
      auto mineOf = theirs.begin() + rank.index(along) * c.experts + e;
      int64_t row = std::accumulate(theirs.begin(), mineOf, int64_t{0});
      for (int64_t i = 0; i < *mineOf; ++i)
        for (int64_t m = 0; m < c.kWidth; ++m) own.push_back(rowValue(other, row + i, m));
    }
    begins.push_back(double(own.size() / c.kWidth));
  }
  own.resize(size_t(module.findVar("own")->type.elements()), 0);
  EXPECT_EQ(values("own"), own) << what;
  EXPECT_EQ(values("begins"), begins) << what;
  return llvm::Error::success();
}

TEST(ExchangeRows, GoToTheirExpertsAndHome) {
  Grid plane{{{"x", 2}, {"y", 2}}};
  std::vector<Routed> cases;
  for (int64_t ranks : {2, 3, 4})
    for (int64_t experts : {1, 3})
      cases.push_back({.grid = {{{"x", ranks}}}, .axes = {"x"}, .experts = experts});
  for (Words axes : {Words{"x", "y"}, Words{"y", "x"}, Words{"x"}, Words{"y"}})
    cases.push_back({.grid = plane, .axes = axes, .elem = Elem::F64});
  cases.push_back({.grid = plane, .axes = {"y"}, .outer = {"x"}, .elem = Elem::BF16});
  for (const Routed& c : cases)
    for (bool isApart : {false, true}) {
      Module module;
      build(c, isApart, module);
      for (unsigned seed = 0; seed < 12; ++seed)
        test::onGoodRanks(c.grid.ranks(),
                          [&](Communicator& comm) { return runRouted(c, module, seed, comm); });
    }
}

// Only the rank that gets them knows, and all end.
TEST(ExchangeRows, MoreThanThereIsRoomForEndTheRun) {
  Routed c{.grid = {{{"x", 3}}}, .axes = {"x"}, .room = 11};
  auto arriving = [&](int64_t rank, unsigned seed) {
    int64_t rows = 0;
    for (int64_t other = 0; other < 3; ++other) {
      std::vector<int64_t> theirs = c.counts(other, seed);
      rows += theirs[size_t(2 * rank)] + theirs[size_t(2 * rank + 1)];
    }
    return rows;
  };
  // All rows are sent, and one rank gets too many.
  unsigned seed = 1;
  int64_t full = 0;
  auto isOne = [&] {
    int64_t over = 0;
    for (int64_t rank = 0; rank < 3; ++rank)
      if (arriving(rank, seed) > c.room) ++over, full = rank;
    return over == 1;
  };
  while (!isOne()) seed += 3;
  for (bool isApart : {false, true}) {
    Module module;
    module.files = {"moe.plan"};
    build(c, isApart, module);
    walk(*module.functions[0]->body, [](Op* op) { op->loc = {0, 12, 3}; });
    auto team = makeThreadTeam(3, std::chrono::seconds(10));
    std::vector<std::string> errors(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        auto comm = team->communicator(rank);
        errors[size_t(rank)] = llvm::toString(runRouted(c, module, seed, *comm));
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors)
      EXPECT_EQ(error,
                "rank " + std::to_string(full) + " failed: exchange_rows 2 of 't' (moe.plan:12): " +
                    std::to_string(arriving(full, seed)) +
                    " rows come to this rank's experts, which have room for 11: the plan's "
                    "'by dispatch(N)' bounds it, to N times a rank's even share of the rows; an N " +
                    llvm::formatv("{0:f2}", double(arriving(full, seed)) / 11).str() +
                    " times as large would do, and without N there is room for all");
  }
}

}  // namespace
}  // namespace planc
