// Collectives over MPI, ours and the library's own in turn, in one run: the blocking ones, and those
// that are started and waited for, as ours are. Ours should take no more than 1.1 times as long.
//
//   mpirun -n 2 build/release/bench/mpi_comm_bench
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "runtime/comm.h"

namespace planc {
namespace {

struct Contestant {
  const char* name;
  std::function<void()> run;
  std::vector<double> times = {};
};

void compare(const char* what, int64_t bytes, int runs, int rank,
             std::vector<Contestant> contestants) {
  for (int run = 0; run < runs; ++run) {
    for (Contestant& contestant : contestants) {
      MPI_Barrier(MPI_COMM_WORLD);
      double begin = MPI_Wtime();
      contestant.run();
      contestant.times.push_back(MPI_Wtime() - begin);
    }
  }
  double theirs = 0;
  for (Contestant& contestant : contestants) {
    std::nth_element(contestant.times.begin(), contestant.times.begin() + runs / 2,
                     contestant.times.end());
    double median = contestant.times[size_t(runs) / 2];
    double least = *std::min_element(contestant.times.begin(), contestant.times.end());
    if (theirs == 0) theirs = median;
    if (rank == 0) {
      std::printf("%-14s %9lld bytes  %-11s median %10.1f us  least %10.1f us  ratio %.2f\n", what,
                  static_cast<long long>(bytes), contestant.name, median * 1e6, least * 1e6,
                  median / theirs);
    }
  }
}

// One collective of `bytes` on the larger side, or of one element where that is more.
struct Bench {
  Collective kind;
  int (*blocking)(const float* x, float* y, int whole, int chunk);
  int (*started)(const float* x, float* y, int whole, int chunk, MPI_Request* request);
};

const Bench kBenches[] = {
    {Collective::AllReduce,
     [](const float* x, float* y, int whole, int) {
       return MPI_Allreduce(x, y, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
     },
     [](const float* x, float* y, int whole, int, MPI_Request* request) {
       return MPI_Iallreduce(x, y, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, request);
     }},
    {Collective::ReduceScatter,
     [](const float* x, float* y, int, int chunk) {
       return MPI_Reduce_scatter_block(x, y, chunk, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
     },
     [](const float* x, float* y, int, int chunk, MPI_Request* request) {
       return MPI_Ireduce_scatter_block(x, y, chunk, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, request);
     }},
    {Collective::AllGather,
     [](const float* x, float* y, int, int chunk) {
       return MPI_Allgather(x, chunk, MPI_FLOAT, y, chunk, MPI_FLOAT, MPI_COMM_WORLD);
     },
     [](const float* x, float* y, int, int chunk, MPI_Request* request) {
       return MPI_Iallgather(x, chunk, MPI_FLOAT, y, chunk, MPI_FLOAT, MPI_COMM_WORLD, request);
     }},
    {Collective::AllToAll,
     [](const float* x, float* y, int, int chunk) {
       return MPI_Alltoall(x, chunk, MPI_FLOAT, y, chunk, MPI_FLOAT, MPI_COMM_WORLD);
     },
     [](const float* x, float* y, int, int chunk, MPI_Request* request) {
       return MPI_Ialltoall(x, chunk, MPI_FLOAT, y, chunk, MPI_FLOAT, MPI_COMM_WORLD, request);
     }},
    {Collective::Broadcast,
     [](const float*, float* y, int whole, int) {
       return MPI_Bcast(y, whole, MPI_FLOAT, 0, MPI_COMM_WORLD);
     },
     [](const float*, float* y, int whole, int, MPI_Request* request) {
       return MPI_Ibcast(y, whole, MPI_FLOAT, 0, MPI_COMM_WORLD, request);
     }},
};

void run(Communicator& comm) {
  int n = comm.size();
  Site site{.op = "bench"};
  for (int64_t bytes : {64 << 20, 64 << 10, 4}) {
    int runs = bytes > 1 << 20 ? 15 : 500;
    int whole = int(bytes / int64_t(sizeof(float))), chunk = (whole + n - 1) / n;
    std::vector<float> x(size_t(chunk) * size_t(n), 1.0F), y(x);
    for (const Bench& bench : kBenches) {
      bool sharesWhole = bench.kind == Collective::AllReduce || bench.kind == Collective::Broadcast;
      Message message = {.kind = bench.kind, .send = x.data(), .recv = y.data()};
      message.count = sharesWhole ? whole : chunk;
      compare(
          name(bench.kind).data(), bytes, runs, comm.rank(),
          {{"MPI", [&] { bench.blocking(x.data(), y.data(), whole, chunk); }},
           {"MPI started",
            [&] {
              MPI_Request request;
              bench.started(x.data(), y.data(), whole, chunk, &request);
              MPI_Wait(&request, MPI_STATUS_IGNORE);
            }},
           {"planc", [&] { llvm::cantFail(comm.wait(comm.start(comm.world(), message, site))); }}});
    }
  }
}

}  // namespace
}  // namespace planc

int main() { planc::run(*llvm::cantFail(planc::makeMpiCommunicator())); }
