// Each op's shape rule, for the verifier. Kernels rely on what is checked here and check no more.
#pragma once

#include "ir/op.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/Support/Error.h"

namespace planc {

// Where the integers come from that index memory: a slot variable is traced to the one op that
// writes it.
class ValueSources {
 public:
  explicit ValueSources(const Module& module);
  // The op and result that made a value, looking through slots; null if not known.
  const Value* source(const Value* value) const;
  // The input variable that a value reads, or null.
  const Variable* input(const Value* value) const;

 private:
  llvm::DenseMap<const Variable*, const Value*> writes_;  // null: written twice
};

// `enclosing`: dims of the repeats around the op, outermost first.
llvm::Error verifyShapes(const Op& op, const Words& enclosing, const ValueSources& sources);
// The same for casts from one sharded type to another (ir/verify_casts.cpp).
llvm::Error verifyCast(const Op& op);
// A fused op's body.
llvm::Error verifyFused(const Op& op);

// How many tokens of a sequence one expert takes, at least 1.
int64_t admitted(const Op& admit);
// The most rows that a `pack` makes on a rank, of choices that `admit` (null: none) let in.
int64_t packedRows(const Op& pack, const Op* admit);

}  // namespace planc
