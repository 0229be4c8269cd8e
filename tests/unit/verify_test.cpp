// The verifier: each case breaks one rule of an op or of the structure, and the error must say which.
#include "compile.h"

namespace planc {
namespace {

struct Broken {
  const char* body;     // of @f, over the variables below
  const char* message;  // part of the error
};

constexpr const char* kVars = R"(
  var @x : f32[a 2, b 4] weight init const(0.0)
  var @y : f32[b 4, c 3] weight init const(0.0)
  var @stack : f32[layer 2, a 2] weight stack [layer] init const(0.0)
  var @ids : i32[s 5, t 6] input vocab 7
  var @table : f32[v 7, m 2] weight init const(0.0)
  var @small : f32[v 6, m 2] weight init const(0.0)
  var @scores : f32[s 5, t 6, e 4] weight init const(0.0)
  var @q : f32[s 5, t 6, h 4, w 2] weight init const(0.0)
  var @k : f32[s 5, t 6, g 3, w 2] weight init const(0.0)
  var @bias : f32[e 4] weight init const(0.0) balanced(0.1)
  var @n : i32[] metric
)";

TEST(Verify, NamesTheBrokenRule) {
  const Broken cases[] = {
      {"%x = read @x : f32[a 2, b 5]", "reads f32[a 2, b 5]"},
      {"%x = read @x : f32[a 2, b 4]\n write @x", "0 operands"},
      {"%x = read @x : f32[a 2, b 4]\n %y = exp(%x, %x) : f32[a 2, b 4]", "2 operands"},
      {"%x = read @x : f32[a 2, b 4]\n %y = exp(%x) : f32[a 2]", "result has dims"},
      {"%x = read @x : f32[a 2, b 4]\n %y = exp @x(%x) : f32[a 2, b 4]", "takes no variable"},
      {"%x = read : f32[a 2, b 4]", "names no variable"},
      {"%x = read @x : f32[a 2, b 4]\n %y = read @y : f32[b 4, c 3]\n"
       "%z = einsum(%x, %y) : f32[a 2, d 3]", "'d' is in no operand"},
      {"%x = read @x : f32[a 2, b 4]\n %y = read @y : f32[b 4, c 3]\n"
       "%z = einsum(%x, %y) : f32[a 3]", "'a' has sizes 2 and 3"},
      {"%x = read @x : f32[a 2, b 4]\n %y = softmax(%x) {over = c} : f32[a 2, b 4]", "lacks"},
      {"%x = read @x : f32[a 2, b 4]\n %y = softmax(%x) : f32[a 2, b 4]", "has no 'over'"},
      {"%c = const {value = 1.0} : f32[a 0]", "size 0"},
      {"%c = const {value = 1.0} : f32[a 2, a 2]", "twice in a type"},
      {"%c = const {value = 1.0} : f32[a 1099511627776, b 1099511627776]", "2^60"},
      {"%c = const {value = 1.0} : f32[a 2, b 4~c]", "must stand behind"},
      {"%x = read @x : f32[a 2, b 4]\n yield(%x)", "does not end a body"},
      {"%x = read @x : f32[a 2, b 4]\n %y = repeat(%x) {count = 2, dim = layer} : f32[a 2, b 4]",
       "has no body"},
      {"%x = read @x : f32[a 2, b 4]\n %y = repeat(%x) {count = 0, dim = layer} : f32[a 2, b 4] "
       "body(%z : f32[a 2, b 4]) {\n yield(%z)\n }", "counts 0"},
      {"%x = read @x : f32[a 2, b 4]\n %y = repeat(%x) {count = 2, dim = layer} : f32[a 2, b 4] "
       "body(%z : f32[a 2, b 4]) {\n %e = exp(%z) : f32[a 2, b 4]\n }", "ends in no yield"},
      {"%x = read @x : f32[a 2, b 4]\n %y = repeat(%x) {count = 2, dim = layer} : f32[a 2, b 4] "
       "body(%z : f32[a 2]) {\n yield(%z)\n }", "not of its operand's type"},
      {"%t = read @table : f32[v 7, m 2]\n %x = read @x : f32[a 2, b 4]\n"
       "%l = lookup(%t, %x) {over = v} : f32[a 2, b 4, m 2]", "must hold i32"},
      {"%t = read @small : f32[v 6, m 2]\n %i = read @ids : i32[s 5, t 6]\n"
       "%l = lookup(%t, %i) {over = v} : f32[s 5, t 6, m 2]", "below 7, but the dim has 6"},
      {"%q = read @q : f32[s 5, t 6, h 4, w 2]\n %k = read @k : f32[s 5, t 6, g 3, w 2]\n"
       "%a, %l = attend(%q, %k, %k) {seq = t, by = w, head = h, kv = g} : f32[s 5, t 6, h 4, w 2],"
       " f32[s 5, t 6, h 4]", "no multiple of 3 kv heads"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 5, score = softmax, per = sequence, seq = t} : i32[s 5, t 6, choice 5], f32[s 5, t 6, choice 5], f32[s 5, e 4], f32[s 5, e 4]\n", "chooses 5 of 4"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[s 5, e 4], f32[e 4]\n", "the load has dims [s 5, e 4], not [e 4]"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = sequence, seq = t} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[s 5, e 4], f32[e 4]\n", "the share has dims [e 4], not [s 5, e 4]"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch, groups = 3} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n", "cuts 4 experts into 3 groups"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch, groups = 2, kept = 3} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n", "keeps 3 of 2 groups"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 3, score = softmax, per = microbatch, groups = 2, kept = 1} : i32[s 5, t 6, choice 3], f32[s 5, t 6, choice 3], f32[e 4], f32[e 4]\n", "keeps 1 of 2 groups for 3 choices"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch, groups = 2, kept = 1} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n", "unknown group score"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch, groups = 4, kept = 1, group_score = best2} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n", "has one a group"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%d = const {value = 0.0} : f32[s 5, e 4]\n"
       "%q = route_grad(%s, %c, %g, %d) {over = e, top = 1, score = softmax, per = microbatch} : f32[s 5, t 6, e 4]", "operand 3 has dims [s 5, e 4], not [e 4]"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%d = const {value = 0.0} : f32[e 4]\n"
       "%q = route_grad(%s, %c, %g, %d) {over = e, top = 1, score = sigmoid, per = microbatch} : f32[s 5, t 6, e 4]", "'score' differs from the route's"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%f = admit(%c) {experts = 4, seq = t, choice = choice} : f32[s 5, t 6, choice 1]", "has no 'capacity'"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%f = admit(%c) {capacity = 1.0, experts = 4, seq = u, choice = choice} : f32[s 5, t 6, choice 1]", "'seq' is 'u', which operand 0 lacks"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%r, %o = pack(%c) {experts = 5, choice = choice} : i32[s 5, t 6, choice 1], i32[bound 6]", "packs for 5 experts"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%r, %o = pack(%c) {experts = 4, choice = choice} : i32[s 5, t 6, choice 1], i32[bound 6]", "offsets must have 5 elements"},
      {"%i = read @ids : i32[s 5, t 6]\n %s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%r, %o = pack(%i) {experts = 4, choice = t} : i32[s 5, t 6], i32[bound 5]", "choices must come from a route"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%r, %o = pack(%c) {experts = 4, choice = choice} : i32[s 5, t 6, choice 1], i32[bound 5]\n"
       "%x = const {value = 1.0} : f32[s 5, t 6, m 2]\n%t = dispatch(%x, %r, %o) {over = e} : f32[e 4, slot 29~e, m 2]", "has room for 29 rows, but the pack makes up to 30"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%r, %o = pack(%c) {experts = 4, choice = choice} : i32[s 5, t 6, choice 1], i32[bound 5]\n"
       "%x = const {value = 1.0} : f32[s 5, t 6, m 2]\n%t = dispatch(%x, %r, %o) {over = e} : f32[e 3, slot 30~e, m 2]", "has 3 groups, but the pack has 4"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%r, %o = pack(%c) {experts = 4, choice = choice} : i32[s 5, t 6, choice 1], i32[bound 5]\n"
       "%x = const {value = 1.0} : f32[s 5, t 6, m 2]\n%t = dispatch(%x, %c, %o) {over = e} : f32[e 4, slot 30~e, m 2]", "rows must come from a pack"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%r, %o = pack(%c) {experts = 4, choice = choice} : i32[s 5, t 6, choice 1], i32[bound 5]\n"
       "%x = const {value = 1.0} : f32[s 5, t 6, m 2]\n%t = dispatch(%x, %r, %r) {over = e} : f32[e 4, slot 30~e, m 2]", "offsets must come from a pack"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %c, %g, %l, %h = route(%s) {over = e, top = 1, score = softmax, per = microbatch} : i32[s 5, t 6, choice 1], f32[s 5, t 6, choice 1], f32[e 4], f32[e 4]\n%f = admit(%c) {capacity = 0.5, experts = 4, seq = t, choice = choice} : f32[s 5, t 6, choice 1]\n"
       "%r, %o = pack(%c, %f) {experts = 4, choice = choice} : i32[s 5, t 6, choice 1], i32[bound 5]\n"
       "%x = const {value = 1.0} : f32[s 5, t 6, m 2]\n%t = dispatch(%x, %r, %o) {over = e} : f32[e 4, slot 19~e, m 2]", "the pack makes up to 20"},
      {"%s = read @scores : f32[s 5, t 6, e 4]\n %b = read @bias : f32[e 4]\n"
       "%y = mul(%s, %b) : f32[s 5, t 6, e 4]",
       "'@bias' is balanced, but is used for more than a route's bias"},
      {"%q = read @q : f32[s 5, t 6, h 4, w 2]\n"
       "%r = rope(%q) {seq = t, by = w, style = spiral} : f32[s 5, t 6, h 4, w 2]", "unknown style"},
      {"%x = read @x : f32[a 2, b 4]\n %d = dropout(%x) {rate = 1.5} : f32[a 2, b 4]", "outside"},
      {"%x = read @x : f32[a 2, b 4]\n %d = slice(%x) {over = b, part = p, offset = 3} : "
       "f32[a 2, p 2]", "cuts elements 3 to 5 of 4"},
      {"%x = read @x : f32[a 2, b 4]\n %d = concat(%x, %x) {over = z, parts = [b, b]} : "
       "f32[a 2, z 9]", "8 elements, not 9"},
      {"%x = read @x : f32[a 2, b 4]\n write @ids(%x)", "only the runtime sets"},
      {"%x = read @x : f32[a 2, b 4]\n %f = fused(%x) : f32[a 2, b 4] body(%z : f32[a 2, b 4]) {\n"
       "%s = softmax(%z) {over = b} : f32[a 2, b 4]\n yield(%s)\n }", "holds 'softmax'"},
      {"%x = read @x : f32[a 2, b 4]\n %f = fused(%x) : f32[a 2] body(%z : f32[a 2, b 4]) {\n"
       "%s = sum(%z) : f32[a 2]\n %e = exp(%s) : f32[a 2]\n yield(%e)\n }", "behind the sum"},
  };
  for (const Broken& c : cases) {
    std::string text = std::string("module m model {") + kVars + "func @f {\n" + c.body + "\n}\n}\n";
    Diagnostics diags;
    EXPECT_FALSE(parseModule(diags.addFile("t.ir", text), diags)) << c.body;
    ASSERT_FALSE(diags.messages().empty()) << c.body;
    EXPECT_EQ(diags.messages().front().id, Diag::IrInvalid);
    EXPECT_NE(diags.messages().front().text.find(c.message), std::string::npos)
        << c.body << "\n" << diags.messages().front().text;
  }
}

