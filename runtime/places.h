// Where a rank's heads and tokens stand among all, for the kernels of every device.
#pragma once

#include <algorithm>
#include <vector>

#include "ir/grid.h"
#include "llvm/ADT/SmallVector.h"

namespace planc {

// Key heads [kv, kv + kvs) of this rank, each read by `group` heads, the first one's being from `head`
// on.
struct Heads {
  int64_t kv, kvs, head, group;
};

// This rank's key heads with the heads that read them: head h of all reads key head
// h / (heads / key heads) of all.
inline llvm::SmallVector<Heads, 3> headsOf(const Dim& head, const Dim& kv,
                                           const Coordinates& rank) {
  llvm::SmallVector<Heads, 3> runs;
  int64_t sharing = head.all() / kv.all(), first = rank.offset(head);
  auto begin = [&](int64_t kvHead) {
    return std::clamp<int64_t>((rank.offset(kv) + kvHead) * sharing - first, 0, head.size);
  };
  for (int64_t k = 0; k < kv.size; ++k) {
    int64_t group = begin(k + 1) - begin(k);
    if (!runs.empty() && runs.back().group == group) ++runs.back().kvs;
    else runs.push_back({k, 1, begin(k), group});
  }
  return runs;
}

// The positions in the order in which they lie; padding is at 0.
inline std::vector<int64_t> positionsOf(const Dim& seq, const Coordinates& rank) {
  std::vector<int64_t> positions(size_t(seq.size), 0);
  for (const Segment& segment : rank.segments(seq))
    for (int64_t i = 0; i < segment.count; ++i)
      positions[size_t(segment.at + i)] = segment.first + i;
  return positions;
}

}  // namespace planc
