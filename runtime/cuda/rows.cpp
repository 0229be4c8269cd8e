// Makers of what moves tokens to their experts' packed rows and back. Rows belong to one (token,
// choice) each, so copies need no order; sums over a token's choices run in the order of the
// choices. A rank that holds a piece of the experts has their rows alone. Tested by
// tests/runtime/kernels_test.cpp.
#include "runtime/cuda/rows.h"

#include "runtime/cuda/order.h"
#include "runtime/cuda/room.h"
#include "runtime/layout.h"

namespace planc::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr int64_t kWarps = kThreads / 32;

llvm::Error oddOrder(const Op& op) { return unsupported(op, "dims in so odd an order"); }

const int32_t* integers(const void* data) { return static_cast<const int32_t*>(data); }

// The ragged dim of packed rows.
const Dim& slotOf(const Type& packed) {
  return *llvm::find_if(packed.dims, [](const Dim& dim) { return dim.isRagged(); });
}

// How tokens have their rows.
struct Packing {
  TokenRows by{};
  std::string choice;  // the dim of `row` that counts a token's choices
  Space tokens, own;   // a token's own elements: of the packed rows' dims

  // `walked`: by token, first what tokens are, then `row`; `rows`: by a token's own elements, the
  // packed one last.
  Packing(llvm::ArrayRef<const Type*> walked, llvm::ArrayRef<const Type*> rows,
          const Coordinates& rank) {
    const Type &byToken = *walked[0], &row = *walked[1], &packed = *rows.back();
    const Dim& slot = slotOf(packed);
    const Dim& groups = packed.dims[size_t(packed.find(slot.over))];
    by.own.firstExpert = rank.offset(groups);
    by.own.experts = rank.valid(groups);
    by.own.bound = slot.size;
    by.choices = 1;
    for (const Dim& dim : row.dims) {
      if (byToken.has(dim.name)) continue;
      choice = dim.name;
      by.choices = int32_t(dim.size);
    }
    by.step = strideOf(row, choice);
    tokens = Space(dimsWithout(row, {choice}), walked);
    own = Space(dimsWithout(packed, {slot.name}), rows);
    by.count = tokens.count();
  }
  // The error for token tensors that lack a token dim: they would be added up over it.
  llvm::Error check(const Op& op, const Type& byToken, const Type& row) const {
    for (const Dim& dim : row.dims)
      if (dim.name != choice && !byToken.has(dim.name))
        return unsupported(op, "tokens without dim '" + dim.name + "'");
    return llvm::Error::success();
  }
  TokenRows rowsAt(const void* rows, const void* offsets) const {
    TokenRows at = by;
    at.rows = integers(rows);
    at.own.offsets = integers(offsets);
    return at;
  }
};

// From packed row to packed row.
int64_t rowStride(const Type& packed) { return strideOf(packed, slotOf(packed).name); }
bool isWhole(int64_t stride) { return stride % kVector == 0; }

// dispatch_grad, and combine.
KernelOr makeGather(const Op& op, const Type packed, const Type* gate, const Type row,
                    unsigned rowOperand, Shared& shared) {
  const Type y = op.result()->type;
  Packing packing({&y, &row, gate != nullptr ? gate : &row}, {&y, &packed}, shared.rank);
  if (llvm::Error error = packing.check(op, y, row)) return error;
  GatherArgs shape{};
  if (!shape.tokens.set(packing.tokens) || !shape.row.set(packing.own)) return oddOrder(op);
  shape.elements = packing.own.count();
  shape.rowStride = rowStride(packed);
  bool isWeighted = gate != nullptr, isDoubled = isDouble(op);
  if (isWeighted) {
    shape.gate.elem = gate->elem;
    shape.gateStep = strideOf(*gate, packing.choice);
  }
  bool inVectors =
      shape.row.isVector({0, 1}) && shape.tokens.isWhole(0) && isWhole(shape.rowStride);
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    GatherArgs args = shape;
    args.packed = refTo(in[0], packed);
    if (isWeighted) args.gate.data = in[1];
    args.y = refTo(out[0], y);
    args.by = packing.rowsAt(in[rowOperand], in[rowOperand + 1]);
    bool isVector = inVectors && isAligned({in[0], out[0]});
    const auto& kernel = isDoubled ? kGatherF64 : isVector ? kGatherVectorF32 : kGatherF32;
    shared.launch(kernel, {.x = blocksFor(args.by.count, kWarps), .threads = kThreads}, args);
  });
}

}  // namespace

KernelOr prepareDispatch(const Op& op, Shared& shared) {
  const Type x = op.operand(0)->type, row = op.operand(1)->type, y = op.result()->type;
  Packing packing({&x, &row}, {&x, &y}, shared.rank);
  DispatchArgs shape{};
  if (!shape.tokens.set(packing.tokens) || !shape.row.set(packing.own)) return oddOrder(op);
  shape.elements = packing.own.count();
  shape.rowStride = rowStride(y);
  bool isDoubled = isDouble(op);
  bool inVectors =
      shape.row.isVector({0, 1}) && shape.tokens.isWhole(0) && isWhole(shape.rowStride);
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    DispatchArgs args = shape;
    args.x = refTo(in[0], x);
    args.packed = refTo(out[0], y);
    args.by = packing.rowsAt(in[1], in[2]);
    bool isVector = inVectors && isAligned({in[0], out[0]});
    const auto& kernel = isDoubled ? kDispatchF64 : isVector ? kDispatchVectorF32 : kDispatchF32;
    int64_t warps = args.by.count + args.by.own.bound;
    shared.launch(kernel, {.x = blocksFor(warps, kWarps), .threads = kThreads}, args);
  });
}

