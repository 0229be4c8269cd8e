// The plan file as parsed: plain structs with places, nothing resolved. Written by parse.cpp, read
// by check.cpp, lower.cpp and format.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ir/diagnostics.h"
#include "ir/op.h"

namespace planc::ast {

struct Ident {
  std::string text;
  Loc loc;
};

// `80 GiB`, `3e-4`, `42`. The unit is as written, `GB/s` and `TFLOP/s` in one piece; empty: none.
struct Quantity {
  double value = 0;
  std::string unit;
  Loc loc;
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

// An argument of a call: `x`, `top = 2`, `causal`. `key` is empty for a positional one.
struct Arg {
  Ident key;
  ExprPtr value;
};

enum class ExprKind {
  Number,  // number, isInteger
  Name,    // text: a value, a parameter, a dim's size, a flag word, true, false
  Neg,     // args[0]
  Add,
  Sub,
  Mul,
  Div,
  Contract,  // args[0], args[1]; Contract is `@`
  Call,      // text(args...)
  Lookup,    // text[args[0]]: table lookup
  Compare,   // args[0] text args[1], text one of == != < <= > >=: in `if` conditions
};

struct Expr {
  ExprKind kind;
  Loc loc;  // of the operator, the name or the number
  std::string text;
  double number = 0;
  bool isInteger = false;
  std::vector<Arg> args;
};

// `dim model = 128`
struct DimDecl {
  Ident name;
  ExprPtr size;
};

// `input tokens[batch, seq] : token(vocab)`, `input documents[batch, seq] : document(tokens, 10)`
struct InputDecl {
  Ident name;
  std::vector<Ident> dims;
  Ident of;           // the vocabulary, or the input whose documents are numbered
  ExprPtr separator;  // that ends a document; null: tokens
};

// `init normal(0.02)`, `init ones`, `init zeros`, `init uniform(0.1)`, `init const(3)`
struct InitSpec {
  Ident kind;  // empty text: not given
  ExprPtr value;
};

// `weight gate, up [model, ffn] init normal(0.02) no decay`
struct WeightDecl {
  std::vector<Ident> names;
  std::vector<Ident> dims;
  InitSpec init;
  std::optional<bool> decay;  // `decay`, `no decay`; not given: by the number of dims
  ExprPtr balanced;           // `balanced(0.001)`: the rate; null: trained by its gradient
};

// `x[batch, seq, model] = expr`, `x = expr`; `return y[...] = expr`, `return expr`: isReturn, and the
// name may be empty. hasDims tells `x[] = ...` (a scalar) from `x = ...`.
struct Assign {
  Ident name;
  bool hasDims = false;
  std::vector<Ident> dims;
  ExprPtr value;
  bool isReturn = false;
};

struct Stmt;

// `repeat layer = layers { ... }`
struct Repeat {
  Ident dim;
  ExprPtr count;
  std::vector<Stmt> body;
};

// `if tied { ... } else { ... }`: on parameters and dims only, decided when compiling.
struct If {
  ExprPtr condition;
  std::vector<Stmt> then, otherwise;
};

// `loss cross_entropy(logits, targets)`
struct Loss {
  ExprPtr value;
};

struct Stmt {
  Loc loc;
  std::variant<DimDecl, InputDecl, WeightDecl, Assign, Repeat, If, Loss> node;
};

// A parameter of a module or model: a tensor `x[batch, seq, model]`, a value `top = 2`, or a dim
// `dim hidden = ffn`.
struct Param {
  enum Kind { Tensor, Number, DimName } kind = Number;
  Ident name;
  std::vector<Ident> dims;  // Tensor
  ExprPtr fallback;         // Number: null means it must be given. DimName: a Name or null
};

struct Module {
  Ident name;
  std::vector<Param> params;
  std::vector<Stmt> body;
  bool isModel = false;  // `model`: no tensor parameters, has inputs and a loss
};

// `device h100 { memory 80 GiB  compute bf16 989 TFLOP/s, f32 67 TFLOP/s  hbm 3.35 TB/s }`
struct Device {
  Ident name;
  struct Entry {
    Ident key;      // memory, compute, hbm
    Ident element;  // compute: bf16, f32, ...
    Quantity value;
  };
  std::vector<Entry> entries;
};

// `cluster pod { node 8 of h100 { link 450 GB/s, latency 1 us } ... }`
struct Cluster {
  Ident name;
  struct Level {
    Ident name;
    Quantity count;
    Ident of;  // a device, or the level below
    struct Entry {
      Ident key;  // link, latency
      Quantity value;
    };
    std::vector<Entry> entries;
  };
  std::vector<Level> levels;
};

// One axis of a split: `context by ring(zigzag)`, `pipe by one_f_one_b stages 9 10 10 9`,
// `context by ring within node, heads across` (scopes).
struct Target {
  Ident axis;
  Ident method;  // after `by`; empty: none
  std::vector<ExprPtr> args;
  Ident path;   // `schedule("FILE")`: without quotes; line 0: the method has expressions or nothing
  Ident scope;  // after the method: `within LEVEL` or `across`; empty: none
  std::vector<Quantity> stages;
};

// Statements of a plan.
struct Grid {
  bool automatic = false;
  struct Axis {
    Ident name;
    Quantity size;
  };
  std::vector<Axis> axes;
};
struct Split {
  std::vector<Ident> dims;
  std::vector<Target> targets;
};
struct Shard {  // `shard optimizer, gradients over data`
  std::vector<Ident> what;
  std::vector<Ident> axes;
};
struct Place {  // `place tensor within node`
  std::vector<Ident> axes;
  Ident level;
};
struct Microbatches {
  bool automatic = false;
  Quantity count;
};
struct Precision {  // `precision bf16 { master f32, gradients f32 }`
  Ident element;
  struct Entry {
    Ident key, element;
  };
  std::vector<Entry> entries;
};
// `recompute layer`, `recompute attend, norm`, `recompute none`, `recompute auto`
struct Recompute {
  std::vector<Ident> what;
};
struct Optimizer {  // `optimizer adamw { lr 3e-4, betas 0.9 0.95 }`
  Ident name;
  struct Entry {
    Ident key;
    std::vector<Quantity> values;
  };
  std::vector<Entry> entries;
};
struct Seed {
  Quantity value;
};

struct PlanStmt {
  Loc loc;
  std::variant<Grid, Split, Shard, Place, Microbatches, Precision, Recompute, Optimizer, Seed> node;
};

// `plan train of moe_lm(layers = 8) on pod { ... }`
struct Plan {
  Ident name;
  Ident model;
  std::vector<Arg> args;
  Ident cluster;  // empty: none
  std::vector<PlanStmt> body;
};

struct Import {
  Loc loc;
  std::string path;
};

using Item = std::variant<Import, Device, Cluster, Module, Plan>;

struct File {
  uint32_t file = 0;
  std::vector<Item> items;
};

}  // namespace planc::ast
