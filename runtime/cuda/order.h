// Items in order of their keys, those of one key as they came: a counting sort. Items are cut in
// chunks, a block's each, and these in stretches, each walked by a warp in order. One pass counts
// keys by chunk and the counts are added up before each chunk; a second one counts again by
// stretch and hands out places. So the order does not depend on which warp is first.
#pragma once

#include "runtime/cuda/kernel.h"

namespace planc::cuda {

class Shared;

// As many counters as lie in shared memory, 32 KiB: where two warps' or more do, each has its own.
inline constexpr int32_t kSharedBins = 8192;
inline constexpr int kOrderThreads = 256;

// Items lie group by group, and chunks in groups. Keys below 0 take no part; of others the digit
// (key >> shift) & mask, below `bins`, is what counts.
struct KeyChunks {
  const int32_t* keys;
  int64_t perGroup, perChunk;  // items
  int32_t chunks;              // of a group
  int32_t bins, shift, mask;
  int32_t* counts;  // [group, chunk, bin]
};
// Makes of each chunk's counts the places where its items of each bin begin: within their group, or
// with `begins` in the order of bins, where each bin begins and the last one's end.
struct AddCountsArgs {
  int32_t* counts;
  int32_t chunks, bins;
  int32_t parts;  // that the chunks are cut in, so many threads a bin
  int32_t* begins;
};
// Each item's place: into `places` by item (-1: none), or the item goes there, its key with it.
struct PlaceArgs {
  KeyChunks of;
  int32_t* places;
  const int32_t* items;  // null: the items are 0, 1, ...
  int32_t *keysTo, *itemsTo;
};
inline constexpr int kScanThreads = 1024;
struct AddCountsShared {
  int32_t warps[kWarp], counts[kScanThreads], begins[kScanThreads];
};
extern const Kernel<KeyChunks> kCountKeys;
extern const Kernel<AddCountsArgs> kAddCounts;
extern const Kernel<PlaceArgs> kPlace;

// `groups` groups of `perGroup` items with keys below `bins`.
class Order {
 public:
  Order(int64_t groups, int64_t perGroup, int64_t bins);
  int64_t countBytes() const { return groups_ * chunks_ * int64_t(bins_) * 4; }

  // Places of the items of each bin within their group, from 0 on.
  void placeInBins(Shared& shared, const int32_t* keys, int32_t* counts, int32_t* places) const;
  // Places in the order of bins (one group); begins: bins + 1.
  void place(Shared& shared, const int32_t* keys, int32_t* counts, int32_t* places,
             int32_t* begins) const;
  // Sorts (key, item) by a digit of the key (one group; bins a power of 2).
  struct Sorted {
    int32_t *keys, *items;
  };
  void sortDigit(Shared& shared, int shift, Sorted from, Sorted to, int32_t* counts,
                 int32_t* begins) const;

 private:
  KeyChunks chunksOf(const int32_t* keys, int32_t* counts) const;
  void count(Shared& shared, const KeyChunks& chunks, int32_t* begins) const;
  void launchPlaces(Shared& shared, const PlaceArgs& args) const;

  int64_t groups_, perGroup_, perChunk_;
  int32_t chunks_, bins_;
};

}  // namespace planc::cuda
