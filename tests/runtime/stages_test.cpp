// Programs of several stages, told apart by role: what they compute against one rank's, in every order
// of messages; checkpoints, eval and verify over pieces and tied weights; and how a run ends when
// stages do not fit.
#include "tests/runtime/stages.h"

#include <set>

#include "ir/verify.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "runtime/session.h"
#include "runtime/verify.h"

namespace planc {
namespace {

using test::Stages;

std::vector<Stages> layouts() {
  return {
      {.stageOf = {0, 1}, .microbatches = 4},
      {.stageOf = {0, 1}, .microbatches = 5, .oneForwardOneBackward = true},
      {.stageOf = {0, 1, 2, 3}, .microbatches = 6, .oneForwardOneBackward = true},
      {.stageOf = {0, 1, 0, 1}, .microbatches = 3},
      {.stageOf = {0, 1, 1, 0}, .microbatches = 2},
      {.stageOf = {0, 1}, .microbatches = 1, .data = 2},
  };
}

Modules oneRank(const Stages& layout) {
  return test::stagePrograms({.microbatches = layout.microbatches});
}

VerifyReport verifyStages(const Stages& layout, const Modules& programs, bool activations = false) {
  Modules one = oneRank(layout);
  VerifyOptions options;
  options.activations = activations;
  auto makeDevice = [](const Coordinates& rank) { return makeCpuDevice(1, rank); };
  auto verification = makeVerification(*one.front(), nullptr, makeDevice, options);
  EXPECT_TRUE(bool(verification)) << llvm::toString(verification.takeError());
  if (!verification) return {};
  test::onGoodRanks(layout.ranks(),
                    [&](Communicator& comm) { return (*verification)->run(programs, comm); });
  return (*verification)->report();
}

std::string describe(const Comparison& c) {
  std::string text = c.kind + " '" + c.tensor + "' " + c.iteration + " on";
  for (int64_t rank : c.ranks) text += " " + std::to_string(rank);
  return text;
}

// Everything that differs, once each.
std::set<std::string> differences(const VerifyReport& report) {
  std::set<std::string> list;
  for (const Comparison& c : report.comparisons)
    if (!c.ranks.empty()) list.insert(describe(c));
  return list;
}

TEST(Stages, ComputeWhatOneRankDoes) {
  for (const Stages& layout : layouts())
    for (bool activations : {false, true}) {
      Modules programs = test::stagePrograms(layout);
      ASSERT_FALSE(programs.empty());
      for (const auto& program : programs) EXPECT_EQ(llvm::toString(verify(*program)), "");
      VerifyReport report = verifyStages(layout, programs, activations);
      EXPECT_EQ(differences(report), std::set<std::string>());
      std::set<std::string> kinds;
      for (const Comparison& c : report.comparisons) kinds.insert(c.kind);
      EXPECT_EQ(kinds.count("activation"), size_t(activations));
      EXPECT_EQ(kinds.size(), activations ? 5u : 4u);
    }
}

// Ranks that hold a tied weight are compared one by one.
TEST(Verification, SeesATiedCopyThatDrifts) {
  Stages layout{.stageOf = {0, 1, 2, 3}, .microbatches = 4};
  Modules programs = test::stagePrograms(layout, [](Module& module, int stage) {
    if (stage != 3) return;
    // It learns faster.
    walk(*module.findFunction("update")->body, [](Op* op) {
      if (op->kind == OpKind::Const) op->attrs.set("value", op->attrs.number("value") * 1.01);
    });
    walk(*module.findFunction("update")->body, [](Op* op) {
      if (op->kind != OpKind::Write || op->var->name != "layer.w.3") return;
      op->setOperand(0, op->operand(0)->def()->operand(0));
    });
  });
  std::set<std::string> differ = differences(verifyStages(layout, programs));
  EXPECT_TRUE(differ.count("weight 'scale'  on 3")) << *differ.begin();
}

// A layer is called by its number in the model.
TEST(Verification, NamesTheLayerOfTheWholeModel) {
  Stages layout{.stageOf = {0, 1}, .microbatches = 2};
  Modules programs = test::stagePrograms(layout, [](Module& module, int stage) {
    if (stage != 1) return;
    walk(*module.findFunction("backward.1")->body, [](Op* op) {
      if (op->kind == OpKind::Repeat) op->attrs.set("first", int64_t(0));  // drops as layers 0 and 1
    });
  });
  VerifyReport report = verifyStages(layout, programs);
  std::set<std::string> differ = differences(report);
  EXPECT_TRUE(differ.count("gradient 'grad.layer.w' layer 3 on 1")) << *differ.begin();
  EXPECT_TRUE(differ.count("gradient 'grad.layer.w' layer 0 on 0"));
  for (const std::string& d : differ) ADD_FAILURE() << d;
}

// What no stage holds is missing on all.
TEST(Verification, SeesThatNobodyHoldsALayer) {
  Stages layout{.stageOf = {0, 1}, .microbatches = 2};
  Modules programs = test::stagePrograms(layout, [](Module& module, int) {
    for (const auto& var : module.vars)
      if (var->piece && var->piece->first > 0) var->piece->first -= 1;
  });
  EXPECT_TRUE(differences(verifyStages(layout, programs))
                  .count("gradient 'grad.layer.w' layer 3 on 0 1"));
}

using Body = std::function<llvm::Error(Communicator&, Session&)>;

void onSessions(const Stages& layout, const Modules& programs, const Body& body) {
  test::onGoodRanks(layout.ranks(), [&](Communicator& comm) -> llvm::Error {
    auto device = makeCpuDevice(1, Coordinates(programs.front()->grid, comm.rank()));
    auto session = Session::create(programs, *device, comm);
    return session ? body(comm, **session) : session.takeError();
  });
}

std::string fileText(const std::string& path) {
  auto file = llvm::MemoryBuffer::getFile(path);
  return file ? (*file)->getBuffer().str() : "no " + path;
}

llvm::Expected<TokenFile> data() {
  return TokenFile::open(PLANC_SOURCE_DIR "/examples/data/genesis.txt");
}

class Folder {
 public:
  Folder() {
    path_ = ::testing::TempDir() + "stages-" + std::to_string(::getpid());
    llvm::sys::fs::create_directories(path_);
  }
  ~Folder() { llvm::sys::fs::remove_directories(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A step, its checkpoint, from that another step: the files are the same whatever the stages; and so
// are the records of all ranks, though the last stage alone has the loss.
TEST(Stages, CheckpointsAreAlike) {
  Folder folder;
  std::string first, second;
  for (Stages layout : layouts()) {
    layout.microbatches = 4;
    for (const Stages& to : {Stages{.microbatches = 4}, layout}) {
      Modules one = oneRank(layout), stages = test::stagePrograms(layout);
      const Modules& loading = to.stages() == 1 ? one : stages;
      double loss = 0;
      onSessions(layout, stages, [&](Communicator& comm, Session& session) -> llvm::Error {
        if (llvm::Error error = session.initialise()) return error;
        auto tokens = data();
        EXPECT_EQ(session.tokensPerStep(), 32);
        EXPECT_EQ(session.positions(), 4);
        EXPECT_EQ(session.vocab(), 256);
        auto record = session.step(*tokens);
        if (!record) return record.takeError();
        EXPECT_NE(record->loss, 0) << "rank " << comm.rank();
        if (comm.rank() == 0) loss = record->loss;
        return session.save(folder / "a");
      });
      onSessions(to, loading, [&](Communicator&, Session& session) -> llvm::Error {
        std::string note;
        if (llvm::Error error = session.load(folder / "a", note)) return error;
        EXPECT_EQ(note, "");
        auto tokens = data();
        auto record = session.step(*tokens);
        if (!record) return record.takeError();
        EXPECT_NE(record->loss, loss);
        return session.save(folder / "b");
      });
      std::string a = fileText(folder / "a/checkpoint.safetensors");
      std::string b = fileText(folder / "b/checkpoint.safetensors");
      if (first.empty()) first = a, second = b;
      EXPECT_EQ(a.size(), first.size());
      // Where one stage has both uses of the shared weight, its gradient is summed in another order.
      bool isAlike = layout.stageOf.front() != layout.stageOf.back();
      EXPECT_TRUE(!isAlike || a == first);
      EXPECT_EQ(b.size(), second.size());
      EXPECT_NE(a, b);
    }
  }
}

}  // namespace
}  // namespace planc
