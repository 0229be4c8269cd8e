// Compiled pipelines: they are proved, and whatever is taken out of their programs or exchanged in them is
// refused.
#include "compile.h"
#include "ir/protocol.h"
#include "ir/verify.h"
#include "plain_run.h"

namespace planc {
namespace {

std::string verdict(const Planx& planx) {
  llvm::Error error = checkFits(planx);
  if (!error) error = checkProtocol(planx);
  return llvm::toString(std::move(error));
}

// Two transformer layers a stage; `table` is tied.
Planx compiled(const std::string& grid, const std::string& plan) {
  std::string text = R"(
import "std/transformer.plan"
model lm(layers = 8) {
  dim batch = 4, seq = 8, vocab = 16
  dim model = 16, head = 2, kv = 2, width = 8, ffn = 32
  input tokens[batch, seq]  : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model] init normal(0.02)
  x[batch, seq, model] = table[tokens]
  repeat layer = layers {
    x = x + attention(norm(x))
    x = x + mlp(norm(x))
  }
  logits[batch, seq, vocab] = norm(x) @ table
  loss cross_entropy(logits, targets)
}
plan train of lm {
  grid )" + grid + "\n  split layer over pipe by " +
                     plan + "\n}\n";
  Planx planx;
  planx.model = test::compileText(text);
  if (planx.model) planx.roles.push_back(cloneModule(*planx.model));
  if (planx.model) test::runAll(planx.roles);
  return planx;
}

// Each schedule, once with what else ranks do.
const std::pair<const char*, const char*> kPlans[] = {
    {"pipe 4", "one_f_one_b microbatches 6"},
    {"pipe 2, data 2", "gpipe split batch over data shard gradients over data microbatches 3"},
    {"pipe 2, tensor 2",
     "interleaved(2) split head, kv, ffn, vocab over tensor split seq over tensor by gather "
     "microbatches 4"},
    {"data 2, pipe 2", "zero_bubble split batch over data shard weights over data microbatches 4"},
    {"pipe 2", "zero_bubble_v microbatches 4"},
};

Planx clone(const Planx& planx) {
  Planx copy;
  copy.model = cloneModule(*planx.model);
  for (const auto& role : planx.roles) copy.roles.push_back(cloneModule(*role));
  return copy;
}

TEST(PipelinePlans, Fit) {
  for (const auto& [grid, plan] : kPlans) {
    Planx planx = compiled(grid, plan);
    ASSERT_FALSE(planx.roles.empty());
    EXPECT_EQ(verdict(planx), "") << plan;
    EXPECT_TRUE(test::fits(planx)) << plan;
    EXPECT_GT(planx.roles.size(), 1u);
  }
}

// What a file says is read as it was proved.
TEST(PipelinePlans, FitAsFiles) {
  Planx planx = compiled(kPlans[0].first, kPlans[0].second);
  auto read = readPlanx(writePlanx(planx));
  ASSERT_TRUE(bool(read)) << llvm::toString(read.takeError());
  EXPECT_EQ(verdict(*read), "");
  planx.roles[2]->schedule.erase(planx.roles[2]->schedule.begin() + 7);
  auto spoiled = readPlanx(writePlanx(planx));
  ASSERT_TRUE(bool(spoiled)) << llvm::toString(spoiled.takeError());
  EXPECT_NE(verdict(*spoiled), "");
  planx.roles.erase(planx.roles.begin() + 1);
  auto lacking = readPlanx(writePlanx(planx));
  ASSERT_FALSE(bool(lacking));
  EXPECT_EQ(llvm::toString(lacking.takeError()), "a rank of the grid has no program");
}

TEST(PipelinePlans, NoCallCanBeLeftOut) {
  for (const auto& [grid, plan] : kPlans) {
    Planx planx = compiled(grid, plan);
    for (auto& role : planx.roles) {
      auto schedule = role->schedule;
      for (size_t i = 0; i < schedule.size(); ++i) {
        if (role->findFunction(schedule[i].function)->body->ops.empty()) continue;
        role->schedule.erase(role->schedule.begin() + long(i));
        EXPECT_NE(verdict(planx), "") << plan << ": " << name(schedule[i].phase).str() << " @"
                                      << schedule[i].function << " " << schedule[i].microbatch;
        role->schedule = schedule;
      }
    }
  }
}

// Of neighbours that are exchanged the proof says what a run of all ranks does, if each program is sound on
// its own.
TEST(PipelinePlans, ExchangedCalls) {
  int fitting = 0, unsound = 0, stuck = 0;
  for (const auto& [grid, plan] : kPlans) {
    Planx planx = compiled(grid, plan);
    for (auto& role : planx.roles)
      for (size_t i = 0; i + 1 < role->schedule.size(); ++i) {
        std::swap(role->schedule[i], role->schedule[i + 1]);
        std::string text = verdict(planx);
        if (text.find("is not sound") != std::string::npos) {
          ++unsound;
        } else {
          bool fits = test::fits(planx);
          EXPECT_EQ(text.empty(), fits)
              << plan << ", call " << i + 1 << " of " << role->name << ": " << text;
          ++(fits ? fitting : stuck);
        }
        std::swap(role->schedule[i], role->schedule[i + 1]);
      }
  }
  EXPECT_GT(fitting, 20);
  EXPECT_GT(unsound, 20);
  EXPECT_GT(stuck, 5);
}

// Ops of all programs, each changed alone: `change` gives false where there is nothing to change.
void expectEachRefused(const std::string& what, const std::function<bool(Op&)>& change, int least) {
  int mutants = 0;
  for (const auto& [grid, plan] : kPlans) {
    Planx planx = compiled(grid, plan);
    std::vector<std::pair<size_t, size_t>> ops;  // the role's, and the number in its walk
    for (size_t i = 0; i < planx.roles.size(); ++i) {
      size_t number = 0;
      for (const auto& function : planx.roles[i]->functions)
        walk(*function->body, [&](Op*) { ops.push_back({i, number++}); });
    }
    Planx changed = clone(planx);
    for (const auto& [role, number] : ops) {
      size_t at = 0;
      std::string text;
      bool isChanged = false;
      Op* found = nullptr;
      for (const auto& function : changed.roles[role]->functions)
        walk(*function->body, [&, number = number](Op* op) {
          if (at++ == number) found = op;
        });
      text = printOp(*found);
      isChanged = change(*found);
      if (!isChanged) continue;
      ++mutants;
      EXPECT_NE(verdict(changed), "")
          << what << ", " << plan << ", " << planx.roles[role]->name << ": " << text;
      changed = clone(planx);
    }
  }
  EXPECT_GE(mutants, least) << what;
}

bool isTransfer(const Op& op) { return op.kind == OpKind::Send || op.kind == OpKind::Receive; }

TEST(PipelinePlans, MessagesCannotBeChanged) {
  expectEachRefused(
      "another channel",
      [](Op& op) {
        if (isTransfer(op)) op.attrs.set("channel", op.attrs.integer("channel") + 100);
        return isTransfer(op);
      },
      20);
  expectEachRefused(
      "another stage",
      [](Op& op) {
        llvm::StringRef key = op.kind == OpKind::Send ? "to" : "from";
        int64_t stages = op.parent()->module().grid.find("pipe")[0].size;
        if (!isTransfer(op) || stages == 2) return false;
        int64_t own = op.parent()->module().where[0].second, peer = op.attrs.integer(key);
        do peer = (peer + 1) % stages;
        while (peer == own);
        op.attrs.set(key, peer);
        return true;
      },
      12);
  expectEachRefused(
      "another size",
      [](Op& op) {
        if (!isTransfer(op)) return false;
        Value& value = op.kind == OpKind::Send ? *op.operand(0) : *op.result();
        value.type.dims.back().size *= 2;
        return true;
      },
      20);
  expectEachRefused(
      "another tensor",
      [](Op& op) {
        if (op.kind != OpKind::Receive) return false;
        op.result()->name += "x";
        return true;
      },
      10);
  expectEachRefused(
      "a sum among others",
      [](Op& op) {
        Words among = op.attrs.words("among");
        if (among.empty()) return false;
        among.pop_back();
        op.attrs.set("among", among);
        return true;
      },
      2);
}

// Gradients, losses: nothing is added to what is not set, nothing is lost.
TEST(PipelinePlans, SumsBegin) {
  expectEachRefused(
      "not the first",
      [](Op& op) {
        if (!op.isFlag("first") || !op.var) return false;
        op.attrs.erase("first");
        return true;
      },
      20);
  expectEachRefused(
      "not cleared",
      [](Op& op) {
        if (op.kind != OpKind::Zero) return false;
        op.erase();
        return true;
      },
      2);
  expectEachRefused(
      "cleared for each microbatch",
      [](Op& op) {
        bool isMore =
            op.kind == OpKind::Accum && !op.isFlag("first") && op.parent()->owner() == nullptr;
        if (!isMore) return false;
        Builder(op.parent(), op.parent()->indexOf(&op)).create(OpKind::Zero, {}, {}, {}, op.var);
        return true;
      },
      1);
}

TEST(PipelinePlans, VariablesCannotBeChanged) {
  int flights = 0, pieces = 0, tied = 0;
  for (const auto& [grid, plan] : kPlans) {
    Planx planx = compiled(grid, plan);
    for (auto& role : planx.roles)
      for (auto& var : role->vars) {
        Variable before = *var;
        auto refused = [&](const char* what) {
          EXPECT_NE(verdict(planx), "")
              << plan << ", " << role->name << ": " << what << " " << var->name;
          *var = before;
        };
        if (var->flights > 1) ++flights, --var->flights, refused("a copy less of");
        if (var->kind != VarKind::Weight) continue;
        if (var->piece) {
          ++pieces;
          ++var->piece->first, refused("a later piece of");
          ++var->piece->all, refused("of more");
        } else if (var->tied || role->where[0].second == 0) {
          ++tied;
          var->tied = !var->tied, refused(var->tied ? "tied" : "untied");
        }
      }
  }
  EXPECT_GT(flights, 50);
  EXPECT_GT(pieces, 50);
  EXPECT_GT(tied, 3);
}

}  // namespace
}  // namespace planc
