// How this process was started, from the environment. Tested by tests/runtime/comm_tcp_test.cpp.
#include "llvm/ADT/StringExtras.h"
#include "runtime/comm.h"
#include "runtime/comm/socket.h"

namespace planc {
namespace {

// The names by which one launcher says the same.
struct Words {
  const char *rank, *size, *local;
};
constexpr Words kTorchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK"};
// Of the step, which srun started: in a job's own script the job's words stand too, and nobody else runs.
constexpr Words kSlurm = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"};

// Ports for Slurm's jobs: below those that systems hand out by themselves.
constexpr int kFirstPort = 15000, kPorts = 15000;

class Reader {
 public:
  explicit Reader(Environment get) : get_(get) {}

  bool has(const char* name) const { return get_(name) != nullptr; }
  llvm::Expected<std::string> text(const char* name) const {
    if (const char* value = get_(name); value != nullptr && *value != '\0') return value;
    return comm::failure(llvm::Twine("the environment has no ") + name);
  }
  llvm::Expected<int> number(const char* name, int least, int most) const {
    llvm::Expected<std::string> value = text(name);
    if (!value) return value.takeError();
    int number = 0;
    if (llvm::StringRef(*value).getAsInteger(10, number) || number < least || number > most)
      return comm::failure(llvm::Twine(name) + " is '" + *value +
                           "' in the environment, not a number " + "from " + llvm::Twine(least) +
                           " to " + llvm::Twine(most));
    return number;
  }

 private:
  Environment get_;
};

constexpr int kMostRanks = 1 << 20;

// Each value, or the first error.
llvm::Error readRanks(const Reader& environment, const Words& words, Launch& launch) {
  llvm::Expected<int> size = environment.number(words.size, 1, kMostRanks);
  if (!size) return size.takeError();
  llvm::Expected<int> rank = environment.number(words.rank, 0, kMostRanks);
  if (!rank) return rank.takeError();
  // Who leaves it out has one rank a machine, or means the rank.
  llvm::Expected<int> local =
      environment.has(words.local) ? environment.number(words.local, 0, kMostRanks) : *rank;
  if (!local) return local.takeError();
  launch.size = *size, launch.rank = *rank, launch.localRank = *local;
  for (auto [name, value] : {std::pair(words.rank, *rank), std::pair(words.local, *local)})
    if (value >= *size)
      return comm::failure(llvm::Twine(name) + " is " + llvm::Twine(value) +
                           " in the environment, but " + words.size + " is " + llvm::Twine(*size));
  return llvm::Error::success();
}

llvm::Error readHost(const Reader& environment, Launch& launch) {
  llvm::Expected<std::string> host = environment.text("MASTER_ADDR");
  if (!host) return host.takeError();
  llvm::Expected<int> port = environment.number("MASTER_PORT", 1, 65535);
  if (!port) return port.takeError();
  launch.host = *host, launch.port = *port;
  // There torchrun itself listens.
  llvm::Expected<std::string> isTaken = environment.text("TORCHELASTIC_USE_AGENT_STORE");
  if (isTaken && llvm::StringRef(*isTaken).equals_insensitive("true"))
    launch.port = launch.port % 65535 + 1;
  llvm::consumeError(isTaken.takeError());
  return llvm::Error::success();
}

llvm::Error readSlurmHost(const Reader& environment, Launch& launch) {
  if (environment.has("MASTER_ADDR") || environment.has("MASTER_PORT"))
    return readHost(environment, launch);
  llvm::Expected<std::string> host = environment.text("SLURM_LAUNCH_NODE_IPADDR");
  if (!host) return host.takeError();
  llvm::Expected<int> job = environment.number("SLURM_JOB_ID", 0, INT32_MAX);
  if (!job) return job.takeError();
  launch.host = *host, launch.port = kFirstPort + *job % kPorts;
  return llvm::Error::success();
}

}  // namespace

llvm::Expected<std::optional<Launch>> launchedAs(Environment get) {
  Reader environment(get);
  Launch launch;
  if (environment.has(kTorchrun.rank) || environment.has(kTorchrun.size)) {
    if (llvm::Error error = readRanks(environment, kTorchrun, launch)) return error;
    if (llvm::Error error = readHost(environment, launch)) return error;
    return launch;
  }
  if (!environment.has(kSlurm.rank) || !environment.has(kSlurm.size)) return std::nullopt;
  if (llvm::Error error = readRanks(environment, kSlurm, launch)) return error;
  if (llvm::Error error = readSlurmHost(environment, launch)) return error;
  return launch;
}

}  // namespace planc
