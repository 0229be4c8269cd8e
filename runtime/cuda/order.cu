// See order.h. Bound by latency: a warp walks its chunk 32 items at a time, whose equal digits find
// each other by ballots.
#include "runtime/cuda/order.h"

#include "runtime/cuda/walk_code.h"

namespace planc::cuda {
namespace {

constexpr int kScanThreads = 1024;
constexpr int kAhead = 8;  // loads of a thread that are under way together

struct Chunk {
  int64_t begin, end;
};
PLANC_DEVICE Chunk chunkOf(const KeyChunks& a) {
  int64_t group = blockIdx.x / a.chunks, at = (blockIdx.x % a.chunks) * a.perChunk;
  int64_t end = at + a.perChunk < a.perGroup ? at + a.perChunk : a.perGroup;
  return {group * a.perGroup + at, group * a.perGroup + end};
}
PLANC_DEVICE int32_t digitOf(const KeyChunks& a, int64_t item, int64_t end) {
  int32_t key = item < end ? a.keys[item] : -1;
  return key < 0 ? -1 : (key >> a.shift) & a.mask;
}
// The chunk's counters: in shared memory where they fit, else in their place in memory.
PLANC_DEVICE int32_t* countersOf(const KeyChunks& a) {
  return a.bins <= kSharedBins ? &sharedMemory<int32_t>() : a.counts + int64_t(blockIdx.x) * a.bins;
}

PLANC_KERNEL(kWarp, 16) countKeys(KeyChunks a) {
  int lane = laneIndex();
  int32_t* counters = countersOf(a);
  for (int b = lane; b < a.bins; b += kWarp) counters[b] = 0;
  __syncwarp();
  Chunk chunk = chunkOf(a);
  for (int64_t i = chunk.begin + lane; i < chunk.end; i += kWarp) {
    int32_t digit = digitOf(a, i, chunk.end);
    if (digit >= 0) atomicAdd(&counters[digit], 1);
  }
  __syncwarp();
  int32_t* counts = a.counts + int64_t(blockIdx.x) * a.bins;
  for (int b = lane; b < a.bins; b += kWarp) counts[b] = counters[b];
}

// A block a group, a thread a bin: it adds up the bin's counts over the chunks.
PLANC_KERNEL(kScanThreads, 1) addCounts(AddCountsArgs a) {
  auto* scratch = &sharedMemory<int32_t>();
  int32_t* counts = a.counts + int64_t(blockIdx.x) * a.chunks * a.bins;
  int32_t carry = 0;
  for (int first = 0; first < a.bins; first += int(blockDim.x)) {
    int bin = first + int(threadIdx.x);
    bool isBin = bin < a.bins;
    auto loadSome = [&](int c, int32_t(&some)[kAhead]) {
      for (int i = 0; i < kAhead; ++i)
        some[i] = isBin && c + i < a.chunks ? counts[int64_t(c + i) * a.bins + bin] : 0;
    };
    int32_t all = 0, some[kAhead];
    for (int c = 0; c < a.chunks; c += kAhead) {
      loadSome(c, some);
      for (int i = 0; i < kAhead; ++i) all += some[i];
    }
    int32_t total, before = blockSumBefore(all, scratch, total);
    int32_t next = a.begins != nullptr ? carry + before : 0;
    if (isBin && a.begins != nullptr) a.begins[bin] = next;
    for (int c = 0; isBin && c < a.chunks; c += kAhead) {
      loadSome(c, some);
      for (int i = 0; i < kAhead; ++i) {
        if (c + i < a.chunks) counts[int64_t(c + i) * a.bins + bin] = next;
        next += some[i];
      }
    }
    carry += total;
  }
  if (threadIdx.x == 0 && a.begins != nullptr) a.begins[a.bins] = carry;
}

PLANC_KERNEL(kWarp, 16) place(PlaceArgs a) {
  int lane = laneIndex();
  int32_t* counters = countersOf(a.of);
  const int32_t* begins = a.of.counts + int64_t(blockIdx.x) * a.of.bins;
  for (int b = lane; b < a.of.bins; b += kWarp) counters[b] = begins[b];
  __syncwarp();
  Chunk chunk = chunkOf(a.of);
  for (int64_t first = chunk.begin; first < chunk.end; first += kWarp) {
    int64_t i = first + lane;
    int32_t digit = digitOf(a.of, i, chunk.end);
    unsigned equal = __ballot_sync(kAllLanes, digit >= 0);
    for (int bit = 0; (a.of.bins - 1) >> bit > 0; ++bit) {
      bool isSet = (digit >> bit & 1) != 0;
      unsigned set = __ballot_sync(kAllLanes, isSet);
      equal &= isSet ? set : ~set;
    }
    int before = __popc(equal & ((1u << lane) - 1));
    int32_t to = digit >= 0 ? counters[digit] + before : -1;
    __syncwarp();
    if (digit >= 0 && before == 0) counters[digit] += __popc(equal);
    __syncwarp();
    if (i >= chunk.end) continue;
    if (a.places != nullptr) a.places[i] = to;
    if (a.keysTo == nullptr || to < 0) continue;
    a.keysTo[to] = a.of.keys[i];
    a.itemsTo[to] = a.items != nullptr ? a.items[i] : int32_t(i);
  }
}

}  // namespace

PLANC_HANDLE(kCountKeys, KeyChunks, kWarp, countKeys)
PLANC_HANDLE(kAddCounts, AddCountsArgs, kScanThreads, addCounts)
PLANC_HANDLE(kPlace, PlaceArgs, kWarp, place)

}  // namespace planc::cuda
