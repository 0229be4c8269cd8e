// A shared library that is loaded when it is first needed: cuBLASLt and NCCL are large, and a run on
// CPUs should not wait for them, nor fail where they are missing.
//
//   #define CALLS(CALL) CALL(ncclGetUniqueId) CALL(ncclSend)
//   struct Api { CALLS(PLANC_MEMBER) };
//   Api api;
//   if (llvm::Error error = loadLibrary("libnccl.so.2", {CALLS(PLANC_ENTRY)})) return error;
#pragma once

#include <dlfcn.h>

#include <initializer_list>

#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

#define PLANC_MEMBER(name) decltype(&::name) name = nullptr;
#define PLANC_ENTRY(name) {#name, reinterpret_cast<void**>(&api.name)},

namespace planc::cuda {

struct LibraryEntry {
  const char* name;
  void** into;
};

// Never closed.
inline llvm::Error loadLibrary(const char* file, std::initializer_list<LibraryEntry> entries) {
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  auto failed = [&](const llvm::Twine& what) {
    return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", what.str().c_str());
  };
  if (library == nullptr) return failed(llvm::Twine("CUDA's libraries are not all here: ") + dlerror());
  for (const LibraryEntry& entry : entries)
    if ((*entry.into = dlsym(library, entry.name)) == nullptr)
      return failed(llvm::Twine(file) + " has no '" + entry.name + "': it is too old");
  return llvm::Error::success();
}

}  // namespace planc::cuda
