// Where elements lie: strides of named dims, and spaces of dims walked over several tensors at
// once.
#pragma once

#include <string>

#include "ir/op.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

namespace planc {

// Elements between neighbours along a dim; 0 when the type lacks it, and for the dim that groups a
// ragged one, which takes no room in memory.
int64_t strideOf(const Type& type, llvm::StringRef dim);
// The dims that take room, in memory order.
llvm::SmallVector<Dim, 4> memoryDims(const Type& type);
// The type of what an op makes: result `i`, or the slice of the variable that it adds to.
Type resultType(const Op& op, unsigned i = 0);

// One loop: how often, and how far each tensor moves.
struct Loop {
  int64_t size = 1;
  llvm::SmallVector<int64_t, 6> strides;
};
// Whether the loops `outer` and `inner` are one loop of outer.size * inner.size for all tensors.
bool collapses(const Loop& outer, const Loop& inner);
// Merges neighbours that collapse, and drops loops of one iteration (but keeps at least one axis).
void merge(llvm::SmallVectorImpl<Loop>& loops, size_t tensors);

// The space of some dims, outermost first, over some tensors. Dims of a tensor outside the space
// stay at index 0.
class Space {
 public:
  Space() = default;
  Space(llvm::ArrayRef<Dim> dims, llvm::ArrayRef<const Type*> types);

  int64_t count() const { return count_; }
  llvm::ArrayRef<Loop> loops() const { return loops_; }
  // Each tensor's offset at an index of [0, count).
  void at(int64_t index, int64_t* offsets) const;

  // Calls visit(index, offsets) for the indexes [begin, end) in order.
  template <class F>
  void each(int64_t begin, int64_t end, F&& visit) const {
    llvm::SmallVector<int64_t, 6> offsets(loops_.front().strides.size(), 0);
    const Loop& inner = loops_.back();
    for (int64_t index = begin; index < end;) {
      at(index, offsets.data());
      int64_t row = std::min(end, index - index % inner.size + inner.size);
      for (; index < row; ++index) {
        visit(index, static_cast<const int64_t*>(offsets.data()));
        for (size_t t = 0; t < offsets.size(); ++t) offsets[t] += inner.strides[t];
      }
    }
  }

 private:
  llvm::SmallVector<Loop, 4> loops_{1};
  int64_t count_ = 1;
};

// The dims that take room in a type, less some names.
llvm::SmallVector<Dim, 4> dimsWithout(const Type& type, llvm::ArrayRef<llvm::StringRef> names);

}  // namespace planc
