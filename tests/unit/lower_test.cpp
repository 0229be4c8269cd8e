// Lowering: what a plan's text becomes. Rows of facts: types of values by their names in the plan,
// names and sizes of weights, ops in order, sizes of the standard models as published. What is
// refused stands in tests/frontend/errors; here only limits, whose inputs are long.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "frontend/ast.h"
#include "frontend/check.h"
#include "frontend/frontend.h"
#include "frontend/lower.h"
#include "frontend/parse.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace planc {
namespace {

std::string messages(const Diagnostics& diags) {
  std::string text;
  llvm::raw_string_ostream out(text);
  diags.print(out, true);
  return out.str();
}

std::unique_ptr<Module> lowerText(const std::string& text, const CompileOptions& options = {}) {
  Diagnostics diags;
  auto files = readPlanText("test.plan", text, diags);
  std::unique_ptr<Module> module;
  if (!diags.failed()) module = compilePlan(files, options, diags);
  EXPECT_TRUE(module) << text << messages(diags);
  if (module) {
    llvm::Error error = verify(*module);
    EXPECT_FALSE(bool(error)) << text << llvm::toString(std::move(error));
  }
  return module;
}

// A model around a body between the lookup and the head.
std::string modelText(const std::string& body, const std::string& plan = "") {
  return R"(import "std/transformer.plan"
module own(x[batch, seq, model], factor = 2, kind = plain) {
  dim inner = 3
  weight w [model, inner]
  h[batch, seq, inner] = x @ w
  if kind == plain {
    return h * factor
  } else {
    return h
  }
}
model m(top = 2, deep = true) {
  dim batch = 4, seq = 8, model = 16, vocab = 32
  dim head = 4, kv = 2, width = 4, ffn = 24, expert = 4, value = 6, left = 6, right = 10
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model]
  x[batch, seq, model] = table[tokens]
)" + body +
         R"(
  logits[batch, seq, vocab] = x @ table
  loss cross_entropy(logits, targets)
}
plan p of m {
)" + plan +
         "}\n";
}

// The type of the last value with a name (up to the printer's number), anywhere in @forward.
std::string typeOf(const Module& module, const std::string& name) {
  std::string found = "none";
  walk(*module.findFunction("forward")->body, [&](Op* op) {
    for (Value* value : op->results())
      if (value->name == name) found = value->type.str();
  });
  return found;
}

std::string opsOf(const Module& module) {
  std::string text;
  walk(*module.findFunction("forward")->body,
       [&](Op* op) { text += (text.empty() ? "" : " ") + op->info().text.str(); });
  return text;
}

int64_t weightsOf(const Module& module) {
  int64_t count = 0;
  for (const auto& var : module.vars)
    if (var->kind == VarKind::Weight) count += var->type.elements();
  return count;
}

struct TypeCase {
  const char* body;
  const char* value;
  const char* type;
};

