// See route.h. Bound by latency: a token's scores lie in its warp's scratch, each lane's experts 32
// apart.
#include "runtime/cuda/route.h"

#include <limits>

#include "runtime/cuda/walk_code.h"

namespace planc::cuda {
namespace {

constexpr int kThreads = 256;
template <class T>
constexpr T kLowest = std::numeric_limits<T>::lowest();

PLANC_DEVICE int warpInBlock() { return int(threadIdx.x) / kWarp; }

// This warp's scratch.
PLANC_DEVICE unsigned char* scratchOf(const Scoring& by) {
  if (by.scratch == nullptr) return &sharedMemory<unsigned char>() + warpInBlock() * by.warpBytes;
  return static_cast<unsigned char*>(by.scratch) + warpIndex() * by.warpBytes;
}

// A token's scores, each by its lane; gives their sum before the division of a softmax (1 for its
// shares).
template <class T>
PLANC_DEVICE T scoreToken(const Scoring& by, int64_t at, T* score) {
  int lane = laneIndex();
  T most = kLowest<T>, total = T(0);
  for (int e = lane; e < by.experts; e += kWarp) {
    T x = loadOne<T>(by.scores, at + e * by.step);
    score[e] = x;
    most = greater(most, x);
  }
  if (by.isSoftmax) most = warpMax(most);
  for (int e = lane; e < by.experts; e += kWarp) {
    T x = score[e];
    score[e] = by.isSoftmax ? expOf(x - most) : T(1) / (T(1) + expOf(-x));
    total += score[e];
  }
  total = warpSum(total);
  if (!by.isSoftmax) return total;
  for (int e = lane; e < by.experts; e += kWarp) score[e] /= total;
  return T(1);
}

// An element of a row and its place; none: -1.
template <class T>
struct Chosen {
  T value = T(0);
  int index = -1;

  // Whether this comes before the other in order: the greater, the lower of equals.
  PLANC_DEVICE bool isBefore(const Chosen& other) const {
    if (index < 0 || other.index < 0) return index >= 0;
    return value > other.value || (value == other.value && index < other.index);
  }
};

// The first in order of those behind `last` (none: of all), on all lanes. NaNs are never chosen.
template <class T>
PLANC_DEVICE Chosen<T> chooseNext(const T* row, int n, Chosen<T> last) {
  Chosen<T> best;
  for (int e = laneIndex(); e < n; e += kWarp) {
    Chosen<T> here{row[e], e};
    if (here.value != here.value || (last.index >= 0 && !last.isBefore(here))) continue;
    if (here.isBefore(best)) best = here;
  }
  for (int d = kWarp / 2; d > 0; d /= 2) {
    Chosen<T> other{__shfl_xor_sync(kAllLanes, best.value, d),
                    __shfl_xor_sync(kAllLanes, best.index, d)};
    if (other.isBefore(best)) best = other;
  }
  return best;
}

template <class T>
struct RouteScratch {
  T *score, *biased, *share, *byGroup;
  int32_t *load, *chosen;

