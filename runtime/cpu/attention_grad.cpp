// Attention's gradient: the probabilities are made again, from the saved log-sum-exp. Of a block of
// keys, whose queries' log-sum-exp is over all keys, it is the block's part. How tasks and blocks are
// cut: runtime/cpu/attention.cpp. Tested by tests/runtime/kernels_test.cpp, split_kernels_test.cpp and
// ring_test.cpp there.
#include "runtime/cpu/attention.h"

namespace planc::cpu {
namespace {

template <class T>
class AttendGradKernel : public Kernel {
 public:
  AttendGradKernel(Attention attention, Shared& shared)
      : attention_(std::move(attention)), shared_(shared) {
    const auto& t = attention_.tensors;
    int64_t whole = attention_.keyRows * 2 * (t[K].width + t[V].width);
    int64_t block = kQueries * (2 * kKeys + 3 * t[Q].width + 3 * t[A].width + 1);
    shared_.pool.reserveScratch((whole + block + 64) * int64_t(sizeof(T)));
  }

  void run(const RunContext& context, Operands in, Results out) override {
    const Segments& keys = attention_.keysIn(context);
    for (const Part& part : attention_.parts) {
      shared_.pool.parallelFor(countOf(part.shared), [&](int64_t task, int thread) {
        runTask(part, keys, task, thread, in, out);
      });
    }
  }

 private:
  // Of which the op may lack the last two.
  enum { Q, K, V, A, Lse, Da, Dq, Dk, Dv, OfQueries, OfKeys, kTensors };

  // A task's scratch, and its keys and values whole.
  struct Task {
    T *scores, *slopes, *copyQ, *copyA, *copyDa, *copyDq, *queries, *columnsDa, *dot;
    Matrix<T> k, v;
    T *dk, *dv;
    int64_t rowDk, rowDv;
  };

  void runTask(const Part& part, const Segments& keys, int64_t index, int thread, Operands in,
               Results out) const {
    const auto& t = attention_.tensors;
    int64_t positions = attention_.keyRows;
    int64_t start[kTensors];
    std::copy_n(part.start.begin(), size_t(kTensors), start);
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
      int64_t offsets[kTensors];
      std::copy_n(start, size_t(kTensors), offsets);
      addOffsets(part.own, o, offsets);
      for (const QueryBlock& block : attention_.queries)
        runBlock(block, keys, offsets, task, in, out);
    }
    storeRows(t[Dk], task.dk, out[1], start[Dk], 0, positions);
    storeRows(t[Dv], task.dv, out[2], start[Dv], 0, positions);
  }

