// Tiny models, one per builtin or feature, for the gradient and equivalence tests: each row is a
// body between the lookup (x) and the head (y), with what it needs.
#pragma once

#include <ostream>
#include <string>

#include "compile.h"

namespace planc::test {

struct TinyModel {
  const char* name;
  const char* body;           // sets y[batch, seq, model] from x
  const char* dims = "";      // more dims
  const char* plan = "";      // more statements of the plan
  bool hasDocuments = false;  // attention sees only the query's document: see addDocuments
};

inline void PrintTo(const TinyModel& model, std::ostream* out) { *out << model.body; }

// `precision` and `microbatches` are the caller's.
inline std::string planText(const TinyModel& model, const std::string& settings) {
  return std::string("import \"std/transformer.plan\"\n") + R"(
model tiny(layers = 2) {
  dim batch = 2, seq = 6, model = 8, vocab = 11
  )" + model.dims + R"(
  input tokens[batch, seq] : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table[vocab, model] init normal(0.7)
  weight out[model, vocab] init normal(0.5)
  x[batch, seq, model] = table[tokens]
  )" + model.body + R"(
  logits[batch, seq, vocab] = y @ out
  loss cross_entropy(logits, targets)
}
plan p of tiny {
)" + settings + "\n" + model.plan + "\n}\n";
}

// An input of document ids, 0 and 1 in any order, for every attention.
inline void addDocuments(Module& module) {
  Variable documents;
  documents.name = "documents";
  documents.kind = VarKind::Input;
  documents.vocab = 2;
  documents.type = module.findVar("tokens")->type;
  documents.stack = module.findVar("tokens")->stack;
  Variable* var = module.addVar(std::move(documents));
  std::vector<Op*> attends;
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      if (op->kind == OpKind::Attend) attends.push_back(op);
    });
  for (Op* op : attends) {
    Builder builder(op->parent(), op->parent()->indexOf(op));
    Type slice = var->slice(var->stack);
    Value* ids = builder.create(OpKind::Read, {}, {slice}, {}, var, "documents")->result();
    op->addOperand(ids);
    op->addOperand(ids);
  }
}

// The model, whose plan has these settings besides.
inline std::unique_ptr<Module> compileModel(const TinyModel& model, const std::string& settings) {
  auto module = compileText(planText(model, settings));
  if (module && model.hasDocuments) addDocuments(*module);
  return module;
}

