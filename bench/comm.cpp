// Thread ranks against memcpy: an all-reduce of 64 MiB between two ranks must reach a third of the
// bandwidth at which one thread copies 64 MiB. Small messages and many ranks show what waiting costs.
//
//   bench/comm_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=5
#include <benchmark/benchmark.h>

#include <barrier>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/comm.h"

namespace planc {
namespace {

void copy(benchmark::State& state) {
  size_t bytes = size_t(state.range(0));
  std::vector<char> from(bytes, 1), to(bytes, 2);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(int64_t(bytes) * state.iterations());
}

// Arguments: bytes, ranks, whether in place. One iteration is `kRuns` messages, started and waited
// for in turn by all ranks, so that starting the threads costs nothing.
void allReduce(benchmark::State& state) {
  int64_t bytes = state.range(0), ranks = state.range(1);
  bool inPlace = state.range(2) != 0;
  const int64_t kRuns = bytes >= 1 << 20 ? 4 : 200;
  std::vector<std::vector<float>> from(static_cast<size_t>(ranks)), to(from);
  for (auto& buffer : from) buffer.assign(size_t(bytes) / sizeof(float), 0.0F);
  if (!inPlace) to = from;
  for (auto _ : state) {
    auto team = makeThreadTeam(int(ranks));
    std::barrier ready(ranks + 1);
    std::vector<std::thread> threads;
    for (int64_t r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        auto comm = team->communicator(int(r));
        float* send = from[size_t(r)].data();
        float* recv = inPlace ? send : to[size_t(r)].data();
        Site site{.op = "all_reduce"};
        ready.arrive_and_wait();
        for (int64_t i = 0; i < kRuns; ++i) {
          llvm::cantFail(comm->wait(comm->start(
              comm->world(), {.send = send, .recv = recv, .count = bytes / int64_t(sizeof(float))},
              site)));
        }
        ready.arrive_and_wait();
      });
    }
    ready.arrive_and_wait();
    auto start = std::chrono::steady_clock::now();
    ready.arrive_and_wait();
    std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    for (std::thread& thread : threads) thread.join();
    state.SetIterationTime(time.count() / double(kRuns));
  }
  state.SetBytesProcessed(bytes * state.iterations());
}

// Iterations are fixed: the time of a run's threads, which isn't measured, is no reason for more.
BENCHMARK(copy)->Arg(64 << 20)->UseRealTime()->Iterations(20)->Unit(benchmark::kMicrosecond);
BENCHMARK(allReduce)
    ->ArgNames({"bytes", "ranks", "in_place"})
    ->Args({64 << 20, 2, 0})
    ->Args({64 << 20, 2, 1})
    ->Args({4, 2, 1})
    ->Args({64 << 10, 2, 1})
    ->Args({4, 64, 1})
    ->UseManualTime()
    ->Iterations(5)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace planc

BENCHMARK_MAIN();
