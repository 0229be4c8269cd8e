// Ranks as MPI processes, under mpirun (comm_mpi.test): without arguments, the collectives; with the
// name of a failure, what must end all processes.
#include <csignal>
#include <cstdlib>
#include <thread>

#include "llvm/Support/raw_ostream.h"
#include "tests/runtime/comm_cases.h"

namespace planc {
namespace {

llvm::Error allReduce(Communicator& comm, int number, int64_t count = 3000) {
  std::vector<float> data(static_cast<size_t>(count));
  Site site{.op = "all_reduce", .tensor = "w", .place = "gpt.plan:12", .number = number};
  return comm.wait(
      comm.start(comm.world(), {.send = data.data(), .recv = data.data(), .count = count}, site));
}

llvm::Error runFailure(Communicator& comm, llvm::StringRef failure) {
  int rank = comm.rank();
  for (int i = 1; i <= 3; ++i) {
    if (i == 2) {
      if (failure == "missing" && rank == 2) continue;
      if (failure == "stall" && rank == 1) std::this_thread::sleep_for(std::chrono::hours(1));
      if (failure == "killed" && rank == 3) std::raise(SIGKILL);
      if (failure == "ends" && rank == 3) std::_Exit(0);
      if (failure == "fails" && rank == 2) comm.fail("disk full");
      if (failure == "transfer" && rank < 2) {
        std::vector<float> data(200);
        Message message{.send = data.data(), .recv = data.data(), .count = rank == 0 ? 100 : 200};
        message.kind = Collective::SendReceive;
        (rank == 0 ? message.to : message.from) = 1 - rank;
        Site site{.op = rank == 0 ? "send" : "receive", .tensor = "x", .place = "gpt.plan:7"};
        if (llvm::Error error = comm.wait(comm.start(comm.world(), message, site))) return error;
      }
      if (failure == "group")
        comm.group(rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2, 3});
    }
    int64_t count = failure == "count" && rank == 0 && i == 2 ? 6000 : 3000;
    if (llvm::Error error = allReduce(comm, i, count)) return error;
  }
  return llvm::Error::success();
}

int runChecks(Communicator& comm) {
  std::vector<std::string> failures = checkCollectives(comm, 300007);
  if (agreed(comm, [](int) { return ""; }) != "") failures.push_back("agree: an error of nobody");
  int last = comm.size() - 1;
  std::string text = agreed(comm, [&](int r) { return r == last ? "disk full" : ""; });
  std::string expected = last == 0 ? "disk full" : "rank " + std::to_string(last) + ": disk full";
  if (text != expected) failures.push_back("agree: " + text);
  for (const std::string& failure : failures) llvm::errs() << failure << '\n';
  int32_t count = int32_t(failures.size());
  llvm::cantFail(comm.wait(
      comm.start(comm.world(), {.elem = Elem::I32, .send = &count, .recv = &count, .count = 1},
                 {.op = "sum"})));
  if (comm.rank() == 0 && count == 0) llvm::outs() << "all collectives work\n";
  return count == 0 ? 0 : 1;
}

}  // namespace
}  // namespace planc

int main(int argc, char** argv) {
  auto comm = planc::makeMpiCommunicator(std::chrono::seconds(argc > 1 ? 2 : 60));
  if (!comm) {
    llvm::errs() << llvm::toString(comm.takeError()) << '\n';
    return 1;
  }
  if (argc == 1) return planc::runChecks(**comm);
  llvm::cantFail(planc::runFailure(**comm, argv[1]));
  return 0;
}
