// Training data: a file of tokens, and the windows of it that samples see. Formats, told apart by
// name and magic number:
//   X.npy   one-dimensional, uint8, uint16, int32 or int64
//   X.bin   16-bit tokens: llm.c's with its 1024-byte header, or nanoGPT's without any
//   other   each byte is a token
#pragma once

#include <cstdint>

#include "runtime/io/file.h"

namespace planc {

class TokenFile {
 public:
  // Opens the file and checks its header against its size.
  static llvm::Expected<TokenFile> open(llvm::StringRef path);

  const std::string& path() const { return file_.path(); }
  int64_t size() const { return size_; }

  // Reads tokens from `start` on; start + into.size() must be <= size().
  llvm::Error read(int64_t start, llvm::MutableArrayRef<int32_t> into) const;

  // That windows of seq + 1 tokens fit, and that every token of the part `part` of `parts` lies in
  // 0 ... vocab - 1 (reads it where its format could hold others). Call once before training.
  llvm::Error check(int64_t seq, int64_t vocab, int part = 0, int parts = 1) const;

  // The window of a sample: the same whatever the batch size, the order and the number of ranks.
  // window.size() is seq + 1: inputs are the first seq tokens, targets the last seq.
  llvm::Error sample(uint64_t seed, uint64_t index, llvm::MutableArrayRef<int32_t> window) const;

 private:
  explicit TokenFile(File file) : file_(std::move(file)) {}
  int64_t widest() const;  // the greatest token that the format could hold

  File file_;
  int64_t start_ = 0;  // bytes before the first token
  int64_t size_ = 0;
  unsigned bytes_ = 1;  // per token
  bool signed_ = false;
};

// Instead of a sequence's tokens, each one's document by number from 0: one ends with a `separator`.
void numberDocuments(llvm::MutableArrayRef<int32_t> tokens, int64_t separator);

// Where a sample's window of seq + 1 tokens starts in a file of `tokens` > seq tokens.
int64_t windowOffset(uint64_t seed, uint64_t index, int64_t tokens, int64_t seq);

}  // namespace planc
