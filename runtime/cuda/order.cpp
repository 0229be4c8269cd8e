// Launches of the counting sort. Tested by tests/runtime/kernels_test.cpp.
#include "runtime/cuda/order.h"

#include <algorithm>

#include "runtime/cuda/ops.h"

namespace planc::cuda {
namespace {

constexpr int64_t kLeastChunk = 256;  // items
constexpr int64_t kMostChunks = 64;   // of a group: one thread adds up all counts of a bin

uint32_t sharedBytes(int32_t bins) { return bins <= kSharedBins ? uint32_t(bins) * 4 : 0; }

}  // namespace

Order::Order(int64_t groups, int64_t perGroup, int64_t bins)
    : groups_(groups), perGroup_(perGroup), bins_(int32_t(bins)) {
  int64_t least = (perGroup + kMostChunks - 1) / kMostChunks;
  perChunk_ = (std::max(kLeastChunk, least) + 31) / 32 * 32;
  chunks_ = int32_t(std::max<int64_t>(1, (perGroup + perChunk_ - 1) / perChunk_));
}

KeyChunks Order::chunksOf(const int32_t* keys, int32_t* counts) const {
  KeyChunks chunks{};
  chunks.keys = keys;
  chunks.perGroup = perGroup_;
  chunks.perChunk = perChunk_;
  chunks.chunks = chunks_;
  chunks.bins = bins_;
  chunks.mask = INT32_MAX;
  chunks.counts = counts;
  return chunks;
}

void Order::count(Shared& shared, const KeyChunks& chunks, int32_t* begins) const {
  uint32_t blocks = uint32_t(groups_ * chunks_);
  shared.launch(kCountKeys, {.x = blocks, .threads = 32, .sharedBytes = sharedBytes(bins_)},
                chunks);
  AddCountsArgs add{};
  add.counts = chunks.counts;
  add.chunks = chunks_;
  add.bins = bins_;
  add.begins = begins;
  uint32_t threads = uint32_t(std::min<int64_t>(1024, (int64_t(bins_) + 31) / 32 * 32));
  shared.launch(kAddCounts, {.x = uint32_t(groups_), .threads = threads, .sharedBytes = 32 * 4},
                add);
}

void Order::launchPlaces(Shared& shared, const PlaceArgs& args) const {
  shared.launch(
      kPlace, {.x = uint32_t(groups_ * chunks_), .threads = 32, .sharedBytes = sharedBytes(bins_)},
      args);
}

void Order::placeInBins(Shared& shared, const int32_t* keys, int32_t* counts,
                        int32_t* places) const {
  place(shared, keys, counts, places, nullptr);
}

void Order::place(Shared& shared, const int32_t* keys, int32_t* counts, int32_t* places,
                  int32_t* begins) const {
  PlaceArgs args{};
  args.of = chunksOf(keys, counts);
  args.places = places;
  count(shared, args.of, begins);
  launchPlaces(shared, args);
}

void Order::sortDigit(Shared& shared, int shift, Sorted from, Sorted to, int32_t* counts,
                      int32_t* begins) const {
  PlaceArgs args{};
  args.of = chunksOf(from.keys, counts);
  args.of.shift = shift;
  args.of.mask = bins_ - 1;
  args.items = from.items;
  args.keysTo = to.keys;
  args.itemsTo = to.items;
  count(shared, args.of, begins);
  launchPlaces(shared, args);
}

}  // namespace planc::cuda
