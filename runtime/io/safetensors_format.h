// Facts of the format that reading and writing share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llvm/ADT/StringRef.h"
#include "runtime/io/safetensors.h"

namespace planc::safetensors {

inline constexpr llvm::StringLiteral kChecksumKey = "planc.crc32";
inline constexpr llvm::StringLiteral kChecksumStart = "\"planc.crc32\":\"";
inline constexpr llvm::StringLiteral kVersionKey = "planc.version";
inline constexpr llvm::StringLiteral kVersion = "1";

struct ElemInfo {
  TensorElem elem;
  llvm::StringRef name;
  int64_t bytes;
  bool isFloat;
};
const ElemInfo& infoOf(TensorElem elem);
// Null: there is none.
const ElemInfo* infoByName(llvm::StringRef name);
TensorElem elemOf(Elem elem);
// The sizes that a file has for a tensor of this type: of the whole tensor.
std::vector<int64_t> sizesOf(const Type& type);

// Eight hexadecimal digits.
std::string checksumText(uint32_t crc);
// The checksum of the bytes from `begin` to `end` of a file.
llvm::Expected<uint32_t> checksum(const File& file, int64_t begin, int64_t end);
// The checksum of a header, whose own digits count as zeros, and of `dataBytes` bytes behind it;
// every rank sums its share.
llvm::Expected<uint32_t> checksumTogether(const File& file, llvm::StringRef header,
                                          int64_t dataBytes, Communicator& comm);

}  // namespace planc::safetensors
