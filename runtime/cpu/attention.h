// What attention has in common forward and backward: where its tensors lie, who sees whom, and products
// that leave out what nobody sees.
//
// Queries and keys are this rank's pieces of their positions, in segments (ir/grid.h). A block of
// queries, and one of keys, lies in one segment: what masks it are two ranges of positions.
#pragma once

#include <limits>
#include <utility>
#include <vector>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/tile.h"

namespace planc::cpu {

inline constexpr int64_t kQueries = 64, kKeys = 128;

// One tensor as rows by position.
struct Tensor {
  Elem elem = Elem::F32;
  int64_t row = 0, column = 1, width = 1;  // steps from position to position and inside a row
};

// Key heads that are read by equally many query heads, with the loops over them.
struct Part {
  llvm::SmallVector<Loop, 4> shared, own;  // strides by tensor
  llvm::SmallVector<int64_t, 11> start;    // each tensor's first element
};

// Queries that lie behind each other from row `at` on, at positions from `first` on; padding has none.
struct QueryBlock {
  static constexpr int64_t kPadding = -1;
  int64_t at, first, rows;
};

struct Attention {
  llvm::SmallVector<Tensor, 11> tensors;
  llvm::SmallVector<Part, 1> parts;
  std::vector<QueryBlock> queries;
  // Of the keys; they may move with a repeat: by its iteration, modulo their number.
  std::vector<Segments> keys;
  int repeat = -1;      // its depth
  int64_t keyRows = 0;  // padding included
  int64_t window = 0;
  double scale = 1;
  bool causal = false, hasDocuments = false;