KernelOr prepareDispatchGrad(const Op& op, Shared& shared) {
  return makeGather(op, op.operand(0)->type, nullptr, op.operand(1)->type, 1, shared);
}

KernelOr prepareCombine(const Op& op, Shared& shared) {
  return makeGather(op, op.operand(0)->type, &op.operand(1)->type, op.operand(2)->type, 2, shared);
}

KernelOr prepareCombineGrad(const Op& op, Shared& shared) {
  const Type dy = op.operand(0)->type, o = op.operand(1)->type, gate = op.operand(2)->type;
  const Type row = op.operand(3)->type, dO = op.result(0)->type, dgate = op.result(1)->type;
  Packing packing({&dy, &row, &gate, &dgate}, {&dy, &o, &dO}, shared.rank);
  if (llvm::Error error = packing.check(op, dy, row)) return error;
  CombineGradArgs shape{};
  if (!shape.tokens.set(packing.tokens) || !shape.row.set(packing.own)) return oddOrder(op);
  shape.elements = packing.own.count();
  shape.oStride = rowStride(o);
  shape.dOStride = rowStride(dO);
  shape.gateStep = strideOf(gate, packing.choice);
  shape.dgateStep = strideOf(dgate, packing.choice);
  bool isDoubled = isDouble(op);
  bool inVectors = shape.row.isVector({0, 1, 2}) && shape.tokens.isWhole(0) &&
                   isWhole(shape.oStride) && isWhole(shape.dOStride);
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    CombineGradArgs args = shape;
    args.dy = refTo(in[0], dy);
    args.o = refTo(in[1], o);
    args.gate = refTo(in[2], gate);
    args.dO = refTo(out[0], dO);
    args.dgate = refTo(out[1], dgate);
    args.by = packing.rowsAt(in[3], in[4]);
    bool isVector = inVectors && isAligned({in[0], in[1], out[0]});
    const auto& kernel = isDoubled  ? kCombineGradF64
                         : isVector ? kCombineGradVectorF32
                                    : kCombineGradF32;
    int64_t warps = args.by.count + args.by.own.bound;
    shared.launch(kernel, {.x = blocksFor(warps, kWarps), .threads = kThreads}, args);
  });
}

KernelOr preparePack(const Op& op, Shared& shared) {
  const Type choice = op.operand(0)->type, row = op.result(0)->type;
  bool isLimited = op.operands().size() > 1;
  const Type fit = op.operand(isLimited ? 1 : 0)->type;
  std::string slot = op.attrs.word("choice");
  llvm::SmallVector<Dim, 4> dims = dimsWithout(choice, {slot});
  dims.push_back(choice.dims[size_t(choice.find(slot))]);
  Walk<3> entries;
  if (!entries.set(Space(dims, {&choice, &fit, &row}))) return oddOrder(op);
  int64_t count = choice.elements(), experts = op.attrs.integer("experts");
  if (count > INT32_MAX) return unsupported(op, "more than 2^31 choices");
  Order order(1, count, experts);
  Room room(shared);
  int64_t keys = room.take(count * 4), places = room.take(count * 4);
  int64_t counts = room.take(order.countBytes());
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    LaunchShape each{.x = blocksFor(count, kThreads), .threads = kThreads};
    PackKeysArgs make{};
    make.choice = integers(in[0]);
    if (isLimited) make.fit = refTo(in[1], fit);
    make.count = count;
    make.experts = int32_t(experts);
    make.entries = entries;
    make.keys = room.at<int32_t>(keys);
    shared.launch(kPackKeys, each, make);
    order.place(shared, make.keys, room.at<int32_t>(counts), room.at<int32_t>(places),
                static_cast<int32_t*>(out[1]));
    StoreRowsArgs store{};
    store.places = room.at<int32_t>(places);
    store.count = count;
    store.entries = entries;
    store.rows = static_cast<int32_t*>(out[0]);
    shared.launch(kStoreRows, each, store);
  });
}

KernelOr prepareRowCounts(const Op& op, Shared& shared) {
  const Dim& experts = op.result()->type.dims.back();
  int64_t count = experts.size, first = shared.rank.offset(experts);
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    RowCountsArgs args{};
    args.offsets = integers(in[0]) + first;
    args.counts = static_cast<int32_t*>(out[0]);
    args.count = count;
    shared.launch(kRowCounts, {.x = blocksFor(count, kThreads), .threads = kThreads}, args);
  });
}

KernelOr prepareRowOffsets(const Op& op, Shared& shared) {
  const Type& type = op.operand(0)->type;
  int64_t count = type.dims.back().size, parts = type.elements() / count;
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    RowOffsetsArgs args{};
    args.counts = integers(in[0]);
    args.offsets = static_cast<int32_t*>(out[0]);
    args.count = count;
    args.parts = parts;
    shared.launch(kRowOffsets, {.threads = kThreads, .sharedBytes = 32 * 8}, args);
  });
}

}  // namespace planc::cuda
