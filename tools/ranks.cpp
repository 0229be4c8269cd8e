// Threads that are ranks. An error that all ranks share is rank 0's too; one that a rank tells the
// others ends up in the team's failure. Tested by tests/tools/ranks.test and tests/tools/mpi.test.
#include "tools/ranks.h"

#include <cstdlib>
#include <thread>
#include <vector>

#include "runtime/talk.h"

namespace planc {
namespace {

// A number that whoever started this process left in its environment.
std::optional<int> fromEnvironment(llvm::ArrayRef<const char*> names) {
  for (const char* name : names) {
    int number = 0;
    if (const char* text = std::getenv(name);
        text && !llvm::StringRef(text).getAsInteger(10, number))
      return number;
  }
  return std::nullopt;
}

// That something else started, as many as ranks.
int processes() { return fromEnvironment({"WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}).value_or(1); }

int mpiProcesses() { return fromEnvironment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}).value_or(1); }

// Threads of one process take a GPU each, by rank. A process takes that of its place on its machine,
// or the only one that it was given.
llvm::Expected<int> gpuFor(const Communicator& host, bool isProcess) {
  auto count = countGpus();
  if (!count) return count.takeError();
  auto place = fromEnvironment({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                "PMI_LOCAL_RANK", "SLURM_LOCALID"});
  int wanted = isProcess && place ? *place : host.rank();
  if (isProcess && *count == 1) return 0;
  if (wanted < *count) return wanted;
  return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                 *count == 0
                                     ? "there is no GPU here"
                                     : "there is no GPU %d here for it, of which there are %d",
                                 wanted, *count);
}

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
      fail(tool, "this machine can't start " + llvm::Twine(ranks) +
                     " threads, one a rank (it started " + llvm::Twine(rank) +
                     "): use a smaller grid, or --comm mpi over several machines");
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

llvm::Expected<std::unique_ptr<Communicator>> joinProcesses(llvm::StringRef comm,
                                                            std::chrono::milliseconds timeout) {
  bool takesAny = comm == "nccl", isByMpi = mpiProcesses() > 1;
  if (comm == "mpi" || (takesAny && isByMpi)) return makeMpiCommunicator(timeout);
  if (comm == "threads" || (takesAny && processes() < 2)) return nullptr;
  auto launch = launchedAs();
  if (!launch) return launch.takeError();
  if (*launch && (*launch)->size > 1)
    return makeTcpCommunicator((*launch)->rank, (*launch)->size, (*launch)->host, (*launch)->port,
                               timeout);
  if (takesAny) return nullptr;
  return llvm::createStringError(
      llvm::inconvertibleErrorCode(),
      "--comm tcp: this process was not started as one of several "
      "(RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say so, or Slurm)");
}

std::string startedApart() {
  bool isByMpi = mpiProcesses() > 1;
  int started = isByMpi ? mpiProcesses() : processes();
  if (started < 2) return "";
  return std::to_string(started) +
         " processes were started, and each would run all ranks: add --comm " +
         (isByMpi ? "mpi" : "tcp");
}

llvm::Expected<Rank> Rank::make(const Grid& grid, Communicator& host, const RankOptions& options) {
  Coordinates here(grid, host.rank());
  Rank rank;
  rank.host_ = &host;
  if (options.device == "cpu") {
    int share = std::max(1, int(std::thread::hardware_concurrency()) / host.size());
    rank.device_ = makeCpuDevice(options.threads > 0 ? options.threads : share, here);
    return rank;
  }
  auto gpu = agree(host, gpuFor(host, options.isProcess));
  if (!gpu) return gpu.takeError();
  auto device = agree(host, makeCudaDevice(*gpu, here));
  if (!device) return device.takeError();
  rank.device_ = std::move(*device);
  auto comm = makeNcclCommunicator(host, *rank.device_, options.timeout);
  if (!comm) return comm.takeError();
  rank.own_ = std::move(*comm);
  return rank;
}

Exit runRanks(llvm::StringRef tool, Communicator* process, int64_t ranks,
              std::chrono::milliseconds timeout,
              llvm::function_ref<llvm::Error(Communicator&)> body) {
  if (!process) return runThreads(tool, ranks, timeout, body);
  llvm::Error error = body(*process);
  return error ? fail(tool, llvm::toString(std::move(error))) : kYes;
}

}  // namespace planc