TEST(Lower, Types) {
  const TypeCase cases[] = {
      {"", "x", "f32[batch 4, seq 8, model 16]"},
      {"", "logits", "f32[batch 4, seq 8, vocab 32]"},
      {"weight w [ffn, model] y[seq, ffn, batch] = x @ w", "y", "f32[seq 8, ffn 24, batch 4]"},
      {"weight w [model] y[batch] = x @ w", "y", "f32[batch 4]"},
      {"weight a [model, ffn] weight b [ffn, value] y[batch, seq, value] = x @ a @ b", "y",
       "f32[batch 4, seq 8, value 6]"},
      {"y[model, seq, batch] = x + 1", "y", "f32[model 16, seq 8, batch 4]"},
      {"y[batch, model] = mean(x, over = seq)", "y", "f32[batch 4, model 16]"},
      {"y[seq] = sum(x * x)", "y", "f32[seq 8]"},
      {"y[] = mean(square(x))", "y", "f32[]"},
      {"y[batch, seq, model] = 0", "y", "f32[batch 4, seq 8, model 16]"},
      {"y = own(x)", "y", "f32[batch 4, seq 8, inner 3]"},
      {"y = own(x, kind = other)", "y", "f32[batch 4, seq 8, inner 3]"},
      {"y = rms_norm(x) * 2", "y", "f32[batch 4, seq 8, model 16]"},
      {"l[batch, seq, left] = slice(x, over = model, from = 2)", "l",
       "f32[batch 4, seq 8, left 6]"},
      {"l[batch, seq, left] = slice(x, over = model) "
       "r[batch, seq, right] = slice(x, over = model, from = left) "
       "y[batch, seq, model] = concat(l, r)",
       "y", "f32[batch 4, seq 8, model 16]"},
      {"weight wq [model, head, width] weight wk [model, kv, width] weight wv [model, kv, value] "
       "q[batch, seq, head, width] = x @ wq k[batch, seq, kv, width] = x @ wk "
       "v[batch, seq, kv, value] = x @ wv a = attend(q, k, v, causal)",
       "a", "f32[batch 4, seq 8, head 4, value 6]"},
      {"weight w [model, expert] s[batch, seq, expert] = x @ w r = route(s, 2) "
       "t[expert, slot, model] = dispatch(x, r) x = combine(t, r)",
       "t", "f32[expert 4, slot 64~expert, model 16]"},
      // capacity: 4 experts of 4 sequences of ceil(0.5 * 8 * 2 / 4) tokens.
      {"weight w [model, expert] s[batch, seq, expert] = x @ w r = route(s, 2, capacity = 0.5) "
       "t[expert, slot, model] = dispatch(x, r) x = combine(t, r)",
       "t", "f32[expert 4, slot 32~expert, model 16]"},
      {"weight w [model, expert] weight b [expert, model] s[batch, seq, expert] = x @ w "
       "r = route(s, 1) t[expert, slot, model] = dispatch(x, r) o[expert, slot, model] = b + t "
       "x = combine(o, r)",
       "o", "f32[expert 4, slot 32~expert, model 16]"},
  };
  for (const TypeCase& c : cases) {
    if (auto module = lowerText(modelText(c.body))) {
      EXPECT_EQ(typeOf(*module, c.value), c.type) << c.body;
    }
  }
}

// A rank's piece of a sequence may have all of the tokens that an expert takes of it, so only the tokens
// bound the rows.
TEST(Lower, CapacityBoundsRowsOfWholeSequences) {
  const char* body =
      "weight w [model, expert] s[batch, seq, expert] = x @ w r = route(s, 2, capacity = 0.5) "
      "t[expert, slot, model] = dispatch(x, r) x = combine(t, r)";
  auto module = lowerText(modelText(body, "grid tensor 2 split seq over tensor by gather\n"));
  ASSERT_TRUE(module);
  EXPECT_EQ(typeOf(*module, "t"), "f32[expert 4, slot 64~expert, model 16]");
}

TEST(Lower, Precision) {
  auto module = lowerText(modelText("", "precision bf16 { master f32, gradients f32 }\n"));
  ASSERT_TRUE(module);
  EXPECT_EQ(module->findVar("table")->type.str(), "f32[vocab 32, model 16]");
  EXPECT_EQ(typeOf(*module, "logits"), "bf16[batch 4, seq 8, vocab 32]");
  EXPECT_EQ(typeOf(*module, "loss"), "f32[]");
  EXPECT_EQ(opsOf(*module), "read cast read lookup read cast einsum read read cross_entropy accum");
  EXPECT_EQ(module->settings.word("precision"), "bf16");

  module = lowerText(modelText("loss 0.5 * mean(square(x))", "precision f64\n"));
  ASSERT_TRUE(module);
  EXPECT_EQ(module->findVar("table")->type.elem, Elem::F64);
  EXPECT_EQ(module->findVar("loss")->type.elem, Elem::F64);
}

