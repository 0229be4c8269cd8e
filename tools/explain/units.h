// Figures as people read them.
#pragma once

#include <cstdint>
#include <string>

#include "llvm/ADT/StringRef.h"

namespace planc {

// A unit of bytes for a table whose largest figure is so large.
struct ByteUnit {
  llvm::StringRef name;  // B, KiB, MiB, GiB, TiB
  double bytes;
};
ByteUnit unitFor(double bytes);
std::string inUnit(double bytes, const ByteUnit& unit);  // `26.12`, or `512` of B

std::string bytesText(double bytes);                      // `26.12 GiB`
std::string secondsText(double seconds);                  // `1.603 s`, `41.2 ms`, `7.3 us`
std::string countText(double count);                      // `405.9 G`, `15056`
std::string rateText(double rate, llvm::StringRef unit);  // `450.0 GB/s`
std::string groupedText(int64_t count);                   // `16,384`
std::string flopsText(double flops);                      // `2.81 EFLOP`

}  // namespace planc
