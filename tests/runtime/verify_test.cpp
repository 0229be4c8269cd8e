// Faults planted in programs that every rank runs without complaint: `verify` sees each, and says in
// which tensor, on which ranks and from which step on.
#include <set>

#include "tests/runtime/plans.h"

namespace planc {
namespace {

using test::kAdamW;
using test::kSequence;
using test::kTensor;
using test::planOf;

std::vector<Op*> opsOf(Module& module, OpKind kind, llvm::StringRef function = "") {
  std::vector<Op*> found;
  for (const auto& f : module.functions)
    if (function.empty() || f->name == function)
      walk(*f->body, [&](Op* op) {
        if (op->kind == kind) found.push_back(op);
      });
  return found;
}

std::vector<Op*> accumsInto(Module& module, llvm::StringRef var) {
  std::vector<Op*> found = opsOf(module, OpKind::Accum);
  llvm::erase_if(found, [&](Op* op) { return op->var->name != var; });
  return found;
}

// The op that made an op's operand; casts between ranks are looked through.
Op* source(const Op& op, unsigned operand = 0) {
  Op* def = op.operand(operand)->def();
  while (def && def->has(Comm)) def = def->operand(0)->def();
  return def;
}

// The collective between a variable `X.sum` and the whole `X`.
Op* reductionOf(Module& module, llvm::StringRef var) {
  for (Op* op : opsOf(module, OpKind::AllReduce))
    if (Op* read = op->operand(0)->def();
        read && read->var && read->var->name == (var + ".sum").str())
      return op;
  return nullptr;
}

// Takes an op with one operand and one result out, on all ranks alike.
void leaveOut(Op* op) {
  op->result()->replaceAllUsesWith(op->operand(0));
  op->erase();
}

Builder behind(Op* op) { return {op->parent(), op->parent()->indexOf(op) + 1}; }
Builder before(Op* op) { return {op->parent(), op->parent()->indexOf(op)}; }

// Puts `factor` times an operand in its place.
void scaleOperand(Op* op, unsigned operand, double factor) {
  Builder b = before(op);
  Value* value = op->operand(operand);
  Type scalar{value->type.elem, {}};
  op->setOperand(operand, b.value(OpKind::Mul, {value, b.constant(factor, scalar)}, value->type));
}

// Makes a kernel believe that every rank has the first piece of a dim. What runs by then is no
// sharded program any more: only a compiled one can be spoiled so.
void forgetPieces(Module& module, OpKind kind, llvm::StringRef dim) {
  for (Op* op : opsOf(module, kind)) {
    llvm::SmallVector<Value*, 4> values(op->operands().begin(), op->operands().end());
    values.append(op->results().begin(), op->results().end());
    for (Value* value : values)
      if (int at = value->type.find(dim); at >= 0) {
        Dim& d = value->type.dims[size_t(at)];
        d = {d.name, d.size};
      }
  }
}

struct Fault {
  const char* name;
  std::string plan;
  test::Spoil spoil;  // the sharded program
  // What is reported first.
  const char* kind;
  const char* tensor;
  std::set<int64_t> ranks;
  test::Spoil spoilLast = nullptr;  // the rank program
};

const std::set<int64_t> kAll{0, 1, 2, 3};
const std::string kGrid = "grid data 2, tensor 2\n";
const std::string kDense = planOf("dense(layers = 2)", kGrid + kTensor + kAdamW);
const std::string kDenseSequence = planOf("dense(layers = 2)", kGrid + kSequence + kAdamW);
const std::string kTied = planOf("dense(layers = 2, tied = true)", kGrid + kTensor + kAdamW);
const std::string kBiased =
    planOf("biased(rate = 0.2)", kGrid +
                                     "split batch over data\nsplit head, ffn, vocab over "
                                     "tensor\nsplit seq over tensor by gather\n" +
                                     kAdamW);
const std::string kLocalPositions =
    planOf("dense(layers = 2)",
           kGrid + "split batch over data\nsplit seq over tensor by gather\n" + kAdamW);
const std::string kExperts = planOf("experts(layers = 2)", kGrid + kTensor + kAdamW);

const std::string kRing =
    planOf("dense(layers = 2)", "grid context 4\nsplit seq over context by ring\n" + kAdamW);
const std::string kRingAndData = planOf(
    "dense(layers = 2)",
    "grid data 2, context 2\nsplit batch over data\nsplit seq over context by ring\n" + kAdamW);
const std::string kRingWindow = planOf("dense(layers = 2, window = 5)",
                                       "grid context 4\nsplit seq over context by ring\n" + kAdamW);
const std::string kExpertsOverTensor =
    planOf("experts(layers = 2)",
           "grid data 2, tensor 2\nsplit batch over data\nsplit expert over tensor\n" + kAdamW);
const std::string kExchange = planOf("experts(layers = 2)",
                                     "grid data 2, expert 2\nsplit batch over data, expert\n"
                                     "split expert over expert\n" +
                                         kAdamW);

std::vector<Fault> faults() {
  return {
      {"a weight left out of the clip norm", kDense,
       [](Module& module) {
         for (Op* op : opsOf(module, OpKind::SumSquares))
           if (Op* read = source(*op); read->var->name == "grad.layer.mlp.down")
             op->result()->replaceAllUsesWith(behind(op).constant(0, op->result()->type));
       },
       "metric", "grad_norm", kAll},
      {"a weight that two ranks hold counted twice in the norm", kDense,
       [](Module& module) {
         for (Op* op : opsOf(module, OpKind::OneCopy)) leaveOut(op);
       },
       "metric", "grad_norm", kAll},
      {"the second gradient of a tied table lost", kTied,
       [](Module& module) { accumsInto(module, "grad.table.sum").back()->erase(); }, "gradient",
       "grad.table", kAll},
      {"the loss divided by this rank's tokens", kDense,
       [](Module& module) { leaveOut(opsOf(module, OpKind::AllReduce, "begin").front()); },
       "metric", "count", kAll},
      {"a sum over ranks for a mean: the gradients twice, the loss right", kDense,
       [](Module& module) {
         for (Op* op : opsOf(module, OpKind::CrossEntropyGrad)) op->attrs.set("scale", 2.0);
       },
       "gradient", "grad.output", kAll},
      {"the loss a mean of the ranks' sums", kDense,
       [](Module& module) { scaleOperand(reductionOf(module, "loss"), 0, 0.5); }, "metric", "loss",
       kAll},
      {"the router's gradient cut, the loss right", kExperts,
       [](Module& module) {
         for (Op* op : opsOf(module, OpKind::RouteGrad)) {
           Value* gate = op->operand(2);
           op->setOperand(2, before(op).constant(0, gate->type));
         }
       },
       "gradient", "grad.layer.moe.router", kAll},
      {"experts' gradients twice, all else right", kExperts,
       [](Module& module) {
         for (Op* op : accumsInto(module, "grad.layer.moe.down.sum")) scaleOperand(op, 0, 2);
       },
       "gradient", "grad.layer.moe.down", kAll},
      {"the sum over tensor left out of the last norm's gradient", kDenseSequence,
       [](Module& module) {
         reductionOf(module, "grad.norm.scale")->attrs.set("axes", Words{"data"});
       },
       "gradient", "grad.norm.scale", kAll},
      {"a sum over tensor of what each rank has whole", kDense,
       [](Module& module) {
         reductionOf(module, "grad.norm.scale")->attrs.set("axes", Words{"data", "tensor"});
       },
       "gradient", "grad.norm.scale", kAll},
      {"1 % in one bias's gradient", kBiased,
       [](Module& module) {
         scaleOperand(accumsInto(module, "grad.layer.gelu_mlp.down_bias.sum").front(), 0, 1.01);
       },
       "gradient", "grad.layer.gelu_mlp.down_bias", kAll},
      {"1 % in one norm's gradient", kDenseSequence,
       [](Module& module) {
         scaleOperand(accumsInto(module, "grad.norm.scale.sum").front(), 0, 1.01);
       },
       "gradient", "grad.norm.scale", kAll},
      {"positions that start again on each rank", kLocalPositions, nullptr, "metric", "loss", kAll,
       [](Module& module) { forgetPieces(module, OpKind::Rope, "seq"); }},
      {"one dropout mask for all pieces of the sequence", kBiased, nullptr, "metric", "loss", kAll,
       [](Module& module) { forgetPieces(module, OpKind::Dropout, "seq"); }},
      {"one dropout mask for all pieces of the batch", kBiased, nullptr, "metric", "loss", kAll,
       [](Module& module) { forgetPieces(module, OpKind::Dropout, "batch"); }},
      {"one dropout mask for two places", kBiased, nullptr, "metric", "loss", kAll,
       [](Module& module) {
         for (Op* op : opsOf(module, OpKind::Dropout)) op->attrs.set("site", std::string("x"));
       }},
      {"each backward step of a ring takes the rank's own block, the loss right", kRing,
       [](Module& module) {
         // Of each layer: the own block's, the next one's, and the loop's.
         std::vector<Op*> grads = opsOf(module, OpKind::AttendGrad);
         for (size_t i : {1, 2})
           for (unsigned operand : {1, 2})
             grads[i]->setOperand(operand, grads[0]->operand(operand));
       },
       "gradient", "grad.layer.attention.wv", kAll},
      {"gradients of a ring's blocks stay one rank away, the loss right", kRing,
       [](Module& module) {
         Op* home = opsOf(module, OpKind::Rotate).back();
         for (unsigned i : {0u, 1u}) home->result(i)->replaceAllUsesWith(home->operand(i));
         home->erase();
       },
       "gradient", "grad.layer.attention.wv", kAll},
      {"a window lost in a ring's backward pass, the loss right", kRingWindow,
       [](Module& module) {
         for (Op* op : opsOf(module, OpKind::AttendGrad)) op->attrs.erase("window");
       },
       "gradient", "grad.layer.attention.wv", kAll},
      {"a window lost in a ring's forward pass", kRingWindow,
       [](Module& module) {
         for (Op* op : opsOf(module, OpKind::AttendBlock)) op->attrs.erase("window");
       },
       "metric", "loss", kAll},
      {"positions that start again on each rank of a ring", kRingAndData, nullptr, "metric", "loss",
       kAll, [](Module& module) { forgetPieces(module, OpKind::Rope, "seq"); }},
      {"the loss divided by the tokens of this rank of a ring", kRingAndData,
       [](Module& module) {
         opsOf(module, OpKind::AllReduce, "begin").front()->attrs.set("axes", Words{"data"});
       },
       "metric", "count", kAll},
      {"the loss a mean of a ring's sums", kRing,
       [](Module& module) { scaleOperand(reductionOf(module, "loss"), 0, 0.25); }, "metric", "loss",
       kAll},
      {"gradients scaled by the ring, the loss right", kRing,
       [](Module& module) {
         for (Op* op : opsOf(module, OpKind::CrossEntropyGrad)) op->attrs.set("scale", 4.0);
       },
       "gradient", "grad.output", kAll},
      {"an expert's gradient summed over tensor, which cuts experts, all else right",
       kExpertsOverTensor,
       [](Module& module) {
         reductionOf(module, "grad.layer.moe.gate")->attrs.set("axes", Words{"data", "tensor"});
       },
       "gradient", "grad.layer.moe.gate", kAll},
      {"an expert's gradient summed over tensor in place of data, all else right",
       kExpertsOverTensor,
       [](Module& module) {
         reductionOf(module, "grad.layer.moe.gate")->attrs.set("axes", Words{"tensor"});
       },
       "gradient", "grad.layer.moe.gate", kAll},
      {"experts' gradients once for each of their ranks, all else right", kExchange,
       [](Module& module) {
         for (Op* op : accumsInto(module, "grad.layer.moe.down.sum")) scaleOperand(op, 0, 2);
       },
       "gradient", "grad.layer.moe.down", kAll},
      {"two weights taken for each other", kDense,
       [](Module& module) {
         for (Op* op : opsOf(module, OpKind::Read, "forward"))
           if (op->var->name == "layer.attention.wk")
             op->var = module.findVar("layer.attention.wv");
       },
       "metric", "loss", kAll},
  };
}

VerifyReport verifyOneStep(const test::Compiled& plan, bool activations = false) {
  VerifyOptions options;
  options.steps = 1;
  options.activations = activations;
  return test::verifyPlan(plan, options);
}

std::set<int64_t> ranksOf(const Comparison& c) { return {c.ranks.begin(), c.ranks.end()}; }

TEST(Verification, SeesPlantedFaults) {
  std::set<std::string> good;
  for (const Fault& fault : faults()) {
    SCOPED_TRACE(fault.name);
    if (good.insert(fault.plan).second) test::expectEqual(test::compilePlanOn(fault.plan));
    test::Compiled plan = test::compileSpoiled(fault.plan, fault.spoil);
    ASSERT_TRUE(plan.program);
    if (fault.spoilLast) fault.spoilLast(*plan.program);
    VerifyReport report = verifyOneStep(plan);
    const Comparison* first = report.first();
    if (!first) {
      ADD_FAILURE() << "not seen";
      continue;
    }
    EXPECT_EQ(first->kind, fault.kind) << test::describe(*first);
    EXPECT_EQ(first->tensor, fault.tensor) << test::describe(*first);
    EXPECT_EQ(ranksOf(*first), fault.ranks) << test::describe(*first);
    EXPECT_EQ(first->step, 1);
    if (!llvm::StringRef(fault.name).contains("right")) continue;
    for (const Comparison& c : report.comparisons)
      if (c.kind == "metric" && c.tensor == "loss") {
        EXPECT_TRUE(c.ranks.empty()) << test::describe(c);
      }
  }
}

// Every sum between ranks left out, and every message sent to the wrong ranks, one at a time and on
// all ranks alike: no proof that ranks agree can see that.
TEST(Verification, NoMessageIsIdle) {
  std::string zero = kGrid + kSequence + "shard weights over data\n" + kAdamW;
  for (const std::string& text : {kDenseSequence, kExperts, planOf("biased(layers = 1)", zero)}) {
    auto messages = [](Module& module) {
      std::vector<Op*> found;
      for (const auto& f : module.functions)
        walk(*f->body, [&](Op* op) {
          if (op->has(Comm) || op->kind == OpKind::OneCopy) found.push_back(op);
        });
      return found;
    };
    test::Compiled plan = test::compileSharded(text);
    ASSERT_TRUE(plan.program);
    std::unique_ptr<Module> sharded = std::move(plan.program);
    size_t count = messages(*sharded).size();
    EXPECT_GT(count, 10u);
    for (size_t i = 0; i < count; ++i)
      for (bool isMissing : {false, true}) {
        plan.program = cloneModule(*sharded);
        Op* op = messages(*plan.program)[i];
        std::string what = printOp(*op);
        Words axes = op->attrs.words("axes");
        if (isMissing && op->kind == OpKind::ReduceScatter) {
          Attrs attrs{{"axes", axes}, {"dim", op->attrs.words("dim")[0]}};
          op->result()->replaceAllUsesWith(
              before(op).value(OpKind::ShardSlice, {op->operand(0)}, op->result()->type, attrs));
          op->erase();
        } else if (isMissing && op->kind != OpKind::AllGather) {
          leaveOut(op);
        } else if (!isMissing && axes.size() == 1) {
          op->attrs.set("axes", Words{axes[0] == "data" ? "tensor" : "data"});
        } else {
          continue;
        }
        test::finishUnverified(*plan.program);
        EXPECT_NE(verifyOneStep(plan).first(), nullptr)
            << (isMissing ? "without " : "over the wrong axis: ") << what;
      }
  }
}

// What one rank alone has wrong is said of that rank, with the tensor in which it begins and the line
// of the plan that makes it.
TEST(Verification, FindsWhereAFaultBegins) {
  auto spoil = [](Module& module) { scaleOperand(opsOf(module, OpKind::Silu)[0], 0, 1.01); };
  test::Compiled good = test::compilePlanOn(kDense), bad = test::compileSpoiled(kDense, spoil);
  VerifyOptions options;
  options.steps = 1;
  options.activations = true;
  VerifyReport report = test::verifyRanks(
      *good.one, 4, options,
      [&](int64_t rank) -> const Module& { return rank == 3 ? *bad.program : *good.program; });
  const Comparison* first = report.first();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->kind, "activation");
  EXPECT_EQ(first->tensor, "silu");
  EXPECT_EQ(first->iteration, "layer 0");
  EXPECT_EQ(first->microbatch, 0);
  EXPECT_EQ(ranksOf(*first), std::set<int64_t>{3});
  EXPECT_EQ(good.one->files[first->loc.file], "std/transformer.plan");
  EXPECT_EQ(first->loc.line, 79u);
}

// The gradient of the weights of choices whose experts another rank holds, cut on each rank: the loss is
// right, the router's gradient is not (case 3).
TEST(Verification, RouterOfRemoteExperts) {
  std::string text =
      planOf("experts(layers = 2, expert = 8)",
             "grid data 2\nsplit batch over data\nsplit expert over data\n" + kAdamW);
  test::expectEqual(test::compilePlanOn(text));
  auto spoiledOn = [&](int64_t rank) {
    return test::compileSpoiled(text, [&](Module& module) {
      for (Op* op : opsOf(module, OpKind::RouteGrad)) {
        Builder b = before(op);
        Type type = op->operand(2)->type, scalar{type.elem, {}};
        Value* choice = b.value(OpKind::Cast, {op->operand(1)}, type);
        // Experts 4 to 7 are the second rank's.
        Value* isSecond = b.value(OpKind::Ge, {choice, b.constant(4, scalar)}, type);
        Value* isOwn =
            rank == 1 ? isSecond : b.value(OpKind::Sub, {b.constant(1, type), isSecond}, type);
        op->setOperand(2, b.value(OpKind::Mul, {op->operand(2), isOwn}, type));
      }
    });
  };
  test::Compiled first = spoiledOn(0), second = spoiledOn(1);
  ASSERT_TRUE(first.program && second.program);
  VerifyOptions options;
  options.steps = 1;
  VerifyReport report = test::verifyRanks(
      *first.one, 2, options,
      [&](int64_t rank) -> const Module& { return rank == 0 ? *first.program : *second.program; });
  ASSERT_NE(report.first(), nullptr);
  EXPECT_EQ(report.first()->tensor, "grad.layer.moe.router") << test::describe(*report.first());
  for (const Comparison& c : report.comparisons)
    if (c.tensor == "loss") {
      EXPECT_TRUE(c.ranks.empty()) << test::describe(c);
    }
}

// Ranks that hold the same must hold the right thing; that their copies agree is no proof. Here two
// ranks share one kv head, and the second's queries are left out of its gradient.
TEST(Verification, CopiesThatAgreeProveNothing) {
  std::string text = planOf("dense(layers = 2, kv = 1)",
                            "grid tensor 2\nsplit head, ffn, vocab over tensor\n" + kAdamW);
  test::expectEqual(test::compilePlanOn(text));
  test::Compiled plan = test::compileSpoiled(text, [](Module& module) {
    for (Op* op : opsOf(module, OpKind::AttendGrad))
      for (unsigned i : {1u, 2u}) {
        Value* gradient = op->result(i);
        ASSERT_TRUE(hasAxis(gradient->type.partial, "tensor"));
        Value* first = behind(op).value(OpKind::OneCopy, {gradient}, gradient->type,
                                        {{"axes", Words{"tensor"}}});
        gradient->replaceAllUsesWith(first);
        first->def()->setOperand(0, gradient);
      }
  });
  VerifyReport report = verifyOneStep(plan);
  const Comparison* first = report.first();
  ASSERT_NE(first, nullptr);
  EXPECT_TRUE(first->tensor == "grad.layer.attention.wk" ||
              first->tensor == "grad.layer.attention.wv")
      << test::describe(*first);
  EXPECT_EQ(first->iteration, "layer 1");  // the backward pass comes there first
  EXPECT_EQ(ranksOf(*first), (std::set<int64_t>{0, 1}));
}

}  // namespace
}  // namespace planc