TEST(Lower, Weights) {
  auto module = lowerText(modelText(R"(
  repeat layer = 3 {
    x = x + attention(norm(x), bias = true)
    x = x + mlp(norm(x), hidden = value)
    repeat block = 2 {
      weight scale [model] init ones
      weight mix [model] init normal(0.1) decay
      x = x * scale + mix
    }
  }
  x = norm(norm(x)))"));
  ASSERT_TRUE(module);
  struct {
    const char *name, *type;
    bool decay;
    Init init;
  } const weights[] = {
      {"table", "f32[vocab 32, model 16]", true, {"normal", 0.02}},
      {"layer.norm.scale", "f32[layer 3, model 16]", false, {"const", 1}},
      {"layer.norm_2.scale", "f32[layer 3, model 16]", false, {"const", 1}},
      {"layer.attention.wq", "f32[layer 3, model 16, head 4, width 4]", true, {"normal", 0.02}},
      {"layer.attention.bq", "f32[layer 3, head 4, width 4]", false, {"const", 0}},
      {"layer.mlp.down", "f32[layer 3, value 6, model 16]", true, {"normal", 0.02}},
      {"layer.block.scale", "f32[layer 3, block 2, model 16]", false, {"const", 1}},
      {"layer.block.mix", "f32[layer 3, block 2, model 16]", true, {"normal", 0.1}},
      {"norm.scale", "f32[model 16]", false, {"const", 1}},
      {"norm_2.scale", "f32[model 16]", false, {"const", 1}},
  };
  for (const auto& expected : weights) {
    const Variable* var = module->findVar(expected.name);
    ASSERT_TRUE(var) << expected.name;
    EXPECT_EQ(var->type.str(), expected.type) << expected.name;
    EXPECT_EQ(var->decay, expected.decay) << expected.name;
    EXPECT_TRUE(var->init == expected.init) << expected.name;
  }
  EXPECT_EQ(module->findVar("layer.block.mix")->stack, (Words{"layer", "block"}));
}

// Attention's last operands are the documents of the queries and of the keys, an input like others.
TEST(Lower, Documents) {
  auto module = lowerText(modelText(R"(
  input documents[batch, seq] : document(tokens, 3 + 1)
  repeat layer = 2 {
    x = x + attention(norm(x), documents = documents)
    x = x + attention(norm(x))
  })",
                                    "microbatches 3\n"));
  ASSERT_TRUE(module);
  const Variable& documents = *module->findVar("documents");
  EXPECT_EQ(documents.type.str(), "i32[microbatch 3, batch 4, seq 8]");
  EXPECT_EQ(documents.documents, "tokens");
  EXPECT_EQ(documents.separator, 4);
  EXPECT_EQ(documents.vocab, 8);
  EXPECT_EQ(module->findVar("targets")->follows, "tokens");
  std::vector<size_t> operands;
  walk(*module->findFunction("forward")->body, [&](Op* op) {
    if (op->kind != OpKind::Attend) return;
    operands.push_back(op->operands().size());
    if (operands.back() == 3) return;
    EXPECT_EQ(op->operand(3), op->operand(4));
    EXPECT_EQ(op->operand(3)->def()->var, &documents);
  });
  EXPECT_EQ(operands, (std::vector<size_t>{5, 3}));
}

TEST(Lower, Step) {
  auto module = lowerText(modelText(R"(
  x = x + moe(norm(x), top, balance = 0.01)
  loss 0.1 * mean(square(x)))",
                                    "microbatches 3\n"));
  ASSERT_TRUE(module);
  EXPECT_EQ(module->findVar("tokens")->type.str(), "i32[microbatch 3, batch 4, seq 8]");
  EXPECT_EQ(module->findVar("targets")->follows, "tokens");
  EXPECT_EQ(module->findVar("targets")->vocab, 32);
  const std::vector<Call> schedule = {
      {"begin", -1}, {"forward", 0}, {"forward", 1}, {"forward", 2}};
  EXPECT_EQ(module->schedule, schedule);
  std::string begin;
  for (Op* op : module->findFunction("begin")->body->ops) begin += op->info().text.str() + " ";
  EXPECT_EQ(begin, "read count_valid write zero zero zero ");
  // Two metrics are the penalty and the loads. The penalty and the mean count by a third each; the sum over targets is the step's already.
  int accums = 0, thirds = 0;
  walk(*module->findFunction("forward")->body, [&](Op* op) {
    accums += op->kind == OpKind::Accum;
    thirds += op->kind == OpKind::Const && op->attrs.number("value") == 1.0 / 3;
  });
  EXPECT_EQ(accums, 5);
  EXPECT_EQ(thirds, 3);
}

