// Blocks and rows that travel, where roles do otherwise than each other: the proof says so before anything
// runs (cases of other systems by their numbers).
#include "ir/protocol.h"

#include <algorithm>

#include "ranks.h"
#include "sharded.h"

namespace planc {
namespace {

std::string verdict(const Planx& planx) { return llvm::toString(checkProtocol(planx)); }

void expectSays(const std::string& text, llvm::ArrayRef<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "lacks \"" << part << "\" in:\n" << text;
}

// A ring of two whose ranks have programs of their own: each sends its block, then receives the other's;
// `order`: which of them receives first.
enum class Exchange { BothSendFirst, OneReceivesFirst, Started };
Planx ringOfTwo(Exchange exchange) {
  Planx planx;
  const Type block{Elem::F32, {{"seq", 8}, {"width", 4}}};
  for (int64_t rank = 0; rank < 2; ++rank) {
    Module& role = *planx.roles.emplace_back(std::make_unique<Module>());
    role.grid = test::gridOf({{"context", 2}});
    role.where = {{"context", rank}};
    role.files = {"ring.plan"};
    Variable slot;
    slot.name = "keys", slot.type = block, slot.kind = VarKind::Slot;
    Variable* keys = role.addVar(slot);
    Builder begin(role.addFunction("begin")->body.get());
    begin.write(keys, begin.constant(0, block));
    auto message = [&](OpKind kind) {
      bool isSend = kind == OpKind::Send;
      Builder b(role.addFunction(isSend ? "send" : "receive")->body.get());
      b.loc = {0, 3, 5};
      // Each direction is a channel.
      Attrs attrs{{"axes", Words{"context"}},
                  {isSend ? "to" : "from", 1 - rank},
                  {"channel", isSend ? rank : 1 - rank}};
      if (isSend) b.create(kind, {b.read(keys)}, {}, attrs);
      else b.create(kind, {}, {block}, attrs, nullptr, "keys");
    };
    message(OpKind::Send);
    message(OpKind::Receive);
    if (exchange == Exchange::Started)
      role.schedule = {{"begin", -1},
                       {"send", -1, Phase::Start},
                       {"receive", -1, Phase::Start},
                       {"send", -1, Phase::Wait},
                       {"receive", -1, Phase::Wait}};
    else if (exchange == Exchange::OneReceivesFirst && rank == 1)
      role.schedule = {{"begin", -1}, {"receive", -1}, {"send", -1}};
    else role.schedule = {{"begin", -1}, {"send", -1}, {"receive", -1}};
  }
  return planx;
}

TEST(RingCases, C12SendsThatWaitForEachOther) {
  expectSays(
      verdict(ringOfTwo(Exchange::BothSendFirst)),
      {"ranks wait for each other for ever\n"
       "  rank 0 (context 0), operation 1:\n    send(%keys)",
       "    at ring.plan:3:5\n    waits for rank 1 (context 1): message 1 of channel 0 between "
       "ranks 0, 1\n  rank 1 (context 1), operation 1:\n    send(%keys)",
       "waits for rank 0 (context 0): message 1 of channel 1 between ranks 0, 1"});
  EXPECT_EQ(verdict(ringOfTwo(Exchange::OneReceivesFirst)), "");
  EXPECT_EQ(verdict(ringOfTwo(Exchange::Started)), "");
}

const std::string kRing = "grid context 2 split seq over context by ring microbatches 2";
const std::string kExperts = "grid expert 2 split batch over expert split expert over expert";

Planx compiled(const std::string& text, bool hasTwoRoles = true) {
  Planx planx;
  auto program = test::sharded(text, "emit");
  if (!program) return planx;
  if (hasTwoRoles) {
    planx.roles.push_back(cloneModule(*program));
    planx.roles[0]->where = {{program->grid.axes[0].name, 0}};
  }
  planx.roles.push_back(std::move(program));
  return planx;
}

// Of one role, the messages of these kinds in the order of the text.
std::vector<Op*> messages(Module& module, std::initializer_list<OpKind> kinds) {
  std::vector<Op*> found;
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      if (llvm::is_contained(kinds, op->kind)) found.push_back(op);
    });
  return found;
}

// Both directions and both tensors are one message, which starts before the block is scored and is waited
// for behind it.
TEST(RingCases, C12BlocksTravelInOneMessage) {
  for (const char* ranks : {"2", "4"}) {
    Planx planx = compiled(
        test::dense("grid context " + std::string(ranks) + " split seq over context by ring"),
        false);
    ASSERT_FALSE(planx.roles.empty());
    EXPECT_EQ(verdict(planx), "");
    EXPECT_TRUE(messages(*planx.roles[0], {OpKind::Send, OpKind::Receive}).empty());
    auto rotates = messages(*planx.roles[0], {OpKind::Rotate});
    ASSERT_GE(rotates.size(), 2u);
    for (Op* op : rotates) {
      EXPECT_EQ(op->operands().size(), 2u) << printOp(*op);
      EXPECT_TRUE(op->isFlag("start")) << printOp(*op);
      Op* wait = op->result()->uses()[0].op;
      EXPECT_EQ(wait->kind, OpKind::Wait);
    }
    // The loop of the forward pass.
    Op* rotate = rotates[0];
    ASSERT_TRUE(rotate->isUnlessLast());
    Block& body = *rotate->parent();
    size_t scored = body.ops.size();
    for (Op* op : body.ops)
      if (op->kind == OpKind::AttendBlock) scored = body.indexOf(op);
    EXPECT_LT(body.indexOf(rotate), scored);
    EXPECT_GT(body.indexOf(rotate->result()->uses()[0].op), scored);
  }
}

