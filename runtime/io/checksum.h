// CRC-32 (as in zlib) of bytes whose parts were summed apart.
#pragma once

#include <cstdint>

namespace planc {

// The checksum of A then B, from the checksums of both and B's length in bytes.
uint32_t joinChecksums(uint32_t a, uint32_t b, int64_t bytesOfB);

}  // namespace planc
