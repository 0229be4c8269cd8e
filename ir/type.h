// Element types, named dims and tensor types. A type is a plain value: compare it with ==.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

namespace planc {

enum class Elem : uint8_t { F32, BF16, F64, I32 };

llvm::StringRef name(Elem elem);
std::optional<Elem> elemByName(llvm::StringRef text);
int64_t bytesPerElement(Elem elem);
inline bool isFloat(Elem elem) { return elem != Elem::I32; }

// One index of a tensor. A *ragged* dim (`over` not empty) holds the rows of all groups of the dim
// named `over`, packed: `[expert 8, slot 1024~expert, model 64]` is 1024 rows of 64 in all, grouped
// by expert; where each group starts is a run-time value (the `offsets` of `route`).
struct Dim {
  std::string name;
  int64_t size = 0;
  std::string over;

  bool isRagged() const { return !over.empty(); }
  bool operator==(const Dim&) const = default;
};

// Dims are in memory order, outermost first. A scalar has no dims.
struct Type {
  Elem elem = Elem::F32;
  llvm::SmallVector<Dim, 4> dims;

  bool operator==(const Type& other) const { return elem == other.elem && dims == other.dims; }

  // Position of a dim, or -1.
  int find(llvm::StringRef name) const;
  bool has(llvm::StringRef name) const { return find(name) >= 0; }
  // Size of a dim that must exist.
  int64_t size(llvm::StringRef name) const;
  // The name of the dim that groups a ragged dim of this type; empty when no dim is ragged.
  llvm::StringRef grouping() const;
  // Elements in memory: the product of the sizes, where a dim that groups a ragged one counts as 1.
  // Saturates at INT64_MAX.
  int64_t elements() const;
  int64_t bytes() const;
  // The type less one dim (which must exist).
  Type without(llvm::StringRef name) const;
  Type withElem(Elem e) const;
  // `f32[batch 16, seq 256]`, as IR text has it.
  std::string str() const;
};

// a * b, saturating at INT64_MAX; both must be >= 0.
int64_t saturatingMul(int64_t a, int64_t b);

}  // namespace planc
