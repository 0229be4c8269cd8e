// Ops that move elements without computing on them (concat, slice, a rank's share, spread), and the
// sum over the rows of a ragged dim. Tested by tests/runtime/kernels_test.cpp and
// split_kernels_test.cpp there.
#include "runtime/cpu/kernels.h"

namespace planc::cpu {
namespace {

// A type whose dim `from` is called `to`.
Type renamed(Type type, llvm::StringRef from, llvm::StringRef to) {
  if (int at = type.find(from); at >= 0) type.dims[size_t(at)].name = to.str();
  return type;
}

// Copies the elements of a space over {source, target}.
struct Copy {
  Space space;
  Elem from, to;
  int64_t fromOffset = 0, toOffset = 0;

  template <class T>
  void run(Pool& pool, const void* source, void* target) const {
    Loop inner = space.loops().back();
    constexpr int64_t kPiece = 512;
    int64_t rows = space.count() / inner.size;
    pool.parallelPieces(rows, rowsPerTask(inner.size), [&](int64_t begin, int64_t end, int) {
      T spare[kPiece];
      for (int64_t r = begin; r < end; ++r) {
        int64_t at[2];
        space.at(r * inner.size, at);
        for (int64_t i = 0; i < inner.size; i += kPiece) {
          int64_t n = std::min(kPiece, inner.size - i);
          const T* row = loadRow(source, from, fromOffset + at[0] + i * inner.strides[0],
                                 inner.strides[0], n, spare);
          storeRow(row, target, to, toOffset + at[1] + i * inner.strides[1], inner.strides[1], n);
        }
      }
    });
  }
};

}  // namespace

KernelOr prepareConcat(const Op& op, Shared& shared) {
  const Type& y = op.result()->type;
  std::string over = op.attrs.word("over");
  Words parts = op.attrs.words("parts");
  std::vector<Copy> copies;
  int64_t start = 0;
  for (unsigned i = 0; i < op.operands().size(); ++i) {
    const Type& part = op.operand(i)->type;
    int64_t size = part.size(parts[i]);
    Type source = renamed(part, parts[i], over);
    llvm::SmallVector<Dim, 4> dims = memoryDims(y);
    for (Dim& dim : dims) {
      if (dim.name == over) dim.size = size;
    }
    copies.push_back({Space(dims, {&source, &y}), part.elem, y.elem, 0, start * strideOf(y, over)});
    start += size;
  }
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      for (size_t i = 0; i < copies.size(); ++i) copies[i].run<T>(shared.pool, in[i], out[0]);
    });
  });
}

KernelOr prepareSlice(const Op& op, Shared& shared) {
  const Type &x = op.operand(0)->type, &y = op.result()->type;
  std::string over = op.attrs.word("over");
  Type source = renamed(x, over, op.attrs.word("part"));
  Copy copy{Space(memoryDims(y), {&source, &y}), x.elem, y.elem,
            op.attrs.integer("offset") * strideOf(x, over), 0};
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      copy.run<T>(shared.pool, in[0], out[0]);
    });
  });
}

// The dims keep their order, so each index of the dims outside the cut one is one run of memory.
KernelOr prepareShardSlice(const Op& op, Shared& shared) {
  const Type &x = op.operand(0)->type, &y = op.result()->type;
  size_t at = size_t(y.find(op.attrs.word("dim")));
  const Dim &whole = x.dims[at], &piece = y.dims[at];
  int64_t row = strideOf(y, piece.name) * bytesPerElement(y.elem);
  int64_t start = (shared.rank.offset(piece) - shared.rank.offset(whole)) * row;
  int64_t used = shared.rank.valid(piece) * row, stride = whole.size * row, size = piece.size * row;
  int64_t runs = y.bytes() / size;
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    const std::byte* from = static_cast<const std::byte*>(in[0]);
    std::byte* to = static_cast<std::byte*>(out[0]);
    shared.pool.parallelPieces(runs, rowsPerTask(size), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        if (used > 0) std::memcpy(to + r * size, from + r * stride + start, size_t(used));
        std::memset(to + r * size + used, 0, size_t(size - used));
      }
    });
  });
}

// Its result may lie on its operand.
KernelOr prepareOneCopy(const Op& op, Shared& shared) {
  // The first of the ranks that differ only on these axes.
  bool isFirst = llvm::all_of(op.attrs.words("axes"),
                              [&](const std::string& axis) { return shared.rank.on(axis) == 0; });
  int64_t bytes = op.result()->type.bytes();
  return makeKernel([=](const RunContext&, Operands in, Results out) {
    if (!isFirst) std::memset(out[0], 0, size_t(bytes));
    else if (in[0] != out[0]) std::memcpy(out[0], in[0], size_t(bytes));
  });
}

