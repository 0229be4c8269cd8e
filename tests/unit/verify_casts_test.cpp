// Shapes of sharded programs: casts between ranks and ops over split dims. Each case is one function
// on a small grid; without a message it must pass, else the error must say which rule is broken.
#include "compile.h"

namespace planc {
namespace {

struct Shaped {
  const char* body;          // of @f, over the values below
  const char* message = "";  // part of the error; empty: none
};

// What cases read, each as the value of its name.
struct Read {
  const char *name, *type, *kind = "slot";
};
constexpr Read kReads[] = {
    {"x", "f32[a 2, b 8/t] partial(x)"},
    {"cut", "f32[a 2, b 8/t]"},
    {"w", "f32[b 8, a 6] partial(x, t)"},
    {"table", "f32[v 17/t, m 2]"},
    {"whole", "f32[v 17, m 2]"},
    {"deep", "f32[c 24/x, d 8]"},
    {"sums", "f32[c 24/x, d 8] partial(t)"},
    {"uneven", "f32[c 18/x, d 8]"},
    {"uneven_sums", "f32[c 18/x, d 8] partial(t)"},
    {"logits", "f32[n 5, s 6, v 17/t]"},
    {"ids", "i32[n 5, s 6]", "input vocab 17"},
    {"many", "i32[n 5, s 6]", "input vocab 18"},
    {"q", "f32[s 6, h 8/x.t, u 2]"},
    {"k", "f32[s 6, g 2/x, u 2]"},
    {"k4", "f32[s 6, g 4/t, u 2]"},
    {"k1", "f32[s 6, g 1, u 2]"},
    {"rows", "f32[e 8, r 8~e, m 2] partial(t)"},
    {"qs", "f32[n 5, s 16/t.x:zigzag8, h 4, u 2]"},
    {"ks", "f32[n 5, s 16/t.x:zigzag8, g 2, u 2]"},
    {"kall", "f32[n 5, s 16:zigzag8, g 2, u 2]"},
    {"kthree", "f32[n 5, s 16/t.x:zigzag8+3, g 2, u 2]"},
    {"kouter", "f32[n 5, s 16/t:zigzag8+1, g 2, u 2]"},
    {"kinner", "f32[n 5, s 16/x:zigzag8, g 2, u 2]"},
    {"kplain", "f32[n 5, s 16/t.x, g 2, u 2]"},
    {"aq", "f32[n 5, s 16/t.x:zigzag8, h 4, u 2]"},
    {"lse", "f32[n 5, s 16/t.x:zigzag8, h 4]"},
    {"bf", "bf16[n 5, s 16/t.x:zigzag8, h 4, u 2]"},
    {"docs", "i32[n 5, s 16/t.x:zigzag8]"},
    {"docs_all", "i32[n 5, s 16:zigzag8]"},
    {"docs_three", "i32[n 5, s 16/t.x:zigzag8+3]"},
    {"docs_short", "i32[s 16:zigzag8]"},
    {"scores", "f32[n 20/t, e 8]"},
    {"packed", "f32[e 8, r 40/t~e, m 2]"},
};

#define ATTEND "{seq = s, by = u, head = h, kv = g} : "
#define BLOCK "{seq = s, by = u, head = h, kv = g, block = 1} : "
#define A "f32[n 5, s 16/t.x:zigzag8, h 4, u 2]"
#define LSE "f32[n 5, s 16/t.x:zigzag8, h 4]"
#define KEYS(MOVED) "f32[n 5, s 16/t.x:zigzag8" MOVED ", g 2, u 2]"

const Shaped kCases[] = {
    // all_reduce.
    {"%y = all_reduce(%w) {axes = [x, t]} : f32[b 8, a 6]"},
    {"%y, %z = all_reduce(%w, %x) {axes = [x]} : f32[b 8, a 6] partial(t), f32[a 2, b 8/t]"},
    {"%y = all_reduce(%w) : f32[b 8, a 6]", "has no 'axes'"},
    {"%y = all_reduce(%w) {axes = [x]} : f32[a 6, b 8]",
     "has dims of f32[a 6, b 8], not f32[b 8, a 6] partial(x, t)"},
    {"%y = all_reduce(%w) {axes = [x]} : f64[b 8, a 6]", "other elements"},
    {"%y, %z = all_reduce(%w) {axes = [x]} : f32[b 8, a 6], f32[b 8, a 6]",
     "2 results for 1 operands"},

    // reduce_scatter and all_gather.
    {"%y = reduce_scatter(%w) {axes = [t], dim = [b]} : f32[b 8/t, a 6] partial(x)"},
    {"%y, %z = reduce_scatter(%w, %sums) {axes = [t], dim = [b, c]} : f32[b 8/t, a 6] "
     "partial(x), f32[c 24/x.t, d 8]"},
    {"%y = reduce_scatter(%w) {axes = [x, t], dim = [b]} : f32[b 8/x.t, a 6]\n"
     "%z = all_gather(%y) {axes = [t], dim = [b]} : f32[b 8/x, a 6]"},
    {"%y = reduce_scatter(%w) {axes = [t], dim = [b, b]} : f32[b 8/t, a 6]",
     "not one 'dim' an operand"},
    {"%y = reduce_scatter(%w) {axes = [t], dim = [c]} : f32[b 8/t, a 6]", "'dim' is 'c'"},
    {"%y = reduce_scatter(%w) {axes = [t], dim = [b]} : f32[b 8/x, a 6]",
     "dim 'b' is not cut over the axes"},
    {"%y = reduce_scatter(%w) {axes = [t, x], dim = [b]} : f32[b 8/x.t, a 6]",
     "dim 'b' is not cut over the axes"},
    {"%y = reduce_scatter(%w) {axes = [t], dim = [b]} : f32[b 8/t, a 4]",
     "has f32[b 8, a 6] partial(x, t) for f32[b 8/t, a 4]"},
    {"%y = reduce_scatter(%w) {axes = [x], dim = [a]} : f32[b 8, a 6/x]",
     "'a' is not outermost in memory: 'b' is"},
    {"%y = shard_slice(%cut) {axes = [x], dim = a} : f32[a 2/x, b 8/t]\n"
     "%z = all_gather(%y) {axes = [t], dim = [b]} : f32[a 2/x, b 8]"},
    {"%y = all_gather(%table) {axes = [t], dim = [v]} : f32[v 17, m 2]",
     "the pieces of 'v' are padded"},
    {"%y = reduce_scatter(%uneven_sums) {axes = [t], dim = [c]} : f32[c 18/x.t, d 8]",
     "the pieces of 'c' are padded"},
    {"%y = reduce_scatter(%rows) {axes = [t], dim = [e]} : f32[e 8/t, r 8~e, m 2]",
     "cuts the packed rows 'e'"},

    // all_to_all.
    {"%y = all_to_all(%deep) {axes = [x], from = [c], to = [d]} : f32[c 24, d 8/x]"},
    {"%y = shard_slice(%deep) {axes = [t], dim = c} : f32[c 24/x.t, d 8]\n"
     "%z = all_to_all(%y) {axes = [x, t], from = [c, c], to = [d, d]} : f32[c 24, d 8/x.t]"},
    {"%y = shard_slice(%deep) {axes = [t], dim = c} : f32[c 24/x.t, d 8]\n"
     "%z = all_to_all(%y) {axes = [x], from = [c], to = [d]} : f32[c 24/t, d 8/x]",
     "not the innermost"},
    {"%y = all_to_all(%deep) {axes = [x], from = [c, c], to = [d]} : f32[c 24, d 8/x]",
     "not one dim an axis"},
    {"%y = all_to_all(%deep) {axes = [x], from = [c], to = [d]} : f32[c 24, e 8/x]",
     "has f32[c 24/x, d 8] for f32[c 24, e 8/x]"},
    {"%y = all_to_all(%deep) {axes = [x], from = [c], to = [d]} : f32[c 24, d 8/t]",
     "has f32[c 24/x, d 8] for f32[c 24, d 8/t]"},
    {"%y = all_to_all(%table) {axes = [t], from = [v], to = [m]} : f32[v 17, m 2/t]", "are padded"},

    // shard_slice and one_copy.
    {"%y = shard_slice(%whole) {axes = [t], dim = v} : f32[v 17/t, m 2]\n"
     "%z = one_copy(%y) {axes = [x]} : f32[v 17/t, m 2] partial(x)"},
    {"%y = shard_slice(%ids) {axes = [x], dim = s} : i32[n 5, s 6/x]"},
    {"%y = shard_slice(%uneven) {axes = [t], dim = c} : f32[c 18/x.t, d 8]",
     "do not lie in the operand's piece"},
    {"%y = shard_slice(%whole) {axes = [t], dim = v} : f32[m 2, v 17/t]",
     "has f32[v 17, m 2] for f32[m 2, v 17/t]"},
    {"%y = one_copy(%whole) {axes = [t]} : f32[v 17/t, m 2]", "has dims of"},

    // wait.
    {"%s = reduce_scatter(%w) {axes = [t], dim = [b], start = 1} : f32[b 8/t, a 6] partial(x)\n"
     "%y = wait(%s, %w) : f32[b 8/t, a 6] partial(x)"},
    {"%s = reduce_scatter(%w) {axes = [t], dim = [b]} : f32[b 8/t, a 6] partial(x)\n"
     "%y = wait(%s, %w) : f32[b 8/t, a 6] partial(x)",
     "results of one started collective"},
    {"%s = reduce_scatter(%w) {axes = [t], dim = [b], start = 1} : f32[b 8/t, a 6] partial(x)\n"
     "%y = wait(%s, %table) : f32[b 8/t, a 6] partial(x)",
     "other values"},
    {"%s, %r = all_reduce(%w, %w) {axes = [t], start = 1} : f32[b 8, a 6] partial(x), "
     "f32[b 8, a 6] partial(x)\n"
     "%y = wait(%s, %w) : f32[b 8, a 6] partial(x)\n"
     "%z = wait(%r, %w) : f32[b 8, a 6] partial(x)",
     "one started collective"},
    {"%s = all_reduce(%w) {axes = [t], start = 1} : f32[b 8, a 6] partial(x)\n"
     "%y = wait(%s, %w) : f32[a 6, b 8]",
     "not of the type that was started"},

    // Ops over split dims.
    {"%e, %p = cross_entropy_part(%logits, %ids) {over = v, part = part} : f32[n 5, s 6, part "
     "4/t], f32[n 5, s 6] partial(t)"},
    {"%e, %p = cross_entropy_part(%logits, %ids) {over = v, part = part} : f32[n 5, s 6, part "
     "1], f32[n 5, s 6]",
     "the log-sum-exp has dims [n 5, s 6, part 1], not [n 5, s 6, part 4/t]"},
    {"%e, %p = cross_entropy_part(%logits, %ids) {over = v, part = s} : f32[n 5, s 6], f32[n "
     "5, s 6]",
     "a dim of its own"},
    {"%e, %p = cross_entropy_part(%logits, %many) {over = v, part = part} : f32[n 5, s 6, part "
     "4/t], f32[n 5, s 6] partial(t)",
     "targets are below 18, but the dim has 17"},
    {"%e = log_sum_exp(%logits) {over = s} : f32[n 5, s 6]", "the result has dims"},
    {"%c = count_valid(%ids) : i32[]\n"
     "%e = const {value = 1.0} : f32[n 5, s 6]\n"
     "%f = const {value = 1.0} : f32[n 5]\n"
     "%l = cross_entropy_total(%ids, %e, %f, %c) {scale = 1.0} : f32[]",
     "what is picked has dims"},
    {"%l = lookup(%table, %ids) {over = v} : f32[n 5, s 6, m 2] partial(t)"},
    {"%l = lookup(%table, %many) {over = v} : f32[n 5, s 6, m 2] partial(t)",
     "below 18, but the dim has 17"},
    {"%y = add(%table, %whole) : f32[v 17/t, m 2]", "dim 'v' has sizes 5 and 17"},
    {"%a, %l = attend(%q, %k, %k) {seq = s, by = u, head = h, kv = g} : f32[s 6, h 8/x.t, u 2], "
     "f32[s 6, h 8/x.t]"},
    {"%a, %l = attend(%q, %k1, %k1) {seq = s, by = u, head = h, kv = g} : f32[s 6, h 8/x.t, u "
     "2], f32[s 6, h 8/x.t]"},
    {"%a, %l = attend(%q, %k4, %k4) {seq = s, by = u, head = h, kv = g} : f32[s 6, h 8/x.t, u "
     "2], f32[s 6, h 8/x.t]",
     "cut otherwise than its heads: [g 4/t] for [h 8/x.t]"},

    // Queries that are cut, and whole keys or a block of them.
    {"%r, %l = attend(%qs, %kall, %kall) " ATTEND A ", " LSE},
    {"%r, %l = attend(%qs, %ks, %ks) {seq = s, by = u, head = h, kv = g, ring = 1} : " A ", " LSE},
    {"%r, %l = attend(%qs, %ks, %ks) " ATTEND A ", " LSE,
     "its keys are at [s 16/t.x:zigzag8], and its queries at [s 16/t.x:zigzag8]"},
    {"%r, %l = attend(%qs, %kthree, %kthree) {seq = s, by = u, head = h, kv = g, ring = 1} : " A
     ", " LSE,
     "its keys are at [s 16/t.x:zigzag8+3]"},
    {"%r, %l = attend_block(%qs, %ks, %ks, %aq, %lse) " ATTEND A ", " LSE},
    {"%r, %l = attend_block(%qs, %kthree, %kthree, %aq, %lse) " ATTEND A ", " LSE},
    {"%r, %l = attend_block(%qs, %kouter, %kouter, %aq, %lse) " ATTEND A ", " LSE},
    {"%r, %l = attend_block(%qs, %kinner, %kinner, %aq, %lse) " ATTEND A ", " LSE,
     "its keys are at [s 16/x:zigzag8]"},
    {"%r, %l = attend_block(%qs, %kplain, %kplain, %aq, %lse) " ATTEND A ", " LSE,
     "its keys are at [s 16/t.x]"},
    {"%r, %l = attend_block(%qs, %ks, %kthree, %aq, %lse) " ATTEND A ", " LSE,
     "dim 's' is held as [s 16/t.x:zigzag8] and [s 16/t.x:zigzag8+3]"},
    {"%r, %l = attend_block(%kthree, %kthree, %kthree, %kthree, %kthree) {seq = s, by = u} : "
     KEYS("+3") ", " KEYS("+3"),
     "its queries are another rank's: [s 16/t.x:zigzag8+3]"},
    {"%r, %l = attend_block(%qs, %ks, %ks, %lse, %lse) " ATTEND A ", " LSE, "operand 3 has dims"},
    {"%r, %l = attend_block(%qs, %ks, %ks, %bf, %lse) " ATTEND A ", " LSE,
     "adds to bf16 and makes f32"},
    {"%r, %l = attend_block(%qs, %ks, %ks, %aq, %lse) " ATTEND A ", f64[n 5, s 16/t.x:zigzag8, h 4]",
     "adds to f32 and makes f64"},
    {"%p, %d, %e = attend_grad(%qs, %kthree, %kthree, %bf, %lse, %bf) " BLOCK A ", " KEYS("+3") ", "
     KEYS("+3")},
    {"%p, %d, %e = attend_grad(%qs, %kthree, %kthree, %bf, %lse, %bf) " BLOCK A ", " KEYS("") ", "
     KEYS("+3"),
     "dim 's' is held as [s 16/t.x:zigzag8+3] and [s 16/t.x:zigzag8]"},
    {"%r, %l = attend(%qs, %kall, %kall, %docs, %docs_all) " ATTEND A ", " LSE},
    {"%r, %l = attend_block(%qs, %kthree, %kthree, %aq, %lse, %docs, %docs_three) " ATTEND A
     ", " LSE},
    {"%r, %l = attend(%qs, %kall, %kall, %docs_all) " ATTEND A ", " LSE,
     "has the documents of its queries and not of its keys"},
    {"%r, %l = attend(%qs, %kall, %kall, %docs, %docs_short) " ATTEND A ", " LSE,
     "the documents of the keys has dims [s 16:zigzag8], not [n 5, s 16:zigzag8]"},
    {"%r, %l = attend(%qs, %kall, %kall, %lse, %docs_all) " ATTEND A ", " LSE,
     "operand 3 must hold i32"},

    // Elements behind each other in memory are not so in a dim in zigzag order.
    {"%y = slice(%kall) {over = s, part = p, offset = 0} : f32[n 5, p 4, g 2, u 2]",
     "cuts 's', which lies in zigzag order"},
    {"%y = concat(%ks, %ks) {over = z, parts = [u, u]} : f32[n 5, s 16/t.x:zigzag8, g 2, z 4]"},
    {"%y = concat(%kouter, %kouter) {over = z, parts = [u, u]} : f32[n 5, s 16/t:zigzag8+1, g 2, "
     "z 4]",
     "takes another rank's piece for its own"},
    {"%y = concat(%kplain, %kplain) {over = z, parts = [u, u]} : f32[n 5, s 16/t.x, g 2, "
     "z 4:zigzag2]",
     "joins 'z' in zigzag order"},

    // rotate.
    {"%y = rotate(%ks) {axes = [t, x]} : " KEYS("+1")},
    {"%y, %d = rotate(%kthree, %docs) {axes = [t, x], by = -4} : " KEYS("+7")
     ", i32[n 5, s 16/t.x:zigzag8+4]"},
    {"%y = rotate(%kthree) {axes = [t, x], by = 5} : " KEYS("")},
    {"%s = rotate(%ks) {axes = [t, x], start = 1} : " KEYS("+1") "\n%y = wait(%s, %ks) : "
     KEYS("+1")},
    {"%y = rotate(%ks) {axes = [t, x]} : " KEYS("+2"),
     "makes f32[n 5, s 16/t.x:zigzag8+1, g 2, u 2], not f32[n 5, s 16/t.x:zigzag8+2, g 2, u 2]"},
    {"%y = rotate(%ks) {axes = [t]} : " KEYS("+1"), "is cut over just its axes"},
    {"%y = rotate(%ks) {axes = [x, t]} : " KEYS("+1"), "is cut over just its axes"},
    {"%y = rotate(%ks) {axes = [t, x], by = 16} : " KEYS(""), "moves every piece to its own rank"},
};

// Rows that ranks send each other, behind these.
const std::string kRouted =
    "%c, %g, %load, %share = route(%scores) {over = e, per = microbatch, score = softmax, top = 1} : "
    "i32[n 20/t, choice 1], f32[n 20/t, choice 1], f32[e 8] partial(t), f32[e 8] partial(t)\n"
    "%row, %off = pack(%c) {choice = choice, experts = 8} : i32[n 20/t, choice 1], i32[bound 9] "
    "partial(t)\n";
const std::string kCounted =
    kRouted +
    "%n = row_counts(%off) : i32[part 4/t, e 8]\n"
    "%there = all_to_all(%n) {axes = [t], from = [part], to = [e]} : i32[part 4, e 8/t]\n";

struct RowCase {
  const std::string& before;
  const char* body;
  const char* message = "";
};
const RowCase kRowCases[] = {
    {kRouted, "%m = row_counts(%ids) : i32[part 4/t, e 8]", "offsets must come from a pack"},
    {kRouted, "%m = row_counts(%off) : i32[part 4, e 8]", "'part' has not one element a rank"},
    {kRouted, "%m = row_counts(%off) : i32[part 4/t, e 9]",
     "offsets have dims [bound 9] for 9 experts"},
    {kRouted, "%m = row_counts(%off) : i32[x 2, part 4/t, e 8]",
     "counts have dims [part, expert] or [expert], not [x 2, part 4/t, e 8]"},
    {kRouted, "%m = row_counts(%off) : f32[part 4/t, e 8]", "result 0 must hold i32"},

    {kCounted, "%o = row_offsets(%there) : i32[bound 9/t]"},
    {kCounted, "%o = row_offsets(%ids) : i32[bound 7]", "operand 0 must come from 'row_counts'"},
    {kCounted, "%o = row_offsets(%n) : i32[bound 9]", "needs the counts of all of 'part'"},
    {kCounted, "%o = row_offsets(%there) : i32[bound 9]",
     "the result has dims [bound 9], not [bound 9/t]"},

    {kCounted,
     "%r, %s = exchange_rows(%packed, %n, %there) {axes = [t]} : f32[e 8/t, r 24~e, m 2], f32[e 8/t, r "
     "24~e, m 2]\n"
     "%h, %i = exchange_rows(%r, %there, %n) {axes = [t], home = 1} : f32[e 8, r 40/t~e, m 2], f32[e "
     "8/t, r 24~e, m 2]"},
    {kCounted,
     "%r, %s = exchange_rows(%packed, %n, %there) {axes = [t], start = 1} : f32[e 8/t, r 24~e, m 2], "
     "f32[e 8/t, r 24~e, m 2]\n"
     "%v, %w2 = wait(%r, %s, %packed, %n, %there) : f32[e 8/t, r 24~e, m 2], f32[e 8/t, r 24~e, m 2]"},
    {kCounted,
     "%r, %s = exchange_rows(%packed, %n, %there) {axes = [t], start = 1} : f32[e 8/t, r 24~e, m 2], "
     "f32[e 8/t, r 24~e, m 2]\n"
     "%v, %w2 = wait(%r, %s, %packed, %n) : f32[e 8/t, r 24~e, m 2], f32[e 8/t, r 24~e, m 2]",
     "results of one started collective"},
    {kCounted,
     "%r, %s = exchange_rows(%packed, %n, %there) : f32[e 8/t, r 24~e, m 2], f32[e 8/t, r 24~e, m 2]",
     "has no 'axes'"},
    {kCounted,
     "%r, %s = exchange_rows(%packed, %n, %ids) {axes = [t]} : f32[e 8/t, r 24~e, m 2], f32[e 8/t, "
     "r 24~e, m 2]",
     "operand 2 must come from 'row_counts'"},
    {kCounted,
     "%r, %s = exchange_rows(%packed, %there, %n) {axes = [t]} : f32[e 8/t, r 24~e, m 2], f32[e 8/t, r "
     "24~e, m 2]",
     "operand 1 is i32[part 4, e 8/t], not counts like i32[part 4/t, e 8]"},
    {kCounted,
     "%r, %s = exchange_rows(%packed, %n, %there) {axes = [t]} : f32[e 8, r 24~e, m 2], f32[e 8, r "
     "24~e, m 2]",
     "dim 'e' is not cut over the axes"},
    {kCounted,
     "%r, %s = exchange_rows(%packed, %n, %there) {axes = [t]} : f32[e 8/t, r 24~e, m 3], f32[e 8/t, r "
     "24~e, m 3]",
     "has f32[e 8, r 40/t~e, m 2] for f32[e 8/t, r 24~e, m 3]"},
    {kCounted,
     "%r, %s = exchange_rows(%cut, %n, %there) {axes = [t]} : f32[e 8/t, r 24~e, m 2], f32[e 8/t, r "
     "24~e, m 2]",
     "packed rows must start with [expert, slot~expert, ...]: f32[a 2, b 8/t]"},
    {kCounted,
     "%r, %s = exchange_rows(%packed, %n, %there) {axes = [t]} : f32[e 8/t, r 24~e, m 2], f32[e 8, r "
     "40/t~e, m 2]",
     "the spare room is f32[e 8, r 40/t~e, m 2], not that of the own experts' rows"},
    {kCounted,
     "%q2 = shard_slice(%off) {axes = [x], dim = bound} : i32[bound 9/x] partial(t)\n"
     "%m = row_counts(%q2) : i32[part 4/t, e 8]",
     "offsets have dims [bound 9/x] for 8 experts"},
};

// The error of a module with this in @f must say `message`; empty: there is none.
void expectError(const std::string& body, llvm::StringRef message) {
  std::string vars, reads;
  for (const Read& read : kReads) {
    vars += std::string("var @") + read.name + " : " + read.type + " " + read.kind + "\n";
    reads += std::string("%") + read.name + " = read @" + read.name + " : " + read.type + "\n";
  }
  std::string text =
      "module m sharded {\ngrid x 2, t 4\n" + vars + "func @f {\n" + reads + body + "\n}\n}\n";
  Diagnostics diags;
  parseModule(diags.addFile("t.ir", text), diags);
  if (message.empty()) {
    EXPECT_TRUE(diags.messages().empty()) << body << "\n" << test::messages(diags);
    return;
  }
  ASSERT_FALSE(diags.messages().empty()) << body;
  EXPECT_EQ(diags.messages().front().id, Diag::IrInvalid) << test::messages(diags);
  EXPECT_NE(diags.messages().front().text.find(message.str()), std::string::npos)
      << body << "\n"
      << diags.messages().front().text;
}

TEST(VerifyCasts, EachRule) {
  for (const Shaped& c : kCases) expectError(c.body, c.message);
}

TEST(VerifyCasts, EachRuleOfRows) {
  for (const RowCase& c : kRowCases) expectError(c.before + c.body, c.message);
}

}  // namespace
}  // namespace planc
