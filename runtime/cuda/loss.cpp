// Cross entropy and its gradient, a block a row of logits; or in parts, where a rank holds a piece
// of each row: the part's log-sum-exp and the target's logit, then the loss from all parts. Losses
// of tokens are added up in a fixed order. Tested by tests/runtime/kernels_test.cpp.
#include "runtime/cuda/loss.h"

#include "runtime/cuda/room.h"
#include "runtime/layout.h"

namespace planc::cuda {
namespace {

// Few enough that short rows waste little, whole warps, and two vectors a thread of long ones.
uint32_t threadsFor(int64_t rowSize) {
  int64_t threads = (rowSize / (2 * kVector) + 31) / 32 * 32;
  return uint32_t(std::clamp<int64_t>(threads, 32, 512));
}

const int32_t* integers(const void* data) { return static_cast<const int32_t*>(data); }

struct Rows {
  Walk<4> walk;
  LogitRow row{};
  int64_t count = 0;

  // The rows of logits over `tensors`, logits first.
  llvm::Error set(const Op& op, llvm::ArrayRef<const Type*> tensors, const Coordinates* rank) {
    const Type& logits = *tensors[0];
    std::string over = op.attrs.word("over");
    const Dim& dim = logits.dims[size_t(logits.find(over))];
    Space space(dimsWithout(logits, {over}), tensors);
    if (!walk.set(space)) return unsupported(op, "dims in so odd an order");
    count = space.count();
    if (count > INT32_MAX) return unsupported(op, "more than 2^31 rows");
    row.stride = strideOf(logits, over);
    row.size = row.valid = dim.size;
    if (rank == nullptr) return llvm::Error::success();
    row.first = rank->offset(dim);
    row.valid = rank->valid(dim);
    return llvm::Error::success();
  }
  LaunchShape launch(bool isDoubled) const {
    return {.x = uint32_t(count),
            .threads = threadsFor(row.size),
            .sharedBytes = isDoubled ? 32u * 8 : 32u * 4};
  }
};

void launchTotal(Shared& shared, TotalLossArgs args) {
  uint32_t threads = args.size > 256 ? 1024 : 128;
  shared.launch(kTotalLoss, {.threads = threads, .sharedBytes = 32 * 8}, args);
}

}  // namespace

KernelOr prepareCountValid(const Op& op, Shared& shared) {
  int64_t size = op.operand(0)->type.elements();
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    CountValidArgs args{};
    args.targets = integers(in[0]);
    args.size = size;
    args.count = static_cast<int32_t*>(out[0]);
    shared.gpu.zero(shared.stream, out[0], 4);
    uint32_t blocks = std::min(blocksFor(size, 4 * 512), 512u);
    shared.launch(kCountValid, {.x = blocks, .threads = 512, .sharedBytes = 32 * 4}, args);
  });
}

KernelOr prepareCrossEntropy(const Op& op, Shared& shared) {
  const Type logits = op.operand(0)->type, targets = op.operand(1)->type;
  const Type loss = op.result(0)->type, lse = op.result(1)->type;
  Rows rows;
  if (llvm::Error error = rows.set(op, {&logits, &targets, &lse, &lse}, nullptr)) return error;
  Room room(shared);
  int64_t losses = room.take(rows.count * 8);
  double scale = op.attrs.number("scale", 1);
  bool isDoubled = isDouble(op);
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    LogSumExpArgs args{};
    args.logits = refTo(in[0], logits);
    args.targets = integers(in[1]);
    args.lse = refTo(out[1], lse);
    args.losses = room.at<double>(losses);
    args.row = rows.row;
    args.row.isAligned = isAligned({in[0]});
    args.rows = rows.walk;
    shared.launch(isDoubled ? kLogitsF64 : kLogitsF32, rows.launch(isDoubled), args);
    TotalLossArgs total{};
    total.losses = args.losses;
    total.size = rows.count;
    total.count = integers(in[2]);
    total.scale = scale;
    total.loss = refTo(out[0], loss);
    launchTotal(shared, total);
  });
}

KernelOr prepareCrossEntropyPart(const Op& op, Shared& shared) {
  const Type logits = op.operand(0)->type, targets = op.operand(1)->type;
  const Type lse = op.result(0)->type, picked = op.result(1)->type;
  Rows rows;
  if (llvm::Error error = rows.set(op, {&logits, &targets, &lse, &picked}, &shared.rank))
    return error;
  bool isDoubled = isDouble(op);
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    LogSumExpArgs args{};
    args.logits = refTo(in[0], logits);
    args.targets = integers(in[1]);
    args.lse = refTo(out[0], lse);
    args.picked = refTo(out[1], picked);
    args.row = rows.row;
    args.row.isAligned = isAligned({in[0]});
    args.rows = rows.walk;
    shared.launch(isDoubled ? kLogitsF64 : kLogitsF32, rows.launch(isDoubled), args);
  });
}

KernelOr prepareCrossEntropyTotal(const Op& op, Shared& shared) {
  const Type targets = op.operand(0)->type, lse = op.operand(1)->type;
  const Type picked = op.operand(2)->type, loss = op.result()->type;
  Space space(memoryDims(targets), {&targets, &lse, &picked});
  Walk<3> tokens;
  if (!tokens.set(space)) return unsupported(op, "dims in so odd an order");
  int64_t count = space.count(), pieces = blocksFor(count, kLossPiece);
  Room room(shared);
  int64_t losses = room.take(pieces * 8);
  double scale = op.attrs.number("scale", 1);
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    TokenLossArgs args{};
    args.targets = integers(in[0]);
    args.lse = refTo(in[1], lse);
    args.picked = refTo(in[2], picked);
    args.count = count;
    args.tokens = tokens;
    args.losses = room.at<double>(losses);
    shared.launch(kTokenLoss, {.x = uint32_t(pieces), .threads = 512, .sharedBytes = 32 * 8}, args);
    TotalLossArgs total{};
    total.losses = args.losses;
    total.size = pieces;
    total.count = integers(in[3]);
    total.scale = scale;
    total.loss = refTo(out[0], loss);
    launchTotal(shared, total);
  });
}

KernelOr prepareCrossEntropyGrad(const Op& op, Shared& shared) {
  const Type logits = op.operand(0)->type, targets = op.operand(1)->type;
  const Type lse = op.operand(3)->type, dloss = op.operand(4)->type, dlogits = op.result()->type;
  Rows rows;
  if (llvm::Error error = rows.set(op, {&logits, &targets, &lse, &dlogits}, &shared.rank))
    return error;
  int64_t toStride = strideOf(dlogits, op.attrs.word("over"));
  double scale = op.attrs.number("scale", 1);
  bool isDoubled = isDouble(op);
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    CrossEntropyGradArgs args{};
    args.logits = refTo(in[0], logits);
    args.targets = integers(in[1]);
    args.count = integers(in[2]);
    args.lse = refTo(in[3], lse);
    args.dloss = refTo(in[4], dloss);
    args.dlogits = refTo(out[0], dlogits);
    args.scale = scale;
    args.row = rows.row;
    args.row.isAligned = isAligned({in[0], out[0]});
    args.toStride = toStride;
    args.rows = rows.walk;
    shared.launch(isDoubled ? kCrossEntropyGradF64 : kCrossEntropyGradF32, rows.launch(isDoubled),
                  args);
  });
}

}  // namespace planc::cuda
