// Table lookup and its gradient. The gradient sorts the tokens by id (a counting sort, stable) and
// then each table row adds up its tokens in their order: no two threads touch a row, and the sum of
// a row is rounded once. Ids outside the table, or outside the piece of it that this rank holds, read
// zeros and add nothing. Tested by tests/runtime/kernels_test.cpp and split_kernels_test.cpp there.
#include "runtime/cpu/kernels.h"

namespace planc::cpu {
namespace {

// The rows of a table as a looked-up tensor has them: `tokens` walks the ids' dims over {ids,
// rows}, `row` the table's own dims over {table, rows}.
struct Shape {
  Space tokens, row;
  int64_t first, valid;     // the ids that this rank's rows belong to: [first, first + valid)
  int64_t entries, stride;  // of the table's dim `over`
  Elem table, rows;

  Shape(const Op& op, const Type& table, const Type& ids, const Type& rows, const Coordinates& rank)
      : tokens(memoryDims(ids), {&ids, &rows}),
        row(dimsWithout(table, {op.attrs.word("over")}), {&table, &rows}),
        entries(table.size(op.attrs.word("over"))),
        stride(strideOf(table, op.attrs.word("over"))),
        table(table.elem),
        rows(rows.elem) {
    const Dim& over = table.dims[size_t(table.find(op.attrs.word("over")))];
    first = rank.offset(over);
    valid = rank.valid(over);
  }
};

// The error for tables and ids that share a dim, which would pick another table for each token.
llvm::Error checkDims(const Op& op, const Type& table, const Type& ids) {
  for (const Dim& dim : ids.dims) {
    if (table.has(dim.name)) return unsupported(op, "table and ids share dim '" + dim.name + "'");
  }
  return llvm::Error::success();
}

}  // namespace

KernelOr prepareLookup(const Op& op, Shared& shared) {
  const Type &table = op.operand(0)->type, &ids = op.operand(1)->type, &rows = op.result()->type;
  if (llvm::Error error = checkDims(op, table, ids)) return error;
  Shape shape(op, table, ids, rows, shared.rank);
  // The table's own dims as rows of a longest inner loop.
  Loop inner = shape.row.loops().back();
  int64_t pieces = shape.row.count() / inner.size;
  shared.pool.reserveScratch(inner.size * int64_t(sizeof(double)));
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      int64_t step = rowsPerTask(shape.row.count());
      shared.pool.parallelPieces(
          shape.tokens.count(), step, [&](int64_t begin, int64_t end, int thread) {
            T* scratch = reinterpret_cast<T*>(shared.pool.scratch(thread));
            shape.tokens.each(begin, end, [&](int64_t, const int64_t* at) {
              int64_t id = static_cast<const int32_t*>(in[1])[at[0]] - shape.first;
              bool inside = id >= 0 && id < shape.valid;
              for (int64_t p = 0; p < pieces; ++p) {
                int64_t from[2];
                shape.row.at(p * inner.size, from);
                const T* row = scratch;
                if (inside) {
                  row = loadRow(in[0], shape.table, id * shape.stride + from[0], inner.strides[0],
                                inner.size, scratch);
                } else {
                  std::fill_n(scratch, inner.size, T(0));
                }
                storeRow(row, out[0], shape.rows, at[1] + from[1], inner.strides[1], inner.size);
              }
            });
          });
    });
  });
}

namespace {

// Tokens in order of their ids (counted from this rank's first), and where each id's begin.
struct Sorted {
  std::vector<int64_t> offsets;  // in dy
  std::vector<int64_t> begin;    // by id, and the end

  Sorted(int64_t tokens, int64_t entries)
      : offsets(size_t(tokens)), begin(size_t(entries) + 2), ids_(size_t(tokens)) {}

  void sort(const Space& tokens, const int32_t* ids, int64_t first, int64_t valid) {
    std::fill(begin.begin(), begin.end(), 0);
    tokens.each(0, tokens.count(), [&](int64_t i, const int64_t* at) {
      int64_t id = ids[at[0]] - first;
      ids_[size_t(i)] = id >= 0 && id < valid ? int32_t(id) : -1;
      if (ids_[size_t(i)] >= 0) ++begin[size_t(id) + 2];
    });
    for (size_t i = 2; i < begin.size(); ++i) begin[i] += begin[i - 1];
    // begin[id + 1] is the next free place of an id; it ends up where the next id begins.
    tokens.each(0, tokens.count(), [&](int64_t i, const int64_t* at) {
      if (ids_[size_t(i)] >= 0) offsets[size_t(begin[size_t(ids_[size_t(i)]) + 1]++)] = at[1];
    });
  }

 private:
  std::vector<int32_t> ids_;
};

}  // namespace

KernelOr prepareLookupGrad(const Op& op, Shared& shared) {
  const Type &ids = op.operand(0)->type, &dy = op.operand(1)->type;
  Type table = resultType(op);
  if (llvm::Error error = checkDims(op, table, ids)) return error;
  Shape shape(op, table, ids, dy, shared.rank);
  Loop inner = shape.row.loops().back();
  int64_t pieces = shape.row.count() / inner.size;
  shared.pool.reserveScratch(2 * (inner.size + 16) * int64_t(sizeof(double)));
  Accumulate accumulate(op);
  Sorted sorted(shape.tokens.count(), shape.entries);
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext& context, Operands in, Results out) mutable {
      bool add = accumulate.addsIn(context);
      sorted.sort(shape.tokens, static_cast<const int32_t*>(in[0]), shape.first, shape.valid);
      // Small tables have few rows, with many tokens each.
      int64_t perEntry = shape.row.count() * (1 + shape.tokens.count() / shape.entries);
      shared.pool.parallelPieces(
          shape.entries, rowsPerTask(perEntry), [&](int64_t first, int64_t last, int thread) {
            T* sum = reinterpret_cast<T*>(shared.pool.scratch(thread));
            T* spare = sum + (inner.size + 15) / 16 * 16;
            for (int64_t id = first; id < last; ++id) {
              int64_t begin = sorted.begin[size_t(id)], end = sorted.begin[size_t(id) + 1];
              if (add && begin == end) continue;
              for (int64_t p = 0; p < pieces; ++p) {
                int64_t at[2];
                shape.row.at(p * inner.size, at);
                std::fill_n(sum, inner.size, T(0));
                auto addRow = [&](const void* base, Elem elem, int64_t offset, int64_t stride) {
                  const T* row = loadRow(base, elem, offset, stride, inner.size, spare);
#pragma omp simd
                  for (int64_t i = 0; i < inner.size; ++i) sum[i] += row[i];
                };
                for (int64_t t = begin; t < end; ++t) {
                  addRow(in[1], shape.rows, sorted.offsets[size_t(t)] + at[1], inner.strides[1]);
                }
                int64_t to = id * shape.stride + at[0];
                if (add) addRow(out[0], shape.table, to, inner.strides[0]);
                storeRow(sum, out[0], shape.table, to, inner.strides[0], inner.size);
              }
            }
          });
    });
  });
}

}  // namespace planc::cpu
