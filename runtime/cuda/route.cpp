// Makers of the choice of experts, its gradient, and who finds room. Loads and shares are added up
// by fixed chunks of tokens, then chunk by chunk; room is counted by a stable count of each
// sequence's choices (order.h). Tested by tests/runtime/kernels_test.cpp.
#include "runtime/cuda/route.h"

#include "ir/verify_shapes.h"
#include "runtime/cuda/order.h"
#include "runtime/cuda/room.h"
#include "runtime/layout.h"

namespace planc::cuda {
namespace {

constexpr int64_t kSharedBytes = 48 * 1024;  // what every launch may have
constexpr int64_t kFarWarps = 1024;          // at most, when their scratch lies in the workspace

llvm::Error oddOrder(const Op& op) { return unsupported(op, "dims in so odd an order"); }

const int32_t* integers(const void* data) { return static_cast<const int32_t*>(data); }

// What `route` and its gradient have in common.
struct Routing {
  Scoring by{};
  std::string choice;  // the dim of a token's choices
  int64_t tokens, groups = 1;
  Space space;  // group by group, over {scores, the tensors that were given}

  // `types`: tensors by token, the first one by token and choice.
  Routing(const Op& op, const Type& scores, llvm::ArrayRef<const Type*> types) {
    std::string over = op.attrs.word("over");
    by.scores.elem = scores.elem;
    by.step = strideOf(scores, over);
    by.experts = int32_t(scores.size(over));
    by.top = int32_t(op.attrs.integer("top"));
    by.isSoftmax = op.attrs.word("score") != "sigmoid";
    by.normalise = op.isFlag("normalise");
    by.scale = op.attrs.number("scale", 1);
    for (const Dim& dim : types[0]->dims)
      if (!scores.has(dim.name)) choice = dim.name;
    Type order = types[0]->without(choice);
    tokens = order.elements();
    llvm::SmallVector<Dim, 4> dims = order.dims;
    if (op.attrs.word("per") == "sequence") {
      std::string seq = op.attrs.word("seq");
      const Dim last = order.dims[size_t(order.find(seq))];
      dims = dimsWithout(order, {seq});
      dims.push_back(last);
      groups = tokens / last.size;
    }
    llvm::SmallVector<const Type*, 6> walked{&scores};
    walked.append(types.begin(), types.end());
    space = Space(dims, walked);
  }
};

// How many warps a block has, and where their scratch is.
struct Warps {
  int64_t perBlock, bytes, scratch = -1;  // scratch: in the workspace; -1: in shared memory

  Warps(int64_t warpBytes, int64_t blocks, Room& room) : bytes((warpBytes + 15) / 16 * 16) {
    perBlock = std::clamp<int64_t>(kSharedBytes / bytes, 1, 8);
    if (perBlock * bytes > kSharedBytes) scratch = room.take(blocks * bytes);
  }
  bool isFar() const { return scratch >= 0; }
  LaunchShape launch(int64_t blocks) const {
    return {.x = uint32_t(blocks),
            .threads = uint32_t(32 * perBlock),
            .sharedBytes = isFar() ? 0 : uint32_t(perBlock * bytes)};
  }
  void place(Scoring& by, const Room& room) const {
    by.warpBytes = bytes;
    by.scratch = isFar() ? room.at<void>(scratch) : nullptr;
  }
};

}  // namespace

KernelOr prepareRoute(const Op& op, Shared& shared) {
  const Type scores = op.operand(0)->type, choice = op.result(0)->type, gate = op.result(1)->type;
  const Type load = op.result(2)->type, share = op.result(3)->type;
  Routing routing(op, scores, {&choice, &gate, &load, &share});
  bool hasBias = op.operands().size() > 1, isDoubled = isDouble(op);
  std::string over = op.attrs.word("over");

  RouteArgs shape{};
  if (!shape.tokens.set(routing.space)) return oddOrder(op);
  shape.by = routing.by;
  int64_t experts = routing.by.experts, count = op.attrs.integer("groups", 1);
  shape.limit.count = int32_t(count);
  shape.limit.kept = int32_t(op.attrs.integer("kept", count));
  shape.limit.size = int32_t(experts / count);
  shape.limit.byTwo = op.attrs.word("group_score") == "best2";
  if (hasBias) shape.bias.elem = op.operand(1)->type.elem;
  shape.choiceStep = strideOf(choice, routing.choice);
  shape.gateStep = strideOf(gate, routing.choice);
  shape.perGroup = routing.tokens / routing.groups;
  shape.chunks = blocksFor(shape.perGroup, kRouteChunk);

  int64_t blocks = routing.groups * shape.chunks;
  Room room(shared);
  Warps warps(routeScratch(shape.by, count, isDoubled ? 8 : 4), blocks, room);
  int64_t shares = room.take(blocks * experts * 8), counts = room.take(blocks * experts * 4);
  int64_t loadStep = strideOf(load, over), shareStep = strideOf(share, over);
  int64_t groups = routing.groups;
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    RouteArgs args = shape;
    args.by.scores.data = in[0];
    warps.place(args.by, room);
    if (hasBias) args.bias.data = in[1];
    args.choice = static_cast<int32_t*>(out[0]);
    args.gate = refTo(out[1], gate);
    args.shares = room.at<double>(shares);
    args.counts = room.at<int32_t>(counts);
    shared.launch(isDoubled ? kRouteF64 : kRouteF32, warps.launch(blocks), args);
    RouteSumsArgs sums{};
    sums.shares = args.shares;
    sums.counts = args.counts;
    sums.experts = int32_t(experts);
    sums.chunks = args.chunks;
    sums.perGroup = args.perGroup;
    sums.tokens = args.tokens;
    sums.load = refTo(out[2], load);
    sums.share = refTo(out[3], share);
    sums.loadStep = loadStep;
    sums.shareStep = shareStep;
    shared.launch(kRouteSums,
                  {.x = uint32_t(groups),
                   .y = blocksFor(experts, kSumExperts),
                   .threads = 32 * kSumWarps,
                   .sharedBytes = sizeof(RouteSumsShared)},
                  sums);
  });
}

