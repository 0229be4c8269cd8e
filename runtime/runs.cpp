// Runs grow from the innermost dim outwards for as long as both tensors hold the next dim's elements
// right behind each other. Tested by tests/unit/runs_test.cpp.
#include "runtime/runs.h"

#include <algorithm>
#include <numeric>

namespace planc {

Runs::Runs(llvm::ArrayRef<Dim> dims, Run first) : first_(first) {
  outer_.append(dims.begin(), dims.end());
  llvm::erase_if(outer_, [](const Dim& dim) { return dim.count == 1; });
  while (!outer_.empty() && outer_.back().placesB.empty() && outer_.back().strideA == length_ &&
         outer_.back().strideB == length_)
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
    place.b += dim.placesB.empty() ? index * dim.strideB : dim.placesB[size_t(index)];
  }
  return place;
}

Blocks blocksOf(const Segments& segments) {
  Blocks blocks{0, {}};
  for (const Segment& segment : segments) blocks.size = std::gcd(blocks.size, segment.count);
  for (const Segment& segment : segments)
    for (int64_t done = 0; done < segment.count; done += blocks.size)
      blocks.firsts.push_back(segment.first + done);
  return blocks;
}

Runs pieceRuns(const Type& type, const Coordinates& rank, int64_t first) {
  llvm::SmallVector<Runs::Dim, 4> dims;
  Run start{0, 0};
  int64_t strideA = 1, strideB = 1;
  for (size_t i = type.dims.size(); i-- > 0;) {
    const Dim& dim = type.dims[i];
    if (dim.name == type.grouping()) continue;  // takes no memory: see Type::elements
    Segments segments = rank.segments(dim);
    if (segments.size() == 1) {
      dims.insert(dims.begin(), {segments[0].count, strideA, strideB});
      start.b += segments[0].first * strideB;
    } else {
      Blocks blocks = blocksOf(segments);
      dims.insert(dims.begin(), {blocks.size, strideA, strideB});
      Runs::Dim outer{int64_t(blocks.firsts.size()), blocks.size * strideA, 0};
      for (int64_t begin : blocks.firsts) outer.placesB.push_back(begin * strideB);
      dims.insert(dims.begin(), std::move(outer));
    }
    if (i == 0) start.b += first * strideB;
    strideA *= dim.size;
    strideB *= dim.all();
  }
  return Runs(dims, start);
}

}  // namespace planc
