// A machine with GPUs that are made of CPU memory: it implements runtime/cuda/gpu.h, so that a
// program that links tests/gpu instead of CUDA runs on it. Work is enqueued, and done only when
// somebody asks whether an event is done; among all that may run then, the mode chooses what the
// program expects least. So a wait that is missing shows as a wrong result. Tests choose here.
#pragma once

#include <cstdint>
#include <string>

namespace planc::cuda::fake {

enum class Mode : uint8_t {
  Eager,           // at once, in order
  Newest,          // what was enqueued last goes first
  Random,
  StarveCompute,   // urgent streams (messages) first
  StarveMessages,  // urgent streams last
};
inline constexpr Mode kModes[] = {Mode::Eager, Mode::Newest, Mode::Random, Mode::StarveCompute,
                                  Mode::StarveMessages};

struct Options {
  uint64_t seed = 2;  // of orders, and of the emulator: see emulator::launch for 0 and 1
  Mode mode = Mode::Random;
  int gpus = 64;
  int64_t bytes = int64_t(1) << 30;  // of each GPU's memory
  int64_t sharedBytes = 163 << 10;   // that a block may have, as on an A100
  bool isProtected = true;  // the host dies when it touches a GPU's memory
  // As NCCL connects: a rank's first message to another waits, on the host, for the other's first to it.
  bool meetsFirst = true;
  double hangSeconds = 60;  // without progress of any GPU, until messages that wait are an error
};
// Of GPUs that are opened from here on. At first as the environment says: PLANC_GPU_SEED,
// PLANC_GPU_MODE (a mode's number), PLANC_GPU_COUNT, PLANC_GPU_BYTES, PLANC_GPU_SHARED, PLANC_GPU_PROTECT
// (0 or 1).
Options& options();

// What is to go wrong on a GPU: its n-th allocation, launch or message, from 1.
enum class Fault : uint8_t {
  Allocation,
  Launch,
  Death,        // the GPU and its messages end; the others are told
  Silence,      // its messages never come; nobody is told
  CliqueError,  // an error from the background; nothing else happens
};
void inject(Fault fault, int gpu, int64_t n);
void clearFaults();

// What was asked of all GPUs by now: kernels, copies, products, messages; a graph is one.
int64_t enqueued();

}  // namespace planc::cuda::fake
