// Ops over split dims: the op as a whole on one device, and its pieces on every rank of a small grid.
// Put together, and partial sums added up, the pieces must equal the whole. The padding of an operand
// holds NaN, so that a kernel that uses it shows; that of a result must be zero.
#include "tests/runtime/pieces.h"

namespace planc {
namespace {

using namespace test;

struct Case {
  std::string name;
  OpKind kind;
  std::vector<std::string> operands, results;  // as parseType reads them
  Attrs attrs;
  std::vector<std::string> fill;  // of i32 operands: "ids N" from -1 to N - 1, "count N"
  std::vector<std::string> grids;
  double tolerance = 0;
  bool inPlace = false;  // also with the result on the first operand
  double padding = kNaN;
};
void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

constexpr double kRounding = 1e-12;
const std::vector<std::string> kGrids = {"t 2", "t 4", "t 8", "x 2, t 2", "x 2, t 4", "t 2, x 4"};

std::vector<Case> cases() {
  using K = OpKind;
  Attrs rope = {{"seq", "s"}, {"by", "w"}, {"theta", 10000.0}};
  Attrs pairs = rope;
  rope.set("style", "half");
  pairs.set("style", "pairs");
  Attrs over = {{"over", "v"}}, drop = {{"rate", 0.3}, {"site", "layer.drop"}};
  std::vector<Case> table = {
      {"lookup",
       K::Lookup,
       {"f[v 17/x.t, m 6]", "i[b 3, s 15]"},
       {"f[b 3, s 15, m 6] partial(x.t)"},
       over,
       {"", "ids 20"},
       kGrids},
      {"lookup_rows",
       K::Lookup,
       {"f[v 17/t, m 6/d]", "i[b 4/x, s 5]"},
       {"f[b 4/x, s 5, m 6/d] partial(t)"},
       over,
       {"", "ids 20"},
       {"x 2, d 3, t 2", "d 2, t 8"}},
      {"lookup_grad",
       K::LookupGrad,
       {"i[b 3, s 15]", "f[b 3, s 15, m 6]"},
       {"f[v 17/x.t, m 6]"},
       over,
       {"ids 20"},
       kGrids},
      {"lookup_grad_rows",
       K::LookupGrad,
       {"i[b 4/x, s 5]", "f[b 4/x, s 5, m 6/d]"},
       {"f[v 17/t, m 6/d] partial(x)"},
       over,
       {"ids 20"},
       {"x 2, d 3, t 2", "d 2, t 8"},
       kRounding},
      {"cross_entropy_grad",
       K::CrossEntropyGrad,
       {"f[b 4/d, s 5, v 17/x.t]", "i[b 4/d, s 5]", "i[]", "f[b 4/d, s 5]", "f[]"},
       {"f[b 4/d, s 5, v 17/x.t]"},
       {{"over", "v"}, {"scale", 0.5}},
       {"", "ids 20", "count 18"},
       {"t 2", "t 4", "t 8", "x 2, t 2", "d 2, x 2, t 4"},
       kRounding,
       true},
      {"cross_entropy_grad_outer",
       K::CrossEntropyGrad,
       {"f[v 17/t, b 4]", "i[b 4]", "i[]", "f[b 4]", "f[]"},
       {"f[v 17/t, b 4]"},
       over,
       {"", "ids 20", "count 3"},
       {"t 2", "t 8"},
       kRounding,
       true},
      {"rope_half",
       K::Rope,
       {"f[b 2, s 24/x.t, h 3, w 8]"},
       {"f[b 2, s 24/x.t, h 3, w 8]"},
       rope,
       {},
       kGrids,
       0,
       true},
      {"rope_pairs",
       K::Rope,
       {"f[s 11/t, b 2/d, w 8]"},
       {"f[s 11/t, b 2/d, w 8]"},
       pairs,
       {},
       {"t 2", "d 2, t 3"},
       0,
       true,
       0},
      {"rope_zigzag",
       K::Rope,
       {"f[b 2, s 48/x.t:4, h 3, w 8]"},
       {"f[b 2, s 48/x.t:4, h 3, w 8]"},
       rope,
       {},
       kGrids,
       0,
       true},
      {"dropout_zigzag",
       K::Dropout,
       {"f[b 4/d, s 48/x.t:4, m 7]"},
       {"f[b 4/d, s 48/x.t:4, m 7]"},
       drop,
       {},
       {"", "t 2", "t 4", "t 8", "x 2, t 2", "t 3", "d 2, t 4"},
       0,
       true},
      {"dropout_zigzag_last",
       K::Dropout,
       {"f[m 5/d, s 24/t:3]"},
       {"f[m 5/d, s 24/t:3]"},
       drop,
       {},
       {"", "t 3", "d 2, t 6", "t 8"},
       0,
       false,
       0},
      {"dropout",
       K::Dropout,
       {"f[b 4/d, s 6/x, m 70/t]"},
       {"f[b 4/d, s 6/x, m 70/t]"},
       drop,
       {},
       {"d 2", "d 4", "x 2", "x 3", "t 2", "t 5", "t 14", "t 70", "x 3, t 2", "d 2, x 2, t 2"},
       0,
       true},
      {"dropout_big",
       K::Dropout,
       {"f[b 8/d, s 101, m 70/t]"},
       {"f[b 8/d, s 101, m 70/t]"},
       drop,
       {},
       {"d 2", "t 2", "d 4, t 2"},
       0,
       true},
      {"dropout_two_axes",
       K::Dropout,
       {"f[s 24/x.t, m 7]"},
       {"f[s 24/x.t, m 7]"},
       drop,
       {},
       kGrids},
      {"dropout_last",
       K::Dropout,
       {"f[s 9, v 17/t]"},
       {"f[s 9, v 17/t]"},
       drop,
       {},
       {"t 2"},
       0,
       true,
       0},
      {"dropout_permuted",
       K::Dropout,
       {"f[m 12/t, s 8, b 4/d]"},
       {"f[b 4/d, s 8, m 12/t]"},
       drop,
       {},
       {"d 2", "t 3", "d 2, t 4"}},
      {"shard_slice",
       K::ShardSlice,
       {"f[b 3, z 17, c 2]"},
       {"f[b 3, z 17/t, c 2]"},
       {{"dim", "z"}, {"axes", Words{"t"}}},
       {},
       {"t 2", "t 4", "t 8"}},
      {"shard_slice_first",
       K::ShardSlice,
       {"i[z 16, c 3]"},
       {"i[z 16/x.t, c 3]"},
       {{"dim", "z"}, {"axes", Words{"x", "t"}}},
       {"ids 99"},
       {"t 2, x 2", "x 4, t 2"}},
      {"shard_slice_again",
       K::ShardSlice,
       {"f[b 4/d, z 24/x]"},
       {"f[b 4/d, z 24/x.t]"},
       {{"dim", "z"}, {"axes", Words{"t"}}},
       {},
       {"x 2, t 2", "t 3, d 2, x 2"}},
      {"one_copy",
       K::OneCopy,
       {"f[b 4/d, z 7]"},
       {"f[b 4/d, z 7] partial(x.t)"},
       {{"axes", Words{"x", "t"}}},
       {},
       {"x 2, t 2", "t 3, d 2, x 2"},
       0,
       true},
      {"route",
       K::Route,
       {"f[b 4/d, s 12/x.t, e 8]", "f[e 8]"},
       {"i[b 4/d, s 12/x.t, k 2]", "f[b 4/d, s 12/x.t, k 2]", "f[e 8] partial(d.x.t)",
        "f[e 8] partial(d.x.t)"},
       {{"over", "e"}, {"top", int64_t{2}}, {"score", "sigmoid"}, {"normalise", int64_t{1}}},
       {},
       {"t 2", "d 2, x 2, t 3", "d 4"},
       kRounding},
      {"route_sequences",
       K::Route,
       {"f[s 12/t, b 4/d, e 8]"},
       {"i[s 12/t, b 4/d, k 3]", "f[s 12/t, b 4/d, k 3]", "f[b 4/d, e 8] partial(t)",
        "f[b 4/d, e 8] partial(t)"},
       {{"over", "e"}, {"top", int64_t{3}}, {"score", "softmax"}, {"per", "sequence"}, {"seq", "s"}},
       {},
       {"t 2", "d 2, t 3", "d 4"},
       kRounding},
      {"one_copy_integers",
       K::OneCopy,
       {"i[z 7]"},
       {"i[z 7] partial(t)"},
       {{"axes", Words{"t"}}},
       {"ids 99"},
       {"t 4"},
       0,
       true},
  };

  // Heads over ranks: kv heads held whole by every rank, or in the pieces of the outer axes.
  struct Heads {
    int heads, kvs;
    const char *cut, *kvCut, *sums, *grid;  // `sums`: the axes that only the heads are cut over
  };
  const Heads heads[] = {
      {6, 1, "/t", "", "t", "t 2"},           {6, 2, "/t", "/t", "", "t 2"},
      {6, 2, "/t", "", "t", "t 6"},           {6, 3, "/t", "", "t", "t 2"},
      {6, 3, "/x.t", "/x", "t", "x 3, t 2"},  {6, 2, "/x.t", "/x", "t", "x 2, t 3"},
      {8, 1, "/t", "", "t", "t 8"},           {8, 2, "/x.t", "/x", "t", "x 2, t 4"},
      {8, 2, "/x.t", "/x", "t", "t 2, x 2"},  {8, 2, "/t", "", "t", "t 4"},
      {12, 3, "/t", "", "t", "t 2"},          {12, 3, "/t", "", "t", "t 4"},
      {12, 3, "/t", "", "t", "t 6"},          {12, 2, "/x.t", "/x", "t", "x 2, t 3"},
      {24, 3, "/t", "", "t", "t 8"},          {24, 3, "/t", "", "t", "t 6"},
      {24, 3, "/x.t", "/x", "t", "x 3, t 2"}, {24, 3, "/t", "", "t", "t 4"},
      {24, 2, "/t", "", "t", "t 6"},          {24, 1, "/x.t", "", "x.t", "x 2, t 4"},
      {6, 6, "/t", "/t", "", "t 3"},          {24, 3, "/t", "", "t", "d 2, t 8"},
  };
  for (const Heads& h : heads) {
    auto type = [](const std::string& dims, const std::string& axes = "") {
      return "f[b 2/d, s 9, " + dims + "]" + (axes.empty() ? "" : " partial(" + axes + ")");
    };
    std::string head = "h " + std::to_string(h.heads) + h.cut, sums = h.sums;
    std::string kv = "k " + std::to_string(h.kvs) + h.kvCut;
    std::string q = type(head + ", w 4"), a = type(head + ", u 3"), lse = type(head);
    std::string k = type(kv + ", w 4"), v = type(kv + ", u 3");
    std::string dk = type(kv + ", w 4", sums), dv = type(kv + ", u 3", sums);
    std::string name =
        std::to_string(h.heads) + "_heads_" + std::to_string(h.kvs) + "_kv_" + h.grid;
    for (char& c : name)
      if (!isalnum(c)) c = '_';
    if (*h.kvCut != 0) name += "_cut";
    Attrs attrs = {{"seq", "s"}, {"by", "w"},    {"head", "h"},
                   {"kv", "k"},  {"scale", 0.5}, {"causal", int64_t{1}}};
    table.push_back(
        {"attend_" + name, K::Attend, {q, k, v}, {a, lse}, attrs, {}, {h.grid}, kRounding});
    table.push_back({"attend_grad_" + name,
                     K::AttendGrad,
                     {q, k, v, a, lse, a},
                     {q, dk, dv},
                     attrs,
                     {},
                     {h.grid},
                     kRounding});
  }
  return table;
}

class Split : public testing::TestWithParam<Case> {};

TEST_P(Split, EqualsTheWhole) {
  const Case& test = GetParam();
  for (const std::string& text : test.grids) {
    SCOPED_TRACE("grid " + text);
    Grid grid = parseGrid(text);
    std::vector<Type> operands = typesOf(test.operands, grid),
                      results = typesOf(test.results, grid);
    Bench whole(test.kind, wholeTypes(operands), wholeTypes(results), test.attrs);
    std::vector<Array> in;
    for (size_t i = 0; i < operands.size(); ++i) {
      std::string fill = i < test.fill.size() ? test.fill[i] : "";
      in.push_back(randomValues(operands[i].whole(), fill, randomKey(i, test.name)));
    }
    if (test.kind == OpKind::AttendGrad) {
      Bench forward(OpKind::Attend, wholeTypes({operands.begin(), operands.begin() + 3}),
                    wholeTypes({operands.begin() + 3, operands.begin() + 5}), test.attrs);
      auto made = referenceOp(*forward.op, {in.begin(), in.begin() + 3}, {});
      in[3] = made[0], in[4] = made[1];
    }
    std::vector<Array> wanted = runOn({}, *whole.op, in);
    for (bool inPlace : {false, true}) {
      if (inPlace && !test.inPlace) break;
      auto got =
          runSplit(grid, test.kind, operands, results, test.attrs, in, inPlace, test.padding);
      expectEqual(got, wanted, test.tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, Split, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// cross_entropy = cross_entropy_part, log_sum_exp over the parts, cross_entropy_total; on grids where
// some ranks hold no row of the vocabulary, and with logits that are -inf.
TEST(SplitLoss, PartsEqualTheWhole) {
  for (const char* text : {"t 1", "t 2", "t 4", "t 8", "x 2, t 2", "d 2, x 2, t 4"}) {
    SCOPED_TRACE(text);
    Grid grid = parseGrid(text);
    Type logits = parseType("f[b 4/d, s 5, v 17/x.t]", grid),
         rows = parseType("f[b 4/d, s 5]", grid);
    Type targets = rows.withElem(Elem::I32), count{Elem::I32}, loss{Elem::F64};
    Axes over = logits.dims[2].axes;
    Type parts = rows, picked = rows, partOfLoss = loss;
    parts.dims.push_back(splitDim({"part", ranksOver(over)}, over));
    picked.partial = over;
    partOfLoss.partial = rows.splitAxes();
    std::vector<Array> in = {randomValues(logits.whole(), "", 3),
                             randomValues(targets.whole(), "ids 17", 4)};
    for (size_t i = 0; i < in[0].size(); i += 5) in[0][i] = -INFINITY;
    for (size_t i = 0; i < in[1].size(); ++i)
      if (in[1][i] >= 0 && (17 * i + size_t(in[1][i])) % 5 == 0) in[1][i] = -1;
    Array counted = {
        double(std::count_if(in[1].begin(), in[1].end(), [](double t) { return t >= 0; }))};

    Attrs attrs = {{"over", "v"}, {"scale", 0.5}};
    Bench whole(OpKind::CrossEntropy, {logits.whole(), targets.whole(), count},
                {loss, rows.whole()}, attrs);
    std::vector<Array> wanted = runOn({}, *whole.op, {in[0], in[1], counted});

    auto made = runSplit(grid, OpKind::CrossEntropyPart, {logits, targets}, {parts, picked},
                         {{"over", "v"}, {"part", "part"}}, in);
    Type allParts = rows;
    allParts.dims.push_back(splitDim(parts.dims[2], {}));
    auto lse = runSplit(grid, OpKind::LogSumExp, {allParts}, {rows}, {{"over", "part"}}, {made[0]});
    auto total = runSplit(grid, OpKind::CrossEntropyTotal, {targets, rows, rows, count},
                          {partOfLoss}, {{"scale", 0.5}}, {in[1], lse[0], made[1], counted});
    expectEqual({total[0], lse[0]}, wanted, kRounding);
  }
}

TEST(SplitLoss, NothingAndNaN) {
  Type x = parseType("f[b 2, p 3]", {}), y = parseType("f[b 2]", {});
  Bench bench(OpKind::LogSumExp, {x}, {y}, {{"over", "p"}});
  Array out = runOn({}, *bench.op, {{-INFINITY, -INFINITY, -INFINITY, NAN, NAN, NAN}})[0];
  EXPECT_EQ(out[0], -INFINITY);
  EXPECT_TRUE(std::isnan(out[1]));
}

struct Experts {
  Type choice = parseType("i[b 3, s 10, k 2]", {}), gate = choice.withElem(Elem::F64);
  Type x = parseType("f[b 3, s 10, m 4]", {}), offsets = parseType("i[bound 9]", {});
  Type packed{Elem::F64, {{"e", 8}, {"slot", 60, "e"}, {"m", 4}}};
  Attrs over = {{"over", "e"}};
  Array row, bounds;

  // Choices of experts 1 to 7, so that 0 has no rows; some are dropped.
  Experts() {
    Array chosen = randomValues(choice, "ids 7", 3), fit;
    for (double& e : chosen) e = std::max(e, 0.0) + (e <= 0 ? 1 : 0);
    for (size_t i = 0; i < chosen.size(); ++i) fit.push_back(i % 7 == 3 ? 0 : 1);
    Bench pack(OpKind::Pack, {choice, gate}, {choice, offsets},
               {{"experts", int64_t{8}}, {"choice", "k"}});
    auto made = runOn({}, *pack.op, {chosen, fit});
    row = made[0], bounds = made[1];
  }
  // The packed rows of a rank that holds a piece of the experts.
  Type own(const Grid& grid) const {
    Type type = packed;
    type.dims[0] = splitDim(type.dims[0], grid.find("t"));
    return type;
  }
  // Of all rows those of a rank, from 0 on, with zeros behind.
  Array rowsOf(const Array& all, const Dim& experts, const Coordinates& rank) const {
    Array mine(all.size(), 0.0);
    size_t first = size_t(rank.offset(experts));
    auto begin = all.begin() + 4 * long(bounds[first]);
    auto end = all.begin() + 4 * long(bounds[first + size_t(experts.size)]);
    std::copy(begin, end, mine.begin());
    return mine;
  }
};

// A rank packs the rows of its own experts, and what ranks give their tokens adds up to the whole.
TEST(SplitExperts, EachRankPacksItsOwnRows) {
  Experts e;
  Array x = randomValues(e.x, "", 5), gate = randomValues(e.gate, "", 6);
  Array rows = randomValues(e.packed, "", 7), dy = randomValues(e.x, "", 8);
  ASSERT_EQ(e.bounds[1], 0);
  ASSERT_EQ(std::count(e.row.begin(), e.row.end(), -1.0), 9);
  auto run = [&](const Type& packed, const Coordinates& rank, const Array& own) {
    Bench dispatch(OpKind::Dispatch, {e.x, e.choice, e.offsets}, {packed}, e.over);
    Bench back(OpKind::DispatchGrad, {packed, e.choice, e.offsets}, {e.x}, e.over);
    Bench combine(OpKind::Combine, {packed, e.gate, e.choice, e.offsets}, {e.x}, e.over);
    Bench grad(OpKind::CombineGrad, {e.x, packed, e.gate, e.choice, e.offsets}, {packed, e.gate},
               e.over);
    std::vector<Array> out = runOn(rank, *dispatch.op, {x, e.row, e.bounds});
    out.push_back(runOn(rank, *back.op, {own, e.row, e.bounds})[0]);
    out.push_back(runOn(rank, *combine.op, {own, gate, e.row, e.bounds})[0]);
    for (Array& made : runOn(rank, *grad.op, {dy, own, gate, e.row, e.bounds}))
      out.push_back(std::move(made));
    return out;  // t, dx, y, do, dgate
  };
  std::vector<Array> whole = run(e.packed, {}, rows);
  for (const char* text : {"t 2", "t 8", "d 2, t 4"}) {
    Grid grid = parseGrid(text);
    Type own = e.own(grid);
    std::vector<Array> sums(5);
    for (int64_t r = 0; r < ranksOver(grid.find("t")); ++r) {
      SCOPED_TRACE(testing::Message() << text << " rank " << r);
      Coordinates rank(grid, r);
      auto out = run(own, rank, e.rowsOf(rows, own.dims[0], rank));
      for (size_t i : {0, 3}) EXPECT_EQ(out[i], e.rowsOf(whole[i], own.dims[0], rank));
      for (size_t i : {1, 2, 4}) {
        sums[i].resize(out[i].size());
        for (size_t j = 0; j < out[i].size(); ++j) sums[i][j] += out[i][j];
      }
    }
    expectEqual({sums[1], sums[2], sums[4]}, {whole[1], whole[2], whole[4]}, kRounding);
  }
}

// Who is first in a sequence is a matter of positions, however they lie.
TEST(SplitExperts, AdmitsByPosition) {
  Type plain = parseType("i[b 2, s 16, k 2]", {}), zigzag = plain;
  zigzag.dims[1].zigzag = 2;
  auto admit = [](const Type& type, const Array& choice) {
    Bench bench(OpKind::Admit, {type}, {type.withElem(Elem::F64)},
                {{"capacity", 0.8}, {"experts", int64_t{4}}, {"seq", "s"}, {"choice", "k"}});
    return runOn({}, *bench.op, {choice})[0];
  };
  Array choice = randomValues(plain, "ids 4", 9);
  for (double& e : choice) e = std::max(e, 0.0);
  auto lie = [](const Array& values) {  // blocks 0, 3, 1, 2 of 4 positions
    Array moved;
    for (size_t b : {0, 1})
      for (size_t block : {0, 3, 1, 2})
        for (size_t i = 0; i < 8; ++i) moved.push_back(values[b * 32 + block * 8 + i]);
    return moved;
  };
  Array fit = admit(plain, choice);
  EXPECT_NE(std::count(fit.begin(), fit.end(), 0.0), 0);
  EXPECT_EQ(admit(zigzag, lie(choice)), lie(fit));
}

// Ranks that hold different groups of packed rows draw different masks.
TEST(SplitDropout, GroupsOfPackedRowsDiffer) {
  Grid grid = parseGrid("t 2");
  Type type{Elem::F64, {splitDim({"e", 4}, grid.find("t")), {"r", 50, "e"}, {"m", 6}}};
  Bench bench(OpKind::Dropout, {type}, {type}, {{"rate", 0.5}, {"site", "drop"}});
  std::vector<Array> ones = {Array(size_t(type.elements()), 1.0)};
  EXPECT_NE(runOn(Coordinates(grid, 0), *bench.op, ones),
            runOn(Coordinates(grid, 1), *bench.op, ones));
  EXPECT_EQ(runOn(Coordinates(grid, 0), *bench.op, ones), runOn({}, *bench.op, ones));
}

}  // namespace
}  // namespace planc
