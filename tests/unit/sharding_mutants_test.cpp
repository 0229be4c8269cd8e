// Compiled programs, broken as other systems were, must be refused by types alone; and systematically:
// every cast left out, along another axis, or done twice, and every result that denies or invents a
// partial sum.
#include "ranks.h"
#include "sharded.h"

namespace planc {
namespace {

using test::dense;
using test::experts;
using test::kSequence;
using test::kTensor;
using test::sharded;

std::string verdict(const Module& module) {
  llvm::Error error = verify(module);
  return error ? llvm::toString(std::move(error)) : "";
}

std::vector<Op*> allOpsOf(Module& module) {
  std::vector<Op*> ops;
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) { ops.push_back(op); });
  return ops;
}

Op* first(Module& module, llvm::function_ref<bool(const Op&)> isWanted) {
  for (Op* op : allOpsOf(module))
    if (isWanted(*op)) return op;
  ADD_FAILURE() << "no such op";
  return nullptr;
}

Op* first(Module& module, OpKind kind, llvm::StringRef function = "") {
  return first(module, [&](const Op& op) {
    const Block* block = op.parent();
    while (block->owner()) block = block->owner()->parent();
    return op.kind == kind &&
           (function.empty() || module.findFunction(function)->body.get() == block);
  });
}

// The op whose first result has this name.
Op* named(Module& module, llvm::StringRef name) {
  return first(module, [&](const Op& op) {
    return !op.results().empty() && op.result()->name == name && op.has(Comm);
  });
}

// An op of the same kind as `op` behind it on its result, which all users then take.
void twice(Op* op) {
  Builder builder(op->parent(), op->parent()->indexOf(op) + 1);
  Value* made = op->result();
  std::vector<Use> uses(made->uses());
  Value* again = builder.value(op->kind, {made}, made->type, op->attrs);
  for (const Use& use : uses) use.op->setOperand(use.index, again);
}

struct Mutant {
  const char* fault;
  std::string plan;
  void (*spoil)(Module&);
  const char* message;  // part of what the verifier says
};

// A rank has one sample, so that tokens are outermost in memory; nothing gathered is kept.
const std::string kOneSample = dense(
    "grid data 4, tensor 2 split batch over data split head, kv, ffn, vocab over tensor "
    "split seq over tensor by gather recompute gather");

