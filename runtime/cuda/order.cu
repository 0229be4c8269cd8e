// See order.h. Bound by latency: a warp walks its stretch 32 items at a time, whose equal digits
// find each other by ballots, and has the keys of several such steps under way at once.
#include "runtime/cuda/order.h"

#include "runtime/cuda/walk_code.h"

namespace planc::cuda {
namespace {

constexpr int kAhead = 8;  // loads of a thread that are under way together

struct Stretch {
  int64_t begin, end;
};
// The warp's part of its block's chunk.
PLANC_DEVICE Stretch stretchOf(const KeyChunks& a) {
  int64_t group = blockIdx.x / a.chunks, at = (blockIdx.x % a.chunks) * a.perChunk;
  int64_t end = at + a.perChunk < a.perGroup ? at + a.perChunk : a.perGroup;
  int warps = int(blockDim.x) / kWarp, warp = int(threadIdx.x) / kWarp;
  int64_t steps = (end - at + kWarp - 1) / kWarp, perWarp = (steps + warps - 1) / warps * kWarp;
  at += warp * perWarp;
  return {group * a.perGroup + at, group * a.perGroup + (at + perWarp < end ? at + perWarp : end)};
}
// The lane's items of the next steps of the stretch; behind its end -1.
PLANC_DEVICE void loadAhead(const int32_t* items, int64_t first, int64_t end,
                            int32_t (&into)[kAhead]) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    int64_t at = first + i * kWarp + laneIndex();
    into[i] = at < end ? items[at] : -1;
  }
}
PLANC_DEVICE int32_t digitOf(const KeyChunks& a, int32_t key) {
  return key < 0 ? -1 : (key >> a.shift) & a.mask;
}
PLANC_DEVICE void countStretch(const KeyChunks& a, const Stretch& stretch, int32_t* counters) {
  for (int64_t first = stretch.begin; first < stretch.end; first += kAhead * kWarp) {
    int32_t keys[kAhead];
    loadAhead(a.keys, first, stretch.end, keys);
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (keys[i] >= 0) atomicAdd(&counters[digitOf(a, keys[i])], 1);
  }
}
// The chunk's counters: in shared memory where they fit, else in their place in memory.
PLANC_DEVICE int32_t* countersOf(const KeyChunks& a) {
  return a.bins <= kSharedBins ? &sharedMemory<int32_t>() : a.counts + int64_t(blockIdx.x) * a.bins;
}

PLANC_KERNEL(kOrderThreads, 4) countKeys(KeyChunks a) {
  int32_t* counters = countersOf(a);
  for (int b = int(threadIdx.x); b < a.bins; b += int(blockDim.x)) counters[b] = 0;
  __syncthreads();
  countStretch(a, stretchOf(a), counters);
  __syncthreads();
  int32_t* counts = a.counts + int64_t(blockIdx.x) * a.bins;
  for (int b = int(threadIdx.x); b < a.bins; b += int(blockDim.x)) counts[b] = counters[b];
}

