// Tokens to their experts' packed rows and back: a warp a token.
#pragma once

#include "runtime/cuda/kernel.h"
#include "runtime/cuda/walk.h"

namespace planc::cuda {

// Which of the packed rows are here. Rows are indices in memory, whatever wrote them: none lies
// outside of the room.
struct OwnRows {
  const int32_t* offsets;  // of all experts
  int64_t firstExpert, experts, bound;
};

// A token's packed rows.
struct TokenRows {
  const int32_t* rows;
  int64_t count;  // of tokens
  int64_t step;   // from choice to choice
  int32_t choices;
  OwnRows own;
};

// Each token to its rows, and zeros behind the last one.
struct DispatchArgs {
  ConstRef x;
  Ref packed;
  TokenRows by;
  Walk<2> tokens;  // {x, row}
  Walk<2> row;     // {x, packed}: a token's own elements
  int64_t elements;
  int64_t rowStride;  // packed: from row to row
};
extern const Kernel<DispatchArgs> kDispatchVectorF32, kDispatchF32, kDispatchF64;

// The sum over a token's choices of [gate *] the packed row.
struct GatherArgs {
  ConstRef packed, gate;  // without a gate its data are null
  Ref y;
  TokenRows by;
  Walk<3> tokens;  // {y, row, gate}
  Walk<2> row;     // {y, packed}
  int64_t elements;
  int64_t rowStride, gateStep;
};
extern const Kernel<GatherArgs> kGatherVectorF32, kGatherF32, kGatherF64;

// dO = gate * dy in each packed row, zeros behind the last one; dgate = dy . o.
struct CombineGradArgs {
  ConstRef dy, o, gate;
  Ref dO, dgate;
  TokenRows by;
  Walk<4> tokens;  // {dy, row, gate, dgate}
  Walk<3> row;     // {dy, o, dO}
  int64_t elements;
  int64_t oStride, dOStride;  // from row to row
  int64_t gateStep, dgateStep;
};
extern const Kernel<CombineGradArgs> kCombineGradVectorF32, kCombineGradF32, kCombineGradF64;

// Experts of choices in the order of tokens, -1 where `fit` is 0.
struct PackKeysArgs {
  const int32_t* choice;
  ConstRef fit;  // without it its data are null
  int64_t count;
  int32_t experts;
  Walk<3> entries;  // {choice, fit, row}
  int32_t* keys;
};
extern const Kernel<PackKeysArgs> kPackKeys;

// Places of entries to where their rows are told.
struct StoreRowsArgs {
  const int32_t* places;
  int64_t count;
  Walk<3> entries;
  int32_t* rows;
};
extern const Kernel<StoreRowsArgs> kStoreRows;

// counts[e] = offsets[e + 1] - offsets[e].
struct RowCountsArgs {
  const int32_t* offsets;
  int32_t* counts;
  int64_t count;
};
extern const Kernel<RowCountsArgs> kRowCounts;

// Where the rows of each expert begin, those of all parts together. One block.
struct RowOffsetsArgs {
  const int32_t* counts;  // [part, expert]
  int32_t* offsets;
  int64_t count, parts;
};
extern const Kernel<RowOffsetsArgs> kRowOffsets;

}  // namespace planc::cuda
