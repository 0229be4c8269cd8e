// The oracle itself: each gradient op against finite differences of its forward op, ops against
// values worked out by hand, and whole functions with `repeat`, microbatches and accumulation.
#include "runtime/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "runtime/random.h"

namespace planc {
namespace {

Type f64(std::initializer_list<Dim> dims) {
  return {Elem::F64, llvm::SmallVector<Dim, 4>(dims)};
}
Type i32(std::initializer_list<Dim> dims) {
  return {Elem::I32, llvm::SmallVector<Dim, 4>(dims)};
}
Dim dim(const char* name, int64_t size, const char* over = "") {
  return {name, size, over};
}

Variable variable(const char* name, Type type, VarKind kind = VarKind::Weight) {
  Variable made;
  made.name = name;
  made.type = std::move(type);
  made.kind = kind;
  return made;
}

// A module to make single ops in; operands are arguments of its block.
struct Bench {
  Module module;
  Block* block = module.addFunction("f")->body.get();

  Op& op(OpKind kind, std::vector<Type> operands, std::vector<Type> results, Attrs attrs = {}) {
    llvm::SmallVector<Value*> values;
    for (const Type& type : operands) values.push_back(block->addArg(type, "x"));
    return *Builder(block).create(kind, values, results, std::move(attrs));
  }
  std::vector<Array> run(OpKind kind, std::vector<Type> operands, std::vector<Type> results,
                         Attrs attrs, std::vector<Array> in) {
    return referenceOp(op(kind, operands, results, std::move(attrs)), std::move(in), {});
  }
};

// Numbers that look random, in (-1, 1).
Array numbers(const Type& type, const char* name) {
  Array values;
  for (int64_t i = 0; i < type.elements(); ++i) {
    values.push_back(uniformAt(randomKey(5, name), uint64_t(i)));
  }
  return values;
}

// Compares grads[i] with the derivative of sum(seed * forward(in)) by in[wrt[i]]; seeds[r] weighs
// result r (empty: it does not count).
void expectGradient(const Op& forward, std::vector<Array> in, const std::vector<unsigned>& wrt,
                    const std::vector<Array>& seeds, const std::vector<Array>& grads) {
  auto value = [&](const std::vector<Array>& at) {
    std::vector<Array> out = referenceOp(forward, at, {});
    double sum = 0;
    for (size_t r = 0; r < seeds.size(); ++r) {
      for (size_t i = 0; i < seeds[r].size(); ++i) sum += seeds[r][i] * out[r][i];
    }
    return sum;
  };
  const double h = 1e-5;
  for (size_t w = 0; w < wrt.size(); ++w) {
    ASSERT_EQ(grads[w].size(), in[wrt[w]].size());
    for (size_t i = 0; i < grads[w].size(); ++i) {
      double saved = std::exchange(in[wrt[w]][i], in[wrt[w]][i] + h);
      double above = value(in);
      in[wrt[w]][i] = saved - h;
      double below = value(in);
      in[wrt[w]][i] = saved;
      EXPECT_NEAR(grads[w][i], (above - below) / (2 * h), 2e-8)
          << forward.info().text.str() << " operand " << wrt[w] << " element " << i;
    }
  }
}

TEST(ReferenceGradient, Activations) {
  std::pair<OpKind, OpKind> pairs[] = {{OpKind::Relu, OpKind::ReluGrad},
                                       {OpKind::Silu, OpKind::SiluGrad},
                                       {OpKind::Gelu, OpKind::GeluGrad},
                                       {OpKind::GeluTanh, OpKind::GeluTanhGrad}};
  Type t = f64({dim("a", 9)});
  for (auto [forward, gradient] : pairs) {
    Bench bench;
    Array x = numbers(t, "x"), dy = numbers(t, "dy");
    for (double& v : x) v *= 3;
    Array dx = bench.run(gradient, {t, t}, {t}, {}, {x, dy})[0];
    expectGradient(bench.op(forward, {t}, {t}), {x}, {0}, {dy}, {dx});
  }
}

TEST(ReferenceGradient, SoftmaxAndNorms) {
  Bench bench;
  // The result lies in another order than the operand.
  Type t = f64({dim("a", 3), dim("over", 4), dim("b", 2)});
  Type u = f64({dim("over", 4), dim("b", 2), dim("a", 3)}), rows = f64({dim("b", 2), dim("a", 3)});
  Array x = numbers(t, "x"), dy = numbers(u, "dy");
  const Op& softmax = bench.op(OpKind::Softmax, {t}, {u}, {{"over", std::string("over")}});
  Array y = referenceOp(softmax, {x}, {})[0];
  EXPECT_NEAR(y[0] + y[6] + y[12] + y[18], 1, 1e-15);
  Array dx =
      bench.run(OpKind::SoftmaxGrad, {u, u}, {t}, {{"over", std::string("over")}}, {y, dy})[0];
  expectGradient(softmax, {x}, {0}, {dy}, {dx});

  for (int64_t center : {0, 1}) {
    Attrs attrs = {{"over", std::string("over")}, {"eps", 1e-3}, {"center", center}};
    const Op& norm = bench.op(OpKind::Norm, {t}, {u, rows}, attrs);
    std::vector<Array> out = referenceOp(norm, {x}, {});
    dx = bench.run(OpKind::NormGrad, {u, u, rows}, {t}, attrs, {dy, out[0], out[1]})[0];
    expectGradient(norm, {x}, {0}, {dy}, {dx});
  }
}

TEST(ReferenceGradient, LookupAndCrossEntropy) {
  Bench bench;
  Attrs over = {{"over", std::string("vocab")}};
  Type table = f64({dim("vocab", 5), dim("model", 2)}), ids = i32({dim("batch", 2), dim("seq", 3)});
  Type x = f64({dim("batch", 2), dim("model", 2), dim("seq", 3)});
  Array tokens = {4, 0, 4, 1, 4, 2}, dx = numbers(x, "dx");
  Array dtable = bench.run(OpKind::LookupGrad, {ids, x}, {table}, over, {tokens, dx})[0];
  expectGradient(bench.op(OpKind::Lookup, {table, ids}, {x}, over), {numbers(table, "t"), tokens},
                 {0}, {dx}, {dtable});

  Attrs attrs = {{"over", std::string("vocab")}, {"scale", 0.7}};
  Type logits = f64({dim("seq", 3), dim("vocab", 5), dim("batch", 2)});
  Type rows = f64({dim("batch", 2), dim("seq", 3)}), scalar = f64({}), count = i32({});
  Array values = numbers(logits, "l"), targets = {0, -1, 4, 2, 2, -1}, n = {4}, seed = {1.3};
  const Op& loss = bench.op(OpKind::CrossEntropy, {logits, ids, count}, {scalar, rows}, attrs);
  std::vector<Array> out = referenceOp(loss, {values, targets, n}, {});
  Array dlogits = bench.run(OpKind::CrossEntropyGrad, {logits, ids, count, rows, scalar}, {logits},
                            attrs, {values, targets, n, out[1], seed})[0];
  expectGradient(loss, {values, targets, n}, {0}, {seed}, {dlogits});
  // Nothing valid: no loss and no gradient, not NaN.
  EXPECT_EQ(referenceOp(loss, {values, Array(6, -1), {0}}, {})[0], Array{0});
}

TEST(ReferenceGradient, Rope) {
  for (const char* style : {"half", "pairs"}) {
    Bench bench;
    Type t = f64({dim("width", 4), dim("seq", 5), dim("head", 2)});
    Attrs attrs = {{"seq", std::string("seq")},
                   {"by", std::string("width")},
                   {"theta", 100.0},
                   {"style", std::string(style)}};
    Attrs back = attrs;
    back.set("inverse", int64_t{1});
    Array x = numbers(t, "x"), dy = numbers(t, "dy");
    Array dx = bench.run(OpKind::Rope, {t}, {t}, back, {dy})[0];
    expectGradient(bench.op(OpKind::Rope, {t}, {t}, attrs), {x}, {0}, {dy}, {dx});
    EXPECT_EQ(bench.run(OpKind::Rope, {t}, {t}, attrs, {x})[0][0], x[0]);  // position 0 stays
  }
}

TEST(ReferenceGradient, Attention) {
  struct {
    int64_t kv, causal, window;
    bool ownWidth;
  } cases[] = {{4, 1, 0, false}, {2, 1, 0, false}, {1, 0, 0, true}, {2, 1, 3, true}};
  for (const auto& c : cases) {
    Bench bench;
    Dim batch = dim("batch", 2), seq = dim("seq", 5), width = dim("width", 3);
    Dim kv = dim("kv", c.kv), own = c.ownWidth ? dim("own", 2) : width;
    Type q = f64({batch, seq, dim("head", 4), width}), k = f64({batch, kv, width, seq});
    Type v = f64({kv, batch, seq, own}), a = f64({batch, dim("head", 4), seq, own});
    Type lse = f64({batch, dim("head", 4), seq});
    Attrs attrs = {{"seq", std::string("seq")},
                   {"by", std::string("width")},
                   {"head", std::string("head")},
                   {"kv", std::string("kv")},
                   {"causal", c.causal},
                   {"window", c.window},
                   {"scale", 0.9}};
    std::vector<Array> in = {numbers(q, "q"), numbers(k, "k"), numbers(v, "v")};
    const Op& attend = bench.op(OpKind::Attend, {q, k, v}, {a, lse}, attrs);
    std::vector<Array> out = referenceOp(attend, in, {});
    Array da = numbers(a, "da");
    std::vector<Array> grads = bench.run(OpKind::AttendGrad, {q, k, v, a, lse, a}, {q, k, v}, attrs,
                                         {in[0], in[1], in[2], out[0], out[1], da});
    expectGradient(attend, in, {0, 1, 2}, {da}, grads);
    if (c.causal != 0) {
      // The first position sees its own key only: a is v there.
      EXPECT_NEAR(out[0][0], in[2][0], 1e-15);
    }
  }
}

// Keys of one document, then those of the other: all keys. Queries of neither see nothing.
TEST(ReferenceAttention, BlocksGoOn) {
  Bench bench;
  Dim batch = dim("batch", 2), seq = dim("seq", 5), width = dim("width", 3);
  Type q = f64({batch, seq, dim("head", 4), width}), k = f64({seq, batch, dim("kv", 2), width});
  Type a = f64({dim("head", 4), batch, seq, width}), lse = f64({batch, seq, dim("head", 4)});
  Type ofQueries = i32({seq, batch}), ofKeys = i32({batch, seq});
  Attrs attrs = {{"seq", std::string("seq")},
                 {"by", std::string("width")},
                 {"head", std::string("head")},
                 {"kv", std::string("kv")},
                 {"scale", 0.9}};
  Array qs = numbers(q, "q"), ks = numbers(k, "k"), vs = numbers(k, "v");
  auto whole = bench.run(OpKind::Attend, {q, k, k}, {a, lse}, attrs, {qs, ks, vs});
  Array documents = {0, 1, 1, 0, 1, 1, 0, 0, 0, 1};
  std::vector<Array> made = {Array(whole[0].size(), 0.0), Array(whole[1].size(), -1e38)};
  for (double document : {0.0, 2.0, 1.0}) {
    auto next = bench.run(OpKind::AttendBlock, {q, k, k, a, lse, ofQueries, ofKeys}, {a, lse},
                          attrs, {qs, ks, vs, made[0], made[1], Array(10, document), documents});
    if (document == 2) {
      EXPECT_EQ(next, made);
    }
    made = next;
  }
  for (size_t r = 0; r < 2; ++r)
    for (size_t i = 0; i < whole[r].size(); ++i) EXPECT_NEAR(made[r][i], whole[r][i], 1e-14);
  auto none = bench.run(OpKind::Attend, {q, k, k, ofQueries, ofKeys}, {a, lse}, attrs,
                        {qs, ks, vs, Array(10, 2.0), documents});
  EXPECT_EQ(none[0], Array(whole[0].size(), 0.0));
  EXPECT_EQ(none[1], Array(whole[1].size(), -1e38));
}

struct Routing {
  Bench bench;
  Type scores = f64({dim("batch", 2), dim("seq", 4), dim("expert", 3)});
  Type choice = i32({dim("batch", 2), dim("seq", 4), dim("choice", 2)});
  Type gate = choice.withElem(Elem::F64), offsets = i32({dim("bound", 4)});
  Type packed = f64({dim("expert", 3), dim("slot", 16, "expert"), dim("model", 2)});
  Type x = f64({dim("batch", 2), dim("seq", 4), dim("model", 2)});

