// Tested by tests/unit/draw_test.cpp.
#include "tools/explain/units.h"

#include <cmath>

#include "llvm/Support/FormatVariadic.h"

namespace planc {
namespace {

// With a prefix for each thousand above one.
std::string scaled(double value, llvm::StringRef unit) {
  const char* prefixes[] = {"", "k", "M", "G", "T", "P", "E", "Z", "Y"};
  size_t at = 0;
  for (; std::abs(value) >= 1000 && at + 1 < std::size(prefixes); ++at) value /= 1000;
  std::string number = at == 0 && value == std::floor(value) ? llvm::formatv("{0:f0}", value).str()
                       : value < 10                          ? llvm::formatv("{0:f2}", value).str()
                                                             : llvm::formatv("{0:f1}", value).str();
  std::string suffix = prefixes[at] + unit.str();
  return suffix.empty() ? number : number + " " + suffix;
}

}  // namespace

ByteUnit unitFor(double bytes) {
  ByteUnit units[] = {{"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
                      {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PiB", 0x1p50}};
  size_t at = 0;
  while (at + 1 < std::size(units) && std::abs(bytes) >= units[at + 1].bytes) ++at;
  return units[at];
}

std::string inUnit(double bytes, const ByteUnit& unit) {
  return llvm::formatv(unit.bytes == 1 ? "{0:f0}" : "{0:f2}", bytes / unit.bytes).str();
}

std::string bytesText(double bytes) {
  ByteUnit unit = unitFor(bytes);
  return inUnit(bytes, unit) + " " + unit.name.str();
}

std::string secondsText(double seconds) {
  if (seconds == 0) return "0 s";
  if (seconds >= 1e6) return llvm::formatv("{0:e2} s", seconds).str();
  if (seconds >= 1) return llvm::formatv("{0:f3} s", seconds).str();
  if (seconds >= 1e-3) return llvm::formatv("{0:f2} ms", seconds * 1e3).str();
  return llvm::formatv("{0:f2} us", seconds * 1e6).str();
}

std::string countText(double count) { return scaled(count, ""); }
std::string rateText(double rate, llvm::StringRef unit) { return scaled(rate, unit); }
std::string flopsText(double flops) { return scaled(flops, "FLOP"); }

std::string groupedText(int64_t count) {
  std::string digits = std::to_string(count);
  size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

}  // namespace planc