const Mutant kMutants[] = {
    {"loss term computed on a vocabulary shard without reduction", dense(kTensor),
     [](Module& m) { test::drop(named(m, "picked")); },
     "needs a whole sum, but operand 2 is partial over tensor"},
    {"log-sum-exp of a vocabulary shard taken for that of all", dense(kTensor),
     [](Module& m) { test::drop(first(m, OpKind::AllGather, "forward")); },
     "needs 'part' whole, but 'tensor' splits it"},
    {"logits gathered, loss shifted by log(tensor)", dense(kTensor),
     [](Module& m) { twice(named(m, "picked")); },
     "sums over 'tensor', but its operand is not partial over it"},
    {"residual added before its sum", dense(kTensor), [](Module& m) { test::drop(named(m, "y")); },
     "to what is partial over tensor"},
    {"wrong group: sum over the data axis", dense(kTensor),
     [](Module& m) { named(m, "y")->attrs.set("axes", Words{"data"}); },
     "sums over 'data', but its operand is not partial over it"},
    {"wrong group: sum over more than the tensor axis", dense(kTensor),
     [](Module& m) {
       named(m, "y")->attrs.set("axes", Words{"data", "tensor"});
     },
     "sums over 'data', but its operand is not partial over it"},
    {"wrong group: scatter over the data axis", dense(kSequence),
     [](Module& m) { named(m, "y")->attrs.set("axes", Words{"data"}); },
     "dim 'seq' is not cut over the axes"},
    {"wrong group in recompute", dense(std::string(kSequence) + "recompute layer"),
     [](Module& m) { first(m, OpKind::AllGather, "backward")->attrs.set("axes", Words{"data"}); },
     "dim 'seq' is not cut over the axes"},
    {"gathers left out", kOneSample,
     [](Module& m) { test::drop(first(m, OpKind::AllGather, "forward")); },
     "dim 'seq' has sizes 8 and 16"},
    {"a table's piece gets the gradient of this rank's tokens alone", kOneSample,
     [](Module& m) {
       Op* grad = first(m, OpKind::LookupGrad);
       Op* gather = grad->operand(1)->def();
       Builder b(grad->parent(), grad->parent()->indexOf(grad));
       Type ids = grad->operand(0)->type;
       ids.dims[1] = splitDim(ids.dims[1], m.grid.find("tensor"));
       grad->setOperand(0, b.value(OpKind::ShardSlice, {grad->operand(0)}, ids,
                                   {{"axes", Words{"tensor"}}, {"dim", "seq"}}));
       grad->setOperand(1, gather->operand(0));
     },
     "axis 'tensor' splits both 'seq' and 'vocab'"},
    {"gradient of a norm not summed over tensor (C01)", dense(kSequence),
     [](Module& m) {
       Op* sum = named(m, "grad.norm.scale.sum");
       sum->attrs.set("axes", Words{"data"});
       sum->result()->type.partial = m.grid.find("tensor");
     },
     "'@grad.norm.scale' is partial over no axis, the value over tensor"},
    {"gradient of a norm not summed at all", dense(kSequence),
     [](Module& m) { test::drop(named(m, "grad.norm.scale.sum")); },
     "'@grad.norm.scale' is partial over no axis, the value over data, tensor"},
    {"gradient of a norm summed over tensor without split tokens (C01)", dense(kTensor),
     [](Module& m) {
       named(m, "grad.norm.scale.sum")->attrs.set("axes", Words{"data", "tensor"});
     },
     "sums over 'tensor', but its operand is not partial over it"},
    {"shared kv heads' gradient not summed (C02)",
     dense("grid tensor 2 split head, ffn over tensor", "kv = 1"),
     [](Module& m) {
       for (unsigned i : {1, 2}) first(m, OpKind::AttendGrad)->result(i)->type.partial.clear();
     },
     "is partial over tensor, but its type says no axis"},
    {"dense gradient summed over fewer axes than split its tokens",
     experts("grid data 2, expert 2 split batch over data, expert"),
     [](Module& m) {
       Op* sum = named(m, "grad.layer.moe.gate.sum");
       sum->attrs.set("axes", Words{"data"});
       sum->result()->type.partial = m.grid.find("expert");
     },
     "'@grad.layer.moe.gate' is partial over no axis, the value over expert"},
    {"router's gradient typed as if all ranks had seen all tokens",
     experts("grid data 2 split batch over data"),
     [](Module& m) {
       Variable* sum = m.findVar("grad.layer.moe.router.sum");
       sum->type.partial.clear();
     },
     "is partial over no axis"},
    {"offsets of packed rows summed over ranks that pack their own",
     experts("grid data 2 split batch over data"),
     [](Module& m) {
       Op* dispatch = first(m, OpKind::Dispatch);
       Builder b(dispatch->parent(), dispatch->parent()->indexOf(dispatch));
       dispatch->setOperand(
           2, b.value(OpKind::AllReduce, {dispatch->operand(2)}, dispatch->operand(2)->type.whole(),
                      {{"axes", Words{"data"}}}));
     },
     "dispatch offsets must come from a pack"},
    {"copied weight counted by each rank in the clip norm (C09)",
     dense(std::string(kSequence) + "optimizer adamw { clip 1.0 }"),
     [](Module& m) { test::drop(first(m, OpKind::OneCopy)); }, "adds what is partial over"},
    {"clip norm of this rank's pieces alone (C09)",
     dense(std::string(kSequence) + "optimizer adamw { clip 1.0 }"),
     [](Module& m) { test::drop(first(m, OpKind::AllReduce, "update")); },
     "needs a whole sum, but operand 0 is partial over tensor"},
    {"loss divided by this rank's count of tokens (C05)", dense(kTensor),
     [](Module& m) { test::drop(first(m, OpKind::AllReduce, "begin")); },
     "'@count' is partial over no axis, the value over data"},
    {"loss shown of one rank", dense(kTensor), [](Module& m) { test::drop(named(m, "loss.sum")); },
     "'@loss' is partial over no axis, the value over data"},
    {"weights not gathered before use (ZeRO-3)",
     dense("grid data 2 split batch over data shard weights over data"),
     [](Module& m) { test::drop(first(m, OpKind::AllGather, "forward")); },
     "axis 'data' splits both"},
    {"optimizer works on a whole gradient and a piece of the weight (ZeRO-1)",
     dense("grid data 2 split batch over data shard optimizer over data"),
     [](Module& m) {
       Op* sum = named(m, "grad.table.sum");
       sum->kind = OpKind::AllReduce;
       sum->attrs.erase("dim");
       sum->result()->type.dims = sum->operand(0)->type.dims;
     },
     "writes f32[vocab 32, model 16] into f32[vocab 32/data, model 16]"},
};

