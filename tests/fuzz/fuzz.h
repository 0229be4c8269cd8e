// The readers under fuzzing, each a function that takes any bytes and must return: no crash, no
// hang, no memory beyond reason. What it returns tells whether the input was accepted.
#pragma once

#include <string>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace planc {

struct FuzzTarget {
  llvm::StringRef name;  // its corpus: tests/fuzz/corpus/NAME
  bool (*run)(llvm::StringRef bytes);
  llvm::ArrayRef<llvm::StringRef> words;  // pieces of the format that mutations insert
  // Makes a mutant's checksums right, so that fuzzing gets past them; null when there are none.
  void (*repair)(std::string& bytes) = nullptr;
};
llvm::ArrayRef<FuzzTarget> fuzzTargets();

}  // namespace planc
