// What the verifiers, readers and proofs say of a module or a file that breaks a rule.
#pragma once

#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

namespace planc {

inline llvm::Error broken(const llvm::Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), what);
}

}  // namespace planc
