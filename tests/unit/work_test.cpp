// Bytes and operations of ops whose sizes are known, and how often a step runs them.
#include "cost/work.h"

#include "compile.h"
#include "ir/cost.h"
#include "sharded.h"

namespace planc {
namespace {

// 12 elements; 100 rows of 3 in a table; layers of 12.
const char* const kModule = R"(module m sharded at pipe 0 {
  file "t.plan"
  set microbatches = 2
  grid pipe 2, tensor 2
  pipeline [layer] over pipe by one_f_one_b chunks 1
  call @begin
  call @forward(0)
  call @forward(1)
  start @send(0)
  wait @send(0)
  var @ids : i32[microbatch 2, b 1, i 4] input vocab 100 stack [microbatch]
  var @w : f32[layer 5, i 4, j 3] weight stack [layer]
  var @table : f32[row 100, j 3] weight
  var @sum : f32[row 100, j 3] gradient of @table
  var @slot : bf16[b 1, i 4, j 3] slot
  func @begin {
    zero @sum
  }
  func @forward {
    %ids = read @ids : i32[b 1, i 4]
    %table = read @table : f32[row 100, j 3]
    %x = lookup(%table, %ids) {over = row} : f32[b 1, i 4, j 3]
    %y = repeat(%x) {count = 5, dim = layer} : f32[b 1, i 4, j 3] body(%z : f32[b 1, i 4, j 3]) {
      %w = read @w : f32[i 4, j 3]
      %o = one_copy(%w) {axes = [tensor]} : f32[i 4, j 3] partial(tensor)
      %s = all_reduce(%o) {axes = [tensor], start = 1, unless_last = 1} : f32[i 4, j 3]
      %v = mul(%z, %w) : f32[b 1, i 4, j 3]
      %u = exp(%v) {unless_last = 1} : f32[b 1, i 4, j 3]
      %t = wait(%s, %o) {unless_last = 1} : f32[i 4, j 3]
      yield(%v)
    }
    %square = mul(%y, %y) : f32[b 1, i 4, j 3]
    %f = fused(%square, %y) : bf16[b 1, i 4, j 3] body(%a : f32[b 1, i 4, j 3], %b : f32[b 1, i 4, j 3]) {
      %c = add(%a, %b) : f32[b 1, i 4, j 3]
      %d = exp(%c) : f32[b 1, i 4, j 3]
      %e = cast(%d) : bf16[b 1, i 4, j 3]
      yield(%e)
    }
    write @slot(%f)
    lookup_grad @sum(%ids, %square) {over = row}
    %part = slice(%y) {offset = 1, over = i, part = p} : f32[b 1, p 2, j 3]
    %q = const {value = 1.0} : f32[j 3, k 7]
    %g = einsum(%y, %q) {again = 1} : f32[b 1, i 4, k 7]
  }
  func @send {
    %x = read @slot : bf16[b 1, i 4, j 3]
    send(%x) {axes = [pipe], channel = 0, to = 1}
  }
})";

TEST(Work, BytesAndTimes) {
  auto module = test::parse(kModule);
  ASSERT_TRUE(module);
  std::map<std::string, std::vector<std::pair<double, double>>> runs;  // times, bytes
  eachRun(*module, [&](const Op& op, double times) {
    runs[op.info().text.str()].push_back({times, memoryBytesOf(op)});
  });
  using Runs = std::vector<std::pair<double, double>>;
  EXPECT_EQ(runs["zero"], (Runs{{1, 1200}}));
  EXPECT_EQ(runs["read"], (Runs{{2, 0}, {2, 0}, {10, 0}, {1, 0}}));
  EXPECT_EQ(runs["lookup"], (Runs{{2, 2 * 48 + 16}}));        // rows, not the table
  EXPECT_EQ(runs["mul"], (Runs{{10, 3 * 48}, {2, 2 * 48}}));  // the same operand once
  EXPECT_EQ(runs["exp"], (Runs{{8, 2 * 48}}));                // the last iteration leaves it out
  EXPECT_EQ(runs["all_reduce"], (Runs{{8, 0}}));
  EXPECT_EQ(runs["fused"], (Runs{{2, 2 * 48 + 24}}));
  EXPECT_EQ(runs["write"], (Runs{{2, 2 * 24}}));
  EXPECT_EQ(runs["lookup_grad"], (Runs{{2, 3 * 48 + 16}}));
  EXPECT_EQ(runs["slice"], (Runs{{2, 2 * 24}}));
  EXPECT_EQ(runs["einsum"], (Runs{{2, 48 + 84 + 112}}));
  EXPECT_EQ(runs["send"], (Runs{{1, 0}}));
  EXPECT_EQ(runs.count("repeat"), 0u);
  double bytes = 0;
  for (const auto& [kind, list] : runs)
    for (auto [times, each] : list) bytes += times * each;
  RankWork work = workOf(*module);
  EXPECT_EQ(work.memoryBytes, bytes);
  EXPECT_EQ(work.flops, 2 * 2 * 4 * 3 * 7);
  EXPECT_EQ(work.again, work.flops);
  EXPECT_GT(work.intensity(), 0);
}

// At rank level a value that is made where it is written moves no bytes; one that lies elsewhere does.
TEST(Work, WritesInPlaceMoveNothing) {
  auto module = test::sharded(test::dense("microbatches 2"), "emit");
  ASSERT_TRUE(module);
  int made = 0;
  eachRun(*module, [&](const Op& op, double) {
    if (op.kind != OpKind::Write) return;
    const Place &there = *op.var->place, &here = *op.operand(0)->place;
    bool isThere = here.offset == there.offset;
    made += isThere;
    double bytes = 2.0 * double(op.operand(0)->type.bytes());
    EXPECT_EQ(memoryBytesOf(op), isThere ? 0 : bytes);
    ++op.operand(0)->place->offset;
    EXPECT_EQ(memoryBytesOf(op), here.offset == there.offset ? 0 : bytes);
    --op.operand(0)->place->offset;
  });
  EXPECT_GT(made, 10);
}

}  // namespace
}  // namespace planc