namespace {

const Dim& raggedDim(const Type& type) {
  return *llvm::find_if(type.dims, [](const Dim& dim) { return dim.isRagged(); });
}

}  // namespace

KernelOr prepareSpread(const Op& op, Shared& shared) {
  const Type &x = op.operand(0)->type, &y = op.result()->type;
  const Dim& slot = raggedDim(y);
  int64_t rowStride = strideOf(y, slot.name), sliceStride = strideOf(x, slot.over);
  int64_t rows = slot.size, groups = op.operand(1)->type.dims.front().size - 1;
  Space space(dimsWithout(y, {slot.name}), {&x, &y});
  Elem from = x.elem, to = y.elem;
  Loop inner = space.loops().back();
  shared.pool.reserveScratch(inner.size * int64_t(sizeof(double)));
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      const int32_t* offsets = static_cast<const int32_t*>(in[1]);
      shared.pool.parallelPieces(
          rows, rowsPerTask(space.count()), [&](int64_t begin, int64_t end, int thread) {
            T* scratch = reinterpret_cast<T*>(shared.pool.scratch(thread));
            for (int64_t r = begin; r < end; ++r) {
              int64_t group =
                  std::upper_bound(offsets + 1, offsets + groups + 1, r) - (offsets + 1);
              for (int64_t i = 0; i < space.count(); i += inner.size) {
                int64_t at[2];
                space.at(i, at);
                const T* row = scratch;
                if (group < groups) {
                  row = loadRow(in[0], from, group * sliceStride + at[0], inner.strides[0],
                                inner.size, scratch);
                } else {
                  std::fill_n(scratch, inner.size, T(0));
                }
                storeRow(row, out[0], to, r * rowStride + at[1], inner.strides[1], inner.size);
              }
            }
          });
    });
  });
}

KernelOr prepareRaggedSum(const Op& op, Shared& shared) {
  const Type& x = op.operand(0)->type;
  Type y = resultType(op);
  // A result that keeps the rows is a sum like any other.
  if (x.grouping().empty() || !y.grouping().empty()) return prepareElementwise(op, shared);
  const Dim& slot = raggedDim(x);
  int64_t all = op.operand(1)->type.dims.front().size - 1;
  int64_t groups = y.has(slot.over) ? all : 1;
  int64_t rowStride = strideOf(x, slot.name), sliceStride = strideOf(y, slot.over);
  int64_t rows = slot.size;
  Space kept(dimsWithout(y, {slot.over}), {&x, &y});
  llvm::SmallVector<Dim, 4> summedDims;
  for (const Dim& dim : memoryDims(x)) {
    if (dim.name != slot.name && !y.has(dim.name)) summedDims.push_back(dim);
  }
  Space summed(summedDims, {&x});
  Elem from = x.elem, to = y.elem;
  Loop inner = kept.loops().back();
  int64_t pieces = kept.count() / inner.size, room = (inner.size + 15) / 16 * 16;
  shared.pool.reserveScratch(2 * room * int64_t(sizeof(double)));
  Accumulate accumulate(op);
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext& context, Operands in, Results out) {
      const int32_t* offsets = static_cast<const int32_t*>(in[1]);
      bool add = accumulate.addsIn(context);
      shared.pool.parallelFor(groups * pieces, [&](int64_t task, int thread) {
        int64_t group = task / pieces, at[2];
        kept.at(task % pieces * inner.size, at);
        T* sum = reinterpret_cast<T*>(shared.pool.scratch(thread));
        T* spare = sum + room;
        std::fill_n(sum, inner.size, T(0));
        auto addRow = [&](const void* base, Elem elem, int64_t offset, int64_t stride) {
          const T* row = loadRow(base, elem, offset, stride, inner.size, spare);
#pragma omp simd
          for (int64_t i = 0; i < inner.size; ++i) sum[i] += row[i];
        };
        // Offsets are indices in memory, whatever wrote them.
        int64_t begin = groups == 1 ? 0 : std::clamp<int64_t>(offsets[group], 0, rows);
        int64_t end = std::clamp<int64_t>(offsets[groups == 1 ? all : group + 1], begin, rows);
        for (int64_t r = begin; r < end; ++r) {
          summed.each(0, summed.count(), [&](int64_t, const int64_t* moved) {
            addRow(in[0], from, at[0] + r * rowStride + moved[0], inner.strides[0]);
          });
        }
        int64_t target = group * sliceStride + at[1];
        if (add) addRow(out[0], to, target, inner.strides[1]);
        storeRow(sum, out[0], to, target, inner.strides[1], inner.size);
      });
    });
  });
}

}  // namespace planc::cpu
