// What attention's kernels have in common, forward and backward: where a head's rows begin, and
// which tiles of the other side a tile sees. For attention*.cu only.
#pragma once

#include "runtime/cuda/attention.h"
#include "runtime/cuda/device_code.h"

namespace planc::cuda {

constexpr float kLog2E = 1.44269504088896340736f;

// Where the rows of one head begin.
class AttendHead {
 public:
  PLANC_DEVICE AttendHead(const AttendArgs& a, int outer, int inner) : a_(a) {
#pragma unroll
    for (int l = kAttendLoops - 1; l >= 0; --l) {
      index_[l] = 0;
      if (l >= a.loopCount) continue;
      bool isOuter = l < a.outerLoops;
      int rest = isOuter ? outer : inner, size = a.loops[l].size;
      index_[l] = rest % size;
      (isOuter ? outer : inner) = rest / size;
    }
  }
  PLANC_DEVICE int64_t start(int role) const {
    int64_t at = a_.start[role];
#pragma unroll
    for (int l = 0; l < kAttendLoops; ++l) {
      if (l < a_.loopCount) at += index_[l] * a_.loops[l].strides[role];
    }
    return at;
  }
  // Row `row`, for rows of one type.
  template <class T>
  PLANC_DEVICE T* rows(int role, int row) const {
    const AttendTensor& tensor = a_.tensors[role];
    return static_cast<T*>(tensor.data) + start(role) + row * tensor.row;
  }

 private:
  const AttendArgs& a_;
  int32_t index_[kAttendLoops];
};

// Positions [first, last). They are below kFar.
constexpr int32_t kFar = 1 << 30;
struct AttendRange {
  int32_t first, last;
};
// The keys that any of the queries of a tile sees, and the queries that see any of the keys of one.
PLANC_DEVICE AttendRange keysSeen(const AttendArgs& a, const AttendTile& queries) {
  return {a.window > 0 ? queries.first - a.window + 1 : -kFar,
          a.isCausal ? queries.first + queries.rows : kFar};
}
PLANC_DEVICE AttendRange queriesSeeing(const AttendArgs& a, const AttendTile& keys) {
  return {a.isCausal ? keys.first : -kFar,
          a.window > 0 ? keys.first + keys.rows - 1 + a.window : kFar};
}

PLANC_DEVICE bool sees(const AttendArgs& a, int query, int key) {
  return (!a.isCausal || key <= query) && (a.window == 0 || query - key < a.window);
}
// Whether all of the queries see all of the keys, by position.
PLANC_DEVICE bool seesAll(const AttendArgs& a, int query, int queries, int key, int keys) {
  return (!a.isCausal || key + keys - 1 <= query) &&
         (a.window == 0 || query + queries - 1 - key < a.window);
}

// The least and the greatest of some documents.
struct DocumentRange {
  int32_t least, most;
};
PLANC_DEVICE bool meet(DocumentRange a, DocumentRange b) {
  return a.least <= b.most && a.most >= b.least;
}
PLANC_DEVICE bool isOne(DocumentRange a, DocumentRange b) {
  return a.least == a.most && b.least == b.most && a.least == b.least;
}
// By a warp; on all lanes.
PLANC_DEVICE DocumentRange documentsOf(const int32_t* ids, int64_t step, int rows) {
  DocumentRange range = {ids[0], ids[0]};
  for (int i = int(threadIdx.x) % kWarp; i < rows; i += kWarp) {
    int32_t id = ids[i * step];
    range.least = id < range.least ? id : range.least;
    range.most = id > range.most ? id : range.most;
  }
  for (int d = kWarp / 2; d > 0; d /= 2) {
    int32_t least = __shfl_xor_sync(kAllLanes, range.least, d);
    int32_t most = __shfl_xor_sync(kAllLanes, range.most, d);
    range.least = least < range.least ? least : range.least;
    range.most = most > range.most ? most : range.most;
  }
  return range;
}

// The tiles of one side that hold any of a range of positions, in order; those of no document of
// `mine` are left out. All threads walk alike.
class TileWalk {
 public:
  PLANC_DEVICE TileWalk(const AttendSide& side, int step, AttendRange seen, int head,
                        DocumentRange mine)
      : side_(side), step_(step), head_(head), seen_(seen), mine_(mine) {}

  // From the start again, with another head's documents.
  PLANC_DEVICE void restart(int head) {
    head_ = head;
    next_ = end_ = 0;
    tile_ = -1;
  }
  // To the next one. False: there is none.
  PLANC_DEVICE bool next() {
    while (true) {
      while (++tile_ >= end_) {
        if (next_ == side_.segmentCount) return false;
        segment_ = side_.segments[next_++];
        int first = seen_.first > segment_.first ? seen_.first - segment_.first : 0;
        int last = seen_.last - segment_.first;
        if (last > segment_.count) last = segment_.count;
        tile_ = first / step_ - 1;
        end_ = first < last ? (last + step_ - 1) / step_ : 0;
      }
      if (side_.documents == nullptr || meet(mine_, documents())) return true;
    }
  }
  PLANC_DEVICE AttendTile tile() const {
    int begin = tile_ * step_, rest = segment_.count - begin;
    return {segment_.at + begin, segment_.first + begin, rest < step_ ? rest : step_};
  }
  PLANC_DEVICE DocumentRange documents() const {
    int64_t number = int64_t(head_) * side_.documentTiles + segment_.tile + tile_;
    return {side_.documents[2 * number], side_.documents[2 * number + 1]};
  }

 private:
  const AttendSide& side_;
  int step_, head_;
  AttendRange seen_;
  DocumentRange mine_;
  AttendSegment segment_ = {};
  int next_ = 0, tile_ = -1, end_ = 0;
};

// A block's tile of one side, and its heads. Later tiles, which see more where it is causal, go
// first.
struct AttendBlock {
  AttendTile tile;
  int head;
};
PLANC_DEVICE AttendBlock blockOf(const AttendSide& side) {
  int tiles = side.tileCount, number = int(blockIdx.x) % tiles;
  return {side.tiles[tiles - 1 - number], int(blockIdx.x) / tiles};
}

}  // namespace planc::cuda
