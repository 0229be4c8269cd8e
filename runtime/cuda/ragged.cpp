// Makers of sums over the rows of a ragged dim, and of spreads. Tested by
// tests/gpu/kernels_gpu_test.cpp.
#include "runtime/cuda/ragged.h"

#include <bit>

#include "runtime/cuda/chains.h"

namespace planc::cuda {
namespace {

const Dim& raggedDim(const Type& type) {
  return *llvm::find_if(type.dims, [](const Dim& dim) { return dim.isRagged(); });
}

// The loops of a space over {rows, groups}; false: too many.
bool setLoops(const Space& space, RaggedLoops& inner) {
  if (space.loops().size() > kRaggedLoops) return false;
  for (const Loop& loop : llvm::reverse(space.loops())) {
    inner.sizes[inner.loops] = loop.size;
    inner.rows[inner.loops] = loop.strides[0];
    inner.groups[inner.loops++] = loop.strides[1];
  }
  inner.unitSize = inner.sizes[0];
  inner.rowStep = inner.rows[0];
  inner.groupStep = inner.groups[0];
  inner.sizes[0] = (inner.sizes[0] + kRaggedWidth - 1) / kRaggedWidth;
  inner.rows[0] *= kRaggedWidth;
  inner.groups[0] *= kRaggedWidth;
  inner.units = 1;
  for (int l = 0; l < inner.loops; ++l) inner.units *= inner.sizes[l];
  return true;
}

// Whether units lie as vectors when their other strides are these.
bool isVector(int64_t step, const int64_t (&strides)[kRaggedLoops], int64_t outer) {
  auto isEven = [](int64_t stride) { return stride % kRaggedWidth == 0; };
  return step == 1 && isEven(outer) && llvm::all_of(strides, isEven);
}
bool isAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

KernelOr prepareSpread(const Op& op, Shared& shared) {
  Type x = op.operand(0)->type, y = op.result()->type;
  const Dim& slot = raggedDim(y);
  SpreadArgs args{};
  args.groupCount = op.operand(1)->type.dims.front().size - 1;
  args.rowCount = slot.size;
  args.rowStride = strideOf(y, slot.name);
  args.groupStride = strideOf(x, slot.over);
  if (!setLoops(Space(dimsWithout(y, {slot.name}), {&y, &x}), args.inner))
    return unsupported(op, "more than 6 loops in a row");
  args.inner.isRowVector = isVector(args.inner.rowStep, args.inner.rows, args.rowStride);
  args.inner.isGroupVector = isVector(args.inner.groupStep, args.inner.groups, args.groupStride);
  LaunchShape shape;
  shape.x = blocksFor(args.rowCount * args.inner.units, kRaggedThreads);
  shape.threads = kRaggedThreads;
  const auto& kernel = isDouble(op) ? kSpreadF64 : kSpreadF32;
  return makeKernel([=, &shared, &kernel](const RunContext&, Operands in, Results out) {
    SpreadArgs launched = args;
    launched.groups = refTo(in[0], x);
    launched.rows = refTo(out[0], y);
    launched.offsets = static_cast<const int32_t*>(in[1]);
    launched.inner.isRowVector &= isAligned(out[0]);
    launched.inner.isGroupVector &= isAligned(in[0]);
    shared.launch(kernel, shape, launched);
  });
}

KernelOr prepareSum(const Op& op, Shared& shared) {
  Type x = op.operand(0)->type, y = resultType(op);
  // Without offsets, or where the result keeps the rows, it is a sum like any other.
  if (op.operands().size() < 2 || x.grouping().empty() || !y.grouping().empty())
    return prepareElementwise(op, shared);
  const Dim& slot = raggedDim(x);
  bool wide = isDouble(op);
  RaggedSumArgs args{};
  args.offsetCount = op.operand(1)->type.dims.front().size - 1;
  args.groupCount = y.has(slot.over) ? args.offsetCount : 1;
  args.rowCount = slot.size;
  args.rowStride = strideOf(x, slot.name);
  args.groupStride = strideOf(y, slot.over);
  llvm::SmallVector<Dim, 4> summedDims;
  for (const Dim& dim : memoryDims(x))
    if (dim.name != slot.name && !y.has(dim.name)) summedDims.push_back(dim);
  Space summed(summedDims, {&x});
  if (!setLoops(Space(dimsWithout(y, {slot.over}), {&x, &y}), args.inner) ||
      summed.loops().size() > kRaggedLoops)
    return unsupported(op, "more than 6 loops in a row");
  args.summed = summed.count();
  for (const Loop& loop : llvm::reverse(summed.loops())) {
    args.summedSizes[args.summedLoops] = loop.size;
    args.summedStrides[args.summedLoops++] = loop.strides[0];
  }
  args.inner.isRowVector =
      isVector(args.inner.rowStep, args.inner.rows, args.rowStride) &&
      llvm::all_of(args.summedStrides, [](int64_t stride) { return stride % kRaggedWidth == 0; });
  args.inner.isGroupVector = isVector(args.inner.groupStep, args.inner.groups, args.groupStride);

  // A warp of units side by side, the other threads share the rows; the rows are cut further where
  // there are few blocks.
  constexpr int64_t kWantedBlocks = 512, kRowsEach = 8;
  uint64_t width = std::bit_ceil(uint64_t(std::min<int64_t>(args.inner.units, kWarp)));
  args.rowThreads = int32_t(kRaggedThreads / int(width));
  int64_t blocks = args.groupCount * blocksFor(args.inner.units, int64_t(width));
  int64_t most = args.rowCount / args.groupCount / (args.rowThreads * kRowsEach);
  args.chunks = int32_t(std::clamp<int64_t>((kWantedBlocks + blocks - 1) / blocks, 1,
                                            std::max<int64_t>(most, 1)));
  LaunchShape shape, total;
  shape.x = uint32_t(blocks);
  shape.y = uint32_t(args.chunks);
  shape.threads = total.threads = kRaggedThreads;
  int64_t bytes = wide ? sizeof(double) : sizeof(float);
  shape.sharedBytes = uint32_t(kRaggedThreads * kRaggedWidth * bytes);
  int64_t units = args.groupCount * args.inner.units;
  total.x = blocksFor(units, kRaggedThreads);
  if (args.chunks > 1) shared.needWorkspace(args.chunks * units * kRaggedWidth * bytes);
  const auto& kernel = wide ? kRaggedSumF64 : kRaggedSumF32;
  const auto& totals = wide ? kRaggedTotalF64 : kRaggedTotalF32;
  Accumulate accumulate(op);
  return makeKernel([=, &shared, &kernel, &totals](const RunContext& context, Operands in,
                                                   Results out) {
    RaggedSumArgs launched = args;
    launched.rows = refTo(in[0], x);
    launched.groups = refTo(out[0], y);
    launched.offsets = static_cast<const int32_t*>(in[1]);
    launched.adds = accumulate.addsIn(context);
    launched.partials = shared.workspace();
    launched.inner.isRowVector &= isAligned(in[0]);
    launched.inner.isGroupVector &= isAligned(out[0]);
    shared.launch(kernel, shape, launched);
    if (args.chunks > 1) shared.launch(totals, total, launched);
  });
}

}  // namespace planc::cuda