TEST(ShardingMutants, EachIsNamed) {
  for (const Mutant& mutant : kMutants) {
    auto module = sharded(mutant.plan);
    ASSERT_TRUE(module) << mutant.fault;
    ASSERT_EQ(verdict(*module), "") << mutant.fault;
    mutant.spoil(*module);
    std::string said = verdict(*module);
    EXPECT_NE(said.find(mutant.message), std::string::npos) << mutant.fault << ":\n" << said;
  }
}

// What rings and exchanges add to programs: spoiled behind the passes that make them.
const std::string kRing = dense("grid context 4 split seq over context by ring ");
const std::string kExchange =
    experts("grid data 2, expert 2 split batch over data, expert split expert over expert ");

std::vector<Op*> allOf(Module& module, OpKind kind) {
  std::vector<Op*> ops = allOpsOf(module);
  llvm::erase_if(ops, [&](Op* op) { return op->kind != kind; });
  return ops;
}

const Mutant kMutantsOnTheWay[] = {
    {"each backward step takes the rank's own block (C06)", kRing,
     [](Module& m) {
       std::vector<Op*> grads = allOf(m, OpKind::AttendGrad);
       ASSERT_EQ(grads.size(), 3u);
       for (unsigned operand : {1, 2})
         for (size_t i : {1, 2}) grads[i]->setOperand(operand, grads[0]->operand(operand));
     },
     "attend_grad"},
    {"the loop scores the rank's own block", kRing,
     [](Module& m) {
       Op* attend = first(m, OpKind::AttendBlock);
       Op* repeat = attend->parent()->owner();
       attend->setOperand(1, repeat->operand(0));
     },
     "attend_block"},
    {"blocks are not passed on", kRing,
     [](Module& m) { test::drop(first(m, OpKind::Rotate, "forward")); },
     "value 0 changes its type"},
    {"blocks go two places", kRing,
     [](Module& m) { first(m, OpKind::Rotate, "forward")->attrs.set("by", int64_t{2}); }, "rotate"},
    {"gradients of blocks do not come home", kRing,
     [](Module& m) { test::drop(allOf(m, OpKind::Rotate).back()); }, "add"},
    {"gradients of blocks are added to the next block's", kRing,
     [](Module& m) {
       std::vector<Op*> rotates = allOf(m, OpKind::Rotate);
       Op* travel = nullptr;
       for (Op* op : rotates)
         if (op->parent()->owner() && !op->isUnlessLast()) travel = op;
       test::drop(travel);
     },
     "add"},
    {"loss divided by this rank's count of tokens (C05)", kRing,
     [](Module& m) { test::drop(first(m, OpKind::AllReduce, "begin")); },
     "'@count' is partial over no axis, the value over context"},
    {"loss scaled by the ring: summed twice", kRing, [](Module& m) { twice(named(m, "loss.sum")); },
     "sums over 'context', but its operand is not partial over it"},
    {"gradients summed over data alone, not over the ring",
     dense("grid data 2, context 2 split batch over data split seq over context by ring"),
     [](Module& m) {
       Op* sum = named(m, "grad.norm.scale.sum");
       sum->attrs.set("axes", Words{"data"});
       sum->result()->type.partial = m.grid.find("context");
     },
     "'@grad.norm.scale' is partial over no axis, the value over context"},
    {"rows do not go to their experts", kExchange,
     [](Module& m) { test::drop(first(m, OpKind::ExchangeRows)); },
     "write writes f32[expert 4, slot 128/data.expert"},
    {"rows do not come home", kExchange,
     [](Module& m) { test::drop(allOf(m, OpKind::ExchangeRows)[1]); },
     "write writes f32[expert 4/expert, slot 128/data"},
    {"rows go over the data axis", kExchange,
     [](Module& m) { first(m, OpKind::ExchangeRows)->attrs.set("axes", Words{"data"}); },
     "exchange_rows"},
    {"what is sent and what comes exchanged", kExchange,
     [](Module& m) {
       Op* op = first(m, OpKind::ExchangeRows);
       Value* mine = op->operand(1);
       op->setOperand(1, op->operand(2));
       op->setOperand(2, mine);
     },
     "not counts like"},
    {"counts are not told", kExchange,
     [](Module& m) { test::drop(first(m, OpKind::AllToAll, "forward")); },
     "row_offsets needs the counts of all of 'part'"},
    {"own experts' rows by the offsets of the tokens' side", kExchange,
     [](Module& m) {
       Op* own = first(m, OpKind::RowOffsets);
       own->result()->replaceAllUsesWith(first(m, OpKind::Pack)->result(1));
     },
     "einsum"},
    {"an expert's gradient summed over the experts' axis", kExchange,
     [](Module& m) {
       named(m, "grad.layer.moe.gate.sum")->attrs.set("axes", Words{"data", "expert"});
     },
     "sums over 'expert', but its operand is not partial over it"},
    {"an expert's gradient summed over tensor, over which experts are cut",
     experts("grid data 2, tensor 2 split batch over data split expert over tensor"),
     [](Module& m) {
       named(m, "grad.layer.moe.gate.sum")->attrs.set("axes", Words{"data", "tensor"});
     },
     "sums over 'tensor', but its operand is not partial over it"},
    {"an expert's gradient not summed over data, where experts are cut over tensor",
     experts("grid data 2, tensor 2 split batch over data split expert over tensor"),
     [](Module& m) { test::drop(named(m, "grad.layer.moe.gate.sum")); },
     "'@grad.layer.moe.gate' is partial over no axis, the value over data"},
    {"a router's gradient not summed over the experts' axis (C03)", kExchange,
     [](Module& m) {
       Op* sum = named(m, "grad.layer.moe.router.sum");
       sum->attrs.set("axes", Words{"data"});
       sum->result()->type.partial = m.grid.find("expert");
     },
     "'@grad.layer.moe.router' is partial over no axis, the value over expert"},
};

