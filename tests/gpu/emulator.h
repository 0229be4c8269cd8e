// Runs kernels that were compiled with tests/gpu/simt.h: blocks one after another, the threads of a
// block as fibers that change at barriers and at meetings of a warp, all in an order that a seed
// chooses. What a GPU would do wrong without a word is told here, by kernel, block and thread:
//   a barrier or a meeting of lanes that somebody never reaches; lanes that meet for different
//   things; a shuffle from a lane outside its mask; an access that is not aligned; shared memory
//   written beyond the launch's size, or used without one; a launch that the kernel or a GPU can't
//   take.
// Shared memory begins as garbage (NaNs, or 0xa5). A kernel that loops forever is not noticed.
#pragma once

#include "llvm/Support/Error.h"
#include "runtime/cuda/gpu.h"

namespace planc::emulator {

// Order of threads and blocks. Seed 0: forward; 1: backward; all others: shuffled.
llvm::Error launch(const cuda::KernelInfo& kernel, const cuda::LaunchShape& shape, const void* args,
                   uint64_t seed);

// splitmix64: one number of a sequence, and a hash.
uint64_t nextRandom(uint64_t& state);

}  // namespace planc::emulator
