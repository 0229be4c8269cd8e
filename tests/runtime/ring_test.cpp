// Attention whose queries and keys ranks hold in pieces: blocks of keys one after the other, or pieces of
// the queries with all keys, add up to the whole, forward and backward.
#include "tests/runtime/pieces.h"

namespace planc {
namespace {

using namespace test;

struct Ring {
  std::string name = {};
  int64_t ranks = 1, seq = 336;
  bool isZigzag = false, isCausal = true;
  int64_t window = 0, kvs = 2;
  // Of each document; 0: there are none.
  int64_t document = 0;
  // Rows that tensor cores take, where there are some; else f64.
  bool isBf16 = false;
};

std::vector<Ring> rings() {
  std::vector<Ring> list;
  for (int64_t ranks : {1, 2, 3, 4})
    for (bool isZigzag : {false, true})
      for (bool isCausal : {false, true})
        for (int64_t window : {0, 50})
          for (int64_t document : {0, 37, 150}) {
            list.push_back(
                {"", ranks, 336, isZigzag, isCausal, window, 1 + document % 2, document});
          }
  // Padded pieces, one of them empty.
  list.push_back({.ranks = 4, .seq = 9});
  list.push_back({.ranks = 4, .seq = 330, .document = 100});
  list.push_back({.ranks = 3, .seq = 200, .isCausal = false, .window = 30});
  list.push_back({.ranks = 3, .isZigzag = true, .document = 37, .isBf16 = true});
  list.push_back({.ranks = 4, .seq = 330, .window = 50, .document = 100, .isBf16 = true});
  list.push_back({.ranks = 2, .isCausal = false, .window = 50, .isBf16 = true});
  for (Ring& ring : list)
    ring.name = std::to_string(ring.ranks) + (ring.isZigzag ? "_zigzag_" : "_ranks_") +
                std::to_string(ring.seq) + (ring.isCausal ? "_causal" : "") + "_window_" +
                std::to_string(ring.window) + "_documents_" + std::to_string(ring.document) +
                (ring.isBf16 ? "_bf16" : "");
  return list;
}
void PrintTo(const Ring& ring, std::ostream* out) { *out << ring.name; }

// The op whole and in pieces: types, attributes and values.
struct Attention {
  Grid grid;
  Attrs attrs = {{"seq", "s"}, {"by", "w"}, {"head", "h"}, {"kv", "k"}, {"scale", 0.7}};
  Type q, k, v, a, lse, da, documents;
  bool hasDocuments;
  double tolerance;
  std::vector<Array> in;  // q, k, v and, if there are some, documents twice

  explicit Attention(const Ring& ring) : Attention(ring, ring.isBf16 ? Elem::BF16 : Elem::F64) {}
  Attention(const Ring& ring, Elem elem) : tolerance(elem == Elem::BF16 ? 0.06 : 1e-12) {
    grid = parseGrid("d 2, x " + std::to_string(ring.ranks));
    if (ring.isCausal) attrs.set("causal", int64_t{1});
    if (ring.window > 0) attrs.set("window", ring.window);
    std::string seq = "s " + std::to_string(ring.seq) + "/x" +
                      (ring.isZigzag ? ":" + std::to_string(ring.ranks) : "");
    std::string kv = "k " + std::to_string(ring.kvs);
    std::string w = ring.isBf16 ? ", w 16]" : ", w 4]", u = ring.isBf16 ? ", u 32]" : ", u 3]";
    auto type = [&](const std::string& dims) { return parseType(dims, grid).withElem(elem); };
    q = type("f[b 2/d, " + seq + ", h 4" + w);
    k = type("f[b 2/d, " + seq + ", " + kv + w);
    v = type("f[" + kv + ", b 2/d, " + seq + u);
    a = type("f[b 2/d, h 4, " + seq + u);
    da = a;
    lse = type("f[b 2/d, " + seq + ", h 4]");
    if (elem == Elem::BF16) a.elem = lse.elem = Elem::F32;
    documents = parseType("i[b 2/d, " + seq + "]", grid);
    hasDocuments = ring.document > 0;
    in = {randomOf(q, 1), randomOf(k, 2), randomOf(v, 3)};
    if (!hasDocuments) return;
    Array ids;
    for (int64_t i = 0; i < 2 * ring.seq; ++i)
      ids.push_back(double((i % ring.seq + (i >= ring.seq ? 11 : 0)) / ring.document));
    in.push_back(ids);
    in.push_back(ids);
  }

