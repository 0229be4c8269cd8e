// Rows of tables, and their gradients.
#pragma once

#include "runtime/cuda/kernel.h"
#include "runtime/cuda/walk.h"

namespace planc::cuda {

// Which ids are this rank's: [first, first + valid).
struct OwnIds {
  int64_t first;
  int32_t valid;
};

// Each token's row of the table; zeros where the id is not here.
struct LookupArgs {
  ConstRef table;
  const int32_t* ids;
  Ref rows;
  OwnIds own;
  int64_t stride;    // from entry to entry of the table
  int64_t count;     // of tokens
  Walk<2> tokens;    // {ids, rows}
  Walk<2> row;       // {table, rows}
  int64_t elements;  // of a row
};
extern const Kernel<LookupArgs> kLookupVectorF32, kLookupF32, kLookupF64;

// The key of each token: its entry, or `valid` when that is not here.
struct TokenKeysArgs {
  const int32_t* ids;
  OwnIds own;
  int64_t count;
  Walk<2> tokens;  // {ids, dy}
  int32_t* keys;
};
extern const Kernel<TokenKeysArgs> kTokenKeys;

// Adds up the rows of tokens that are sorted by their entries. The sorted tokens are cut in pieces;
// where one entry's tokens lie in several, `pieces` leaves their sums in `partial` and `ends` adds
// those.
struct LookupGradArgs {
  ConstRef dy;
  Ref table;
  const int32_t *keys, *tokens;  // sorted
  OwnIds own;
  int64_t count, perPiece;
  Walk<2> byToken;   // {ids, dy}
  Walk<2> row;       // {table, dy}
  int64_t elements;  // of a row
  int64_t stride;    // from entry to entry of the table
  bool adds;
  void* partial;  // [piece, begins before it or goes on behind it, element]
};
extern const Kernel<LookupGradArgs> kSumPiecesVectorF32, kSumPiecesF32, kSumPiecesF64;
extern const Kernel<LookupGradArgs> kSumEndsVectorF32, kSumEndsF32, kSumEndsF64;

}  // namespace planc::cuda
