// Threads that are ranks. An error that all ranks share is rank 0's too; one that a rank tells the
// others ends up in the team's failure. Tested by tests/tools/ranks.test and tests/tools/mpi.test.
#include "tools/ranks.h"

#include <thread>
#include <vector>

namespace planc {
namespace {

Exit runThreads(llvm::StringRef tool, int64_t ranks, std::chrono::milliseconds timeout,
                llvm::function_ref<llvm::Error(Communicator&)> body) {
  std::unique_ptr<ThreadTeam> team = makeThreadTeam(int(ranks), timeout);
  std::vector<std::string> errors{size_t(ranks)};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < int(ranks); ++rank) {
    auto run = [&, rank] {
      std::unique_ptr<Communicator> comm = team->communicator(rank);
      errors[size_t(rank)] = llvm::toString(body(*comm));
    };
    // The library throws where the system has no more threads; ranks that run wait for those missing.
    try {
      threads.emplace_back(run);
    } catch (const std::exception&) {
      fail(tool, "this machine can't start " + llvm::Twine(ranks) + " threads, one a rank (it started " +
                     llvm::Twine(rank) + "): use a smaller grid, or --comm mpi over several machines");
      std::_Exit(kNo);
    }
  }
  bool haveEnded = team->waitForEnd();
  std::string failure = team->failure();
  if (haveEnded)
    for (std::thread& thread : threads) thread.join();
  if (!failure.empty()) {
    fail(tool, failure);
    llvm::errs() << team->table();
  }
  if (!haveEnded) {
    llvm::outs().flush();
    llvm::errs().flush();
    std::_Exit(kNo);
  }
  for (size_t rank = 0; rank < errors.size() && failure.empty(); ++rank)
    if (!errors[rank].empty())
      return fail(tool, (rank > 0 ? "rank " + llvm::Twine(rank) + ": " : "") + errors[rank]);
  return failure.empty() ? kYes : kNo;
}

}  // namespace

Exit runRanks(llvm::StringRef tool, Communicator* mpi, int64_t ranks,
              std::chrono::milliseconds timeout,
              llvm::function_ref<llvm::Error(Communicator&)> body) {
  if (!mpi) return runThreads(tool, ranks, timeout, body);
  llvm::Error error = body(*mpi);
  return error ? fail(tool, llvm::toString(std::move(error))) : kYes;
}

}  // namespace planc
