// Moving tokens to their experts' packed rows and back. Rows belong to one (token, choice) each, so
// copies need no order; sums over a token's choices run in the order of the choices. A rank that holds
// a piece of the experts has their rows alone.
// Tested by tests/runtime/kernels_test.cpp and tests/runtime/split_kernels_test.cpp.
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/math.h"

namespace planc::cpu {
namespace {

// Walks tokens over some tensors; a token's own elements (of `own`, over the first two tensors: by
// token and packed) come in pieces along the innermost loop.
struct Packing {
  Space tokens, own;
  Loop inner;
  int64_t pieces, rowStride, bound;  // packed: from row to row, and how many rows there is room for
  int64_t firstExpert = 0, experts = 0;  // those whose rows are here
  std::string choice;                // the dim of `row` that counts a token's choices
  int64_t choices = 1;

  Packing(const Type& byToken, const Type& packed, const Type& row,
          llvm::ArrayRef<const Type*> others, const Coordinates& rank)
      : rowStride(0), bound(0) {
    std::string slot;
    for (const Dim& dim : packed.dims) {
      if (!dim.isRagged()) continue;
      slot = dim.name;
      rowStride = strideOf(packed, slot);
      bound = dim.size;
      const Dim& groups = packed.dims[size_t(packed.find(dim.over))];
      firstExpert = rank.offset(groups);
      experts = rank.valid(groups);
    }
    for (const Dim& dim : row.dims) {
      if (byToken.has(dim.name)) continue;
      choice = dim.name;
      choices = dim.size;
    }
    llvm::SmallVector<const Type*, 6> walked{&byToken, &row};
    walked.append(others.begin(), others.end());
    tokens = Space(dimsWithout(row, {choice}), walked);
    own = Space(dimsWithout(packed, {slot}), {&byToken, &packed});
    inner = own.loops().back();
    pieces = own.count() / inner.size;
  }

  // Calls visit(offset by token, offset in a packed row) for each piece.
  template <class F>
  void eachPiece(F&& visit) const {
    for (int64_t p = 0; p < pieces; ++p) {
      int64_t at[2];
      own.at(p * inner.size, at);
      visit(at[0], at[1]);
    }
  }

  // Calls visit(offsets of {byToken, row, others...}, thread) for each token, over the pool.
  template <class F>
  void eachToken(Pool& pool, F&& visit) const {
    pool.parallelPieces(tokens.count(), rowsPerTask(choices * own.count()),
                        [&](int64_t begin, int64_t end, int thread) {
                          tokens.each(begin, end,
                                      [&](int64_t, const int64_t* at) { visit(at, thread); });
                        });
  }

  // Zeros in the rows behind the last one that is used.
  template <class T>
  void clearRest(const void* offsets, void* packed, Elem elem, Pool& pool) const {
    int64_t used = ownRows(offsets).count;
    pool.parallelPieces(bound - used, rowsPerTask(own.count()),
                        [&](int64_t begin, int64_t end, int thread) {
                          T* zeros = reinterpret_cast<T*>(pool.scratch(thread));
                          std::fill_n(zeros, inner.size, T(0));
                          for (int64_t r = begin; r < end; ++r) {
                            eachPiece([&](int64_t, int64_t at) {
                              storeRow(zeros, packed, elem, (used + r) * rowStride + at,
                                       inner.strides[1], inner.size);
                            });
                          }
                        });
  }

  // The rows that are here, of all that the offsets tell of.
  struct OwnRows {
    int64_t first, count;
    // Where a row lies here; -1: it is another rank's, or was dropped.
    int64_t at(int64_t row) const { return row >= first && row < first + count ? row - first : -1; }
  };
  // Rows are indices in memory, whatever wrote them: none lies outside of the room.
  OwnRows ownRows(const void* offsets) const {
    const auto* bounds = static_cast<const int32_t*>(offsets);
    int64_t first = std::max<int32_t>(bounds[firstExpert], 0);
    return {first, std::clamp<int64_t>(bounds[firstExpert + experts] - first, 0, bound)};
  }

  int64_t room() const { return (inner.size + 15) / 16 * 16; }
  void reserve(Shared& shared) const {
    shared.pool.reserveScratch(3 * room() * int64_t(sizeof(double)));
  }
};

const int32_t* rowsAt(const void* row) { return static_cast<const int32_t*>(row); }

// The error for token tensors that lack a token dim: they would be added up over it.
llvm::Error checkTokens(const Op& op, const Packing& packing, const Type& byToken,
                        const Type& row) {
  for (const Dim& dim : row.dims) {
    if (dim.name != packing.choice && !byToken.has(dim.name)) {
      return unsupported(op, "tokens without dim '" + dim.name + "'");
    }
  }
  return llvm::Error::success();
}

// dx = sum over a token's choices of [gate *] the packed row: dispatch_grad, and combine.
KernelOr makeGather(const Op& op, const Type& packed, const Type* gate, const Type& row,
                    unsigned rowOperand, Shared& shared) {
  const Type& y = op.result()->type;
  Packing packing(y, packed, row, {gate != nullptr ? gate : &row}, shared.rank);
  if (llvm::Error error = checkTokens(op, packing, y, row)) return error;
  packing.reserve(shared);
  int64_t rowStep = strideOf(row, packing.choice);
  int64_t gateStep = gate != nullptr ? strideOf(*gate, packing.choice) : 0;
  bool isWeighted = gate != nullptr;
  Elem gateElem = isWeighted ? gate->elem : Elem::F32, from = packed.elem, to = y.elem;
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      Packing::OwnRows own = packing.ownRows(in[rowOperand + 1]);
      packing.eachToken(shared.pool, [&](const int64_t* at, int thread) {
        T* sum = reinterpret_cast<T*>(shared.pool.scratch(thread));
        T* spare = sum + packing.room();
        int64_t n = packing.inner.size;
        packing.eachPiece([&](int64_t byToken, int64_t inRow) {
          std::fill_n(sum, n, T(0));
          for (int64_t c = 0; c < packing.choices; ++c) {
            int64_t r = own.at(rowsAt(in[rowOperand])[at[1] + c * rowStep]);
            if (r < 0) continue;
            T weight = isWeighted ? loadOne<T>(in[1], gateElem, at[2] + c * gateStep) : T(1);
            const T* x = loadRow(in[0], from, r * packing.rowStride + inRow,
                                 packing.inner.strides[1], n, spare);
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) sum[i] += weight * x[i];
          }
          storeRow(sum, out[0], to, at[0] + byToken, packing.inner.strides[0], n);
        });
      });
    });
  });
}

}  // namespace

