// What the compiler's alignment check (-fsanitize=alignment) calls in kernels: the error that a GPU
// has for such an access. Tested by tests/gpu/emulator_test.cpp.
#include <cstdint>
#include <cstdio>

#include "tests/gpu/simt.h"

#ifdef PLANC_CHECKS_ALIGNMENT
namespace {

// As the compiler lays it out.
struct Mismatch {
  const char* file;
  uint32_t line, column;
  const void* type;
  unsigned char logAlignment, kind;
};

}  // namespace

extern "C" void __ubsan_handle_type_mismatch_v1(const Mismatch* at, uintptr_t pointer) {
  char text[512];
  std::snprintf(text, sizeof text, "an access to %#zx is not aligned to %d bytes (%s:%u)",
                size_t(pointer), 1 << at->logAlignment, at->file, at->line);
  planc::emulator::fail(text);
}
#endif
