// Case 35 with threads: compiled plans in which one rank does otherwise than the others. The proof says
// no before anything runs; without it, the run ends on all ranks within the time-out, and says which
// rank, which operation and which line of the plan.
#include <chrono>

#include "tests/runtime/plans.h"

namespace planc {
namespace {

struct Said {
  std::string text;
  double seconds;
};

// `planrun run` with options.
Said runPlanx(const Planx& planx, const std::string& options) {
  std::string path = ::testing::TempDir() + "faults-" + std::to_string(::getpid()) + ".planx";
  {
    std::error_code error;
    llvm::raw_fd_ostream(path, error) << writePlanx(planx);
  }
  std::string command = PLANC_BINARY_DIR "/planrun run " + path +
                        " --data " PLANC_SOURCE_DIR "/examples/data/genesis.txt --steps 1000000 " +
                        options + " 2>&1; echo exit $?";
  auto start = std::chrono::steady_clock::now();
  FILE* pipe = ::popen(command.c_str(), "r");
  Said said{std::string(1 << 16, 0), 0};
  said.text.resize(fread(said.text.data(), 1, said.text.size(), pipe));
  ::pclose(pipe);
  said.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::remove(path.c_str());
  return said;
}

// On a plan of which rank 2 of 4 has a program of its own.
Said runSpoiled(const test::Spoil& spoil, const std::string& options) {
  auto program = test::compileText(
      test::planOf("dense(layers = 2, vocab = 256)",
                   "grid data 2, tensor 2\n" + test::kSequence + "microbatches 2\n"));
  Planx planx;
  planx.model = cloneModule(*program);
  test::runAll(*program);
  planx.roles.push_back(cloneModule(*program));
  planx.roles[0]->where = {{"data", 1}, {"tensor", 0}};
  spoil(*planx.roles[0]);
  planx.roles.push_back(std::move(program));
  return runPlanx(planx, options);
}

// On stages of which the second has a program of its own.
Said runSpoiledStage(const test::Spoil& spoil, const std::string& options) {
  Planx planx;
  planx.model = test::compileText(
      test::planOf("dense(layers = 2, vocab = 256)",
                   "grid pipe 2\nsplit layer over pipe by one_f_one_b\nmicrobatches 4\n"));
  planx.roles.push_back(cloneModule(*planx.model));
  test::runAll(planx.roles);
  spoil(*planx.roles[1]);
  return runPlanx(planx, options);
}

void expectParts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in:\n" << text;
}

// The last all-reduce of a function over these axes.
Op* lastSum(Module& module, llvm::StringRef function, const Words& axes) {
  Op* found = nullptr;
  walk(*module.findFunction(function)->body, [&](Op* op) {
    if (op->kind == OpKind::AllReduce && op->attrs.words("axes") == axes) found = op;
  });
  return found;
}

void eraseWithUsers(Op* op) {
  for (Value* result : op->results())
    while (!result->uses().empty()) eraseWithUsers(result->uses().front().op);
  op->erase();
}

// The norms' gradients are no longer summed.
void leaveOutASum(Module& module) { eraseWithUsers(lastSum(module, "reduce", {"data", "tensor"})); }

// A sum starts before what goes before it in its group.
void exchangeTwo(Module& module) {
  auto& ops = module.findFunction("forward")->body->ops;
  auto sum = llvm::find(ops, lastSum(module, "forward", {"tensor"}));
  auto before = sum;
  do --before;
  while (!(*before)->has(Comm));
  std::rotate(before, sum, sum + 1);
}

void leaveOutTheUpdate(Module& module) {
  llvm::erase_if(module.schedule, [](const Call& call) { return call.function == "update"; });
}

struct Fault {
  const char* name;
  test::Spoil spoil;
};

TEST(Cases, C35OneRankDoesOtherwise) {
  for (const Fault& fault :
       {Fault{"an all-reduce less", leaveOutASum}, Fault{"two messages exchanged", exchangeTwo},
        Fault{"no update", leaveOutTheUpdate}}) {
    SCOPED_TRACE(fault.name);
    Said proof = runSpoiled(fault.spoil, "");
    expectParts(proof.text, {"exit 1\n", "rank 2 (data 1, tensor 0)", "\n    %", ".plan:"});
    EXPECT_EQ(proof.text.find("tokens/s"), std::string::npos) << "it ran: " << proof.text;
    Said run = runSpoiled(fault.spoil, "--no-check --timeout 2");
    expectParts(run.text, {"exit 1\n", "rank 2", "plan line", ".plan:"});
    EXPECT_LT(run.seconds, 10);
  }
}

void dropMessage(Module& module, llvm::StringRef word) {
  llvm::erase_if(module.schedule, [&](const Call& call) {
    return call.microbatch == 3 && llvm::StringRef(call.function).startswith(word);
  });
}
void sendOneLess(Module& module) { dropMessage(module, "send"); }
void receiveOneLess(Module& module) { dropMessage(module, "receive"); }
void leaveOutTheReduction(Module& module) {
  llvm::erase_if(module.schedule, [](const Call& call) { return call.function == "reduce"; });
}

// So with stages: the table says which stage waits for which.
TEST(Cases, C35OneStageDoesOtherwise) {
  for (const Fault& fault :
       {Fault{"a message not sent", sendOneLess}, Fault{"a message not received", receiveOneLess},
        Fault{"no reduction", leaveOutTheReduction}}) {
    SCOPED_TRACE(fault.name);
    Said proof = runSpoiledStage(fault.spoil, "");
    expectParts(proof.text, {"exit 1\n", "rank 1 (pipe 1)"});
    EXPECT_EQ(proof.text.find("tokens/s"), std::string::npos) << "it ran: " << proof.text;
    Said run = runSpoiledStage(fault.spoil, "--no-check --timeout 2");
    expectParts(run.text, {"exit 1\n", "on pipe ", "plan line", "0 (pipe 0)", "1 (pipe 1)"});
    EXPECT_LT(run.seconds, 10);
  }
}

}  // namespace
}  // namespace planc