// Two layers of experts side by side, so that exchanges of one need nothing of the other.
const char* const kSideBySide = R"(import "std/transformer.plan"
model m(layers = 2) {
  dim batch = 4, seq = 8, vocab = 16, model = 8, ffn = 8, expert = 4
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model]
  x[batch, seq, model] = table[tokens]
  repeat layer = layers {
    x = x + moe(norm(x)) + moe(norm(x))
  }
  logits[batch, seq, vocab] = norm(x) @ table
  loss cross_entropy(logits, targets)
}
plan p of m {
  grid expert 2
  split batch  over expert
  split expert over expert
}
)";

// Moves an op, and what it needs, to the place before another one; false: it needs that one.
bool moveBefore(Op* op, Op* other) {
  if (op == other) return false;
  Block* block = op->parent();
  if (block->indexOf(op) < block->indexOf(other)) return true;
  for (const Value* operand : op->operands())
    if (operand->def() && operand->def()->parent() == block && !moveBefore(operand->def(), other))
      return false;
  auto& ops = block->ops;
  auto from = llvm::find(ops, op);
  std::rotate(llvm::find(ops, other), from, from + 1);
  return true;
}

// Each pair of messages in a block of which one rank starts the second first, where it could: two streams
// that do not agree on an order.
TEST(ExpertCases, OrderOfExchangesDiffers) {
  Planx planx = compiled(kSideBySide);
  ASSERT_EQ(planx.roles.size(), 2u);
  EXPECT_EQ(verdict(planx), "");
  const std::initializer_list<OpKind> kinds{OpKind::AllToAll, OpKind::ExchangeRows};
  size_t count = messages(*planx.roles[0], kinds).size();
  int exchanged = 0;
  for (size_t i = 0; i < count; ++i)
    for (size_t j = i + 1; j < count; ++j) {
      Planx spoiled;
      for (const auto& role : planx.roles) spoiled.roles.push_back(cloneModule(*role));
      std::vector<Op*> found = messages(*spoiled.roles[0], kinds);
      if (found[i]->parent() != found[j]->parent() || !moveBefore(found[j], found[i])) continue;
      EXPECT_EQ(llvm::toString(verify(*spoiled.roles[0])), "");
      expectSays(verdict(spoiled),
                 {"ranks 0 and 1 enter different operations: ", "rank 0 (expert 0)",
                  "rank 1 (expert 1)", "std/transformer.plan:"});
      ++exchanged;
    }
  EXPECT_GE(exchanged, 6);
}

// Room for other numbers of rows, or of counts.
TEST(ExpertCases, CountsOfAnExchangeDiffer) {
  for (OpKind kind : {OpKind::AllToAll, OpKind::ExchangeRows}) {
    Planx planx = compiled(test::experts(kExperts));
    ASSERT_EQ(planx.roles.size(), 2u);
    Op* op = messages(*planx.roles[1], {kind}).front();
    for (Value* value : {op->operand(0), op->result()}) {
      Dim& dim = value->type.dims[1];
      dim.size *= 2;
      if (dim.whole) dim.whole *= 2;
    }
    // Of rows only the room is known before they come.
    expectSays(
        verdict(planx),
        {kind == OpKind::AllToAll
             ? "ranks 0 and 1 enter different operations: count '4' and '8'"
             : "ranks 0 and 1 enter different operations: room '1024, 4, 4' and '2048, 4, 4'",
         "std/transformer.plan:"});
  }
}

// One rank's ring that goes the other way round, and one that leaves its last hop out.
TEST(RingCases, OneRankTurnsTheOtherWay) {
  Planx planx = compiled(test::dense("grid context 4 split seq over context by ring"));
  ASSERT_EQ(planx.roles.size(), 2u);
  EXPECT_EQ(verdict(planx), "");
  Op* rotate = messages(*planx.roles[0], {OpKind::Rotate}).front();
  rotate->attrs.set("by", int64_t{3});
  expectSays(verdict(planx), {"enter different operations: places moved '3' and '1'",
                              "rank 0 (context 0)", "std/transformer.plan:"});
  rotate->attrs.set("by", int64_t{1});
  EXPECT_EQ(verdict(planx), "");
  // Every hop, the last one too, where the others make none.
  rotate->attrs.erase("unless_last");
  rotate->result()->uses()[0].op->attrs.erase("unless_last");
  EXPECT_NE(verdict(planx), "");
}

// Case 31: each message tells what it is, between whom, how large, and for which line of the plan.
TEST(RingCases, C31EveryMessageIsNamed) {
  for (const std::string& text :
       {test::experts(
            "grid tensor 2, expert 2 split batch over expert split head, kv, ffn, vocab over "
            "tensor split expert over expert optimizer adamw { clip 1.0 }"),
        test::dense(
            "grid tensor 2, context 2 split head, kv, ffn, vocab over tensor split seq over "
            "context by ring optimizer adamw { clip 1.0 }")}) {
    for (llvm::StringRef last : {"experts", "emit"}) {
      auto module = test::sharded(text, last);
      ASSERT_TRUE(module);
      Traffic traffic = trafficOf(*module);
      size_t all = 0;
      for (const auto& function : module->functions)
        walk(*function->body, [&](const Op* op) {
          // What ends a message, and what carries none.
          all += op->has(Comm) && op->kind != OpKind::Wait;
        });
      EXPECT_EQ(traffic.transfers.size(), all);
      EXPECT_GT(all, 10u);
      for (const Transfer& transfer : traffic.transfers) {
        std::string what = printOp(*transfer.op);
        EXPECT_FALSE(transfer.axes.empty()) << what;
        EXPECT_GT(transfer.bytes, 0) << what;
        EXPECT_GT(transfer.times, 0) << what;
        EXPECT_TRUE(transfer.op->loc.known()) << what;
      }
    }
  }
}

}  // namespace
}  // namespace planc
