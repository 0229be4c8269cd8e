// Element types. Nothing else is included here: code for GPUs reads it too.
#pragma once

#include <cstdint>

namespace planc {

enum class Elem : uint8_t { F32, BF16, F64, I32 };

}  // namespace planc