  // A rank's own piece as it is after some moves along the ring; `moves`: one more an iteration.
  Type moved(Type type, int64_t by, bool isOfRepeat = false) const {
    Dim& seq = type.dims[size_t(type.find("s"))];
    seq.moved = seq.isSplit() ? by % ranksOver(seq.axes) : 0;
    if (isOfRepeat) seq.moves = "ring";
    return type;
  }
  // All of the keys on each rank.
  Type gathered(Type type) const {
    Dim& seq = type.dims[size_t(type.find("s"))];
    seq = splitDim(seq, {});
    return type;
  }
  std::vector<Type> withDocuments(std::vector<Type> types, const Type& ofKeys) const {
    if (hasDocuments) types.insert(types.end(), {documents, ofKeys});
    return types;
  }
  std::vector<Array> withDocuments(std::vector<Array> values) const {
    if (hasDocuments) values.insert(values.end(), {in[3], in[4]});
    return values;
  }
  static Array randomOf(const Type& type, uint64_t seed) {
    return rounded(type.whole(), randomValues(type.whole(), "", seed));
  }
  Array valuesOfDa() const { return randomOf(da, 9); }

  // a, lse, dq, dk, dv on whole tensors: by the op, or where it rounds by the reference.
  std::vector<Array> whole() const {
    auto run = [&](OpKind kind, const std::vector<Type>& types, const std::vector<Type>& results,
                   const std::vector<Array>& values) {
      Bench bench(kind, wholeTypes(types), wholeTypes(results), attrs);
      if (q.elem == Elem::BF16) return referenceOp(*bench.op, values, {});
      return runOn({}, *bench.op, values);
    };
    std::vector<Array> out = run(OpKind::Attend, withDocuments({q, k, v}, documents), {a, lse}, in);
    std::vector<Array> back =
        run(OpKind::AttendGrad, withDocuments({q, k, v, a, lse, da}, documents), {q, k, v},
            withDocuments({in[0], in[1], in[2], out[0], out[1], valuesOfDa()}));
    out.insert(out.end(), back.begin(), back.end());
    return out;
  }
};

class Rings : public testing::TestWithParam<Ring> {};

TEST_P(Rings, BlocksAddUpToTheWhole) {
  const Ring& ring = GetParam();
  Attention attention(ring);
  std::vector<Array> wanted = attention.whole();
  // Forward: each block goes on where those before have ended.
  Array a(wanted[0].size(), 0.0), lse(wanted[1].size(), -1e38);
  for (int64_t i = 0; i < ring.ranks; ++i) {
    std::vector<Array> values = attention.in;
    values.insert(values.begin() + 3, {a, lse});
    auto out = runSplit(
        attention.grid, OpKind::AttendBlock,
        attention.withDocuments({attention.q, attention.moved(attention.k, i),
                                 attention.moved(attention.v, i), attention.a, attention.lse},
                                attention.moved(attention.documents, i)),
        {attention.a, attention.lse}, attention.attrs, values);
    a = out[0], lse = out[1];
  }
  expectEqual({a, lse}, {wanted[0], wanted[1]}, attention.tolerance);
  // Backward: what each block gives.
  std::vector<Array> sums;
  for (size_t i = 2; i < 5; ++i) sums.emplace_back(wanted[i].size(), 0.0);
  Attrs attrs = attention.attrs;
  attrs.set("block", int64_t{1});
  for (int64_t i = 0; i < ring.ranks; ++i) {
    Type k = attention.moved(attention.k, i), v = attention.moved(attention.v, i);
    auto out = runSplit(
        attention.grid, OpKind::AttendGrad,
        attention.withDocuments({attention.q, k, v, attention.a, attention.lse, attention.da},
                                attention.moved(attention.documents, i)),
        {attention.q, k, v}, attrs,
        attention.withDocuments(
            {attention.in[0], attention.in[1], attention.in[2], a, lse, attention.valuesOfDa()}));
    for (size_t r = 0; r < 3; ++r)
      for (size_t e = 0; e < sums[r].size(); ++e) sums[r][e] += out[r][e];
  }
  expectEqual(sums, {wanted[2], wanted[3], wanted[4]}, attention.tolerance);
}

// Each rank's queries with all keys; what keys get is partial.
TEST_P(Rings, PiecesOfQueriesSeeAllKeys) {
  Attention attention(GetParam());
  std::vector<Array> wanted = attention.whole();
  Type k = attention.gathered(attention.k), v = attention.gathered(attention.v);
  Type documents = attention.gathered(attention.documents), dk = k, dv = v;
  dk.partial = dv.partial = parseAxes("x", attention.grid);
  auto out = runSplit(attention.grid, OpKind::Attend,
                      attention.withDocuments({attention.q, k, v}, documents),
                      {attention.a, attention.lse}, attention.attrs, attention.in);
  auto back =
      runSplit(attention.grid, OpKind::AttendGrad,
               attention.withDocuments(
                   {attention.q, k, v, attention.a, attention.lse, attention.da}, documents),
               {attention.q, dk, dv}, attention.attrs,
               attention.withDocuments({attention.in[0], attention.in[1], attention.in[2], out[0],
                                        out[1], attention.valuesOfDa()}));
  out.insert(out.end(), back.begin(), back.end());
  expectEqual(out, wanted, attention.tolerance);
}

INSTANTIATE_TEST_SUITE_P(All, Rings, testing::ValuesIn(rings()),
                         [](const auto& info) { return info.param.name; });

// An op in the body of a repeat `ring`, of which the context of tests says that it is at iteration 1,
// outside of one at 3.
struct InRepeat {
  Module module;
  Op* op;

