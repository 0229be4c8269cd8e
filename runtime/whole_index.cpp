// Elements of pieces in their wholes. Tested by tests/runtime/split_kernels_test.cpp.
#include "runtime/whole_index.h"

#include "runtime/layout.h"
#include "runtime/runs.h"

namespace planc {

WholeIndex::WholeIndex(const Type& type, const Coordinates& rank) {
  Type whole = type.whole();
  llvm::SmallVector<Loop, 4> inner;  // innermost first
  llvm::SmallVector<Dim, 4> dims = memoryDims(type);
  for (const Dim& dim : llvm::reverse(dims)) {
    int64_t stride = strideOf(whole, dim.name);
    Segments segments = rank.segments(dim);
    if (segments.size() == 1) {
      inner.push_back({dim.size, stride});  // padding goes on behind the piece
      first += segments[0].first * stride;
      continue;
    }
    Blocks blocks = blocksOf(segments);
    inner.push_back({blocks.size, stride});
    inner.push_back({int64_t(blocks.firsts.size()), 0});
    for (int64_t begin : blocks.firsts) inner.back().places.push_back(begin * stride);
  }
  // Packed rows of other groups are other rows.
  for (const Dim& dim : type.dims)
    if (dim.name == type.grouping()) first += rank.index(dim.axes) * whole.elements();
  for (Loop& loop : inner) {
    bool isNext = loops.empty() && loop.places.empty() && (loop.stride == run || loop.size == 1);
    if (isNext) run *= loop.size;
    else loops.insert(loops.begin(), std::move(loop));
  }
}

int64_t WholeIndex::at(int64_t index) const {
  int64_t offset = first + index % run;
  index /= run;
  for (const Loop& loop : llvm::reverse(loops)) {
    int64_t i = index % loop.size;
    index /= loop.size;
    offset += loop.places.empty() ? i * loop.stride : loop.places[size_t(i)];
  }
  return offset;
}

}  // namespace planc
