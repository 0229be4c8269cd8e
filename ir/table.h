// The op table as text, for `planc ops` and docs/ir.md.
#pragma once

#include "llvm/Support/raw_ostream.h"

namespace planc {

void printOpTable(llvm::raw_ostream& out, bool markdown);

}  // namespace planc
