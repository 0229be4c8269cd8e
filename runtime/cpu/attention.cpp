// Attention without ever holding all scores (Dao et al., FlashAttention, 2022): blocks of queries
// meet blocks of keys in matrix products on the operands as they lie, [batch, seq, head, width] or
// any other order; blocks wholly in the future, outside the window or of other documents are skipped.
// `attend_block` goes on where the keys before have ended (Liu et al., Ring Attention, 2023): their
// log-sum-exp is a maximum with a sum of 1, and what they gave is what was summed up.
//
// Loops: `shared` dims are those that queries and keys have (batch; the keys' heads), `own` dims
// those that only queries have (the heads that share a key head, and dims that the keys lack). A
// backward task is one shared index, so that no two tasks add to one key's gradient. Where ranks hold
// pieces of the heads, one may hold some of the heads that share a key head, all of the next's, and
// none of another's: these are parts with loops of their own. Tested by tests/runtime/kernels_test.cpp,
// split_kernels_test.cpp and ring_test.cpp there.
#include "runtime/cpu/attention.h"
#include "runtime/places.h"

#include <array>

namespace planc::cpu {
namespace {

// Blocks of queries: each in one segment; what is padding is one block.
std::vector<QueryBlock> blocksOfQueries(const Dim& seq, const Coordinates& rank) {
  std::vector<QueryBlock> blocks;
  int64_t count = 0;
  for (const Segment& segment : rank.segments(seq)) {
    for (int64_t i = 0; i < segment.count; i += kQueries)
      blocks.push_back({segment.at + i, segment.first + i, std::min(kQueries, segment.count - i)});
    count += segment.count;
  }
  if (count < seq.size) blocks.push_back({count, QueryBlock::kPadding, seq.size - count});
  return blocks;
}

}  // namespace

llvm::Expected<Attention> analyseAttention(const Op& op, llvm::ArrayRef<const Type*> types,
                                           llvm::ArrayRef<Like> likes, const Coordinates& rank) {
  const Type &q = *types[0], &k = *types[1], &v = *types[2];
  std::string seq = op.attrs.word("seq"), by = op.attrs.word("by"), head = op.attrs.word("head");
  std::string kv = op.attrs.word("kv");
  Attention attention;
  const Dim& keys = k.dims[size_t(k.find(seq))];
  attention.queries = blocksOfQueries(q.dims[size_t(q.find(seq))], rank);
  attention.keyRows = keys.size;
  for (int64_t i = 0; i < (keys.moves.empty() ? 1 : ranksOver(keys.axes)); ++i)
    attention.keys.push_back(rank.segments(keys, i));
  if (!keys.moves.empty()) {
    Words repeats = op.parent()->enclosing();
    auto repeat = llvm::find(repeats, keys.moves);
    if (repeat == repeats.end())
      return unsupported(op, "its keys move with '" + keys.moves + "', which is not around it");
    attention.repeat = int(repeat - repeats.begin());
  }
  attention.hasDocuments = op.operands().size() > size_t(op.info().minOperands);
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
      if (space.loops().size() != 1) return unsupported(op, "values whose own dims are apart");
      tensor.column = space.loops()[0].size == 1 ? 1 : space.loops()[0].strides[0];
      tensor.width = space.count();
    }
    attention.tensors.push_back(tensor);
  }

  // Each tensor's steps: along `keyDim` for keys and values, `step` elements of `dim` for others.
  auto steps = [&](llvm::StringRef dim, llvm::StringRef keyDim, int64_t step) {
    llvm::SmallVector<int64_t, 6> strides;
    for (size_t t = 0; t < types.size(); ++t) {
      bool isKey = likes[t] == Like::Key || likes[t] == Like::Value || likes[t] == Like::RowOfKeys;
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

namespace {

template <class T>
class AttendKernel : public Kernel {
 public:
  // `goesOn`: from what keys before have given.
  AttendKernel(Attention attention, bool goesOn, Shared& shared)
      : attention_(std::move(attention)),
        goesOn_(goesOn),
        firstDocuments_(goesOn ? 5 : 3),
        shared_(shared) {
    auto [q, k, v, a] = widths();
    int64_t room = kQueries * (kKeys + 2 * q + a) + kKeys * (k + v) + 64;
    shared_.pool.reserveScratch(room * int64_t(sizeof(T)));
  }

  void run(const RunContext& context, Operands in, Results out) override {
    const Segments& keys = attention_.keysIn(context);
    int64_t blocks = int64_t(attention_.queries.size());
    for (const Part& part : attention_.parts) {
      int64_t own = countOf(part.own), count = countOf(part.shared) * own * blocks;
      shared_.pool.parallelFor(count, [&](int64_t task, int thread) {
        int64_t offsets[kTensors];
        std::copy_n(part.start.begin(), size_t(kTensors), offsets);
        addOffsets(part.shared, task / (own * blocks), offsets);
        addOffsets(part.own, task / blocks % own, offsets);
        runBlock(attention_.queries[size_t(task % blocks)], keys, offsets, thread, in, out);
      });
    }
  }

 private:
  // Of which the op may lack the last four.
  enum { Q, K, V, A, Lse, Before, LseBefore, OfQueries, OfKeys, kTensors };

  std::array<int64_t, 4> widths() const {
    const auto& t = attention_.tensors;
    return {t[Q].width, t[K].width, t[V].width, t[A].width};
  }

  void runBlock(const QueryBlock& block, const Segments& keys, const int64_t* offsets, int thread,
                Operands in, Results out) const {
    const auto& tensors = attention_.tensors;
    auto [widthQ, widthK, widthV, widthA] = widths();
    int64_t rows = block.rows, lseAt = offsets[Lse] + block.at * tensors[Lse].row;
    if (block.first == QueryBlock::kPadding) {
      zeroRows<T>(tensors[A], out[0], offsets[A], block.at, rows);
      for (int64_t r = 0; r < rows; ++r)
        storeOne(T(0), out[1], tensors[Lse].elem, lseAt + r * tensors[Lse].row);
      return;
    }
    T* scores = reinterpret_cast<T*>(shared_.pool.scratch(thread));
    T* copyQ = scores + kQueries * kKeys;
    T* queries = copyQ + kQueries * widthQ;
    T* copyA = queries + kQueries * widthQ;
    T* copyK = copyA + kQueries * widthA;
    T* copyV = copyK + kKeys * widthK;
    Matrix<T> q = rowsOf(tensors[Q], in[Q], offsets[Q], block.at, rows, copyQ);
    transpose(rows, widthQ, q.data, q.rows, queries, kQueries);
    auto [a, rowA] = targetOf(tensors[A], out[0], offsets[A], block.at, copyA);
    alignas(64) Running running;
    if (goesOn_) {
      takeBefore(block, offsets, in, a, rowA, running);
    } else {
      std::fill_n(running.most, kQueries, -kInfinity);
      std::fill_n(running.total, kQueries, T(0));
    }
    Documents documents;
    if (attention_.hasDocuments)
      documents.takeQueries(in[firstDocuments_],
                            offsets[OfQueries] + block.at * tensors[OfQueries].row,
                            tensors[OfQueries].row, rows);
    bool adds = goesOn_, sees = false;
    eachKeys(attention_, keys, block, [&](int64_t row, int64_t at, int64_t n) {
      if (attention_.hasDocuments &&
          !documents.takeKeys(in[firstDocuments_ + 1], offsets[OfKeys] + row * tensors[OfKeys].row,
                              tensors[OfKeys].row, n))
        return;
      Matrix<T> k = rowsOf(tensors[K], in[K], offsets[K], row, n, copyK);
      scoreKeys(attention_, at, n, block.first, widthQ, T(attention_.scale), k, queries, scores);
      addKeys(block.first, at, n, documents, scores, running);
      for (int64_t r = 0; adds && r < rows; ++r) {
        for (int64_t i = 0; i < widthA; ++i) a[r * rowA + i] *= running.rescale[r];
      }
      Matrix<T> v = rowsOf(tensors[V], in[V], offsets[V], row, n, copyV);
      addToQueries(attention_, at, n, block.first, rows, widthV, T(1), scores, v, adds, a, rowA);
      adds = sees = true;
    });
    if (!adds)
      for (int64_t r = 0; r < rows; ++r) std::fill_n(a + r * rowA, widthA, T(0));
    T lse[kQueries];
#pragma omp simd
    for (int64_t r = 0; r < kQueries; ++r) {
      bool isSeeing = running.total[r] > 0;
      lse[r] = isSeeing ? running.most[r] + fastLog(running.total[r]) : T(kNoKeys);
      running.total[r] = isSeeing ? T(1) / running.total[r] : T(0);
    }
    for (int64_t r = 0; sees && r < rows; ++r) {
#pragma omp simd
      for (int64_t i = 0; i < widthA; ++i) a[r * rowA + i] *= running.total[r];
    }
    storeRow(lse, out[1], tensors[Lse].elem, lseAt, tensors[Lse].row, rows);
    storeRows(tensors[A], a, out[0], offsets[A], block.at, rows);
  }

  // Of each query: the maximum and the sum of exp(score - maximum) so far, and what the last keys
  // made of earlier sums.
  struct Running {
    T most[kQueries], total[kQueries], rescale[kQueries];
  };

  // What the keys before have given; the results may lie on it.
  void takeBefore(const QueryBlock& block, const int64_t* offsets, Operands in, T* a, int64_t rowA,
                  Running& running) const {
    const Tensor &before = attention_.tensors[Before], &lse = attention_.tensors[LseBefore];
    T spare[kQueries];
    int64_t at = offsets[Before] + block.at * before.row;
    for (int64_t r = 0; r < block.rows; ++r) {
      T* to = a + r * rowA;
      const T* from =
          loadRow(in[3], before.elem, at + r * before.row, before.column, before.width, to);
      if (from != to) std::copy_n(from, before.width, to);
    }
    std::fill_n(running.total, kQueries, T(1));
    std::fill_n(running.most, kQueries, T(kNoKeys));
    const T* found = loadRow(in[4], lse.elem, offsets[LseBefore] + block.at * lse.row, lse.row,
                             block.rows, spare);
    std::copy_n(found, block.rows, running.most);
  }

  // Turns the scores of some keys into exp(score - maximum).
  void addKeys(int64_t begin, int64_t at, int64_t n, const Documents& documents, T* scores,
               Running& running) const {
    alignas(64) T most[kQueries], shift[kQueries];
    std::copy_n(running.most, kQueries, most);
    for (int64_t j = 0; j < n; ++j) {
      T* row = scores + j * kQueries;
      Range seeing = queriesSeeing(attention_, at + j, begin);
      if (seeing.first > 0 || seeing.last < kQueries) hide(seeing, -kInfinity, row);
      if (attention_.hasDocuments) documents.hide(j, -kInfinity, row);
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
  bool goesOn_;
  size_t firstDocuments_;  // operand
  Shared& shared_;
};

}  // namespace

KernelOr prepareAttend(const Op& op, Shared& shared) {
  bool goesOn = op.kind == OpKind::AttendBlock;
  const Type none;
  size_t documents = size_t(op.info().minOperands);
  auto operand = [&](size_t i) {
    return i < op.operands().size() ? &op.operand(unsigned(i))->type : &none;
  };
  auto likeIf = [](bool is, Like like) { return is ? like : Like::None; };
  bool hasDocuments = op.operands().size() > documents;
  auto attention =
      analyseAttention(op,
                       {operand(0), operand(1), operand(2), &op.result(0)->type,
                        &op.result(1)->type, goesOn ? operand(3) : &none,
                        goesOn ? operand(4) : &none, operand(documents), operand(documents + 1)},
                       {Like::Query, Like::Key, Like::Value, Like::Output, Like::Row,
                        likeIf(goesOn, Like::Output), likeIf(goesOn, Like::Row),
                        likeIf(hasDocuments, Like::Row), likeIf(hasDocuments, Like::RowOfKeys)},
                       shared.rank);
  if (!attention) return attention.takeError();
  return withCompute(op, [&](auto zero) -> KernelOr {
    return std::make_unique<AttendKernel<decltype(zero)>>(*attention, goesOn, shared);
  });
}

}  // namespace planc::cpu