// A block a group; a thread adds up a bin's counts over a part of the chunks, part by part.
PLANC_KERNEL(kScanThreads, 1) addCounts(AddCountsArgs a) {
  auto& shared = sharedMemory<AddCountsShared>();
  int32_t* counts = a.counts + int64_t(blockIdx.x) * a.chunks * a.bins;
  int width = int(blockDim.x) / a.parts, part = int(threadIdx.x) / width;
  int own = int(threadIdx.x) % width, perPart = (a.chunks + a.parts - 1) / a.parts;
  int begin = part * perPart, end = begin + perPart < a.chunks ? begin + perPart : a.chunks;
  int32_t carry = 0;
  for (int first = 0; first < a.bins; first += width) {
    int bin = first + own;
    bool isBin = bin < a.bins;
    auto loadSome = [&](int c, int32_t(&some)[kAhead]) {
      for (int i = 0; i < kAhead; ++i)
        some[i] = isBin && c + i < end ? counts[int64_t(c + i) * a.bins + bin] : 0;
    };
    int32_t count = 0, some[kAhead];
    for (int c = begin; c < end; c += kAhead) {
      loadSome(c, some);
      for (int i = 0; i < kAhead; ++i) count += some[i];
    }
    shared.counts[threadIdx.x] = count;
    __syncthreads();
    int32_t all = 0, next = 0, total;
    for (int p = 0; p < a.parts; ++p) {
      if (p == part) next = all;
      all += shared.counts[p * width + own];
    }
    int32_t before = blockSumBefore(part == 0 ? all : 0, shared.warps, total);
    if (part == 0) shared.begins[own] = carry + before;
    __syncthreads();
    if (a.begins != nullptr) next += shared.begins[own];
    if (isBin && part == 0 && a.begins != nullptr) a.begins[bin] = next;
    for (int c = begin; isBin && c < end; c += kAhead) {
      loadSome(c, some);
      for (int i = 0; i < kAhead; ++i) {
        if (c + i < end) counts[int64_t(c + i) * a.bins + bin] = next;
        next += some[i];
      }
    }
    carry += total;
  }
  if (threadIdx.x == 0 && a.begins != nullptr) a.begins[a.bins] = carry;
}

PLANC_KERNEL(kOrderThreads, 4) place(PlaceArgs a) {
  int lane = laneIndex(), warps = int(blockDim.x) / kWarp, bins = a.of.bins;
  int32_t* all = countersOf(a.of);
  int32_t* counters = all + int(threadIdx.x) / kWarp * bins;
  const int32_t* begins = a.of.counts + int64_t(blockIdx.x) * bins;
  Stretch stretch = stretchOf(a.of);
  if (warps > 1) {
    for (int b = lane; b < bins; b += kWarp) counters[b] = 0;
    __syncwarp();
    countStretch(a.of, stretch, counters);
    __syncthreads();
  }
  // From the counts of each warp, where its items begin.
  for (int b = int(threadIdx.x); b < bins; b += int(blockDim.x)) {
    int32_t next = begins[b];
    for (int w = 0; w < warps; ++w) {
      int32_t count = warps > 1 ? all[w * bins + b] : 0;
      all[w * bins + b] = next;
      next += count;
    }
  }
  __syncthreads();
  for (int64_t first = stretch.begin; first < stretch.end; first += kAhead * kWarp) {
    int32_t keys[kAhead], items[kAhead];
    loadAhead(a.of.keys, first, stretch.end, keys);
    if (a.items != nullptr) loadAhead(a.items, first, stretch.end, items);
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (first + s * kWarp >= stretch.end) break;
      int32_t digit = digitOf(a.of, keys[s]);
      unsigned equal = __ballot_sync(kAllLanes, digit >= 0);
      for (int bit = 0; (bins - 1) >> bit > 0; ++bit) {
        bool isSet = (digit >> bit & 1) != 0;
        unsigned set = __ballot_sync(kAllLanes, isSet);
        equal &= isSet ? set : ~set;
      }
      int before = __popc(equal & ((1u << lane) - 1));
      int32_t to = digit >= 0 ? counters[digit] + before : -1;
      __syncwarp();
      if (digit >= 0 && before == 0) counters[digit] += __popc(equal);
      __syncwarp();
      int64_t item = first + s * kWarp + lane;
      if (item >= stretch.end) continue;
      if (a.places != nullptr) a.places[item] = to;
      if (a.keysTo == nullptr || to < 0) continue;
      a.keysTo[to] = keys[s];
      a.itemsTo[to] = a.items != nullptr ? items[s] : int32_t(item);
    }
  }
}

}  // namespace

PLANC_HANDLE(kCountKeys, KeyChunks, kOrderThreads, countKeys)
PLANC_HANDLE(kAddCounts, AddCountsArgs, kScanThreads, addCounts)
PLANC_HANDLE(kPlace, PlaceArgs, kOrderThreads, place)

}  // namespace planc::cuda