  Attrs attrs(const char* score, const char* per, int64_t normalise) {
    Attrs made{{"over", std::string("expert")}, {"top", int64_t{2}},     {"score", std::string(score)},
               {"per", std::string(per)},       {"normalise", normalise}, {"scale", 1.5}};
    if (made.word("per") == "sequence") made.set("seq", std::string("seq"));
    return made;
  }
  Type sums(const Attrs& attrs) const {
    return attrs.word("per") == "sequence" ? scores.without("seq") : f64({dim("expert", 3)});
  }
  Op& route(const Attrs& attrs) {
    return bench.op(OpKind::Route, {scores}, {choice, gate, sums(attrs), sums(attrs)}, attrs);
  }
  Array admit(const Array& chosen, double capacity) {
    return bench.run(OpKind::Admit, {choice}, {gate},
                     {{"capacity", capacity},
                      {"experts", int64_t{3}},
                      {"seq", std::string("seq")},
                      {"choice", std::string("choice")}},
                     {chosen})[0];
  }
  std::vector<Array> pack(const Array& chosen, const Array& fit) {
    return bench.run(OpKind::Pack, {choice, gate}, {choice, offsets},
                     {{"experts", int64_t{3}}, {"choice", std::string("choice")}}, {chosen, fit});
  }
};

TEST(ReferenceGradient, Route) {
  for (const char* score : {"softmax", "sigmoid"}) {
    for (const char* per : {"sequence", "microbatch"}) {
      for (int64_t normalise : {0, 1}) {
        Routing r;
        Attrs attrs = r.attrs(score, per, normalise);
        const Op& route = r.route(attrs);
        Array s = numbers(r.scores, "s"), dgate = numbers(r.gate, "dgate");
        Array dshare = numbers(r.sums(attrs), "dshare");
        std::vector<Array> out = referenceOp(route, {s}, {});
        Array ds = r.bench.run(OpKind::RouteGrad, {r.scores, r.choice, r.gate, r.sums(attrs)},
                               {r.scores}, attrs, {s, out[0], dgate, dshare})[0];
        expectGradient(route, {s}, {0}, {{}, dgate, {}, dshare}, {ds});
      }
    }
  }
}

TEST(ReferenceGradient, DispatchAndCombine) {
  Routing r;
  std::vector<Array> out =
      referenceOp(r.route(r.attrs("softmax", "sequence", 1)), {numbers(r.scores, "s")}, {});
  std::vector<Array> packed = r.pack(out[0], r.admit(out[0], 1.0));
  const Array &gate = out[1], &row = packed[0], &offsets = packed[1];
  ASSERT_NE(std::count(row.begin(), row.end(), -1.0), 0);
  Attrs over = {{"over", std::string("expert")}};

  const Op& dispatch = r.bench.op(OpKind::Dispatch, {r.x, r.choice, r.offsets}, {r.packed}, over);
  Array dt = numbers(r.packed, "dt");
  Array dx = r.bench.run(OpKind::DispatchGrad, {r.packed, r.choice, r.offsets}, {r.x}, over,
                         {dt, row, offsets})[0];
  expectGradient(dispatch, {numbers(r.x, "x"), row, offsets}, {0}, {dt}, {dx});

  const Op& combine =
      r.bench.op(OpKind::Combine, {r.packed, r.gate, r.choice, r.offsets}, {r.x}, over);
  Array o = numbers(r.packed, "o"), dy = numbers(r.x, "dy");
  std::vector<Array> grads =
      r.bench.run(OpKind::CombineGrad, {r.x, r.packed, r.gate, r.choice, r.offsets},
                  {r.packed, r.gate}, over, {dy, o, gate, row, offsets});
  expectGradient(combine, {o, gate, row, offsets}, {0, 1}, {dy}, grads);
}

TEST(Reference, RouteByHand) {
  Bench bench;
  Type scores = f64({dim("seq", 3), dim("expert", 3)}), sums = f64({dim("expert", 3)});
  Type choice = i32({dim("seq", 3), dim("choice", 2)}), fits = choice.withElem(Elem::F64);
  // Token 0 likes experts 2, 0; token 1: 0 and 2 tie, so 0 first; token 2: 2, 1.
  Array s = {1, 0, 2, 5, 0, 5, 0, 1, 9};
  std::vector<Array> all = bench.run(OpKind::Route, {scores}, {choice, fits, sums, sums},
                                     {{"over", std::string("expert")},
                                      {"top", int64_t{2}},
                                      {"score", std::string("sigmoid")},
                                      {"per", std::string("microbatch")}},
                                     {s});
  EXPECT_EQ(all[0], (Array{2, 0, 0, 2, 2, 1}));
  EXPECT_EQ(all[2], (Array{2, 1, 3}));
  double low = 1 / (1 + std::exp(-1.0)), high = 1 / (1 + std::exp(-9.0));
  EXPECT_NEAR(all[3][1],
              0.5 / (low + 0.5 + 1 / (1 + std::exp(-2.0))) +
                  0.5 / (0.5 + 2 / (1 + std::exp(-5.0))) + low / (0.5 + low + high),
              1e-14);
  EXPECT_NEAR(all[3][0] + all[3][1] + all[3][2], 3, 1e-14);  // a whole for each token

  // ceil(0.6 * 3 * 2 / 3) = 2 tokens an expert: the third choice of expert 2 is too many.
  Array fit = bench.run(OpKind::Admit, {choice}, {fits},
                        {{"capacity", 0.6},
                         {"experts", int64_t{3}},
                         {"seq", std::string("seq")},
                         {"choice", std::string("choice")}},
                        {all[0]})[0];
  EXPECT_EQ(fit, (Array{1, 1, 1, 1, 0, 1}));
  Attrs packing = {{"experts", int64_t{3}}, {"choice", std::string("choice")}};
  Type bound = i32({dim("bound", 4)});
  std::vector<Array> rows = bench.run(OpKind::Pack, {choice}, {choice, bound}, packing, {all[0]});
  EXPECT_EQ(rows[0], (Array{3, 0, 1, 4, 5, 2}));  // by expert, then token
  EXPECT_EQ(rows[1], (Array{0, 2, 3, 6}));
  rows = bench.run(OpKind::Pack, {choice, fits}, {choice, bound}, packing, {all[0], fit});
  EXPECT_EQ(rows[0], (Array{3, 0, 1, 4, -1, 2}));
  EXPECT_EQ(rows[1], (Array{0, 2, 3, 5}));
}

// Three groups of two experts, two of which are kept.
TEST(Reference, RouteByGroups) {
  Bench bench;
  Type scores = f64({dim("t", 1), dim("expert", 6)}), bias = f64({dim("expert", 6)});
  Type choice = i32({dim("t", 1), dim("choice", 3)}), gate = choice.withElem(Elem::F64);
  auto logit = [](double p) { return std::log(p / (1 - p)); };
  Array s;
  for (double p : {0.9, 0.2, 0.6, 0.6, 0.7, 0.3}) s.push_back(logit(p));
  auto run = [&](const char* score, Array b) {
    return bench.run(OpKind::Route, {scores, bias}, {choice, gate, bias, bias},
                     {{"over", std::string("expert")},
                      {"top", int64_t{3}},
                      {"score", std::string("sigmoid")},
                      {"per", std::string("microbatch")},
                      {"groups", int64_t{3}},
                      {"kept", int64_t{2}},
                      {"group_score", std::string(score)}},
                     {s, std::move(b)});
  };
  Array none(6, 0.0);
  EXPECT_EQ(run("best", none)[0], (Array{0, 4, 5}));   // bests: 0.9, 0.6, 0.7
  EXPECT_EQ(run("best2", none)[0], (Array{0, 2, 3}));  // sums: 1.1, 1.2, 1.0
  // A bias counts for the choice alone.
  std::vector<Array> biased = run("best2", {0, 0, 0, 0, 0.25, 0});
  EXPECT_EQ(biased[0], (Array{4, 2, 3}));
  EXPECT_NEAR(biased[1][0], 0.7, 1e-15);
  EXPECT_EQ(biased[2], (Array{0, 0, 1, 1, 1, 0}));
  EXPECT_NEAR(biased[3][4], 0.7 / 3.3, 1e-15);
}

TEST(Reference, SumsByName) {
  Bench bench;
  Type a = f64({dim("i", 2), dim("k", 2)}), b = f64({dim("j", 2), dim("k", 2)});
  Type c = f64({dim("j", 2), dim("i", 2)});
  EXPECT_EQ(bench.run(OpKind::Einsum, {a, b}, {c}, {}, {{1, 2, 3, 4}, {5, 6, 7, 8}})[0],
            (Array{17, 39, 23, 53}));
  EXPECT_EQ(bench.run(OpKind::Sum, {a}, {f64({dim("k", 2)})}, {}, {{1, 2, 3, 4}})[0],
            (Array{4, 6}));
  Type t = f64({dim("k", 2), dim("i", 2)});
  EXPECT_EQ(bench.run(OpKind::Sum, {a}, {t}, {}, {{1, 2, 3, 4}})[0], (Array{1, 3, 2, 4}));
}

TEST(Reference, RaggedSums) {
  Bench bench;
  // Three groups of 1, 0 and 2 rows, and an unused row.
  Dim e = dim("e", 3), s = dim("s", 4, "e");
  Type rows = f64({e, s, dim("k", 1)}), table = f64({e, dim("k", 1), dim("j", 2)});
  Type out = f64({e, s, dim("j", 2)}), offsets = i32({dim("bound", 4)});
  Array x = {1, 2, 3, 99}, w = {10, 11, 20, 21, 30, 31}, bounds = {0, 1, 1, 3};
  EXPECT_EQ(bench.run(OpKind::Einsum, {rows, table, offsets}, {out}, {}, {x, w, bounds})[0],
            (Array{10, 11, 60, 62, 90, 93, 0, 0}));
  EXPECT_EQ(bench.run(OpKind::Einsum, {rows, out, offsets}, {table}, {},
                      {x, {1, 2, 3, 4, 5, 6, 7, 8}, bounds})[0],
            (Array{1, 2, 0, 0, 21, 26}));
  EXPECT_EQ(bench.run(OpKind::Sum, {rows, offsets}, {f64({e, dim("k", 1)})}, {}, {x, bounds})[0],
            (Array{1, 0, 5}));
  EXPECT_EQ(
      bench.run(OpKind::Spread, {f64({e}), offsets}, {f64({e, s})}, {}, {{7, 8, 9}, bounds})[0],
      (Array{7, 9, 9, 0}));
  EXPECT_EQ(bench.run(OpKind::Add, {rows, f64({dim("k", 1)})}, {rows}, {}, {x, {1}})[0],
            (Array{2, 3, 4, 100}));
}

TEST(Reference, ElementwiseBroadcastsByName) {
  Bench bench;
  Type a = f64({dim("i", 2)}), b = f64({dim("j", 2)}), c = f64({dim("i", 2), dim("j", 2)});
  EXPECT_EQ(bench.run(OpKind::Sub, {a, b}, {c}, {}, {{1, 2}, {10, 20}})[0],
            (Array{-9, -19, -8, -18}));
  EXPECT_EQ(bench.run(OpKind::Ge, {a, a}, {a}, {}, {{1, 2}, {1, 3}})[0], (Array{1, 0}));
  EXPECT_EQ(bench.run(OpKind::Const, {}, {a}, {{"value", 0.5}}, {})[0], (Array{0.5, 0.5}));
}

TEST(Reference, ConcatAndSlice) {
  Bench bench;
  Type a = f64({dim("i", 2), dim("x", 1)}), b = f64({dim("y", 2)});
  Type c = f64({dim("all", 3), dim("i", 2)});
  Array joined =
      bench.run(OpKind::Concat, {a, b}, {c},
                {{"over", std::string("all")}, {"parts", Words{"x", "y"}}}, {{1, 2}, {8, 9}})[0];
  EXPECT_EQ(joined, (Array{1, 2, 8, 8, 9, 9}));
  EXPECT_EQ(
      bench.run(OpKind::Slice, {c}, {f64({dim("i", 2), dim("y", 2)})},
                {{"over", std::string("all")}, {"part", std::string("y")}, {"offset", int64_t{1}}},
                {joined})[0],
      (Array{8, 9, 8, 9}));
}

TEST(Reference, Dropout) {
  Bench bench;
  Type t = f64({dim("a", 1000)});
  Op& op = bench.op(OpKind::Dropout, {t}, {t}, {{"rate", 0.25}, {"site", std::string("s")}});
  RunContext context;
  Array y = referenceOp(op, {Array(1000, 3.0)}, context)[0];
  EXPECT_NEAR(std::count(y.begin(), y.end(), 4.0), 750, 50);
  EXPECT_EQ(std::count(y.begin(), y.end(), 4.0) + std::count(y.begin(), y.end(), 0.0), 1000);
  EXPECT_EQ(referenceOp(op, {Array(1000, 3.0)}, context)[0], y);
  context.microbatch = 1;
  EXPECT_NE(referenceOp(op, {Array(1000, 3.0)}, context)[0], y);
}

TEST(Reference, LearningRate) {
  Bench bench;
  Attrs attrs = {{"lr", 2.0}, {"warmup", int64_t{4}}, {"cosine", int64_t{12}}, {"floor", 0.1}};
  Op& op = bench.op(OpKind::LearningRate, {i32({})}, {f64({})}, attrs);
  auto at = [&](double step) { return referenceOp(op, {{step}}, {})[0][0]; };
  EXPECT_DOUBLE_EQ(at(1), 0.5);
  EXPECT_DOUBLE_EQ(at(4), 2.0);
  EXPECT_DOUBLE_EQ(at(8), 1.1);
  EXPECT_DOUBLE_EQ(at(12), 0.2);
  EXPECT_DOUBLE_EQ(at(99), 0.2);
}

TEST(Reference, AdamWFirstStepIsTheSignOfTheGradient) {
  Bench bench;
  Type w = f64({dim("a", 2)}), scalar = f64({});
  Attrs attrs = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 0.0}, {"decay", 0.5}};
  std::vector<Array> out =
      bench.run(OpKind::AdamW, {w, w, w, w, scalar, scalar, i32({})}, {w, w, w}, attrs,
                {{1, 1}, {4, -8}, {0, 0}, {0, 0}, {0.1}, {0.5}, {1}});
  EXPECT_NEAR(out[0][0], 1 - 0.1 * (1 + 0.5), 1e-12);
  EXPECT_NEAR(out[0][1], 1 - 0.1 * (-1 + 0.5), 1e-12);
  EXPECT_NEAR(out[1][0], 0.2, 1e-12);
  EXPECT_NEAR(out[2][1], 0.8, 1e-12);
}

