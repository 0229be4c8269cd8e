// Attention of compiled programs against the model's: every way of cutting tokens keeps it, and each
// attribute of each op, spoiled alone, is noticed.
#include "ir/verify_lowering.h"

#include "sharded.h"

namespace planc {
namespace {

// Two layers' attention by one line of the plan, with a window and without, then one of documents.
const char* const kModel = R"(import "std/transformer.plan"
model m(layers = 4) {
  dim batch = 2, seq = 32, vocab = 16
  dim model = 16, ffn = 16, head = 4, kv = 2, width = 4
  input tokens[batch, seq]    : token(vocab)
  input targets[batch, seq]   : token(vocab)
  input documents[batch, seq] : document(tokens, 3)
  weight table [vocab, model]
  x[batch, seq, model] = table[tokens]
  repeat layer = layers {
    x = x + attention(norm(x))
    x = x + attention(norm(x), window = 5)
    x = x + mlp(norm(x))
  }
  x = x + attention(norm(x), documents = documents)
  logits[batch, seq, vocab] = norm(x) @ table
  loss cross_entropy(logits, targets)
}
plan p of m {
)";

const char* const kPlans[] = {
    "",
    "recompute layer",
    "grid context 4 split seq over context by ring",
    "grid context 2 split seq over context by ring recompute attend",
    "grid context 4 split seq over context by ring(contiguous)",
    "grid context 4 split seq over context by gather",
    "grid context 2 split seq over context by heads",
    "grid tensor 2 split head, kv, ffn, vocab over tensor split seq over tensor by gather",
    "grid pipe 2, context 2 split seq over context by ring split layer over pipe microbatches 4",
    "grid pipe 2, context 2 split seq over context by ring split layer over pipe by zero_bubble_v "
    "microbatches 4 recompute layer",
};

Planx compiled(const std::string& plan) {
  Planx planx;
  planx.model = test::compileText(kModel + plan + "\n}\n");
  if (!planx.model) return planx;
  planx.roles.push_back(cloneModule(*planx.model));
  test::runAll(planx.roles);
  return planx;
}

std::vector<Op*> attentionOf(const Planx& planx) {
  std::vector<Op*> found;
  for (const auto& role : planx.roles)
    for (const auto& function : role->functions)
      walk(*function->body, [&](Op* op) {
        if (op->kind == OpKind::Attend || op->kind == OpKind::AttendBlock ||
            op->kind == OpKind::AttendGrad)
          found.push_back(op);
      });
  return found;
}

std::string verdict(const Planx& planx) { return llvm::toString(verifyLowering(planx)); }

TEST(Lowering, KeepsAttention) {
  for (const char* plan : kPlans) {
    Planx planx = compiled(plan);
    ASSERT_FALSE(planx.roles.empty()) << plan;
    EXPECT_FALSE(attentionOf(planx).empty()) << plan;
    EXPECT_EQ(verdict(planx), "") << plan;
    EXPECT_EQ(llvm::toString(checkFits(planx)), "") << plan;
  }
}

// Another value of one attribute, on one op.
const std::pair<const char*, void (*)(Op&)> kSpoils[] = {
    {"causal", [](Op& op) { op.attrs.erase("causal"); }},
    // The other window of the same line, so that only their numbers tell; and a new one.
    {"window", [](Op& op) { op.attrs.set("window", op.attrs.integer("window") ? 0 : int64_t{5}); }},
    {"window", [](Op& op) { op.attrs.set("window", op.attrs.integer("window") + 1); }},
    {"scale", [](Op& op) { op.attrs.set("scale", op.attrs.number("scale") * 1.01); }},
    {"seq", [](Op& op) { op.attrs.set("seq", std::string("batch")); }},
    {"by", [](Op& op) { op.attrs.set("by", std::string("head")); }},
    {"head", [](Op& op) { op.attrs.set("head", std::string("kv")); }},
    {"kv", [](Op& op) { op.attrs.set("kv", std::string("head")); }},
    {"documents",
     [](Op& op) {
       bool has = int(op.operands().size()) > op.info().minOperands;
       llvm::ArrayRef<Value*> own = op.operands().take_front(size_t(op.info().minOperands));
       if (has) op.setOperands(std::vector<Value*>(own.begin(), own.end()));
       else op.addOperand(op.operand(0)), op.addOperand(op.operand(0));
     }},
};

TEST(Lowering, NoAttributeIsLost) {
  for (const char* plan : kPlans) {
    Planx whole = compiled(plan);
    size_t count = attentionOf(whole).size();
    ASSERT_GT(count, 4u) << plan;
    for (const auto& [what, spoil] : kSpoils)
      for (size_t i = 0; i < count; ++i) {
        Planx planx;
        planx.model = cloneModule(*whole.model);
        for (const auto& role : whole.roles) planx.roles.push_back(cloneModule(*role));
        Op* op = attentionOf(planx)[i];
        spoil(*op);
        std::string said = verdict(planx);
        EXPECT_NE(said.find(std::string(what) + " "), std::string::npos)
            << plan << ", " << what << " of " << printOp(*op) << ":\n"
            << said;
      }
  }
}

// A window lost in the ring's backward loop alone: no program of this model any more, nor a file of it.
TEST(Lowering, AChangedFileIsRefused) {
  Planx planx = compiled("grid context 4 split seq over context by ring");
  auto good = readPlanx(writePlanx(planx));
  ASSERT_TRUE(bool(good)) << llvm::toString(good.takeError());
  Op* last = nullptr;
  for (Op* op : attentionOf(planx))
    if (op->kind == OpKind::AttendGrad && op->attrs.integer("window") == 5) last = op;
  ASSERT_TRUE(last);
  last->attrs.set("window", int64_t{6});
  auto bad = readPlanx(writePlanx(planx));
  ASSERT_FALSE(bool(bad));
  std::string said = llvm::toString(bad.takeError());
  EXPECT_NE(said.find("'attend_grad' at std/transformer.plan:"), std::string::npos) << said;
  EXPECT_NE(said.find("its window is 6, the model's is 5"), std::string::npos) << said;
  last->attrs.set("window", int64_t{0});
  said = verdict(planx);
  EXPECT_NE(said.find("its window is 0, another part's is 5"), std::string::npos) << said;
}

TEST(Lowering, AttentionOfNoModel) {
  Planx planx = compiled("");
  attentionOf(planx)[0]->loc.line += 1;
  EXPECT_NE(verdict(planx).find("the model has no attention there"), std::string::npos);
}

}  // namespace
}  // namespace planc