KernelOr prepareDispatch(const Op& op, Shared& shared) {
  const Type &x = op.operand(0)->type, &row = op.operand(1)->type, &y = op.result()->type;
  Packing packing(x, y, row, {}, shared.rank);
  packing.reserve(shared);
  int64_t rowStep = strideOf(row, packing.choice);
  Elem from = x.elem, to = y.elem;
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      Packing::OwnRows own = packing.ownRows(in[2]);
      packing.eachToken(shared.pool, [&](const int64_t* at, int thread) {
        T* spare = reinterpret_cast<T*>(shared.pool.scratch(thread));
        packing.eachPiece([&](int64_t byToken, int64_t inRow) {
          int64_t n = packing.inner.size;
          const T* x = loadRow(in[0], from, at[0] + byToken, packing.inner.strides[0], n, spare);
          for (int64_t c = 0; c < packing.choices; ++c) {
            int64_t r = own.at(rowsAt(in[1])[at[1] + c * rowStep]);
            if (r < 0) continue;
            storeRow(x, out[0], to, r * packing.rowStride + inRow, packing.inner.strides[1], n);
          }
        });
      });
      packing.clearRest<T>(in[2], out[0], to, shared.pool);
    });
  });
}

KernelOr prepareDispatchGrad(const Op& op, Shared& shared) {
  return makeGather(op, op.operand(0)->type, nullptr, op.operand(1)->type, 1, shared);
}

KernelOr prepareCombine(const Op& op, Shared& shared) {
  return makeGather(op, op.operand(0)->type, &op.operand(1)->type, op.operand(2)->type, 2, shared);
}

KernelOr prepareCombineGrad(const Op& op, Shared& shared) {
  const Type &dy = op.operand(0)->type, &o = op.operand(1)->type, &gate = op.operand(2)->type;
  const Type &row = op.operand(3)->type, &dO = op.result(0)->type, &dgate = op.result(1)->type;
  Packing packing(dy, dO, row, {&gate, &dgate}, shared.rank), packingO(dy, o, row, {}, shared.rank);
  if (llvm::Error error = checkTokens(op, packing, dy, row)) return error;
  if (packing.pieces != packingO.pieces || packing.inner.size != packingO.inner.size) {
    return unsupported(op, "packed rows in different orders");
  }
  packing.reserve(shared);
  int64_t rowStep = strideOf(row, packing.choice), gateStep = strideOf(gate, packing.choice);
  int64_t dgateStep = strideOf(dgate, packing.choice);
  Elem dyElem = dy.elem, oElem = o.elem, gateElem = gate.elem, dOElem = dO.elem;
  Elem dgateElem = dgate.elem;
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      Packing::OwnRows own = packing.ownRows(in[4]);
      packing.eachToken(shared.pool, [&](const int64_t* at, int thread) {
        T* product = reinterpret_cast<T*>(shared.pool.scratch(thread));
        T *spareDy = product + packing.room(), *spareO = spareDy + packing.room();
        int64_t n = packing.inner.size;
        for (int64_t c = 0; c < packing.choices; ++c) {
          int64_t r = own.at(rowsAt(in[3])[at[1] + c * rowStep]);
          T dot = 0;
          for (int64_t p = 0; r >= 0 && p < packing.pieces; ++p) {
            int64_t here[2], there[2];
            packing.own.at(p * n, here);
            packingO.own.at(p * n, there);
            T weight = loadOne<T>(in[2], gateElem, at[2] + c * gateStep);
            const T* dy =
                loadRow(in[0], dyElem, at[0] + here[0], packing.inner.strides[0], n, spareDy);
            const T* o = loadRow(in[1], oElem, r * packingO.rowStride + there[1],
                                 packingO.inner.strides[1], n, spareO);
            dot += dotRow(dy, o, n);
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) product[i] = weight * dy[i];
            storeRow(product, out[0], dOElem, r * packing.rowStride + here[1],
                     packing.inner.strides[1], n);
          }
          storeOne<T>(dot, out[1], dgateElem, at[3] + c * dgateStep);
        }
      });
      packing.clearRest<T>(in[4], out[0], dOElem, shared.pool);
    });
  });
}

}  // namespace planc::cpu