TEST(Reference, Sgd) {
  Bench bench;
  Type w = f64({dim("a", 1)}), scalar = f64({});
  std::vector<Array> out =
      bench.run(OpKind::Sgd, {w, w, w, scalar, scalar}, {w, w},
                {{"momentum", 0.5}, {"decay", 0.25}}, {{4}, {3}, {2}, {0.1}, {2}});
  EXPECT_DOUBLE_EQ(out[1][0], 0.5 * 2 + 3 * 2 + 0.25 * 4);
  EXPECT_DOUBLE_EQ(out[0][0], 4 - 0.1 * 8);
}

// x = 2x + w[layer] over three layers, forward; and the same in reverse.
TEST(Reference, RepeatReadsSlices) {
  for (bool reverse : {false, true}) {
    Module module;
    Variable w = variable("w", f64({dim("layer", 3), dim("a", 2)}));
    w.stack = {"layer"};
    w.init = {"const", 0};
    Variable y = variable("y", f64({dim("a", 2)}), VarKind::Metric);
    Variable seen = w;
    seen.name = "seen";
    seen.kind = VarKind::Slot;
    Variable *pw = module.addVar(w), *py = module.addVar(y), *pseen = module.addVar(seen);
    Block* block = module.addFunction("f")->body.get();
    Builder builder(block);
    Value* start = builder.constant(1, f64({dim("a", 2)}));
    Op* repeat = builder.repeat("layer", 3, reverse, {start});
    Builder inner(repeat->body.get());
    Value* x = repeat->body->args()[0];
    inner.write(pseen, x);
    Value* doubled = inner.elementwise(OpKind::Add, {x, x});
    Value* sum = inner.elementwise(OpKind::Add, {doubled, inner.read(pw)});
    inner.create(OpKind::Yield, {sum}, {});
    builder.write(py, repeat->result());

    Reference reference(module);
    reference.var("w") = {1, 2, 10, 20, 100, 200};
    reference.run(*module.functions[0], {});
    EXPECT_EQ(reference.var("y"), reverse ? (Array{429, 850}) : (Array{132, 256})) << reverse;
    EXPECT_EQ(reference.var("seen"),
              reverse ? (Array{214, 424, 102, 202, 1, 1}) : (Array{1, 1, 3, 4, 16, 28}));
  }
}