  InRepeat(OpKind kind, llvm::ArrayRef<Type> operands, llvm::ArrayRef<Type> results,
           const Attrs& attrs) {
    Block* block = module.addFunction("f")->body.get();
    Op* outer = Builder(block).repeat("layer", 4, false, {});
    Op* ring = Builder(outer->body.get()).repeat("ring", 3, false, {});
    llvm::SmallVector<Value*, 6> values;
    for (const Type& type : operands) values.push_back(block->addArg(type, "x"));
    op = Builder(ring->body.get()).create(kind, values, results, attrs);
  }
};

TEST(Ring, BlocksMoveWithTheirRepeat) {
  Attention attention({.ranks = 3, .isZigzag = true, .document = 60});
  Array a = randomValues(attention.a.whole(), "", 5),
        lse = randomValues(attention.lse.whole(), "", 6);
  for (int64_t r = 0; r < attention.grid.ranks(); ++r) {
    Coordinates rank(attention.grid, r);
    auto typesAt = [&](int64_t moved, bool isOfRepeat) {
      return attention.withDocuments(
          {attention.q, attention.moved(attention.k, moved, isOfRepeat),
           attention.moved(attention.v, moved, isOfRepeat), attention.a, attention.lse},
          attention.moved(attention.documents, moved, isOfRepeat));
    };
    std::vector<Array> values =
        attention.withDocuments({attention.in[0], attention.in[1], attention.in[2], a, lse});
    auto run = [&](int64_t moved, bool isOfRepeat) {
      std::vector<Type> held = typesAt(moved + isOfRepeat, false);
      std::vector<Array> pieces;
      for (size_t i = 0; i < held.size(); ++i)
        pieces.push_back(pieceOf(held[i], rank, values[i], kNaN));
      InRepeat bench(OpKind::AttendBlock, typesAt(moved, isOfRepeat), {attention.a, attention.lse},
                     attention.attrs);
      return runOn(rank, *bench.op, pieces);
    };
    // At iteration 1.
    EXPECT_EQ(run(2, true), run(0, false));
    EXPECT_EQ(run(0, true), run(1, false));
  }
  Bench outside(OpKind::AttendBlock,
                {attention.q, attention.moved(attention.k, 0, true),
                 attention.moved(attention.v, 0, true), attention.a, attention.lse},
                {attention.a, attention.lse}, attention.attrs);
  auto device = makeTestDevice(1, Coordinates(attention.grid, 0));
  auto kernel = device->prepare(*outside.op);
  ASSERT_FALSE(bool(kernel));
  EXPECT_EQ(llvm::toString(kernel.takeError()),
            "the " + device->name().str() +
                " device cannot run 'attend_block': its keys move with 'ring', which is not around "
                "it");
}

// What no query sees changes nothing, to the bit, whatever it holds; nor is it looked at: neither the
// future, nor what is outside of the window, nor other documents.
TEST(Ring, UnseenBlocksChangeNothing) {
  struct Unseen {
    Ring ring;
    int64_t rank;
  };
  for (const auto& [ring, r] : {Unseen{{.ranks = 2}, 0},
                                {{.ranks = 4, .seq = 1000, .window = 100}, 3},
                                {{.ranks = 2, .isCausal = false, .document = 9}, 1}})
    for (Elem elem : {Elem::F64, Elem::F32}) {
      Attention attention(ring, elem);
      int64_t by = ring.window > 0 ? 2 : 1;
      Type k = attention.moved(attention.k, by), v = attention.moved(attention.v, by);
      Type documents = attention.moved(attention.documents, by);
      Bench bench(
          OpKind::AttendBlock,
          attention.withDocuments({attention.q, k, v, attention.a, attention.lse}, documents),
          {attention.a, attention.lse}, attention.attrs);
      std::vector<Array> in = {randomValues(attention.q, "", 1), Array(size_t(k.elements()), kNaN),
                               Array(size_t(v.elements()), kNaN), randomValues(attention.a, "", 2),
                               randomValues(attention.lse, "", 3)};
      for (Array* values : {&in[3], &in[4]})
        for (double& x : *values) x = double(float(x));
      in[4][7] = double(float(-1e38));
      if (ring.document > 0)
        in.insert(in.end(), {randomValues(attention.documents, "count 3", 0),
                             randomValues(documents, "count 4", 0)});
      EXPECT_EQ(runOn(Coordinates(attention.grid, r), *bench.op, in),
                (std::vector<Array>{in[3], in[4]}));
    }
}

// The results may lie on what they go on from.
TEST(Ring, WorksInPlace) {
  Attention attention({.ranks = 2, .isZigzag = true, .document = 60});
  for (int64_t r = 0; r < attention.grid.ranks(); ++r)
    for (int64_t moved : {0, 1}) {
      Coordinates rank(attention.grid, r);
      std::vector<Type> types =
          attention.withDocuments({attention.q, attention.moved(attention.k, moved),
                                   attention.moved(attention.v, moved), attention.a, attention.lse},
                                  attention.moved(attention.documents, moved));
      std::vector<Array> in;
      for (size_t i = 0; i < types.size(); ++i)
        in.push_back(randomValues(types[i], i < 5 ? "" : "count 1", 20 + i));
      Bench bench(OpKind::AttendBlock, types, {attention.a, attention.lse}, attention.attrs);
      EXPECT_EQ(runOn(rank, *bench.op, in, {3, 4}), runOn(rank, *bench.op, in));
    }
}

// No result of bf16 keys is rounded to bf16 between blocks: eight are as exact as one.
TEST(Ring, RunningSumsAreNotRounded) {
  auto worst = [](int64_t ranks) {
    Ring ring{.ranks = ranks, .isZigzag = true};
    Attention attention(ring, Elem::BF16), exact(ring);
    for (Attention* either : {&attention, &exact})
      for (size_t i = 0; i < 3; ++i)
        for (double& x : either->in[i]) x = double(toFloat(toBf16(float(x))));
    std::vector<Array> wanted = exact.whole();
    Array a(wanted[0].size(), 0.0), lse(wanted[1].size(), -1e38);
    for (int64_t i = 0; i < ranks; ++i) {
      auto out = runSplit(attention.grid, OpKind::AttendBlock,
                          {attention.q, attention.moved(attention.k, i),
                           attention.moved(attention.v, i), attention.a, attention.lse},
                          {attention.a, attention.lse}, attention.attrs,
                          {attention.in[0], attention.in[1], attention.in[2], a, lse});
      a = out[0], lse = out[1];
    }
    double error = 0;
    for (size_t i = 0; i < a.size(); ++i) error = std::max(error, std::abs(a[i] - wanted[0][i]));
    for (size_t i = 0; i < lse.size(); ++i)
      error = std::max(error, std::abs(lse[i] - wanted[1][i]));
    return error;
  };
  double one = worst(1);
  EXPECT_LT(one, 1e-5);
  for (int64_t ranks : {2, 4, 8}) EXPECT_LE(worst(ranks), 2 * one) << ranks;
}

}  // namespace
}  // namespace planc
