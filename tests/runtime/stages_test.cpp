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
  auto verification =
      makeVerification(*one.front(), nullptr, [] { return makeCpuDevice(1); }, options);
  EXPECT_TRUE(bool(verification)) << llvm::toString(verification.takeError());
  if (!verification) return {};
  test::onGoodRanks(layout.ranks(),
                    [&](Communicator& comm) {
                      auto device = makeCpuDevice(1, Coordinates(programs.front()->grid, comm.rank()));
                      return (*verification)->run(programs, comm, *device);
                    });
  return (*verification)->report();
}

std::string describe(const Comparison& c) {
  std::string text = c.kind + " '" + c.tensor + "' " + c.iteration + " on";
  for (int64_t rank : std::set<int64_t>(c.ranks.begin(), c.ranks.end()))
    text += " " + std::to_string(rank);
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
  EXPECT_TRUE(differ.count("moment 'layer.w.m' layer 3 on 0 1"));
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

// Losses, outputs and gradients of a file's weights and tokens are those of one rank.
TEST(Stages, EvalWritesWholeTensors) {
  Folder folder;
  for (Stages layout : layouts()) {
    Modules one = oneRank(layout), stages = test::stagePrograms(layout);
    onSessions({.microbatches = layout.microbatches}, one,
               [&](Communicator&, Session& session) -> llvm::Error {
                 if (llvm::Error error = session.initialise()) return error;
                 std::vector<TensorSource> tensors;
                 for (const auto& var : one.front()->vars) {
                   std::byte* data = session.interpreter().data(*var);
                   for (int64_t i = 0; var->kind == VarKind::Input && i < var->type.elements(); ++i)
                     reinterpret_cast<int32_t*>(data)[i] = int32_t(i * 37 % 256);
                   if (var->kind == VarKind::Input || var->kind == VarKind::Weight)
                     tensors.push_back({var->name, var->type, data});
                 }
                 if (llvm::Error error = writeSafetensors(folder / "in", tensors)) return error;
                 return session.evaluate(folder / "in", folder / "one");
               });
    onSessions(layout, stages, [&](Communicator&, Session& session) {
      return session.evaluate(folder / "in", folder / "stages");
    });
    auto ofOne = SafetensorsFile::open(folder / "one"), ofAll = SafetensorsFile::open(folder / "stages");
    ASSERT_TRUE(ofOne && ofAll);
    Words names;
    for (const auto& [name, entry] : ofAll->tensors()) {
      names.push_back(name);
      Type type{Elem::F64, {}};
      for (size_t i = 0; i < entry.shape.size(); ++i)
        type.dims.push_back({"d" + std::to_string(i), entry.shape[i]});
      std::vector<double> a(size_t(type.elements())), b = a;
      ASSERT_EQ(llvm::toString(ofOne->read(name, type, a.data())), "");
      ASSERT_EQ(llvm::toString(ofAll->read(name, type, b.data())), "");
      // These are added up in another order.
      double bound = name == "grad.scale" || name == "loss" ? 1e-12 : 0;
      for (size_t i = 0; i < a.size(); ++i)
        EXPECT_NEAR(a[i], b[i], bound * std::abs(a[i])) << name << " " << i;
    }
    EXPECT_EQ(names, (Words{"grad.layer.w", "grad.scale", "grad.table", "loss", "y"}));
  }
}

std::vector<std::string> createErrors(const Stages& layout, const Modules& programs) {
  return test::onRanks(layout.ranks(), [&](Communicator& comm) -> llvm::Error {
    auto device = makeCpuDevice(1, Coordinates(programs.front()->grid, comm.rank()));
    auto session = Session::create(programs, *device, comm);
    return session ? llvm::Error::success() : session.takeError();
  });
}

// A program that can't run is refused on all ranks before they meet.
TEST(Stages, RefuseWhatCannotRun) {
  Stages layout{.stageOf = {0, 1}, .microbatches = 2};
  struct Fault {
    const char* says;
    std::function<void(Module&)> spoil;
  };
  auto dropCall = [](Phase phase) {
    return [phase](Module& module) {
      auto& calls = module.schedule;
      calls.erase(llvm::find_if(calls, [&](const Call& call) {
        return call.phase == phase && call.function == "send.dx.1";
      }));
    };
  };
  for (const Fault& fault : std::vector<Fault>{
           {"rank 1: the schedule starts '@send.dx.1' and does not wait for it",
            dropCall(Phase::Wait)},
           {"rank 1: the schedule waits for '@send.dx.1(0)', which was not started",
            dropCall(Phase::Start)},
           {"rank 1: the schedule starts '@receive.x.1(0)', which is under way",
            [](Module& module) {
              module.schedule.insert(module.schedule.begin(), {"receive.x.1", 0, Phase::Start});
            }},
           {"rank 1: the schedule starts '@begin', which does more than pass messages: zero @loss",
            [](Module& module) { module.schedule[0].phase = Phase::Start; }},
           {"rank 1: rank 1 is not among those of %sum = all_reduce",
            [](Module& module) {
              walk(*module.findFunction("reduce")->body, [](Op* op) {
                if (op->kind == OpKind::AllReduce) op->attrs.set("among", Words{"0"});
              });
            }},
           {"the ranks' programs differ in 'scale': weight f64[model 8] and weight f32[model 8]",
            [](Module& module) { module.findVar("scale")->type.elem = Elem::F32; }},
       }) {
    Modules programs = test::stagePrograms(layout, [&](Module& module, int stage) {
      if (stage == 1) fault.spoil(module);
    });
    std::vector<std::string> errors = createErrors(layout, programs);
    for (const std::string& error : errors)
      EXPECT_EQ(error.substr(0, strlen(fault.says)), fault.says);
  }
}

// Notes the groups that a rank makes.
class Recorder : public Communicator {
 public:
  using Groups = std::vector<std::vector<int>>;
  Recorder(Communicator& inner, Groups& made)
      : Communicator(inner.rank(), inner.size()), inner_(inner), made_(made) {}
  Group& world() override { return inner_.world(); }
  Group& group(llvm::ArrayRef<int> members) override {
    made_.push_back(members.vec());
    return inner_.group(members);
  }
  llvm::Error wait(Ticket ticket) override { return inner_.wait(ticket); }
  void fail(llvm::StringRef why) override { inner_.fail(why); }

 protected:
  Ticket begin(Group& group, const Message& message, const Site& site) override {
    return inner_.start(group, message, site);
  }

 private:
  Communicator& inner_;
  Groups& made_;
};

// Two ranks make the groups that they share in one order, though one of them uses a group first that
// the other uses last: with MPI they would wait for each other.
TEST(Stages, MakeGroupsInOneOrder) {
  Stages layout{.stageOf = {0, 1, 2, 3}, .microbatches = 2};
  Modules programs = test::stagePrograms(layout, [](Module& module, int stage) {
    Builder builder(module.findFunction(stage % 2 ? "update" : "begin")->body.get(), 0);
    Type type{Elem::F32, {}, {{"pipe", 4}}};
    Value* share = builder.value(OpKind::Const, {}, type, {{"value", 1.0}});
    builder.create(OpKind::AllReduce, {share}, {Type{Elem::F32, {}}}, {{"axes", Words{"pipe"}}});
  });
  std::vector<Recorder::Groups> made(4);
  test::onGoodRanks(4, [&](Communicator& comm) -> llvm::Error {
    Recorder recorder(comm, made[size_t(comm.rank())]);
    auto device = makeCpuDevice(1, Coordinates(programs.front()->grid, comm.rank()));
    auto interpreter =
        Interpreter::create(*programs[size_t(comm.rank())], *device, &recorder);
    return interpreter ? llvm::Error::success() : interpreter.takeError();
  });
  for (int a = 0; a < 4; ++a)
    for (int b = 0; b < a; ++b) {
      auto shared = [&](int rank) {
        Recorder::Groups list = made[size_t(rank)];
        llvm::erase_if(list, [&](const std::vector<int>& group) {
          return !llvm::is_contained(group, a) || !llvm::is_contained(group, b);
        });
        return list;
      };
      EXPECT_EQ(shared(a), shared(b)) << a << " and " << b;
    }
  EXPECT_GT(made[0].size(), 3u);  // two channels, the tied weight's, all
}

// A stage that does not send: the run ends, and says who waits for whom, for what and where.
TEST(Stages, SayWhatTheyWaitFor) {
  Stages layout{.stageOf = {0, 1}, .microbatches = 2};
  Modules programs = test::stagePrograms(layout, [](Module& module, int stage) {
    if (stage == 1)
      llvm::erase_if(module.schedule, [](const Call& call) {
        return call.function == "send.dx.1" && call.microbatch == 1;
      });
  });
  auto team = makeThreadTeam(2, std::chrono::milliseconds(300));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto comm = team->communicator(rank);
      auto device = makeCpuDevice(1, Coordinates(programs.front()->grid, rank));
      auto session = Session::create(programs, *device, *comm);
      ASSERT_TRUE(bool(session)) << llvm::toString(session.takeError());
      auto tokens = data();
      auto record = (*session)->step(*tokens);
      EXPECT_FALSE(bool(record));
      llvm::consumeError(record.takeError());
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(team->failure(), "all ranks wait for each other: rank 1 waits for rank 0 in all_reduce 3 of "
                             "'sum' on pipe 1");
  EXPECT_EQ(team->table(),
            "rank        operation     tensor  plan line     waits for\n"
            "0 (pipe 0)  2 receive     v       hand.plan:20  rank 1\n"
            "1 (pipe 1)  3 all_reduce  sum                   rank 0\n");
}

// Calls are bars of the trace: tasks by themselves, what starts messages and what waits for them.
TEST(Stages, CallsAreInTheTrace) {
  Stages layout{.stageOf = {0, 1}, .microbatches = 2};
  Modules programs = test::stagePrograms(layout);
  onSessions(layout, programs, [&](Communicator& comm, Session& session) -> llvm::Error {
    Trace trace(comm.rank());
    session.interpreter().setTrace(&trace);
    auto tokens = data();
    auto record = session.step(*tokens);
    if (!record) return record.takeError();
    auto events = llvm::json::parse("[" + trace.events() + "]");
    if (!events) return events.takeError();
    std::map<std::string, int> counts;
    for (const llvm::json::Value& event : *events->getAsArray()) {
      auto name = event.getAsObject()->getString("name"), kind = event.getAsObject()->getString("cat");
      if (name && kind) ++counts[kind->str() + " " + name->str()];
    }
    std::string own = std::to_string(comm.rank()), word = comm.rank() == 0 ? "x" : "dx";
    std::string other = comm.rank() == 0 ? "dx" : "x";
    for (const std::string& bar :
         {"call forward." + own + "(1)", "call backward." + own + "(0)", std::string("call reduce"),
          "start send." + word + "." + own + "(0)", "wait send." + word + "." + own + "(1)",
          "start receive." + other + "." + own + "(1)",
          "wait receive." + other + "." + own + "(0)"})
      EXPECT_EQ(counts[bar], 1) << bar;
    return llvm::Error::success();
  });
}

}  // namespace
}  // namespace planc