  PLANC_DEVICE RouteScratch(const RouteArgs& a) {
    score = reinterpret_cast<T*>(scratchOf(a.by));
    biased = score + a.by.experts;
    share = biased + a.by.experts;
    byGroup = share + a.by.experts;
    load = reinterpret_cast<int32_t*>(byGroup + a.limit.count);
    chosen = load + a.by.experts;
  }
};

// Makes the scores of all experts in other groups than the best lower than any.
template <class T>
PLANC_DEVICE void leaveOut(const ExpertGroups& limit, T* row, T* byGroup) {
  int lane = laneIndex();
  for (int g = lane; g < limit.count; g += kWarp) {
    T first = kLowest<T>, second = first;
    for (int e = g * limit.size; e < (g + 1) * limit.size; ++e) {
      T x = row[e];
      if (x > first) second = first, first = x;
      else if (x > second) second = x;
    }
    byGroup[g] = limit.byTwo ? first + second : first;
  }
  __syncwarp();
  Chosen<T> last;
  for (int k = 0; k < limit.kept; ++k) {
    Chosen<T> next = chooseNext(byGroup, limit.count, last);
    if (next.index >= 0) last = next;
  }
  for (int e = lane; e < limit.count * limit.size; e += kWarp) {
    int g = e / limit.size;
    if (last.isBefore({byGroup[g], g})) row[e] = kLowest<T>;
  }
  __syncwarp();
}

// Occupancy: 2 blocks of up to 8 warps (up to 128 registers a thread), fewer where scratch takes
// more.
template <class T>
PLANC_KERNEL(kThreads, 2) route(RouteArgs a) {
  int lane = laneIndex(), warps = int(blockDim.x) / kWarp, experts = a.by.experts;
  RouteScratch<T> mine(a);
  for (int e = lane; e < experts; e += kWarp) {
    mine.share[e] = T(0);
    mine.load[e] = 0;
  }
  int64_t group = blockIdx.x / a.chunks, begin = (blockIdx.x % a.chunks) * kRouteChunk;
  int64_t end = begin + kRouteChunk < a.perGroup ? begin + kRouteChunk : a.perGroup;
  for (int64_t token = begin + warpInBlock(); token < end; token += warps) {
    int64_t at[5];
    locate(a.tokens, group * a.perGroup + token, at);
    T total = scoreToken(a.by, at[0], mine.score);
    for (int e = lane; e < experts; e += kWarp) {
      mine.share[e] += mine.score[e] / total;
      T bias = a.bias.data != nullptr ? loadOne<T>(a.bias, e) : T(0);
      mine.biased[e] = mine.score[e] + bias;
    }
    __syncwarp();
    if (a.limit.kept < a.limit.count) leaveOut(a.limit, mine.biased, mine.byGroup);
    Chosen<T> last;
    T sum = T(0);
    for (int k = 0; k < a.by.top; ++k) {
      Chosen<T> next = chooseNext(mine.biased, experts, last);
      if (next.index >= 0) last = next;
      int expert = next.index >= 0 ? next.index : k;  // of NaNs any
      sum += mine.score[expert];
      if (lane != 0) continue;
      mine.chosen[k] = expert;
      ++mine.load[expert];
    }
    __syncwarp();
    for (int k = lane; k < a.by.top; k += kWarp) {
      int expert = mine.chosen[k];
      T gate = mine.score[expert] / (a.by.normalise ? sum : T(1)) * T(a.by.scale);
      a.choice[at[1] + k * a.choiceStep] = expert;
      storeOne(a.gate, at[2] + k * a.gateStep, gate);
    }
    __syncwarp();
  }
  __syncthreads();
  // The warps' sums, in their order. Warps' scratches lie one behind the other.
  const auto* first =
      reinterpret_cast<const unsigned char*>(mine.share) - warpInBlock() * a.by.warpBytes;
  int64_t loads = reinterpret_cast<const unsigned char*>(mine.load) -
                  reinterpret_cast<const unsigned char*>(mine.share);
  for (int e = int(threadIdx.x); e < experts; e += int(blockDim.x)) {
    double share = 0;
    int32_t load = 0;
    for (int w = 0; w < warps; ++w) {
      const unsigned char* of = first + w * a.by.warpBytes;
      share += double(reinterpret_cast<const T*>(of)[e]);
      load += reinterpret_cast<const int32_t*>(of + loads)[e];
    }
    a.shares[int64_t(blockIdx.x) * experts + e] = share;
    a.counts[int64_t(blockIdx.x) * experts + e] = load;
  }
}

PLANC_KERNEL(kThreads, 4) routeSums(RouteSumsArgs a) {
  auto& sums = sharedMemory<RouteSumsShared>();
  int lane = laneIndex(), warp = warpInBlock();
  int64_t group = blockIdx.x, expert = int64_t(blockIdx.y) * kSumExperts + lane;
  bool exists = expert < a.experts;
  double share = 0;
  int64_t load = 0;
  for (int64_t c = warp; exists && c < a.chunks; c += kSumWarps) {
    int64_t at = (group * a.chunks + c) * a.experts + expert;
    share += a.shares[at];
    load += a.counts[at];
  }
  sums.share[warp][lane] = share;
  sums.load[warp][lane] = load;
  __syncthreads();
  if (warp != 0 || !exists) return;
  for (int w = 1; w < kSumWarps; ++w) {
    share += sums.share[w][lane];
    load += sums.load[w][lane];
  }
  int64_t at[5];
  locate(a.tokens, group * a.perGroup, at);
  storeOne(a.load, at[3] + expert * a.loadStep, double(load));
  storeOne(a.share, at[4] + expert * a.shareStep, share);
}

// Occupancy: as `route`.
template <class T>
PLANC_KERNEL(kThreads, 2) routeGrad(RouteGradArgs a) {
  int lane = laneIndex(), experts = a.by.experts, top = a.by.top;
  auto* score = reinterpret_cast<T*>(scratchOf(a.by));
  T *dscore = score + experts, *dgate = dscore + experts;
  auto* chosen = reinterpret_cast<int32_t*>(dgate + top);
  int64_t step = int64_t(gridDim.x) * (int(blockDim.x) / kWarp);
  for (int64_t token = warpIndex(); token < a.count; token += step) {
    int64_t at[5];
    locate(a.tokens, token, at);
    T total = scoreToken(a.by, at[0], score);
    for (int k = lane; k < top; k += kWarp) {
      chosen[k] = clampIndex(a.choice[at[1] + k * a.choiceStep], experts);
      dgate[k] = loadOne<T>(a.dgate, at[2] + k * a.dgateStep) * T(a.by.scale);
    }
    __syncwarp();
    T sum = T(0), dot = T(0);
    for (int k = 0; k < top; ++k) sum += score[chosen[k]];
    for (int k = 0; k < top; ++k) dot += dgate[k] * score[chosen[k]] / (sum * sum);
    T meanScore = T(0), meanShare = T(0);
    for (int e = lane; e < experts; e += kWarp) {
      T d = T(0);
      for (int k = 0; k < top; ++k)
        if (chosen[k] == e) d += a.by.normalise ? dgate[k] / sum - dot : dgate[k];
      dscore[e] = d;
      meanScore += d * score[e];
      meanShare += loadOne<T>(a.dshare, at[3] + e * a.dshareStep) * score[e] / total;
    }
    meanScore = warpSum(meanScore);
    meanShare = warpSum(meanShare);
    for (int e = lane; e < experts; e += kWarp) {
      T p = score[e], viaShare = loadOne<T>(a.dshare, at[3] + e * a.dshareStep) - meanShare;
      T ds = a.by.isSoftmax ? p * (dscore[e] - meanScore + viaShare)
                            : p * (T(1) - p) * (dscore[e] + viaShare / total);
      storeOne(a.ds, at[4] + e * a.dsStep, ds);
    }
    __syncwarp();
  }
}

// Where a choice lies in `choice` and in `fit`.
struct ChoicePlace {
  int64_t choice, fit;