  const Segments& keysIn(const RunContext& context) const {
    return keys[repeat < 0 ? 0 : size_t(context.iteration[size_t(repeat)]) % keys.size()];
  }
};

// Which dims a tensor has beside its positions and its heads. None: the op lacks it.
enum class Like { Query, Key, Value, Output, Row, RowOfKeys, None };

// The first three tensors are queries, keys and values.
llvm::Expected<Attention> analyseAttention(const Op& op, llvm::ArrayRef<const Type*> types,
                                           llvm::ArrayRef<Like> likes, const Coordinates& rank);

inline int64_t countOf(llvm::ArrayRef<Loop> axes) {
  int64_t count = 1;
  for (const Loop& axis : axes) count *= axis.size;
  return count;
}

inline void addOffsets(llvm::ArrayRef<Loop> axes, int64_t index, int64_t* offsets) {
  for (const Loop& axis : llvm::reverse(axes)) {
    int64_t i = index % axis.size;
    index /= axis.size;
    for (size_t t = 0; t < axis.strides.size(); ++t) offsets[t] += i * axis.strides[t];
  }
}

template <class T>
bool isInPlace(const Tensor& tensor) {
  constexpr Elem own = std::is_same_v<T, double> ? Elem::F64 : Elem::F32;
  return tensor.elem == own && (tensor.column == 1 || tensor.width == 1) &&
         tensor.row >= tensor.width;
}

// Positions [begin, begin + count) of a tensor as a matrix: in place or copied to `scratch`.
template <class T>
Matrix<T> rowsOf(const Tensor& tensor, const void* base, int64_t offset, int64_t begin,
                 int64_t count, T* scratch) {
  int64_t at = offset + begin * tensor.row;
  if (isInPlace<T>(tensor)) return {static_cast<const T*>(base) + at, tensor.row, 1};
  for (int64_t r = 0; r < count; ++r) {
    T* to = scratch + r * tensor.width;
    const T* from =
        loadRow(base, tensor.elem, at + r * tensor.row, tensor.column, tensor.width, to);
    if (from != to) std::copy_n(from, tensor.width, to);
  }
  return {scratch, tensor.width, 1};
}

// The same for results: where to compute, and the store of what was computed elsewhere.
template <class T>
std::pair<T*, int64_t> targetOf(const Tensor& tensor, void* base, int64_t offset, int64_t begin,
                                T* scratch) {
  if (!isInPlace<T>(tensor)) return {scratch, tensor.width};
  return {static_cast<T*>(base) + offset + begin * tensor.row, tensor.row};
}
template <class T>
void storeRows(const Tensor& tensor, const T* rows, void* base, int64_t offset, int64_t begin,
               int64_t count) {
  if (isInPlace<T>(tensor)) return;
  for (int64_t r = 0; r < count; ++r) {
    storeRow(rows + r * tensor.width, base, tensor.elem, offset + (begin + r) * tensor.row,
             tensor.column, tensor.width);
  }
}

// The same of padding.
template <class T>
void zeroRows(const Tensor& tensor, void* base, int64_t offset, int64_t begin, int64_t count) {
  for (int64_t r = 0; r < count; ++r)
    for (int64_t i = 0; i < tensor.width; ++i)
      storeOne(T(0), base, tensor.elem, offset + (begin + r) * tensor.row + i * tensor.column);
}

// [first, last) of positions.
struct Range {
  int64_t first, last;
};
// The keys that any of the queries [begin, end) sees.
inline Range keysSeen(const Attention& attention, int64_t begin, int64_t end) {
  Range keys{0, std::numeric_limits<int64_t>::max()};
  if (attention.causal) keys.last = end;
  if (attention.window > 0) keys.first = std::max<int64_t>(0, begin - attention.window + 1);
  return keys;
}
// Calls visit(row, position, count) for blocks of those keys that a block of queries sees.
template <class F>
void eachKeys(const Attention& attention, const Segments& keys, const QueryBlock& block,
              F&& visit) {
  Range seen = keysSeen(attention, block.first, block.first + block.rows);
  for (const Segment& segment : keys) {
    int64_t first = std::max(seen.first, segment.first);
    int64_t last = std::min(seen.last, segment.first + segment.count);
    for (int64_t at = first; at < last; at += kKeys)
      visit(segment.at + at - segment.first, at, std::min(kKeys, last - at));
  }
}
// The queries of the block at `begin` that see a key, counted from the block's start.
inline Range queriesSeeing(const Attention& attention, int64_t key, int64_t begin) {
  Range queries{0, kQueries};
  if (attention.causal) queries.first = std::clamp<int64_t>(key - begin, 0, kQueries);
  if (attention.window > 0) {
    queries.last = std::clamp<int64_t>(key + attention.window - begin, 0, kQueries);
  }
  queries.last = std::max(queries.first, queries.last);
  return queries;
}

// The queries of a block that see any of the keys [first, last), and the keys among [first, last)
// that any of the block's queries [begin, end) sees, counted from `first`.
inline Range queriesSeeingAny(const Attention& attention, int64_t first, int64_t last,
                              int64_t begin) {
  return {queriesSeeing(attention, first, begin).first,
          queriesSeeing(attention, last - 1, begin).last};
}
inline Range keysSeenAmong(const Attention& attention, int64_t first, int64_t last, int64_t begin,
                           int64_t end) {
  Range keys = keysSeen(attention, begin, end);
  keys.first = std::clamp(keys.first, first, last) - first;
  keys.last = std::max(keys.first, std::clamp(keys.last, first, last) - first);
  return keys;
}

// Overwrites what a key's row holds for queries that do not see it.
template <class T>
void hide(Range seeing, T with, T* row) {
  int32_t first = int32_t(seeing.first), last = int32_t(seeing.last);
#pragma omp simd
  for (int32_t i = 0; i < int32_t(kQueries); ++i) {
    row[i] = (i >= first) & (i < last) ? row[i] : with;
  }
}

// The documents of a block of queries, and of one of keys.
class Documents {
 public:
  void takeQueries(const void* ids, int64_t offset, int64_t step, int64_t count) {
    take(ids, offset, step, count, queries_, least_, most_);
  }
  // False: no query sees any of these keys.
  bool takeKeys(const void* ids, int64_t offset, int64_t step, int64_t count) {
    int32_t least, most;
    take(ids, offset, step, count, keys_, least, most);
    isOne_ = least_ == most_ && least == most;
    return least <= most_ && most >= least_;
  }
  // Overwrites what the row of key `j` holds for queries of other documents.
  template <class T>
  void hide(int64_t j, T with, T* row) const {
    if (isOne_) return;
    int32_t key = keys_[j];
#pragma omp simd
    for (int32_t i = 0; i < int32_t(kQueries); ++i) row[i] = queries_[i] == key ? row[i] : with;
  }