  void runBlock(const QueryBlock& block, const Segments& keys, const int64_t* offsets,
                const Task& task, Operands in, Results out) const {
    const auto& t = attention_.tensors;
    int64_t at = block.at, rows = block.rows;
    if (block.first == QueryBlock::kPadding)
      return zeroRows<T>(t[Dq], out[0], offsets[Dq], at, rows);
    Matrix<T> q = rowsOf(t[Q], in[Q], offsets[Q], at, rows, task.copyQ);
    Matrix<T> a = rowsOf(t[A], in[A], offsets[A], at, rows, task.copyA);
    Matrix<T> da = rowsOf(t[Da], in[Da], offsets[Da], at, rows, task.copyDa);
    auto [dq, rowDq] = targetOf(t[Dq], out[0], offsets[Dq], at, task.copyDq);
    transpose(rows, t[Q].width, q.data, q.rows, task.queries, kQueries);
    transpose(rows, t[A].width, da.data, da.rows, task.columnsDa, kQueries);
    for (int64_t r = 0; r < rows; ++r) {
      task.dot[r] = dotRow(a.data + r * a.rows, da.data + r * da.rows, t[A].width);
    }
    T lse[kQueries] = {};
    const T* found =
        loadRow(in[Lse], t[Lse].elem, offsets[Lse] + at * t[Lse].row, t[Lse].row, rows, lse);
    if (found != lse) std::copy_n(found, rows, lse);
    Documents documents;
    if (attention_.hasDocuments)
      documents.takeQueries(in[kDocuments], offsets[OfQueries] + at * t[OfQueries].row,
                            t[OfQueries].row, rows);
    int64_t widthQ = t[Q].width, widthV = t[V].width;
    T scale = T(attention_.scale);
    bool adds = false;
    eachKeys(attention_, keys, block, [&](int64_t row, int64_t key, int64_t n) {
      if (attention_.hasDocuments &&
          !documents.takeKeys(in[kDocuments + 1], offsets[OfKeys] + row * t[OfKeys].row,
                              t[OfKeys].row, n))
        return;
      Matrix<T> k = task.k, v = task.v;
      k.data += row * k.rows;
      v.data += row * v.rows;
      int64_t first = block.first;
      scoreKeys(attention_, key, n, first, widthQ, scale, k, task.queries, task.scores);
      scoreKeys(attention_, key, n, first, widthV, T(1), v, task.columnsDa, task.slopes);
      for (int64_t j = 0; j < n; ++j) {
        T *scores = task.scores + j * kQueries, *slopes = task.slopes + j * kQueries;
        Range seeing = queriesSeeing(attention_, key + j, first);
        if (seeing.first > 0 || seeing.last < kQueries) {
          hide(seeing, -kInfinity, scores);
          hide(seeing, T(0), slopes);
        }
        if (attention_.hasDocuments) documents.hide(j, -kInfinity, scores);
        weigh(lse, task.dot, scores, slopes);
      }
      addToKeys(attention_, key, n, first, rows, widthV, T(1), task.scores, da,
                task.dv + row * task.rowDv, task.rowDv);
      addToKeys(attention_, key, n, first, rows, widthQ, scale, task.slopes, q,
                task.dk + row * task.rowDk, task.rowDk);
      addToQueries(attention_, key, n, first, rows, widthQ, scale, task.slopes, k, adds, dq, rowDq);
      adds = true;
    });
    if (!adds)
      for (int64_t r = 0; r < rows; ++r) std::fill_n(dq + r * rowDq, widthQ, T(0));
    storeRows(t[Dq], dq, out[0], offsets[Dq], at, rows);
  }

  // Of one key: scores become probabilities p, and da.v becomes p * (da.v - da.a).
  static void weigh(const T* lse, const T* dot, T* scores, T* slopes) {
#pragma omp simd
    for (int64_t i = 0; i < kQueries; ++i) {
      T p = fastExp(scores[i] - lse[i]);
      scores[i] = p;
      slopes[i] = p * (slopes[i] - dot[i]);
    }
  }

  static constexpr size_t kDocuments = 6;  // operand
  static constexpr T kInfinity = std::numeric_limits<T>::infinity();
  Attention attention_;
  Shared& shared_;
};

}  // namespace

KernelOr prepareAttendGrad(const Op& op, Shared& shared) {
  const Type none;
  llvm::SmallVector<const Type*, 11> types;
  for (const Value* value : op.operands().take_front(6)) types.push_back(&value->type);
  for (const Value* value : op.results()) types.push_back(&value->type);
  bool hasDocuments = op.operands().size() > 6;
  for (unsigned i : {6u, 7u}) types.push_back(hasDocuments ? &op.operand(i)->type : &none);
  auto attention =
      analyseAttention(op, types,
                       {Like::Query, Like::Key, Like::Value, Like::Output, Like::Row, Like::Output,
                        Like::Query, Like::Key, Like::Value, hasDocuments ? Like::Row : Like::None,
                        hasDocuments ? Like::RowOfKeys : Like::None},
                       shared.rank);
  if (!attention) return attention.takeError();
  return withCompute(op, [&](auto zero) -> KernelOr {
    return std::make_unique<AttendGradKernel<decltype(zero)>>(*attention, shared);
  });
}

}  // namespace planc::cpu