  PLANC_DEVICE ChoicePlace(const AdmitArgs& a, int64_t i) {
    int64_t token = i / a.choices, k = i - token * a.choices, at[2];
    int64_t sequence = token / a.places, position = a.positions[token - sequence * a.places];
    locate(a.sequences, sequence, at);
    choice = at[0] + position * a.choiceSteps[0] + k * a.choiceSteps[1];
    fit = at[1] + position * a.fitSteps[0] + k * a.fitSteps[1];
  }
};

PLANC_KERNEL(kThreads, 6) admitKeys(AdmitArgs a) {
  int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < a.count) a.keys[i] = clampIndex(a.choice[ChoicePlace(a, i).choice], a.experts);
}

PLANC_KERNEL(kThreads, 6) admit(AdmitArgs a) {
  int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < a.count) storeOne(a.fit, ChoicePlace(a, i).fit, a.numbers[i] < a.most ? 1.0 : 0.0);
}

}  // namespace

PLANC_HANDLE(kRouteF32, RouteArgs, kThreads, route<float>)
PLANC_HANDLE(kRouteF64, RouteArgs, kThreads, route<double>)
PLANC_HANDLE(kRouteSums, RouteSumsArgs, kThreads, routeSums)
PLANC_HANDLE(kRouteGradF32, RouteGradArgs, kThreads, routeGrad<float>)
PLANC_HANDLE(kRouteGradF64, RouteGradArgs, kThreads, routeGrad<double>)
PLANC_HANDLE(kAdmitKeys, AdmitArgs, kThreads, admitKeys)
PLANC_HANDLE(kAdmit, AdmitArgs, kThreads, admit)

}  // namespace planc::cuda
