// The one rule of sharding, as the `shard` pass applies it and the verifier checks it. An op's dims
// are handed axes of the grid; everything else follows:
//   * every operand and result that has a dim holds it in the pieces of the dim's axes;
//   * an axis serves one name of an op (names that stand for the same elements may share: see
//     mayShareAxes);
//   * a result is partial over the axes that split names it lacks, less those that split it, and
//     over the axes of its partial operands.
// docs/sharding.md works it through.
#pragma once

#include <utility>
#include <vector>

#include "ir/op.h"

namespace planc {

// Which axes split which name of one op; names without axes may be left out.
struct Assignment {
  std::vector<std::pair<std::string, Axes>> names;

  llvm::ArrayRef<Axis> of(llvm::StringRef name) const;
  void add(llvm::StringRef name, llvm::ArrayRef<Axis> axes);
  bool has(llvm::StringRef axis) const;  // some name has this axis
  // Packed rows that may arrive at a rank, where that is limited, by the rows' dim.
  std::vector<std::pair<std::string, int64_t>> room = {};
  // A type's dims, held in these pieces.
  Type apply(Type type) const;
  // The type in which the op takes an operand, but for partial sums, and in which it makes a result.
  // Offsets of packed rows are cut with the experts, but where rows are packed.
  Type operand(const Op& op, unsigned i) const;
  Type result(const Op& op, unsigned i) const;
};

// The dims that an op touches, by name: of its operands, its results and its variable's slice.
llvm::SmallVector<Dim, 8> dimsOf(const Op& op);

// The keys' positions in attention are a name of their own, though their dim is called as the queries':
// queries may be cut where keys are whole, and then what keys get is partial. In an op's names it is
// this one. Empty: no attention.
std::string keysName(const Op& op);
inline std::string keysName(llvm::StringRef seq) { return seq.str() + "'"; }
bool isAttention(const Op& op);  // `attend`, `attend_block`, `attend_grad`
// Whether an operand or a result holds keys or values, or what belongs to them.
bool isOperandOfKeys(const Op& op, unsigned operand);
bool isResultOfKeys(const Op& op, unsigned result);
// A type in the names of its op (`seq` of keys under their own name), and back.
Type inNamesOf(const Op& op, Type type, bool isOfKeys);
Type inOwnNames(const Op& op, Type type, bool isOfKeys);

// Dims whose elements the op takes by number: no zigzag order is theirs.
Words dimsByNumber(const Op& op);

// Whether two names of an op stand for the same elements, so that one axis may split both: heads and
// the kv heads they read, tokens and the packed rows made of them.
bool mayShareAxes(const Op& op, llvm::StringRef a, llvm::StringRef b);

// Axes that split names which `result` lacks, less those that split it, in the grid's order.
Axes summedAxes(const Grid& grid, const Assignment& assignment, const Type& result);

// How an operand may be a partial sum.
enum class Linear { No, Alone, Together };
Linear linearIn(const Op& op, unsigned operand);

// The operand that holds the offsets of packed rows, which is partial over what splits the rows; -1:
// none.
int offsetsOperand(const Op& op);

}  // namespace planc