TEST(Verify, DocumentsAreOfTokens) {
  auto errorFor = [](const std::string& documents) {
    std::string text =
        "module m model {\n  var @tokens : i32[s 5, t 6] input vocab 7\n"
        "  var @targets : i32[s 5, t 6] input vocab 7 follows @tokens\n"
        "  var @documents : " +
        documents + "\n}\n";
    Diagnostics diags;
    parseModule(diags.addFile("t.ir", text), diags);
    return diags.messages().empty() ? std::string() : diags.messages().front().text;
  };
  const Broken cases[] = {
      {"i32[s 5, t 6] input vocab 6 documents @targets separator 3",
       "numbers documents of 'targets'"},
      {"i32[s 5, t 6] input vocab 6 documents @documents separator 3",
       "which is no input of its type"},
      {"i32[s 5, u 6] input vocab 6 documents @tokens separator 3",
       "numbers documents of 'tokens'"},
      {"i32[s 5, t 6] input vocab 6 documents @other separator 3", "numbers documents of 'other'"},
      {"i32[s 5, t 6] input vocab 5 documents @tokens separator 3", "may have 6 documents, not 5"},
      {"i32[s 5, t 6] input vocab 6 documents @tokens", "'separator'"},
  };
  EXPECT_EQ(errorFor("i32[s 5, t 6] input vocab 6 documents @tokens separator 3"), "");
  for (const Broken& c : cases)
    EXPECT_NE(errorFor(c.body).find(c.message), std::string::npos) << c.body << errorFor(c.body);
}

