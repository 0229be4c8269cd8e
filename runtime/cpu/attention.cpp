// Attention without ever holding all scores (Dao et al., FlashAttention, 2022): blocks of queries
// meet blocks of keys in matrix products on the operands as they lie, [batch, seq, head, width] or
// any other order; blocks wholly in the future or outside the window are skipped. The backward pass
// recomputes the probabilities from the saved log-sum-exp.
//
// Loops: `shared` dims are those that queries and keys have (batch; the keys' heads), `own` dims
// those that only queries have (the heads that share a key head, and dims that the keys lack). A
// backward task is one shared index, so that no two tasks add to one key's gradient. Where ranks hold
// pieces of the heads, one may hold some of the heads that share a key head, all of the next's, and
// none of another's: these are parts with loops of their own. Tested by tests/runtime/kernels_test.cpp
// and split_kernels_test.cpp there.
#include <array>
#include <utility>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/tile.h"

namespace planc::cpu {
namespace {

constexpr int64_t kQueries = 64, kKeys = 128;

// One tensor as rows by position.
struct Tensor {
  Elem elem = Elem::F32;
  int64_t row = 0, column = 1, width = 1;  // steps from position to position and inside a row
};

// Key heads that are read by equally many query heads, with the loops over them.
struct Part {
  llvm::SmallVector<Axis, 4> shared, own;  // strides by tensor
  llvm::SmallVector<int64_t, 9> start;     // each tensor's first element
};

struct Attention {
  // Of q, k, v and then the tensors shaped like them.
  llvm::SmallVector<Tensor, 9> tensors;
  llvm::SmallVector<Part, 1> parts;
  int64_t positions = 0, window = 0;
  double scale = 1;
  bool causal = false;
};

// Key heads [kv, kv + kvs) of this rank, each read by `group` heads, the first one's being from `head`
// on.
struct Heads {
  int64_t kv, kvs, head, group;
};

// This rank's key heads with the heads that read them: head h of all reads key head
// h / (heads / key heads) of all.
llvm::SmallVector<Heads, 3> headsOf(const Dim& head, const Dim& kv, const Coordinates& rank) {
  llvm::SmallVector<Heads, 3> runs;
  int64_t sharing = head.all() / kv.all(), first = rank.offset(head);
  auto begin = [&](int64_t kvHead) {
    return std::clamp<int64_t>((rank.offset(kv) + kvHead) * sharing - first, 0, head.size);
  };
  for (int64_t k = 0; k < kv.size; ++k) {
    int64_t group = begin(k + 1) - begin(k);
    if (!runs.empty() && runs.back().group == group) ++runs.back().kvs;
    else runs.push_back({k, 1, begin(k), group});
  }
  return runs;
}

// Which dims a tensor has beside its positions and its heads.
enum class Like { Query, Key, Value, Output, Row };

llvm::Expected<Attention> analyse(const Op& op, llvm::ArrayRef<const Type*> types,
                                  llvm::ArrayRef<Like> likes, const Coordinates& rank) {
  const Type &q = *types[0], &k = *types[1], &v = *types[2];
  std::string seq = op.attrs.word("seq"), by = op.attrs.word("by"), head = op.attrs.word("head");
  std::string kv = op.attrs.word("kv");
  Attention attention;
  attention.positions = q.size(seq);
  attention.window = op.attrs.integer("window");
  attention.causal = op.isFlag("causal");
  attention.scale = op.attrs.number("scale", 1 / std::sqrt(double(q.size(by))));
  bool grouped = !kv.empty() && kv != head && k.has(kv) && q.has(head);

  // A value's width: its dims that pick neither position nor query.
  llvm::SmallVector<Dim, 4> valueDims;
  for (const Dim& dim : memoryDims(v)) {
    bool isHead = grouped && dim.name == kv;
    if (dim.name != seq && !isHead && (!q.has(dim.name) || dim.name == by))
      valueDims.push_back(dim);
  }
  for (size_t t = 0; t < types.size(); ++t) {
    const Type& type = *types[t];
    Tensor tensor{type.elem, strideOf(type, seq), strideOf(type, by), q.size(by)};
    if (likes[t] == Like::Value || likes[t] == Like::Output) {
      Space space(valueDims, {&type});
      if (space.axes().size() != 1) return unsupported(op, "values whose own dims are apart");
      tensor.column = space.axes()[0].size == 1 ? 1 : space.axes()[0].strides[0];
      tensor.width = space.count();
    }
    attention.tensors.push_back(tensor);
  }

  // Each tensor's steps: along `keyDim` for keys and values, `step` elements of `dim` for others.
  auto steps = [&](llvm::StringRef dim, llvm::StringRef keyDim, int64_t step) {
    llvm::SmallVector<int64_t, 6> strides;
    for (size_t t = 0; t < types.size(); ++t) {
      bool isKey = likes[t] == Like::Key || likes[t] == Like::Value;
      strides.push_back(isKey ? strideOf(*types[t], keyDim) : step * strideOf(*types[t], dim));
    }
    return strides;
  };
  llvm::SmallVector<Heads, 3> heads{{0, 0, 0, 0}};  // unused when not grouped
  if (grouped) heads = headsOf(q.dims[size_t(q.find(head))], k.dims[size_t(k.find(kv))], rank);
  for (const Heads& run : heads) {
    Part part;
    part.start.assign(types.size(), 0);
    for (const Dim& dim : memoryDims(q)) {
      if (dim.name == seq || dim.name == by) continue;
      if (grouped && dim.name == head) {
        part.shared.push_back({run.kvs, steps(head, kv, run.group)});
        part.own.push_back({run.group, steps(head, "", 1)});
        auto toHead = steps(head, "", run.head), toKv = steps("", kv, 0);
        for (size_t t = 0; t < types.size(); ++t) part.start[t] = toHead[t] + run.kv * toKv[t];
      } else if (k.has(dim.name) || v.has(dim.name)) {
        part.shared.push_back({dim.size, steps(dim.name, dim.name, 1)});
      } else {
        part.own.push_back({dim.size, steps(dim.name, "", 1)});
      }
    }
    attention.parts.push_back(std::move(part));
  }
  return attention;
}

int64_t countOf(llvm::ArrayRef<Axis> axes) {
  int64_t count = 1;
  for (const Axis& axis : axes) count *= axis.size;
  return count;
}

void addOffsets(llvm::ArrayRef<Axis> axes, int64_t index, int64_t* offsets) {
  for (const Axis& axis : llvm::reverse(axes)) {
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

// [first, last) of positions.
struct Range {
  int64_t first, last;
};
// The keys that any of the queries [begin, end) sees.
Range keysSeen(const Attention& attention, int64_t begin, int64_t end) {
  Range keys{0, attention.positions};
  if (attention.causal) keys.last = end;
  if (attention.window > 0) keys.first = std::max<int64_t>(0, begin - attention.window + 1);
  return keys;
}
// The queries of the block at `begin` that see a key, counted from the block's start.
Range queriesSeeing(const Attention& attention, int64_t key, int64_t begin) {
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
Range queriesSeeingAny(const Attention& attention, int64_t first, int64_t last, int64_t begin) {
  return {queriesSeeing(attention, first, begin).first,
          queriesSeeing(attention, last - 1, begin).last};
}
Range keysSeenAmong(const Attention& attention, int64_t first, int64_t last, int64_t begin,
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

template <class T>
class AttendKernel : public Kernel {
 public:
  AttendKernel(Attention attention, Shared& shared)
      : attention_(std::move(attention)), shared_(shared) {
    auto [q, k, v, a] = widths();
    int64_t room = kQueries * (kKeys + 2 * q + a) + kKeys * (k + v) + 64;
    shared_.pool.reserveScratch(room * int64_t(sizeof(T)));
  }

  void run(const RunContext&, Operands in, Results out) override {
    int64_t blocks = (attention_.positions + kQueries - 1) / kQueries;
    for (const Part& part : attention_.parts) {
      int64_t own = countOf(part.own), count = countOf(part.shared) * own * blocks;
      shared_.pool.parallelFor(count, [&](int64_t task, int thread) {
        int64_t offsets[5];
        std::copy_n(part.start.begin(), 5, offsets);
        addOffsets(part.shared, task / (own * blocks), offsets);
        addOffsets(part.own, task / blocks % own, offsets);
        runBlock(task % blocks * kQueries, offsets, thread, in, out);
      });
    }
  }

 private:
  enum { Q, K, V, A, Lse };

  std::array<int64_t, 4> widths() const {
    const auto& t = attention_.tensors;
    return {t[Q].width, t[K].width, t[V].width, t[A].width};
  }

  void runBlock(int64_t begin, const int64_t* offsets, int thread, Operands in, Results out) const {
    const auto& tensors = attention_.tensors;
    auto [widthQ, widthK, widthV, widthA] = widths();
    T* scores = reinterpret_cast<T*>(shared_.pool.scratch(thread));
    T* copyQ = scores + kQueries * kKeys;
    T* queries = copyQ + kQueries * widthQ;
    T* copyA = queries + kQueries * widthQ;
    T* copyK = copyA + kQueries * widthA;
    T* copyV = copyK + kKeys * widthK;
    int64_t rows = std::min(kQueries, attention_.positions - begin);
    Matrix<T> q = rowsOf(tensors[Q], in[Q], offsets[Q], begin, rows, copyQ);
    transpose(rows, widthQ, q.data, q.rows, queries, kQueries);
    auto [a, rowA] = targetOf(tensors[A], out[0], offsets[A], begin, copyA);
    alignas(64) Running running;
    std::fill_n(running.most, kQueries, -kInfinity);
    std::fill_n(running.total, kQueries, T(0));
    Range keys = keysSeen(attention_, begin, begin + rows);
    for (int64_t at = keys.first; at < keys.last; at += kKeys) {
      int64_t n = std::min(kKeys, keys.last - at);
      Matrix<T> k = rowsOf(tensors[K], in[K], offsets[K], at, n, copyK);
      scoreKeys(attention_, at, n, begin, widthQ, T(attention_.scale), k, queries, scores);
      addKeys(begin, at, n, scores, running);
      for (int64_t r = 0; at != keys.first && r < rows; ++r) {
        for (int64_t i = 0; i < widthA; ++i) a[r * rowA + i] *= running.rescale[r];
      }
      Matrix<T> v = rowsOf(tensors[V], in[V], offsets[V], at, n, copyV);
      addToQueries(attention_, at, n, begin, rows, widthV, T(1), scores, v, at != keys.first, a,
                   rowA);
    }
    T lse[kQueries];
#pragma omp simd
    for (int64_t r = 0; r < kQueries; ++r) {
      lse[r] = running.most[r] + fastLog(running.total[r]);
      running.total[r] = T(1) / running.total[r];
    }
    for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
      for (int64_t i = 0; i < widthA; ++i) a[r * rowA + i] *= running.total[r];
    }
    storeRow(lse, out[1], tensors[Lse].elem, offsets[Lse] + begin * tensors[Lse].row,
             tensors[Lse].row, rows);
    storeRows(tensors[A], a, out[0], offsets[A], begin, rows);
  }

  // Of each query: the maximum and the sum of exp(score - maximum) so far, and what the last keys
  // made of earlier sums.
  struct Running {
    T most[kQueries], total[kQueries], rescale[kQueries];
  };

  // Turns the scores of some keys into exp(score - maximum).
  void addKeys(int64_t begin, int64_t at, int64_t n, T* scores, Running& running) const {
    alignas(64) T most[kQueries], shift[kQueries];
    std::copy_n(running.most, kQueries, most);
    for (int64_t j = 0; j < n; ++j) {
      T* row = scores + j * kQueries;
      Range seeing = queriesSeeing(attention_, at + j, begin);
      if (seeing.first > 0 || seeing.last < kQueries) hide(seeing, -kInfinity, row);
#pragma omp simd
      for (int64_t i = 0; i < kQueries; ++i) most[i] = row[i] > most[i] ? row[i] : most[i];
    }
#pragma omp simd
    for (int64_t i = 0; i < kQueries; ++i) {
      // A query that saw no key yet has no maximum: its exponentials are all zero.
      shift[i] = most[i] > -kInfinity ? most[i] : T(0);
      running.rescale[i] = fastExp(running.most[i] - shift[i]);
      running.total[i] *= running.rescale[i];
      running.most[i] = most[i];
    }
    for (int64_t j = 0; j < n; ++j) {
      T* row = scores + j * kQueries;
#pragma omp simd
      for (int64_t i = 0; i < kQueries; ++i) {
        row[i] = fastExp(row[i] - shift[i]);
        running.total[i] += row[i];
      }
    }
  }

  static constexpr T kInfinity = std::numeric_limits<T>::infinity();
  Attention attention_;
  Shared& shared_;
};

template <class T>
class AttendGradKernel : public Kernel {
 public:
  AttendGradKernel(Attention attention, Shared& shared)
      : attention_(std::move(attention)), shared_(shared) {
    const auto& t = attention_.tensors;
    int64_t whole = attention_.positions * 2 * (t[K].width + t[V].width);
    int64_t block = kQueries * (2 * kKeys + 3 * t[Q].width + 3 * t[A].width + 1);
    shared_.pool.reserveScratch((whole + block + 64) * int64_t(sizeof(T)));
  }

  void run(const RunContext&, Operands in, Results out) override {
    for (const Part& part : attention_.parts) {
      shared_.pool.parallelFor(countOf(part.shared), [&](int64_t task, int thread) {
        runTask(part, task, thread, in, out);
      });
    }
  }

 private:
  enum { Q, K, V, A, Lse, Da, Dq, Dk, Dv };

  // A task's scratch, and its keys and values whole.
  struct Task {
    T *scores, *slopes, *copyQ, *copyA, *copyDa, *copyDq, *queries, *columnsDa, *dot;
    Matrix<T> k, v;
    T *dk, *dv;
    int64_t rowDk, rowDv;
  };

  void runTask(const Part& part, int64_t index, int thread, Operands in, Results out) const {
    const auto& t = attention_.tensors;
    int64_t positions = attention_.positions;
    int64_t start[9];
    std::copy_n(part.start.begin(), 9, start);
    addOffsets(part.shared, index, start);
    T* free = reinterpret_cast<T*>(shared_.pool.scratch(thread));
    auto take = [&](int64_t size) { return std::exchange(free, free + size); };
    Task task;
    task.scores = take(kQueries * kKeys);
    task.slopes = take(kQueries * kKeys);
    task.copyQ = take(kQueries * t[Q].width);
    task.copyDq = take(kQueries * t[Q].width);
    task.copyA = take(kQueries * t[A].width);
    task.copyDa = take(kQueries * t[A].width);
    task.queries = take(kQueries * t[Q].width);
    task.columnsDa = take(kQueries * t[A].width);
    task.dot = take(kQueries);
    task.k = rowsOf(t[K], in[K], start[K], 0, positions, take(positions * t[K].width));
    task.v = rowsOf(t[V], in[V], start[V], 0, positions, take(positions * t[V].width));
    T *copyDk = take(positions * t[K].width), *copyDv = take(positions * t[V].width);
    std::tie(task.dk, task.rowDk) = targetOf(t[Dk], out[1], start[Dk], 0, copyDk);
    std::tie(task.dv, task.rowDv) = targetOf(t[Dv], out[2], start[Dv], 0, copyDv);
    for (int64_t p = 0; p < positions; ++p) {
      std::fill_n(task.dk + p * task.rowDk, t[K].width, T(0));
      std::fill_n(task.dv + p * task.rowDv, t[V].width, T(0));
    }
    for (int64_t o = 0; o < countOf(part.own); ++o) {
      int64_t offsets[9];
      std::copy_n(start, 9, offsets);
      addOffsets(part.own, o, offsets);
      for (int64_t begin = 0; begin < positions; begin += kQueries) {
        runBlock(begin, offsets, task, in, out);
      }
    }
    storeRows(t[Dk], task.dk, out[1], start[Dk], 0, positions);
    storeRows(t[Dv], task.dv, out[2], start[Dv], 0, positions);
  }

  void runBlock(int64_t begin, const int64_t* offsets, const Task& task, Operands in,
                Results out) const {
    const auto& t = attention_.tensors;
    int64_t rows = std::min(kQueries, attention_.positions - begin);
    Matrix<T> q = rowsOf(t[Q], in[Q], offsets[Q], begin, rows, task.copyQ);
    Matrix<T> a = rowsOf(t[A], in[A], offsets[A], begin, rows, task.copyA);
    Matrix<T> da = rowsOf(t[Da], in[Da], offsets[Da], begin, rows, task.copyDa);
    auto [dq, rowDq] = targetOf(t[Dq], out[0], offsets[Dq], begin, task.copyDq);
    transpose(rows, t[Q].width, q.data, q.rows, task.queries, kQueries);
    transpose(rows, t[A].width, da.data, da.rows, task.columnsDa, kQueries);
    for (int64_t r = 0; r < rows; ++r) {
      task.dot[r] = dotRow(a.data + r * a.rows, da.data + r * da.rows, t[A].width);
    }
    T lse[kQueries] = {};
    const T* found =
        loadRow(in[Lse], t[Lse].elem, offsets[Lse] + begin * t[Lse].row, t[Lse].row, rows, lse);
    if (found != lse) std::copy_n(found, rows, lse);
    int64_t widthQ = t[Q].width, widthV = t[V].width;
    T scale = T(attention_.scale);
    Range keys = keysSeen(attention_, begin, begin + rows);
    for (int64_t at = keys.first; at < keys.last; at += kKeys) {
      int64_t n = std::min(kKeys, keys.last - at);
      Matrix<T> k = task.k, v = task.v;
      k.data += at * k.rows;
      v.data += at * v.rows;
      scoreKeys(attention_, at, n, begin, widthQ, scale, k, task.queries, task.scores);
      scoreKeys(attention_, at, n, begin, widthV, T(1), v, task.columnsDa, task.slopes);
      for (int64_t j = 0; j < n; ++j) {
        slopes(queriesSeeing(attention_, at + j, begin), lse, task.dot, task.scores + j * kQueries,
               task.slopes + j * kQueries);
      }
      addToKeys(attention_, at, n, begin, rows, widthV, T(1), task.scores, da,
                task.dv + at * task.rowDv, task.rowDv);
      addToKeys(attention_, at, n, begin, rows, widthQ, scale, task.slopes, q,
                task.dk + at * task.rowDk, task.rowDk);
      addToQueries(attention_, at, n, begin, rows, widthQ, scale, task.slopes, k, at != keys.first,
                   dq, rowDq);
    }
    storeRows(t[Dq], dq, out[0], offsets[Dq], begin, rows);
  }

  // Of one key: scores become probabilities p, and da.v becomes p * (da.v - da.a).
  static void slopes(Range seeing, const T* lse, const T* dot, T* scores, T* slopes) {
    bool all = seeing.first == 0 && seeing.last == kQueries;
    if (!all) hide(seeing, -std::numeric_limits<T>::infinity(), scores);
    if (!all) hide(seeing, T(0), slopes);
#pragma omp simd
    for (int64_t i = 0; i < kQueries; ++i) {
      T p = fastExp(scores[i] - lse[i]);
      scores[i] = p;
      slopes[i] = p * (slopes[i] - dot[i]);
    }
  }

  Attention attention_;
  Shared& shared_;
};

}  // namespace

KernelOr prepareAttend(const Op& op, Shared& shared) {
  llvm::SmallVector<const Type*, 5> types;
  for (const Value* value : op.operands()) types.push_back(&value->type);
  for (const Value* value : op.results()) types.push_back(&value->type);
  auto attention = analyse(
      op, types, {Like::Query, Like::Key, Like::Value, Like::Output, Like::Row}, shared.rank);
  if (!attention) return attention.takeError();
  return withCompute(op, [&](auto zero) -> KernelOr {
    return std::make_unique<AttendKernel<decltype(zero)>>(*attention, shared);
  });
}

KernelOr prepareAttendGrad(const Op& op, Shared& shared) {
  llvm::SmallVector<const Type*, 9> types;
  for (const Value* value : op.operands()) types.push_back(&value->type);
  for (const Value* value : op.results()) types.push_back(&value->type);
  auto attention = analyse(op, types,
                           {Like::Query, Like::Key, Like::Value, Like::Output, Like::Row,
                            Like::Output, Like::Query, Like::Key, Like::Value},
                           shared.rank);
  if (!attention) return attention.takeError();
  return withCompute(op, [&](auto zero) -> KernelOr {
    return std::make_unique<AttendGradKernel<decltype(zero)>>(*attention, shared);
  });
}

}  // namespace planc::cpu
