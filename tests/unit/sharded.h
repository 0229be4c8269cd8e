// Plans on a grid, compiled as far as their collectives, for tests.
#pragma once

#include <string>

#include "compile.h"
#include "ir/traffic.h"
#include "llvm/ADT/STLExtras.h"

namespace planc::test {

// A small dense model: four layers of attention and SwiGLU, an untied head; `sizes` are
// arguments instead of these.
inline std::string dense(const std::string& plan, const std::string& sizes = "") {
  return R"(import "std/llama3.plan"
plan p of small()" +
         sizes + ") {" + plan + R"(}
model small(layers = 4, kv = 2, head = 4, vocab = 32, tied = false) {
  dim batch = 4, seq = 16, vocab = vocab
  dim model = 16, ffn = 32, head = head, kv = kv, width = 4
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model]
  x[batch, seq, model] = table[tokens]
  repeat layer = layers {
    x = x + attention(norm(x))
    x = x + mlp(norm(x))
  }
  x = norm(x)
  if tied {
    logits[batch, seq, vocab] = x @ table
  } else {
    weight output [model, vocab]
    logits[batch, seq, vocab] = x @ output
  }
  loss cross_entropy(logits, targets)
}
)";
}

// Two layers of experts, four of them, two for each token.
inline std::string experts(const std::string& plan) {
  return R"(import "std/mixtral.plan"
plan p of mixtral(layers = 2, model = 16, ffn = 32, head = 4, kv = 2, width = 4, expert = 4,
    vocab = 32, seq = 16, batch = 4) {)" +
         plan + "}\n";
}

inline const char* const kTensor =
    "grid data 2, tensor 2 split batch over data split head, kv, ffn, vocab over tensor ";
inline const char* const kSequence =
    "grid data 2, tensor 2 split batch over data split head, kv, ffn, vocab over tensor "
    "split seq over tensor by gather ";

// Plans of both models on each grid: with every ZeRO stage that its data axis can have, in f32 and bf16.
inline std::vector<std::string> onGrids(llvm::ArrayRef<std::string> grids) {
  std::vector<std::string> plans;
  for (const std::string& grid : grids)
    for (const char* zero : {"", "optimizer", "gradients", "weights"})
      for (const char* precision : {"f32", "bf16"}) {
        std::string plan = grid + " microbatches 2 precision " + precision;
        if (*zero != 0 && grid.find("data") != std::string::npos)
          plan += std::string(" shard ") + zero + " over data";
        plans.push_back(dense(plan));
        plans.push_back(experts(plan));
      }
  return plans;
}

// Up to and with pass `last`.
inline std::unique_ptr<Module> sharded(const std::string& text,
                                       llvm::StringRef last = "collectives") {
  auto module = compileText(text);
  if (!module) return module;
  std::vector<std::string> passes;
  for (const PassInfo& pass : allPasses()) {
    passes.push_back(pass.name.str());
    if (pass.name == last) break;
  }
  runAll(*module, passes);
  return module;
}

inline Words namesOf(llvm::ArrayRef<Axis> axes) {
  Words names;
  for (const Axis& axis : axes) names.push_back(axis.name);
  return names;
}

}  // namespace planc::test
