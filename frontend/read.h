// Files that a plan names. Plans themselves are read through frontend.h.
#pragma once

#include <string>

#include "llvm/ADT/StringRef.h"

namespace planc {

// Where a path that stands in a file leads: it is relative to that file's folder.
std::string pathBeside(llvm::StringRef file, llvm::StringRef path);
// Reads at most a byte more than kMaxFileBytes. False: `problem` says why.
bool readFile(llvm::StringRef path, std::string& text, std::string& problem);

}  // namespace planc