 private:
  static void take(const void* ids, int64_t offset, int64_t step, int64_t count, int32_t* into,
                   int32_t& least, int32_t& most) {
    const int32_t* from = static_cast<const int32_t*>(ids) + offset;
    least = most = *from;
    for (int64_t i = 0; i < count; ++i) {
      into[i] = from[i * step];
      least = std::min(least, into[i]);
      most = std::max(most, into[i]);
    }
  }

  int32_t queries_[kQueries] = {}, keys_[kKeys] = {};
  int32_t least_ = 0, most_ = 0;
  bool isOne_ = true;
};

// scores[j][i] = scale * row j of x . query i, for n keys from `at` on and the queries that see any
// of a tile's; `queries` holds them column by column.
template <class T>
void scoreKeys(const Attention& attention, int64_t at, int64_t n, int64_t begin, int64_t width,
               T scale, Matrix<T> x, const T* queries, T* scores) {
  for (int64_t j = 0; j < n; j += kTileRows) {
    int64_t rows = std::min(kTileRows, n - j);
    Range seeing = queriesSeeingAny(attention, at + j, at + j + rows, begin);
    int64_t first = seeing.first / 16 * 16, last = (seeing.last + 15) / 16 * 16;
    if (first >= last) continue;
    Matrix<T> keys{x.data + j * x.rows, x.rows, x.columns};
    multiplyRows(rows, last - first, width, scale, keys, queries + first, kQueries, false,
                 scores + j * kQueries + first, kQueries);
  }
}

// to[i] (+)= scale * the sum over n keys of scores[j][i] * row j of x, for the queries of a block.
template <class T>
void addToQueries(const Attention& attention, int64_t at, int64_t n, int64_t begin, int64_t queries,
                  int64_t width, T scale, const T* scores, Matrix<T> x, bool add, T* to,
                  int64_t rowTo) {
  for (int64_t i = 0; i < queries; i += kTileRows) {
    int64_t rows = std::min(kTileRows, queries - i);
    Range keys = keysSeenAmong(attention, at, at + n, begin + i, begin + i + rows);
    Matrix<T> weights{scores + keys.first * kQueries + i, 1, kQueries};
    multiplyRows(rows, width, keys.last - keys.first, scale, weights, x.data + keys.first * x.rows,
                 x.rows, add, to + i * rowTo, rowTo);
  }
}

// to[j] += scale * the sum over a block's queries of scores[j][i] * row i of x, for n keys.
template <class T>
void addToKeys(const Attention& attention, int64_t at, int64_t n, int64_t begin, int64_t queries,
               int64_t width, T scale, const T* scores, Matrix<T> x, T* to, int64_t rowTo) {
  for (int64_t j = 0; j < n; j += kTileRows) {
    int64_t rows = std::min(kTileRows, n - j);
    Range seeing = queriesSeeingAny(attention, at + j, at + j + rows, begin);
    int64_t last = std::min(seeing.last, queries);
    if (seeing.first >= last) continue;
    Matrix<T> weights{scores + j * kQueries + seeing.first, kQueries, 1};
    multiplyRows(rows, width, last - seeing.first, scale, weights, x.data + seeing.first * x.rows,
                 x.rows, true, to + j * rowTo, rowTo);
  }
}

}  // namespace planc::cpu