TEST(ShardingMutants, EachOnTheWayIsNamed) {
  for (const Mutant& mutant : kMutantsOnTheWay) {
    auto module = sharded(mutant.plan, "experts");
    ASSERT_TRUE(module) << mutant.fault;
    ASSERT_EQ(verdict(*module), "") << mutant.fault;
    mutant.spoil(*module);
    std::string said = verdict(*module);
    EXPECT_NE(said.find(mutant.message), std::string::npos) << mutant.fault << ":\n" << said;
  }
}

const std::string kPrograms[] = {
    dense(kTensor),
    dense(std::string(kSequence) + "optimizer adamw { clip 1.0 } recompute gather"),
    dense(std::string(kSequence) + "optimizer adamw { clip 1.0 } shard optimizer over data"),
    dense(std::string(kTensor) + "shard weights over data recompute layer"),
    dense("grid data 2, tensor 4 split batch over data split head, ffn, vocab over tensor "
          "split seq over tensor by gather",
          "kv = 2"),
    experts("grid data 2, tensor 2 split batch over data split head, kv, ffn, vocab over tensor "
            "split seq over tensor by gather"),
    dense("grid data 2, context 4 split batch over data split seq over context by ring "
          "recompute attend optimizer adamw { clip 1.0 }"),
    experts(
        "grid data 2, expert 2, tensor 2 split batch over data, expert split expert over expert "
        "split head, kv, ffn, vocab over tensor"),
};