inline const TinyModel kModels[] = {
    {"plain", "y[batch, seq, model] = x"},
    {"add_sub", "weight b[model] weight c[seq, model] y[batch, seq, model] = x + b - c * x"},
    {"mul_div", "weight b[model] init normal(1.0) y[batch, seq, model] = x * b / (2.5 + exp(b))"},
    {"neg_exp", "y[batch, seq, model] = exp(-x)"},
    {"log_sqrt", "y[batch, seq, model] = log(1 + square(x)) + sqrt(1 + square(x))"},
    {"rsqrt", "y[batch, seq, model] = rsqrt(1 + square(x))"},
    {"tanh_sigmoid", "y[batch, seq, model] = tanh(x) * sigmoid(x)"},
    {"silu", "y[batch, seq, model] = silu(x)"},
    {"gelu", "y[batch, seq, model] = gelu(x)"},
    {"gelu_tanh", "y[batch, seq, model] = gelu_tanh(x)"},
    {"relu", "y[batch, seq, model] = square(relu(x))"},
    {"max_min", "weight b[model] init normal(1.0) y[batch, seq, model] = max(x, b) + min(x, 2 * b)"},
    {"softmax", "y[batch, seq, model] = softmax(x, over = model) + softmax(x, over = seq)"},
    {"rms_norm", "weight s[model] init normal(1.0) y[batch, seq, model] = rms_norm(x, over = model) * s"},
    {"layer_norm", "weight s[model] init normal(1.0) y[batch, seq, model] = layer_norm(x, over = model) * s"},
    {"norm_over_seq", "y[batch, seq, model] = rms_norm(x, over = seq)"},
    {"sum_mean", "m[batch, model] = mean(x, over = seq) s[seq, model] = sum(x, over = batch) "
                 "y[batch, seq, model] = m * s"},
    {"contract", "weight a[model, wide] weight b[wide, model] h[batch, seq, wide] = x @ a "
                 "y[batch, seq, model] = h @ b", "dim wide = 5"},
    {"contract_batched", "weight a[seq, model, wide] weight b[wide, seq, model] h[seq, batch, wide] = x @ a "
                         "y[batch, seq, model] = h @ b", "dim wide = 3"},
    {"permuted", "t[model, batch, seq] = x weight a[wide, model] h[wide, seq, batch] = t @ a "
                 "weight b[model, wide] y[batch, seq, model] = b @ h", "dim wide = 3"},
    {"table", "weight pos[seq, model] y[batch, seq, model] = x + pos"},
    {"rope_half", "weight w[model, head, width] init normal(0.5) q[batch, seq, head, width] = x @ w "
                  "r[batch, seq, head, width] = rope(q) weight o[head, width, model] "
                  "y[batch, seq, model] = r @ o", "dim head = 2, width = 4"},
    {"rope_pairs", "weight w[model, head, width] init normal(0.5) q[batch, seq, head, width] = x @ w "
                   "r[batch, seq, head, width] = rope(q, style = pairs, theta = 100) "
                   "weight o[head, width, model] y[batch, seq, model] = r @ o",
     "dim head = 2, width = 4"},
    {"attention", "y[batch, seq, model] = attention(x)", "dim head = 4, kv = 2, width = 4"},
    {"attend_full", "weight w[model, head, width] init normal(0.5) weight v[model, head, width] "
                    "q[batch, seq, head, width] = x @ w k[batch, seq, head, width] = x @ v "
                    "a[batch, seq, head, width] = attend(q, k, k) weight o[head, width, model] "
                    "y[batch, seq, model] = a @ o", "dim head = 2, width = 4"},
    {"attend_window", "weight w[model, head, width] init normal(0.5) weight u, v[model, kv, width] "
                      "q[batch, seq, head, width] = x @ w k[batch, seq, kv, width] = x @ u "
                      "z[batch, seq, kv, width] = x @ v "
                      "a[batch, seq, head, width] = attend(q, k, z, causal, window = 3) "
                      "weight o[head, width, model] y[batch, seq, model] = a @ o",
     "dim head = 4, kv = 1, width = 2"},
    {"attend_wide_values", "weight w, u[model, head, key] init normal(0.5) weight v[model, head, width] "
                           "q[batch, seq, head, key] = x @ w k[batch, seq, head, key] = x @ u "
                           "z[batch, seq, head, width] = x @ v "
                           "a[batch, seq, head, width] = attend(q, k, z, causal, by = key) "
                           "weight o[head, width, model] y[batch, seq, model] = a @ o",
     "dim head = 2, key = 6, width = 3"},
    {"attend_documents", "y[batch, seq, model] = attention(x)", "dim head = 4, kv = 2, width = 4", "",
     true},
    {"documents_recomputed", "repeat layer = layers { x = x + attention(norm(x)) "
                             "x = x + mlp(norm(x)) } y[batch, seq, model] = norm(x)",
     "dim head = 2, kv = 1, width = 4, ffn = 12", "recompute attend, layer", true},
    {"concat_slice", "weight a[model, left] weight b[model, right] l[batch, seq, left] = x @ a "
                     "r[batch, seq, right] = x @ b j[batch, seq, both] = concat(l, r) "
                     "s[batch, seq, part] = slice(j, over = both, from = 2) weight c[part, model] "
                     "y[batch, seq, model] = s @ c",
     "dim left = 3, right = 4, part = 3, both = left + right"},
    {"dropout", "y[batch, seq, model] = dropout(x, 0.3)"},
    {"layers", "repeat layer = layers { x = x + attention(norm(x)) x = x + mlp(norm(x)) } "
               "y[batch, seq, model] = norm(x)", "dim head = 2, kv = 1, width = 4, ffn = 12"},
    {"layers_recomputed", "repeat layer = layers { x = x + attention(norm(x)) x = x + mlp(norm(x)) } "
                          "y[batch, seq, model] = norm(x)", "dim head = 2, kv = 1, width = 4, ffn = 12",
     "recompute layer"},
    {"ops_recomputed", "repeat layer = layers { x = x + dropout(attention(norm(x)), 0.2) "
                       "x = x + mlp(norm(x)) } y[batch, seq, model] = norm(x)",
     "dim head = 2, kv = 1, width = 4, ffn = 12", "recompute attend, rms_norm, silu"},
    {"nested", "repeat outer = 2 { repeat inner = 3 { x = x + dropout(mlp(norm(x)), 0.1) } "
               "x = norm(x) } y[batch, seq, model] = x", "dim ffn = 5"},
    {"outer_value", "z[batch, seq, model] = tanh(x) repeat layer = 3 { x = x + z * norm(x) } "
                    "y[batch, seq, model] = x"},
    {"shared_weight", "weight w[model, other] weight u[other, model] repeat layer = 3 { "
                      "h[batch, seq, other] = x @ w x = x + h @ u } y[batch, seq, model] = x",
     "dim other = 8"},
    {"two_carried", "a[batch, seq, model] = x b[batch, seq, model] = tanh(x) repeat layer = 3 { "
                    "t[batch, seq, model] = a a = b + sigmoid(t) b = t * 0.5 } "
                    "y[batch, seq, model] = a + b"},
    {"slot_read_by_repeat", "weight pos[seq, model] init normal(0.5) z[batch, seq, model] = x + pos "
                            "repeat layer = 3 { x = rms_norm(x) * z } y[batch, seq, model] = x"},
    {"slot_read_by_inner", "repeat layer = 2 { weight w[model] z[batch, seq, model] = silu(x * w) "
                           "repeat k = 3 { x = rms_norm(x) * z } } y[batch, seq, model] = x"},
    {"dropout_recomputed", "h[batch, seq, model] = dropout(x, 0.3) "
                           "repeat layer = 3 { x = tanh(x) * h } y[batch, seq, model] = x",
     "", "recompute dropout"},
    {"inner_recomputed", "repeat layer = 2 { h[batch, seq, model] = dropout(x, 0.3) "
                         "repeat k = 3 { x = rms_norm(x) * h } } y[batch, seq, model] = x",
     "", "recompute layer"},
    {"dead_value", "v[batch, seq, model] = gelu(x) + 0.5 * x y[batch, seq, model] = x"},
    {"sum_inside_chain", "e[batch, seq, model] = exp(x) s[batch, seq] = sum(e, over = model) "
                         "y[batch, seq, model] = x / s + e"},
    {"sum_before_last", "h[batch, seq, model] = exp(x) m[batch, seq] = sum(h, over = model) "
                        "g[batch, seq, model] = tanh(h) y[batch, seq, model] = g / m"},
    {"slice_named_before", "weight a[model, left] l[batch, seq, left] = x @ a weight d[model, before] "
                           "b[batch, seq, before] = x @ d j[batch, seq, left, before] = l * b "
                           "s[batch, seq, part, before] = slice(j, over = left, from = 2) "
                           "weight c[part, before, model] y[batch, seq, model] = s @ c",
     "dim left = 5, before = 2, part = 3"},
    {"rows_summed", "weight r[model, expert] s[batch, seq, expert] = x @ r rt = route(s, 2) "
                    "t[expert, slot, model] = dispatch(x, rt) c[expert] = sum(t) "
                    "o[expert, slot, model] = t * c y[batch, seq, model] = combine(o, rt)",
     "dim expert = 3"},
    {"rows_and_groups", "weight r[model, expert] s[batch, seq, expert] = x @ r rt = route(s, 2) "
                        "t[expert, slot, model] = dispatch(x, rt) c[model] = sum(t) "
                        "u[expert, slot, model] = tanh(t) d[model] = t @ u "
                        "y[batch, seq, model] = x * c + d",
     "dim expert = 3"},
    {"rows_by_groups", "weight r[model, expert] s[batch, seq, expert] = x @ r rt = route(s, 2) "
                       "t[expert, slot, model] = dispatch(x, rt) weight g[expert] init normal(0.5) "
                       "c[expert, model] = t @ g o[expert, slot, model] = t * c "
                       "y[batch, seq, model] = combine(o, rt)",
     "dim expert = 3"},
    {"rows_share", "weight r[model, expert] s[batch, seq, expert] = x @ r rt = route(s, 2) "
                   "t[expert, slot, model] = dispatch(x, rt) weight w[model, wide] weight v[wide, model] "
                   "weight g[model] init normal(1.0) weight b[expert, model] init normal(0.5) "
                   "h[expert, slot, wide] = (rms_norm(t, over = model) * g) @ w "
                   "o[expert, slot, model] = silu(h) @ v y[batch, seq, model] = combine(o + b, rt)",
     "dim expert = 3, wide = 5"},
    {"moe", "y[batch, seq, model] = moe(x, top = 2, balance = 0.1)", "dim expert = 4, ffn = 6"},
    {"moe_sequences", "y[batch, seq, model] = moe(x, top = 2, balance = 0.1, score = sigmoid, "
                      "per = sequence)", "dim expert = 4, ffn = 6"},
    {"moe_capacity", "y[batch, seq, model] = moe(x, top = 2, balance = 0.1, capacity = 0.8)",
     "dim expert = 4, ffn = 6"},
    {"moe_plain_gates", "y[batch, seq, model] = moe(x, top = 2, normalise = false, capacity = 0.9, "
                        "per = sequence, scale = 2)", "dim expert = 4, ffn = 6"},
    {"moe_groups", "y[batch, seq, model] = moe(x, top = 3, groups = 4, kept = 2, score = sigmoid, "
                   "group_score = best2, scale = 2.5)", "dim expert = 8, ffn = 6"},
    {"moe_best_groups", "y[batch, seq, model] = moe(x, top = 2, groups = 4, kept = 3)",
     "dim expert = 4, ffn = 6"},
    {"moe_layers_balanced", "repeat layer = 2 { x = x + moe(norm(x), top = 2, bias_rate = 0.01) } "
                            "y[batch, seq, model] = x", "dim expert = 4, ffn = 6"},
    {"moe_z_loss", "y[batch, seq, model] = moe(x, top = 2, balance = 0, z = 0.1)",
     "dim expert = 4, ffn = 6"},
    {"moe_recomputed", "y[batch, seq, model] = moe(x, top = 2, capacity = 0.8, z = 0.05)",
     "dim expert = 4, ffn = 6", "recompute route, dispatch, combine"},
    {"moe_layers", "repeat layer = 2 { x = x + moe(norm(x), top = 2, balance = 0.05) } "
                   "y[batch, seq, model] = x", "dim expert = 4, ffn = 6"},
};

}  // namespace planc::test