TEST(Reference, MicrobatchesAccumulate) {
  Module module;
  module.settings.set("seed", int64_t{9});
  Variable input = variable("x", f64({dim("microbatch", 2), dim("a", 2)}), VarKind::Input);
  input.stack = {"microbatch"};
  Variable* px = module.addVar(input);
  Variable* psum = module.addVar(variable("sum", f64({}), VarKind::Metric));
  Variable* pg = module.addVar(variable("g", f64({dim("a", 2)}), VarKind::Gradient));
  Builder begin(module.addFunction("begin")->body.get());
  begin.create(OpKind::Zero, {}, {}, {}, psum);
  Builder forward(module.addFunction("forward")->body.get());
  Value* x = forward.create(OpKind::Read, {}, {px->slice({"microbatch"})}, {}, px)->result();
  Value* total = forward.value(OpKind::Sum, {x}, f64({}));
  forward.create(OpKind::Accum, {total}, {}, {}, psum);
  forward.create(OpKind::Einsum, {x, total}, {}, {{"first", int64_t{1}}}, pg);
  module.schedule = {{"begin", -1}, {"forward", 0}, {"forward", 1}};

  Reference reference(module);
  reference.var("x") = {1, 2, 3, 4};
  for (int step = 1; step <= 2; ++step) {
    reference.step(step);
    EXPECT_EQ(reference.var("sum"), Array{10});
    EXPECT_EQ(reference.var("g"), (Array{1 * 3 + 3 * 7, 2 * 3 + 4 * 7}));
  }
}

