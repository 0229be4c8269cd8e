// Ranks as threads of this process, from beginning to end; or this process as one of them. And what a
// rank needs: a device, and others to talk to.
#pragma once

#include "runtime/comm.h"
#include "runtime/device.h"
#include "tools/command.h"

namespace planc {

// What `--device`, `--comm` and their kin say.
struct RankOptions {
  std::string device = "cpu";   // or cuda
  bool isProcess = false;       // else a thread among all ranks
  int threads = 0;              // CPU threads of a rank; 0: all ranks together as many as there are
  std::chrono::milliseconds timeout{60000};
};

// The ranks that this process was started as one of, by mpirun, or by what sets RANK and WORLD_SIZE, or
// by Slurm; null: it was not, and all ranks are threads of it. `comm`: threads, mpi, tcp, or nccl,
// which takes any of them.
llvm::Expected<std::unique_ptr<Communicator>> joinProcesses(llvm::StringRef comm,
                                                            std::chrono::milliseconds timeout);

// Processes that were started together as ranks would each run all of them and write the same files:
// says so, if this is one; else empty.
std::string startedApart();

// A rank's device, and what its program's messages go through: `host`, or one between GPUs made on it.
class Rank {
 public:
  // Together.
  static llvm::Expected<Rank> make(const Grid& grid, Communicator& host,
                                   const RankOptions& options);
  Device& device() { return *device_; }
  Communicator& comm() { return own_ ? *own_ : *host_; }

 private:
  std::unique_ptr<Device> device_;
  Communicator* host_ = nullptr;
  std::unique_ptr<Communicator> own_;
};

// Runs `body` as the rank that this process is among those of `process`; where that is null, as each
// rank, a thread. What went wrong is said once; a run that failed between threads is followed by the table of
// what each was doing. When one does not end then, the process does.
Exit runRanks(llvm::StringRef tool, Communicator* process, int64_t ranks,
              std::chrono::milliseconds timeout,
              llvm::function_ref<llvm::Error(Communicator&)> body);

}  // namespace planc
