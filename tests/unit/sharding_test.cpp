// What the sharding passes make of whole plans: bytes between ranks against counts by hand, and the
// cases that users of other systems reported, as far as types tell (cases by their numbers).
#include <cmath>
#include <map>

#include "sharded.h"

namespace planc {
namespace {

using test::dense;
using test::kSequence;
using test::kTensor;
using test::namesOf;
using test::sharded;

// ---- Bytes.

constexpr int64_t kLayers = 32, kMicrobatches = 4;

std::unique_ptr<Module> llama(const std::string& plan, int64_t microbatches = kMicrobatches) {
  return sharded(
      "import \"std/llama3.plan\"\nplan p of llama3_8b(batch = 8) {\n"
      "grid data 8, tensor 8\nsplit batch over data\n"
      "split head, kv, ffn, vocab over tensor\nmicrobatches " +
      std::to_string(microbatches) + "\n" + plan + "\n}\n");
}

const char* const kBf16 = "precision bf16 { gradients f32 }\n";
const std::string kLlamaSequence = std::string(kBf16) + "split seq over tensor by gather\n";

// A microbatch's residual on one rank of `data`, bf16: batch x seq x model.
constexpr int64_t kResidual = int64_t{1} * 8192 * 4096 * 2;

// How often a layer runs each kind of collective along an axis for one microbatch.
std::map<OpKind, int64_t> timesInLayers(const Module& module, llvm::StringRef axis, int64_t bytes) {
  std::map<OpKind, int64_t> times;
  for (const Transfer& transfer : trafficOf(module).transfers) {
    if (!hasAxis(transfer.axes, axis) || !transfer.op->parent()->owner()) continue;
    EXPECT_EQ(transfer.bytes, bytes) << printOp(*transfer.op);
    times[transfer.op->kind] += transfer.times;
  }
  for (auto& [kind, count] : times) {
    EXPECT_EQ(count % (kLayers * kMicrobatches), 0);
    count /= kLayers * kMicrobatches;
  }
  return times;
}

TEST(ShardedBytes, TensorAxisInTheLayers) {
  using Times = std::map<OpKind, int64_t>;
  int64_t half =
      kResidual * 7 / 8;  // of an all-reduce, which is a reduce-scatter and an all-gather
  // Two blocks a layer: gathered where they begin, scattered where they end; so again, backward.
  EXPECT_EQ(timesInLayers(*llama(kLlamaSequence), "tensor", half),
            (Times{{OpKind::ReduceScatter, 4}, {OpKind::AllGather, 4}}));
  // The blocks' inputs are not kept but gathered again.
  EXPECT_EQ(timesInLayers(*llama(kLlamaSequence + "recompute gather"), "tensor", half),
            (Times{{OpKind::ReduceScatter, 4}, {OpKind::AllGather, 6}}));
  // All of the layer again, but for what ends it: nothing needs the second block's result, while the
  // first one's is the second's input.
  EXPECT_EQ(timesInLayers(*llama(kLlamaSequence + "recompute layer"), "tensor", half),
            (Times{{OpKind::ReduceScatter, 5}, {OpKind::AllGather, 6}}));
  EXPECT_EQ(timesInLayers(*llama(kBf16), "tensor", 2 * half), (Times{{OpKind::AllReduce, 4}}));
}

// Per step, along `data`: of tensors, since scalars are no bytes to speak of.
struct DataBytes {
  int64_t all = 0, times = 0;
  std::map<OpKind, int64_t> kinds;
};

DataBytes alongData(const Module& module) {
  DataBytes sum;
  for (const Transfer& transfer : trafficOf(module).transfers) {
    if (!hasAxis(transfer.axes, "data") || transfer.op->result()->type.dims.empty()) continue;
    sum.all += transfer.times * transfer.bytes;
    sum.kinds[transfer.op->kind] += transfer.times * transfer.bytes;
    sum.times += transfer.times;
  }
  return sum;
}

// The bytes that a rank holds of all gradients, in f32: of weights that `tensor` splits, or of others.
int64_t gradientBytes(const Module& module, bool isSplit) {
  int64_t bytes = 0;
  for (const auto& var : module.vars)
    if (var->kind == VarKind::Weight && hasAxis(var->type.splitAxes(), "tensor") == isSplit)
      bytes += var->type.elements() * 4;
  return bytes;
}

TEST(ShardedBytes, DataAxisOnceAStep) {
  auto plain = llama("");
  int64_t split = gradientBytes(*plain, true), whole = gradientBytes(*plain, false);
  EXPECT_EQ(whole, (2 * kLayers + 1) * 4096 * 4);  // scales of norms
  // 2(n-1)/n of what a rank has, in f32; 8.03e9 weights in all.
  EXPECT_EQ(alongData(*plain).all, (split + whole) * 2 * 7 / 8);
  EXPECT_NEAR(double(8 * split), 8.03e9 * 4, 0.01e9 * 4);

  // No matter how many microbatches, nor with `seq` split: there the norms' sums are over 64 ranks.
  for (int64_t microbatches : {1, 16}) {
    EXPECT_EQ(alongData(*llama("", microbatches)).all, alongData(*plain).all);
    EXPECT_EQ(alongData(*llama(kLlamaSequence, microbatches)).all,
              split * 2 * 7 / 8 + whole * 2 * 63 / 64);
  }

  // ZeRO-1: the same bytes in two halves, gradients there and weights back.
  DataBytes zero = alongData(*llama("shard optimizer over data"));
  EXPECT_EQ(zero.all, alongData(*plain).all);
  EXPECT_EQ(zero.kinds[OpKind::ReduceScatter], (split + whole) * 7 / 8);
  EXPECT_EQ(zero.kinds[OpKind::AllGather], (split + whole) * 7 / 8);
  EXPECT_EQ(alongData(*llama("shard optimizer over data", 16)).all, zero.all);
  // What comes back are the copies to compute with.
  DataBytes copies = alongData(*llama(std::string(kBf16) + "shard optimizer over data"));
  EXPECT_EQ(copies.kinds[OpKind::ReduceScatter], (split + whole) * 7 / 8);
  EXPECT_EQ(copies.kinds[OpKind::AllGather], (split + whole) / 2 * 7 / 8);
}

// ---- Cases.

Variable& var(Module& module, llvm::StringRef name) {
  Variable* found = module.findVar(name);
  EXPECT_TRUE(found) << name.str();
  return *found;
}

// Ops of a function, or of all, in order.
std::vector<Op*> opsOf(Module& module, OpKind kind, llvm::StringRef function = "") {
  std::vector<Op*> ops;
  for (const auto& f : module.functions)
    if (function.empty() || f->name == function)
      walk(*f->body, [&](Op* op) {
        if (op->kind == kind) ops.push_back(op);
      });
  return ops;
}

// The sums over ranks that a variable goes through in @reduce, by their axes.
std::vector<Words> sumsOf(Module& module, llvm::StringRef name) {
  std::vector<Words> sums;
  for (Op* read : opsOf(module, OpKind::Read, "reduce")) {
    if (read->var->name != name) continue;
    for (const Value* value = read->result(); !value->uses().empty();) {
      const Op* user = value->uses()[0].op;
      if (user->kind == OpKind::AllReduce || user->kind == OpKind::ReduceScatter)
        sums.push_back(user->attrs.words("axes"));
      if (user->kind == OpKind::Write) break;
      value = user->result();
    }
  }
  return sums;
}

TEST(ShardedCases, C01NormsAreSummedOverTensorOnlyWithSplitTokens) {
  for (const char* norm : {"norm.scale", "layer.norm.scale", "layer.norm_2.scale"}) {
    std::string sum = std::string("grad.") + norm + ".sum";
    auto sequence = sharded(dense(kSequence));
    EXPECT_EQ(namesOf(var(*sequence, sum).type.partial), (Words{"data", "tensor"}));
    EXPECT_EQ(sumsOf(*sequence, sum), (std::vector<Words>{{"data", "tensor"}}));
    auto tensor = sharded(dense(kTensor));
    EXPECT_EQ(namesOf(var(*tensor, sum).type.partial), (Words{"data"}));
    EXPECT_EQ(sumsOf(*tensor, sum), (std::vector<Words>{{"data"}}));
  }
}

// kv heads that several ranks hold: each of them has its own query heads' part of the gradient.
TEST(ShardedCases, C02SharedKvHeads) {
  for (int64_t ranks : {4, 8})
    for (int64_t kv : {1, 2, 4})
      for (const char* seq : {"", "split seq over tensor by gather"}) {
        std::string grid = "grid data 2, tensor " + std::to_string(ranks);
        std::string what = grid + ", kv " + std::to_string(kv) + " " + seq;
        auto module =
            sharded(dense(grid + " split batch over data split head, ffn, vocab over tensor " + seq,
                          "head = 8, kv = " + std::to_string(kv)),
                    "shard");
        Axes tensor = module->grid.find("tensor");
        auto sharing = [&](const Type& held) {
          Axes axes = tensor;
          llvm::erase_if(axes, [&](const Axis& axis) {
            return hasAxis(held.dims[size_t(held.find("kv"))].axes, axis.name);
          });
          return axes;
        };
        for (const char* name : {"layer.attention.wk", "layer.attention.wv"}) {
          const Type& held = var(*module, name).type;
          EXPECT_EQ(held.size("kv"), std::max<int64_t>(1, kv / ranks)) << what;
          EXPECT_EQ(ranksOver(sharing(held)), std::max<int64_t>(1, ranks / kv)) << what;
        }
        std::vector<Op*> grads = opsOf(*module, OpKind::AttendGrad, "backward");
        ASSERT_EQ(grads.size(), 1u) << what;
        for (unsigned i : {1, 2}) {
          const Type& type = grads[0]->result(i)->type;
          EXPECT_EQ(namesOf(type.partial), namesOf(sharing(type))) << what;
        }
        EXPECT_TRUE(grads[0]->result(0)->type.partial.empty()) << what;
      }
}

// Each gradient is added up over `data` once a step, behind the last microbatch.
TEST(ShardedCases, C08OneReductionAStep) {
  for (const char* zero : {"", "shard optimizer over data"})
    for (const char* base : {kTensor, kSequence}) {
      auto module = sharded(dense(std::string(base) + "microbatches 4 " + zero));
      for (const Transfer& transfer : trafficOf(*module).transfers) {
        if (!hasAxis(transfer.axes, "data")) continue;
        bool isSum = transfer.op->kind != OpKind::AllGather;
        int64_t layers = transfer.op->parent()->owner() ? 4 : 1;
        EXPECT_EQ(transfer.times, layers) << printOp(*transfer.op);
        if (isSum && !transfer.op->result()->type.dims.empty()) {
          EXPECT_EQ(transfer.op->operand(0)->def()->var->kind, VarKind::Sum)
              << printOp(*transfer.op);
        }
      }
      int gradients = 0;
      for (const auto& sum : module->vars) {
        if (sum->kind != VarKind::Sum || sum->of == "loss") continue;
        ++gradients;
        int over = 0;
        for (const Words& axes : sumsOf(*module, sum->name)) over += int(llvm::count(axes, "data"));
        EXPECT_EQ(over, 1) << sum->name;
      }
      EXPECT_EQ(gradients, 12);
      // The last call before the step's.
      ASSERT_GE(module->schedule.size(), 2u);
      EXPECT_EQ(module->schedule[module->schedule.size() - 2], (Call{"reduce", -1}));
      EXPECT_EQ(module->schedule.back(), (Call{"update", -1}));
      EXPECT_EQ(module->schedule[module->schedule.size() - 3].function, "backward");
    }
}

// What each rank of `tensor 2` computes for the clip norm, from these sums of squares of its
// gradients: of each gradient `whole`, or of its piece `split[rank]`.
std::vector<double> normOf(Module& module, double whole, std::vector<double> split) {
  std::map<const Value*, std::vector<double>> values;
  std::vector<double> norm;
  for (Op* op : module.findFunction("update")->body->ops) {
    if (op->results().size() != 1 || !op->result()->type.dims.empty()) continue;
    const auto& a = op->operands().empty() ? std::vector<double>{} : values[op->operand(0)];
    std::vector<double>& result = values[op->result()];
    switch (op->kind) {
      case OpKind::SumSquares:
        result =
            op->operand(0)->type.splitAxes().empty() ? std::vector<double>{whole, whole} : split;
        break;
      case OpKind::Add:
        result = {a[0] + values[op->operand(1)][0], a[1] + values[op->operand(1)][1]};
        break;
      case OpKind::OneCopy:
        result = {a[0], 0};
        break;
      case OpKind::AllReduce:
        result = {a[0] + a[1], a[0] + a[1]};
        break;
      case OpKind::Sqrt:
        return {std::sqrt(a[0]), std::sqrt(a[1])};
      default:
        break;
    }
  }
  return norm;
}

// A copied weight counts once, a split one with all of its pieces: 9 + 16 + 144 is 13 squared.
TEST(ShardedCases, C09ClipNorm) {
  auto module = sharded(R"(import "std/transformer.plan"
model two {
  dim batch = 4, seq = 8, model = 4, vocab = 16
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model]
  logits[batch, seq, vocab] = norm(table[tokens]) @ table
  loss cross_entropy(logits, targets)
}
plan p of two {
  grid tensor 2
  split vocab over tensor
  optimizer adamw { clip 1.0 }
}
)");
  EXPECT_EQ(normOf(*module, 9, {16, 144}), (std::vector<double>{13, 13}));
  std::vector<Op*> squares = opsOf(*module, OpKind::SumSquares);
  ASSERT_EQ(squares.size(), 2u);
  for (const Op* op : squares)
    EXPECT_EQ(op->result()->type.partial, op->operand(0)->type.splitAxes()) << printOp(*op);
  EXPECT_EQ(opsOf(*module, OpKind::AllReduce, "update").size(), 1u);
}

// Every sum of squares is partial over exactly the axes that split its weight's state.
TEST(ShardedCases, C09PartialAxesUnderZero) {
  for (const char* zero :
       {"", "shard optimizer over data", "shard gradients over data", "shard weights over data"}) {
    auto module = sharded(dense(std::string(kSequence) + "optimizer adamw { clip 1.0 } " + zero));
    std::vector<Op*> squares = opsOf(*module, OpKind::SumSquares);
    EXPECT_EQ(squares.size(), 12u);
    for (const Op* op : squares) {
      Axes axes = op->operand(0)->type.splitAxes();
      module->grid.sort(axes);
      EXPECT_EQ(op->result()->type.partial, axes) << printOp(*op);
    }
    EXPECT_EQ(opsOf(*module, OpKind::AllReduce, "update").size(), 1u) << zero;
  }
}

TEST(ShardedCases, C16VocabularyThatRanksDoNotDivide) {
  for (int64_t ranks : {2, 4})
    for (const char* tied : {"false", "true"}) {
      auto module = sharded(dense("grid tensor " + std::to_string(ranks) +
                                      " split vocab over tensor optimizer adamw { clip 1.0 }",
                                  std::string("vocab = 17, tied = ") + tied));
      ASSERT_TRUE(module);
      for (const char* name : {"table", "grad.table", "table.m", "table.v"}) {
        const Dim& rows = var(*module, name).type.dims[0];
        EXPECT_EQ(rows.size, (17 + ranks - 1) / ranks) << name;
        EXPECT_EQ(rows.whole, 17) << name;  // of a checkpoint
        EXPECT_EQ(var(*module, name).type.whole().dims[0].size, 17) << name;
        int64_t held = 0;
        for (int64_t rank = 0; rank < ranks; ++rank)
          held += Coordinates(module->grid, rank).valid(rows);
        EXPECT_EQ(held, 17) << name;
      }
    }
}

// In a bf16 plan: what holds gradients, and what adds them up over `data`, is f32 unless bf16 is asked
// for by name.
TEST(ShardedCases, C23SumsAreF32) {
  for (const char* zero : {"", "shard optimizer over data", "shard gradients over data"})
    for (bool isAsked : {false, true}) {
      auto module = sharded(dense(std::string(kSequence) + "microbatches 4 precision bf16" +
                                  (isAsked ? " { gradients bf16 } " : " ") + zero));
      for (const auto& v : module->vars) {
        if (v->kind == VarKind::Gradient || (v->kind == VarKind::Sum && v->name != "loss.sum")) {
          EXPECT_EQ(v->type.elem, isAsked ? Elem::BF16 : Elem::F32) << v->name;
        }
        if (v->kind == VarKind::Moment || v->kind == VarKind::Weight) {
          EXPECT_EQ(v->type.elem, Elem::F32) << v->name;
        }
      }
      int sums = 0;
      for (OpKind kind : {OpKind::AllReduce, OpKind::ReduceScatter})
        for (const Op* op : opsOf(*module, kind)) {
          if (!hasAxis(groupAxes(*op), "data") || op->result()->type.dims.empty()) continue;
          ++sums;
          EXPECT_TRUE(isAsked || op->operand(0)->type.elem == Elem::F32) << printOp(*op);
        }
      EXPECT_EQ(sums, 12) << zero;
    }
}

}  // namespace
}  // namespace planc