// Spoils the ops that are wanted, one at a time: the verifier must refuse every one. `axis`: of programs
// that have it.
void expectRefused(llvm::function_ref<bool(const Op&)> isWanted,
                   llvm::function_ref<void(Op&)> spoil, llvm::StringRef axis = "data") {
  for (const std::string& plan : kPrograms) {
    auto whole = sharded(plan, "experts");
    if (whole->grid.find(axis).empty()) continue;
    std::vector<Op*> ops = allOpsOf(*whole);
    int spoilt = 0;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (!isWanted(*ops[i])) continue;
      auto module = cloneModule(*whole);
      spoil(*allOpsOf(*module)[i]);
      EXPECT_NE(verdict(*module), "") << printOp(*ops[i]);
      ++spoilt;
    }
    EXPECT_GT(spoilt, 10) << plan;
  }
}

bool isCast(const Op& op) {
  return op.has(Comm) || op.kind == OpKind::OneCopy || op.kind == OpKind::ShardSlice;
}

TEST(ShardingMutants, NoCastCanBeLeftOut) {
  expectRefused(isCast, [](Op& op) { test::drop(&op); });
}

TEST(ShardingMutants, NoCastGoesAlongAnotherAxis) {
  expectRefused(isCast, [](Op& op) {
    // The next axis of the grid instead of the first.
    const auto& axes = op.parent()->module().grid.axes;
    Words words = op.attrs.words("axes");
    auto at = llvm::find_if(axes, [&](const GridAxis& axis) { return axis.name == words[0]; });
    words[0] = axes[size_t(at - axes.begin() + 1) % axes.size()].name;
    op.attrs.set("axes", words);
  });
}

TEST(ShardingMutants, NoCastIsDoneTwice) {
  expectRefused([](const Op& op) { return isCast(op) && op.results().size() == 1; },
                [](Op& op) { twice(&op); });
}

TEST(ShardingMutants, NoTypeDeniesOrInventsAPartialSum) {
  for (llvm::StringRef axis : {"data", "tensor", "context", "expert"}) {
    auto isFree = [&](const Op& op) {
      // Zero is a partial sum of itself. The step is the same few ops for each weight.
      const Module& module = op.parent()->module();
      bool isStep =
          op.parent() == module.findFunction("update")->body.get() && op.kind == OpKind::AdamW;
      return !op.results().empty() && op.kind != OpKind::Const && !isStep &&
             !hasAxis(op.result()->type.splitAxes(), module.grid.find(axis)[0].name);
    };
    expectRefused(
        isFree,
        [&](Op& op) {
          Grid& grid = op.parent()->module().grid;
          Axes& partial = op.result()->type.partial;
          Axis first = grid.find(axis)[0];
          if (hasAxis(partial, first.name)) llvm::erase_value(partial, first);
          else partial.push_back(first);
          grid.sort(partial);
        },
        axis);
  }
}

}  // namespace
}  // namespace planc
