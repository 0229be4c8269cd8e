// Makers of rope and dropout. Rope's cosines and sines are computed in double, once for all kernels
// of a device. Tested by tests/gpu/kernels_gpu_test.cpp.
#include "runtime/cuda/positions.h"

#include <cmath>

#include "runtime/cuda/ops.h"
#include "runtime/layout.h"
#include "runtime/places.h"
#include "runtime/random.h"
#include "runtime/whole_index.h"

namespace planc::cuda {
namespace {

// For each position `width / 2` cosines, then as many sines.
template <class T>
const void* anglesOf(const std::vector<int64_t>& positions, int64_t width, double theta,
                     Shared& shared) {
  std::string key = "angles";
  auto append = [&](const auto& value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  append(sizeof(T));
  append(width);
  append(theta);
  for (int64_t position : positions) append(position);
  return shared.sharedTable<T>(key, [&] {
    std::vector<T> values;
    values.reserve(positions.size() * size_t(width));
    for (int64_t p : positions) {
      auto angle = [&](int64_t i) {
        return double(p) * std::pow(theta, -2.0 * double(i) / double(width));
      };
      for (int64_t i = 0; i < width / 2; ++i) values.push_back(T(std::cos(angle(i))));
      for (int64_t i = 0; i < width / 2; ++i) values.push_back(T(std::sin(angle(i))));
    }
    return values;
  });
}

bool isAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

KernelOr prepareRope(const Op& op, Shared& shared) {
  Type x = op.operand(0)->type, y = op.result()->type;
  std::string by = op.attrs.word("by"), seq = op.attrs.word("seq");
  RopeArgs args{};
  args.width = y.size(by);
  if (args.width % 2 != 0) return unsupported(op, "dim '" + by + "' has an odd size");
  // A tensor of one dim whose offset is the position in this rank's piece.
  Type position{Elem::I32, {{seq, y.size(seq), ""}}};
  Space space(dimsWithout(y, {by}), {&x, &y, &position});
  if (space.loops().size() > kPositionLoops) return unsupported(op, "more than 8 loops over rows");
  args.rows = space.count();
  args.units = blocksFor(args.width / 2, kRopeWidth);
  args.xStep = strideOf(x, by);
  args.yStep = strideOf(y, by);
  args.areNeighbours = op.attrs.word("style") == "pairs";
  args.inverse = op.isFlag("inverse");
  args.isVector = args.xStep == 1 && args.yStep == 1 && args.width / 2 % kRopeWidth == 0;
  for (const Loop& loop : llvm::reverse(space.loops())) {
    args.sizes[args.loops] = loop.size;
    args.inX[args.loops] = loop.strides[0];
    args.inY[args.loops] = loop.strides[1];
    args.inPositions[args.loops++] = loop.strides[2];
    args.isVector &= loop.strides[0] % kRopeWidth == 0 && loop.strides[1] % kRopeWidth == 0;
  }
  std::vector<int64_t> positions = positionsOf(y.dims[size_t(y.find(seq))], shared.rank);
  double theta = op.attrs.number("theta", 10000);
  args.angles = isDouble(op) ? anglesOf<double>(positions, args.width, theta, shared)
                             : anglesOf<float>(positions, args.width, theta, shared);
  LaunchShape shape;
  shape.x = blocksFor(args.rows * args.units, kPositionThreads);
  shape.threads = kPositionThreads;
  const auto& kernel = isDouble(op) ? kRopeF64 : kRopeF32;
  return makeKernel([=, &shared, &kernel](const RunContext&, Operands in, Results out) {
    RopeArgs launched = args;
    launched.x = refTo(in[0], x);
    launched.y = refTo(out[0], y);
    launched.isVector &= isAligned(in[0]) && isAligned(out[0]);
    shared.launch(kernel, shape, launched);
  });
}

KernelOr prepareDropout(const Op& op, Shared& shared) {
  Type x = op.operand(0)->type, y = op.result()->type;
  std::string site = op.attrs.word("site");
  DropoutArgs args{};
  args.size = y.elements();
  args.step = shared.step;
  args.rate = float(op.attrs.number("rate"));
  args.scale = 1 / (1 - double(args.rate));
  Space space(memoryDims(y), {&x, &y});
  WholeIndex whole(y, shared.rank);
  if (space.loops().size() > kPositionLoops || whole.loops.size() > kPositionLoops)
    return unsupported(op, "more than 8 loops");
  for (const Loop& loop : llvm::reverse(space.loops())) {
    args.sizes[args.loops] = loop.size;
    args.inX[args.loops++] = loop.strides[0];
  }
  args.isVector = space.loops().size() == 1 && (args.inX[0] == 1 || args.size == 1);
  args.first = whole.first;
  args.run = whole.run;
  args.isOneRun = whole.loops.empty() || whole.run % kDropoutWidth == 0;
  std::vector<int64_t> places;
  for (const WholeIndex::Loop& loop : llvm::reverse(whole.loops)) {
    int32_t l = args.wholeLoops++;
    args.wholeSizes[l] = loop.size;
    args.wholeStrides[l] = loop.stride;
    args.firstPlace[l] = loop.places.empty() ? -1 : int32_t(places.size());
    places.insert(places.end(), loop.places.begin(), loop.places.end());
  }
  if (!places.empty()) args.places = shared.table<int64_t>(places);
  LaunchShape shape;
  shape.x = blocksFor(args.size, kPositionThreads * kDropoutWidth);
  shape.threads = kPositionThreads;
  const auto& kernel = isDouble(op) ? kDropoutF64 : kDropoutF32;
  return makeKernel([=, &shared, &kernel](const RunContext& context, Operands in, Results out) {
    DropoutArgs launched = args;
    launched.x = refTo(in[0], x);
    launched.y = refTo(out[0], y);
    launched.isVector &= isAligned(in[0]) && isAligned(out[0]);
    launched.key = randomKey(context.seed, site);
    // The counter is linear in the step (modulo 2^64), which only the device knows.
    auto counterAt = [&](int64_t step) {
      return dropoutCounter(step, context.microbatch, context.iteration.data(),
                            context.iteration.size());
    };
    launched.counter = counterAt(0);
    launched.perStep = counterAt(1) - launched.counter;
    shared.launch(kernel, shape, launched);
  });
}

}  // namespace planc::cuda