// A piece moves with a repeat around it, of which it has an iteration.
TEST(Verify, PiecesMoveWithARepeatAround) {
  const char* text = R"(module m sharded {
  grid context 4
  set microbatches = 2
  var @k : f32[s 16/context%1] weight init const(0.0)
  func @f {
    %k = const {value = 0.0} : f32[s 16/context%2]
    %e = exp(%k) : f32[s 16/context%2]
    %r = repeat(%e) {count = 3, dim = ring} : f32[s 16/context%3] body(%b : f32[s 16/context%4]) {
      %n = rotate(%b) {axes = [context], by = 1} : f32[s 16/context+1%4]
      yield(%n)
    }
  }
})";
  auto errorFor = [&](std::vector<std::string> moves) {
    std::string filled = text;
    for (size_t i = 0; i < 4; ++i)
      for (std::string mark = "%" + std::to_string(i + 1); filled.find(mark) != std::string::npos;)
        filled.replace(filled.find(mark), 2, moves[i]);
    Diagnostics diags;
    parseModule(diags.addFile("t.ir", filled), diags);
    return diags.messages().empty() ? std::string() : diags.messages().front().text;
  };
  EXPECT_EQ(errorFor({"", "", "+3", "+ring"}), "");
  EXPECT_NE(errorFor({"", "+ring", "+3+ring", "+ring"})
                .find("dim 's' moves with 'ring', which no repeat around counts"),
            std::string::npos);
  EXPECT_NE(errorFor({"", "+layer", "+layer", "+layer"}).find("moves with 'layer'"), std::string::npos);
  // Places of inputs move with the microbatch; pieces don't.
  EXPECT_NE(errorFor({"", "+microbatch", "+microbatch", "+microbatch"}).find("moves with 'microbatch'"),
            std::string::npos);
  EXPECT_NE(errorFor({"+ring", "", "+3", "+ring"}).find("variable '@k': dim 's' moves with 'ring'"),
            std::string::npos);
}

TEST(Verify, PlacesLieInTheArena) {
  const char* text = R"(module m rank {
  arena 0x40
  var @x : f32[a 16] weight init const(0.0) @0x%s
})";
  auto errorFor = [&](const char* offset) {
    std::string filled = text;
    filled.replace(filled.find("%s"), 2, offset);
    Diagnostics diags;
    parseModule(diags.addFile("t.ir", filled), diags);
    return diags.messages().empty() ? std::string() : diags.messages().front().text;
  };
  EXPECT_EQ(errorFor("0"), "");
  EXPECT_NE(errorFor("4").find("outside the arena"), std::string::npos);
  EXPECT_NE(errorFor("1").find("unaligned"), std::string::npos);
  EXPECT_NE(errorFor("7fffffffffffff00").find("outside the arena"), std::string::npos);
}

}  // namespace
}  // namespace planc
