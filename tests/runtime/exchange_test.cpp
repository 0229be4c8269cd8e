// Ops between ranks as the interpreter runs them: each rank's result is its piece of what one rank
// would hold; with `start` and `wait`, in buckets, of padded dims, over several axes.
#include "ir/traffic.h"
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

}  // namespace
}  // namespace planc