KernelOr prepareRouteGrad(const Op& op, Shared& shared) {
  const Type scores = op.operand(0)->type, choice = op.operand(1)->type;
  const Type dgate = op.operand(2)->type, dshare = op.operand(3)->type, ds = op.result()->type;
  Routing routing(op, scores, {&choice, &dgate, &dshare, &ds});
  bool isDoubled = isDouble(op);
  std::string over = op.attrs.word("over");

  RouteGradArgs shape{};
  if (!shape.tokens.set(routing.space)) return oddOrder(op);
  shape.by = routing.by;
  shape.choiceStep = strideOf(choice, routing.choice);
  shape.dgateStep = strideOf(dgate, routing.choice);
  shape.dshareStep = strideOf(dshare, over);
  shape.dsStep = strideOf(ds, over);
  shape.count = routing.tokens;

  Room room(shared);
  Warps warps(routeGradScratch(shape.by, isDoubled ? 8 : 4), kFarWarps, room);
  int64_t blocks = blocksFor(shape.count, warps.perBlock);
  if (warps.isFar()) blocks = std::min(blocks, kFarWarps);
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    RouteGradArgs args = shape;
    args.by.scores.data = in[0];
    warps.place(args.by, room);
    args.choice = integers(in[1]);
    args.dgate = refTo(in[2], dgate);
    args.dshare = refTo(in[3], dshare);
    args.ds = refTo(out[0], ds);
    shared.launch(isDoubled ? kRouteGradF64 : kRouteGradF32, warps.launch(blocks), args);
  });
}

KernelOr prepareAdmit(const Op& op, Shared& shared) {
  const Type choice = op.operand(0)->type, fit = op.result()->type;
  std::string seq = op.attrs.word("seq"), slot = op.attrs.word("choice");
  AdmitArgs shape{};
  Space sequences(dimsWithout(choice, {seq, slot}), {&choice, &fit});
  if (!shape.sequences.set(sequences)) return oddOrder(op);
  // The earlier position comes first, wherever it lies.
  Segments segments = shared.rank.segments(choice.dims[size_t(choice.find(seq))]);
  llvm::sort(segments, [](const Segment& a, const Segment& b) { return a.first < b.first; });
  std::vector<int32_t> positions;
  for (const Segment& segment : segments)
    for (int64_t i = 0; i < segment.count; ++i) positions.push_back(int32_t(segment.at + i));

  shape.places = int64_t(positions.size());
  shape.choices = choice.size(slot);
  int64_t perSequence = shape.places * shape.choices, experts = op.attrs.integer("experts");
  shape.count = sequences.count() * perSequence;
  if (shape.count > INT32_MAX) return unsupported(op, "more than 2^31 choices");
  int64_t steps[] = {strideOf(choice, seq), strideOf(choice, slot), strideOf(fit, seq),
                     strideOf(fit, slot)};
  std::copy_n(steps, 2, shape.choiceSteps);
  std::copy_n(steps + 2, 2, shape.fitSteps);
  shape.experts = int32_t(experts);
  shape.most = admitted(op);
  if (shape.count == 0) return makeKernel([](const RunContext&, Operands, Results) {});

  shape.positions = shared.table(llvm::ArrayRef<int32_t>(positions));
  Order order(sequences.count(), perSequence, experts);
  Room room(shared);
  int64_t keys = room.take(shape.count * 4), numbers = room.take(shape.count * 4);
  int64_t counts = room.take(order.countBytes());
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    AdmitArgs args = shape;
    args.choice = integers(in[0]);
    args.fit = refTo(out[0], fit);
    args.keys = room.at<int32_t>(keys);
    args.numbers = room.at<int32_t>(numbers);
    LaunchShape each{.x = blocksFor(args.count, 256), .threads = 256};
    shared.launch(kAdmitKeys, each, args);
    order.placeInBins(shared, args.keys, room.at<int32_t>(counts), room.at<int32_t>(numbers));
    shared.launch(kAdmit, each, args);
  });
}

}  // namespace planc::cuda
