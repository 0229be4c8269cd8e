// Launches of the counting sort. Tested by tests/runtime/kernels_test.cpp.
#include "runtime/cuda/order.h"

#include <algorithm>

#include "runtime/cuda/ops.h"

namespace planc::cuda {
namespace {

constexpr int64_t kLeastChunk = 512;  // items
constexpr int64_t kMostChunks = 64;   // of a group
constexpr int32_t kLeastPart = 4;     // chunks whose counts a thread adds up

uint32_t sharedBytes(int64_t counters) {
  return counters <= kSharedBins ? uint32_t(counters) * 4 : 0;
}

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
  shared.launch(kCountKeys,
                {.x = blocks, .threads = kOrderThreads, .sharedBytes = sharedBytes(bins_)}, chunks);
  AddCountsArgs add{};
  add.counts = chunks.counts;
  add.chunks = chunks_;
  add.bins = bins_;
  add.begins = begins;
  int32_t width = int32_t(std::min<int64_t>(kScanThreads, (int64_t(bins_) + 31) / 32 * 32));
  add.parts = std::min(kScanThreads / width, (chunks_ + kLeastPart - 1) / kLeastPart);
  shared.launch(kAddCounts,
                {.x = uint32_t(groups_),
                 .threads = uint32_t(width * add.parts),
                 .sharedBytes = sizeof(AddCountsShared)},
                add);
}

void Order::launchPlaces(Shared& shared, const PlaceArgs& args) const {
  int64_t warps = std::clamp<int64_t>(kSharedBins / bins_, 1, kOrderThreads / kWarp);
  shared.launch(kPlace,
                {.x = uint32_t(groups_ * chunks_),
                 .threads = uint32_t(warps * kWarp),
                 .sharedBytes = sharedBytes(warps * bins_)},
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