// balance * experts/(top*T) / T, and the mean over groups of T tokens each.
TEST(Lower, Penalty) {
  struct {
    const char *args, *load;
    double factor;
  } cases[] = {
      {"balance = 0.01", "f32[expert 4]", 0.01 * 4 / (2 * 32.0 * 32)},
      {"balance = 0.01, per = sequence", "f32[batch 4, expert 4]", 0.01 * 4 / (2 * 8.0 * 8) / 4},
      {"balance = 0", "f32[expert 4]", 0}};
  for (const auto& c : cases) {
    auto module = lowerText(modelText(std::string("x = x + moe(norm(x), top, ") + c.args + ")"));
    ASSERT_TRUE(module);
    EXPECT_EQ(typeOf(*module, "load"), c.load) << c.args;
    EXPECT_EQ(typeOf(*module, "share"), c.load) << c.args;
    EXPECT_EQ(module->findVar("penalty") != nullptr, c.factor > 0) << c.args;
    double factor = 0;
    walk(*module->findFunction("forward")->body, [&](Op* op) {
      if (!op->results().empty() && op->result()->name == "penalty")
        factor = op->operand(1)->def()->attrs.number("value");
    });
    EXPECT_NEAR(factor, c.factor, 1e-15) << c.args;
  }
}

TEST(Lower, Repeat) {
  // `y` is only read after it was set in each iteration, `z` is read after the repeat.
  auto module = lowerText(modelText(R"(
  y[batch, seq, model] = x
  z[batch, seq, model] = x
  first[batch, seq, model] = x
  repeat layer = 5 {
    y = silu(x)
    z = y + first
    x = x + y
  }
  x = x + z)"));
  ASSERT_TRUE(module);
  Op* repeat = nullptr;
  walk(*module->findFunction("forward")->body, [&](Op* op) {
    if (op->kind == OpKind::Repeat) repeat = op;
  });
  ASSERT_TRUE(repeat);
  EXPECT_EQ(repeat->attrs.integer("count"), 5);
  EXPECT_EQ(repeat->attrs.word("dim"), "layer");
  ASSERT_EQ(repeat->results().size(), 2u);
  EXPECT_EQ(repeat->result(0)->name, "x");
  EXPECT_EQ(repeat->result(1)->name, "z");
}

struct CountCase {
  const char* plan;
  int64_t weights;
};

TEST(Lower, StandardModels) {
  const CountCase cases[] = {
      {"gpt2()", 124'439'808},
      {"gpt2(layers = 24, head = 16, model = 1024)", 354'823'168},
      {"gpt2(layers = 48, head = 25, model = 1600)", 1'557'611'200},
      {"llama3()", 8'030'261'248},
      {"llama3(layers = 16, model = 2048, ffn = 8192, tied = true)", 1'235'814'400},
      {"llama3_8b()", 8'030'261'248},
      {"llama3_70b()", 70'553'706'496},
      {"llama3_405b()", 405'853'388'800},
      {"mixtral()", 46'702'792'704},
      {"qwen_moe()", 30'532'122'624},
      {"qwen_moe(layers = 94, model = 4096, ffn = 1536, head = 64)", 235'093'634'560},
      {"deepseek_v3()", 671'026'419'200},
  };
  for (const CountCase& c : cases) {
    llvm::StringRef model = llvm::StringRef(c.plan).split('(').first;
    std::string args = llvm::StringRef(c.plan).split('(').second.str();
    std::string file = model.take_front(6) == "llama3" ? "llama3" : model.str();
    std::string call = args == ")" ? model.str() : c.plan;
    auto module = lowerText("import \"std/" + file + ".plan\"\nplan p of " + call + " {\n}\n");
    if (module) {
      EXPECT_EQ(weightsOf(*module), c.weights) << c.plan;
    }
  }
}

TEST(Lower, Overrides) {
  const std::string text = R"(import "std/gpt2.plan"
plan p of gpt2(layers = 2, head = 2, model = 8, seq = 4, vocab = 16, bias = false) {
}
)";
  CompileOptions options;
  options.defines = {{"layers", "3"}, {"bias", "true"}};
  auto module = lowerText(text, options);
  ASSERT_TRUE(module);
  EXPECT_EQ(module->findVar("layer.attention.wq")->type.size("layer"), 3);
  EXPECT_TRUE(module->findVar("layer.attention.bq"));
  EXPECT_FALSE(lowerText(text)->findVar("layer.attention.bq"));
}

// The lines of a module that say how it lies over ranks.
std::string layoutOf(const Module& module) {
  std::string text, layout;
  llvm::raw_string_ostream out(text);
  PrintOptions options;
  options.locations = false;
  printModule(module, out, options);
  for (llvm::StringRef rest = out.str(); !rest.empty(); rest = rest.split('\n').second) {
    llvm::StringRef line = rest.split('\n').first;
    for (llvm::StringRef word : {"  grid ", "  split ", "  shard "})
      if (line.substr(0, word.size()) == word) layout += line.drop_front(2).str() + "\n";
  }
  return layout;
}

struct LayoutCase {
  const char* plan;
  std::vector<std::pair<std::string, std::string>> grid;  // --grid
  const char* layout;
};

// Grid, splits and shards stand in the module in the plan's order: of lines, of dims, of targets.
TEST(Lower, Layout) {
  const std::string body =
      "repeat layer = 2 { x = x + attention(norm(x)) x = x + moe(norm(x)) x = x + mlp(norm(x)) }";
  const LayoutCase cases[] = {
      {"", {}, ""},
      {"grid data 1, tensor 1 split batch over data shard weights over data", {}, ""},
      {"grid auto", {}, ""},
      {"grid tensor 2, data 4 split kv, batch over data shard optimizer over data",
       {{"data", "2"}},
       "grid tensor 2, data 2\nsplit kv over data\nsplit batch over data\n"
       "shard optimizer over data\n"},
      {"grid a 2, b 2, c 2, d 1 split ffn, head over b, a split seq over c by gather, d "
       "split batch over d shard weights, optimizer over c, d, a shard gradients over d",
       {},
       "grid a 2, b 2, c 2\nsplit ffn over b, a\nsplit head over b, a\n"
       "split seq over c by gather\nshard weights over c, a\nshard optimizer over c, a\n"},
      // One entry of strict axes and one of weak ones, which are cut innermost.
      {"grid a 2, b 2, c 2 split ffn over a by gather, b, c by gather split model over b, a by gather",
       {},
       "grid a 2, b 2, c 2\nsplit ffn over b\nsplit ffn over a, c by gather\n"
       "split model over b\nsplit model over a by gather\n"},
      // Attention's dims: a ring is in zigzag order unless told otherwise, what is gathered is not; a
      // ring's pieces are cut by heads, and those gathered.
      {"grid a 2 split seq over a", {}, "grid a 2\nsplit seq over a by ring order zigzag\n"},
      {"grid a 2 split seq over a by ring(contiguous)", {}, "grid a 2\nsplit seq over a by ring\n"},
      {"grid a 2 split seq over a by gather(zigzag)",
       {},
       "grid a 2\nsplit seq over a by gather order zigzag\n"},
      {"grid a 2, b 2, c 2, d 1, e 1 split seq over a by gather, b by heads, c, d by ring, e by heads",
       {},
       "grid a 2, b 2, c 2\nsplit seq over c by ring order zigzag\nsplit seq over b by heads\n"
       "split seq over a by gather\n"},
      {"grid a 2, b 2 split seq over a, b by ring",
       {},
       "grid a 2, b 2\nsplit seq over a, b by ring order zigzag\n"},
      // Experts: room for all rows, or for so many times the even share.
      {"grid a 2, b 2 split expert over b, a", {}, "grid a 2, b 2\nsplit expert over b, a\n"},
      {"grid a 2 split expert over a by dispatch", {}, "grid a 2\nsplit expert over a\n"},
      {"grid a 2, b 2 split expert over b by dispatch(1.25), a",
       {},
       "grid a 2, b 2\nsplit expert over b, a room 1.25\n"},
      // A plan without a grid takes its axes from the command line.
      {"split batch over data split vocab over tensor",
       {{"tensor", "3"}, {"data", "2"}},
       "grid tensor 3, data 2\nsplit batch over data\nsplit vocab over tensor\n"},
      // Kv heads that no split names follow their heads; a vocabulary may be uneven (32 over 5).
      {"grid tensor 4 split head over tensor", {}, "grid tensor 4\nsplit head over tensor\n"},
      {"grid tensor 5 split vocab over tensor", {}, "grid tensor 5\nsplit vocab over tensor\n"},
      // What is not there yet does no harm where its axis has one rank.
      {"grid pipe 1, context 1, expert 1, data 2 split layer over pipe by zero_bubble "
       "split seq over context split expert over expert split batch over data",
       {},
       "grid data 2\nsplit batch over data\n"},
  };
  for (const LayoutCase& c : cases) {
    CompileOptions options;
    options.grid = c.grid;
    auto module = lowerText(modelText(body, c.plan), options);
    if (!module) continue;
    EXPECT_EQ(layoutOf(*module), c.layout) << c.plan;
  }
}

// Axes that a level's units end within are in two parts, the outer one across them.
TEST(Lower, Scopes) {
  const std::string text = R"(import "std/transformer.plan"
device chip { memory 80 GiB }
cluster pod { node 4 of chip { link 1 GB/s } pod 8 of node { link 1 GB/s } }
model m {
  dim batch = 2, seq = 64, model = 8, head = 8, kv = 4, width = 2, vocab = 8, ffn = 16
  input tokens[batch, seq] : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model]
  x[batch, seq, model] = table[tokens]
  x = attention(x)
  logits[batch, seq, vocab] = x @ table
  loss cross_entropy(logits, targets)
}
plan p of m on pod { )";
  const std::pair<const char*, const char*> cases[] = {
      {"grid a 8 split seq over a by ring within node, heads across",
       "grid a_a 2 of a, a_b 4 of a\nsplit seq over a_b by ring order zigzag\n"
       "split seq over a_a by heads\n"},
      {"grid a 4, b 2 split seq over a by heads within node, ring across split ffn over a by gather",
       "grid a_a 2 of a, a_b 2 of a, b 2\nsplit seq over a_a by ring order zigzag\n"
       "split seq over a_b by heads\nsplit ffn over a_a, a_b by gather\n"},
      // All of it lies in one unit, or each rank in its own.
      {"grid b 2, a 4 split seq over a by ring within node, heads across",
       "grid b 2, a 4\nsplit seq over a by ring order zigzag\n"},
      {"grid a 2, b 4 split seq over a by ring within node, heads across",
       "grid a 2, b 4\nsplit seq over a by heads\n"},
      {"grid a 1 split seq over a by ring within node, heads across", ""},
      {"grid a 2, a_b 3, b 2, a_a 1 split seq over a by ring within pod",
       "grid a 2, a_b 3, b 2\nsplit seq over a by ring order zigzag\n"},
      {"grid a 8, a_b 1, b_a 2, b 1 split seq over a by heads within node",
       "grid a_a 4 of a, a_b 2 of a, b_a 2\nsplit seq over a_b by heads\n"},
  };
  for (const auto& [plan, layout] : cases) {
    auto module = lowerText(text + plan + "}");
    if (!module) continue;
    EXPECT_EQ(layoutOf(*module), layout) << plan;
  }
}

// A split knows its dim's place in the plan.
TEST(Lower, SplitPlaces) {
  auto module = lowerText(modelText("", "grid data 2\n  split seq, batch over data by gather\n"));
  ASSERT_TRUE(module);
  ASSERT_EQ(module->splits.size(), 2u);
  EXPECT_EQ(module->splits[1].loc.line, module->splits[0].loc.line);
  EXPECT_EQ(module->splits[0].loc.column, 9u);
  EXPECT_EQ(module->splits[1].loc.column, 14u);
}

// What a module holds of a plan's pipeline: dims in the model's order, whatever the plan's.
TEST(Lower, Pipelines) {
  const std::string body =
      "repeat first = 2 { x = silu(x) }\n"
      "repeat layer = 3 { x = silu(x) }\nrepeat layer = 1 { x = silu(x) }\n"
      "repeat last = 2 { repeat inner = 2 { x = silu(x) } }\n";
  auto pipeline = [&](const std::string& split,
                      std::vector<std::pair<std::string, std::string>> grid = {}) {
    CompileOptions options;
    options.grid = std::move(grid);
    auto module =
        lowerText(modelText(body, "grid data 1, pipe 2\nmicrobatches 2\n" + split + "\n"), options);
    return module ? module->pipeline : Pipeline();
  };
  Pipeline plain = pipeline("split layer over pipe");
  EXPECT_EQ(plain.axis, "pipe");
  EXPECT_EQ(plain.dims, Words{"layer"});
  EXPECT_EQ(plain.schedule, "one_f_one_b");
  EXPECT_EQ(plain.chunks, 1);
  EXPECT_TRUE(plain.counts.empty());
  EXPECT_EQ(plain.loc.column, 7u);

  Pipeline all = pipeline("split last, layer, first over pipe by interleaved(2) stages 2 2 2 2");
  EXPECT_EQ(all.dims, (Words{"first", "layer", "last"}));
  EXPECT_EQ(all.schedule, "interleaved");
  EXPECT_EQ(all.chunks, 2);
  EXPECT_EQ(all.counts, (std::vector<int64_t>{2, 2, 2, 2}));

  EXPECT_EQ(pipeline("split layer over pipe by zero_bubble_v").chunks, 2);
  EXPECT_EQ(pipeline("split layer over pipe", {{"pipe", "1"}}).axis, "");
  EXPECT_EQ(pipeline("split layer over data", {{"pipe", "1"}, {"data", "4"}}).axis, "data");
  EXPECT_EQ(pipeline("split layer over data").axis, "");
}

// A schedule of the user's own lies beside the plan; the module has its tasks without comments.
TEST(Lower, PipelineByFile) {
  Diagnostics diags;
  std::string path = PLANC_SOURCE_DIR "/tests/frontend/errors/none.plan";
  for (auto [name, chunks, order] : {std::tuple("two", 1, "F0 F1 B0 B1\nF0 B0 F1 B1\n"),
                                     {"v", 2, "F0.0 F0.3 B0.3 B0.0\nF0.1 F0.2 B0.2 B0.1\n"}}) {
    std::string plan = std::string("grid pipe 2\nmicrobatches ") + (chunks == 1 ? "2" : "1") +
                       "\nsplit layer over pipe by schedule(\"parts/" + name + ".schedule\")\n";
    auto files = readPlanText(path, modelText("repeat layer = 4 { x = silu(x) }\n", plan), diags);
    auto module = compilePlan(files, {}, diags);
    ASSERT_TRUE(module) << messages(diags);
    EXPECT_EQ(module->pipeline.schedule, std::string("parts/") + name + ".schedule");
    EXPECT_EQ(module->pipeline.chunks, chunks);
    EXPECT_EQ(module->pipeline.order, order);
  }
}

// The plan files that are shipped compile or, where they need what this version can't compile, are
// found right.
TEST(Lower, ShippedPlans) {
  for (const char* folder : {"std", "examples"})
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(PLANC_SOURCE_DIR) / folder)) {
      if (entry.path().extension() != ".plan") continue;
      Diagnostics diags;
      auto files = readPlan(entry.path().string(), diags);
      EXPECT_TRUE(!diags.failed() && checkPlans(files, {}, diags)) << entry.path() << "\n"
                                                                   << messages(diags);
    }
}

TEST(Lower, BuiltinNamesHaveARule) {
  for (llvm::StringRef name : builtinNames())
    EXPECT_TRUE(lowering::findBuiltin(name)) << name.str();
}

// Inputs made to exhaust the compiler end in an error.
TEST(Lower, Limits) {
  std::string manyDims = "dim d0 = 1", deepCalls, wide;
  for (int i = 1; i < 1100; ++i) manyDims += ", d" + std::to_string(i) + " = 1";
  // Each module calls the one before twice: 2^40 instances.
  deepCalls = "module f0(x[batch, seq, model]) { return x }\n";
  for (int i = 1; i <= 40; ++i) {
    std::string before = "f" + std::to_string(i - 1);
    deepCalls += "module f" + std::to_string(i) + "(x[batch, seq, model]) { return " + before +
                 "(x) + " + before + "(x) }\n";
  }
  std::string nested;
  for (int i = 0; i < 20; ++i) nested += "repeat r" + std::to_string(i) + " = 2 {\n";
  nested += "x = silu(x)\n" + std::string(20, '}');
  const std::pair<std::string, Diag> cases[] = {
      {modelText(manyDims), Diag::TooLarge},
      {deepCalls + modelText("x = f40(x)"), Diag::TooLarge},
      {modelText(nested), Diag::TooDeep},
  };
  for (const auto& [text, id] : cases) {
    Diagnostics diags;
    auto files = readPlanText("test.plan", text, diags);
    EXPECT_FALSE(compilePlan(files, {}, diags));
    EXPECT_TRUE(std::any_of(diags.messages().begin(), diags.messages().end(),
                            [id = id](const Diagnostic& m) { return m.id == id; }))
        << messages(diags);
  }
}

}  // namespace
}  // namespace planc