TEST(Reference, FusedBodies) {
  Bench bench;
  Type t = f64({dim("a", 3)}), scalar = f64({});
  Op& fused = bench.op(OpKind::Fused, {t, t}, {scalar});
  fused.body = std::make_unique<Block>(bench.module, &fused);
  Value *a = fused.body->addArg(t, "a"), *b = fused.body->addArg(t, "b");
  Builder builder(fused.body.get());
  Value* product = builder.elementwise(OpKind::Mul, {a, b});
  builder.create(OpKind::Yield, {builder.value(OpKind::Sum, {product}, scalar)}, {});
  EXPECT_EQ(referenceOp(fused, {{1, 2, 3}, {4, 5, 6}}, {})[0], Array{32});
}

TEST(Reference, InitialWeightsComeFromTheirNames) {
  Module module;
  module.settings.set("seed", int64_t{3});
  Variable w = variable("w", {Elem::F32, {dim("a", 4)}}), u = w, c = w;
  u.name = "u";
  u.init = {"uniform", 0.5};
  c.name = "c";
  c.init = {"const", 1};
  for (const Variable& each : {w, u, c}) module.addVar(each);
  Reference reference(module);
  EXPECT_EQ(reference.var("w")[3], double(float(0.02 * normalAt(randomKey(3, "w"), 3))));
  EXPECT_EQ(reference.var("u")[1], double(float(0.5 * uniformAt(randomKey(3, "u"), 1))));
  EXPECT_EQ(reference.var("c"), Array(4, 1.0));
}

}  // namespace
}  // namespace planc
