// Choosing experts: a warp a token. A block takes a chunk of tokens, whose loads and shares it adds
// up; a group of tokens whose sums are wanted is cut in chunks, added in order.
#pragma once

#include "runtime/cuda/kernel.h"
#include "runtime/cuda/walk.h"

namespace planc::cuda {

struct Scoring {
  ConstRef scores;
  int64_t step;  // from expert to expert
  int32_t experts, top;
  bool isSoftmax, normalise;
  double scale;
  void* scratch;      // of all blocks; null: it is in shared memory
  int64_t warpBytes;  // of scratch
};

inline constexpr int64_t kRouteChunk = 64;  // tokens of a block

// Experts in groups, of which a token chooses from the best alone.
struct ExpertGroups {
  int32_t count, kept, size;
  bool byTwo;  // a group is as good as its two best experts together
};

struct RouteArgs {
  Scoring by;
  ExpertGroups limit;
  ConstRef bias;  // without it its data are null
  int32_t* choice;
  Ref gate;
  int64_t choiceStep, gateStep;  // from choice to choice
  Walk<5> tokens;                // {scores, choice, gate, load, share}, group by group
  int64_t perGroup;              // tokens
  int64_t chunks;                // of a group
  double* shares;                // [group, chunk, expert]
  int32_t* counts;
};
extern const Kernel<RouteArgs> kRouteF32, kRouteF64;
// Scratch of a warp: see `RouteScratch` in route.cu.
inline constexpr int64_t routeScratch(const Scoring& by, int64_t groups, int64_t element) {
  return (3 * by.experts + groups) * element + (int64_t(by.experts) + by.top) * 4;
}

// Blocks: groups of tokens (x) by kSumExperts experts (y), 8 warps each.
inline constexpr int kSumExperts = 32;
struct RouteSumsArgs {
  const double* shares;
  const int32_t* counts;
  int32_t experts;
  int64_t chunks, perGroup;
  Walk<5> tokens;
  Ref load, share;
  int64_t loadStep, shareStep;  // from expert to expert
};
extern const Kernel<RouteSumsArgs> kRouteSums;
inline constexpr int kSumWarps = 8;
struct RouteSumsShared {
  double share[kSumWarps][kSumExperts];
  int64_t load[kSumWarps][kSumExperts];
};

struct RouteGradArgs {
  Scoring by;
  const int32_t* choice;
  ConstRef dgate, dshare;
  Ref ds;
  int64_t choiceStep, dgateStep;  // from choice to choice
  int64_t dshareStep, dsStep;     // from expert to expert
  int64_t count;                  // of tokens
  Walk<5> tokens;                 // {scores, choice, dgate, dshare, ds}
};
extern const Kernel<RouteGradArgs> kRouteGradF32, kRouteGradF64;
inline constexpr int64_t routeGradScratch(const Scoring& by, int64_t element) {
  return (2 * int64_t(by.experts) + by.top) * element + by.top * 4;
}

// Choices sequence by sequence, position by position: experts to `keys`, and from the choices'
// numbers among those of their expert who has room.
struct AdmitArgs {
  const int32_t* choice;
  Ref fit;
  const int32_t* positions;             // where each lies, the earliest first
  int64_t count, places, choices;       // all; positions of a sequence; choices of a token
  int64_t choiceSteps[2], fitSteps[2];  // from position to position, from choice to choice
  Walk<2> sequences;                    // {choice, fit}
  int32_t experts;
  int64_t most;
  int32_t* keys;
  const int32_t* numbers;
};
extern const Kernel<AdmitArgs> kAdmitKeys, kAdmit;

}  // namespace planc::cuda
