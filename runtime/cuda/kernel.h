// What host code and kernels both see: a kernel's handle and its arguments' words. Included by nvcc too,
// so nothing of LLVM or the IR.
//
// A family of kernels is three files: NAME.h (argument structs, handles), NAME.cu (the kernels, with
// runtime/cuda/device_code.h), NAME.cpp (makers: what shapes decide, then launches). NAME.cu is compiled
// twice: by nvcc, and by the C++ compiler against the emulator of tests/gpu.
#pragma once

#include <cstdint>

#include "ir/elem.h"

namespace planc::cuda {

constexpr int kWarp = 32;  // threads

// A tensor's first element, and how elements are stored. Kernels compute in float for f32 and bf16, in
// double where f64 takes part; loads and stores convert.
struct Ref {
  void* data = nullptr;
  Elem elem = Elem::F32;
};
struct ConstRef {
  const void* data = nullptr;
  Elem elem = Elem::F32;
};

struct KernelInfo {
  const char* name;
  const void* entry;  // what the driver launches
  int argBytes;
  int threads;        // most of a block
};
// A kernel takes one plain struct by value.
template <class Args>
struct Kernel : KernelInfo {};

}  // namespace planc::cuda
