// Runs grow from the innermost dim outwards for as long as both tensors hold the next dim's elements
// right behind each other. Tested by tests/unit/runs_test.cpp.
#include "runtime/runs.h"

#include <algorithm>

namespace planc {

Runs::Runs(llvm::ArrayRef<Dim> dims, Run first) : first_(first) {
  outer_.append(dims.begin(), dims.end());
  llvm::erase_if(outer_, [](const Dim& dim) { return dim.count == 1; });
  while (!outer_.empty() && outer_.back().strideA == length_ && outer_.back().strideB == length_)
    length_ *= outer_.pop_back_val().count;
  for (const Dim& dim : outer_) count_ *= dim.count;
  if (length_ == 0) count_ = 0, length_ = 1;
}

Run Runs::at(int64_t run) const {
  Run place = first_;
  for (size_t i = outer_.size(); i-- > 0;) {
    const Dim& dim = outer_[i];
    int64_t index = run % dim.count;
    run /= dim.count;
    place.a += index * dim.strideA;
    place.b += index * dim.strideB;
  }
  return place;
}

Runs pieceRuns(const Type& type, const Coordinates& rank, int64_t first) {
  llvm::SmallVector<Runs::Dim, 4> dims;
  Run start{0, 0};
  int64_t strideA = 1, strideB = 1;
  for (size_t i = type.dims.size(); i-- > 0;) {
    const Dim& dim = type.dims[i];
    if (dim.name == type.grouping()) continue;  // takes no memory: see Type::elements
    dims.insert(dims.begin(), {rank.valid(dim), strideA, strideB});
    start.b += (rank.offset(dim) + (i == 0 ? first : 0)) * strideB;
    strideA *= dim.size;
    strideB *= dim.all();
  }
  return Runs(dims, start);
}

}  // namespace planc
