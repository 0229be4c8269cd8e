// Whether the products of groups fit tensor cores, and their launches.
// Tested by tests/gpu/kernels_gpu_test.cpp.
#include "runtime/cuda/grouped.h"

#include "runtime/cuda/product.h"

namespace planc::cuda {
namespace {

bool isOneLoop(const Loops& loops) { return loops.size() == 1 && loops[0].size > 1; }
bool isNone(const Loops& loops) { return countOf(loops) == 1; }

// The product as args, without pointers; none: it has other loops, or rows that are no 16-byte
// pieces.
std::optional<GroupedArgs> argsOf(Product& p) {
  const RaggedDim& ragged = p.ragged;
  bool isSum = ragged.role == Ragged::Sum;
  bool isMatrix = isNone(p.outer) && isOneLoop(p.n) && !ragged.sums &&
                  (isSum ? isOneLoop(p.m) && isNone(p.k) : isNone(p.m) && isOneLoop(p.k));
  if (!isMatrix || p.types[A].elem != Elem::BF16 || p.types[B].elem != Elem::BF16) return {};
  auto stepOf = [](const Loops& loops, int t) { return loops[0].strides[size_t(t)]; };
  // Both operands of a sum lie alike: the one along c's rows comes second.
  if (isSum && stepOf(p.n, C) != 1) {
    std::swap(p.types[A], p.types[B]);
    std::swap(p.ragged.slices[A], p.ragged.slices[B]);
    std::swap(p.ragged.rowSteps[A], p.ragged.rowSteps[B]);
    std::swap(p.m, p.n);
    for (Loops* loops : {&p.m, &p.n}) std::swap((*loops)[0].strides[A], (*loops)[0].strides[B]);
    p.exchanged = !p.exchanged;
  }
  GroupedArgs g{};
  std::copy_n(ragged.slices, 3, g.slices);
  int64_t nearA, nearB;
  if (isSum) {
    nearA = stepOf(p.m, A), g.stepA = ragged.rowSteps[A];
    nearB = stepOf(p.n, B), g.stepB = ragged.rowSteps[B];
    g.stepC = stepOf(p.m, C);
    g.m = int32_t(p.m[0].size);
  } else {
    nearA = stepOf(p.k, A), g.stepA = ragged.rowSteps[A];
    nearB = std::min(stepOf(p.k, B), stepOf(p.n, B));
    g.stepB = std::max(stepOf(p.k, B), stepOf(p.n, B));
    g.stepC = ragged.rowSteps[C];
    g.k = int32_t(p.k[0].size);
  }
  g.n = int32_t(p.n[0].size);
  g.groups = int32_t(ragged.groups);
  g.last = int32_t(ragged.last);
  g.bound = int32_t(ragged.bound);
  bool isNear = nearA == 1 && nearB == 1 && stepOf(p.n, C) == 1;
  int64_t rest = (g.stepA | g.stepB | g.slices[A] | g.slices[B] | g.m | g.n | g.k) % 8;
  if (!isNear || rest != 0 || (g.stepC | g.slices[C]) % 2 != 0) return {};
  return g;
}

}  // namespace

std::unique_ptr<planc::Kernel> makeGrouped(const Product& given,
                                           const std::shared_ptr<planc::Kernel>& other,
                                           Shared& shared) {
  Product p = given;
  auto fits = argsOf(p);
  if (!fits || int64_t(sizeof(GroupedShared)) > shared.gpu.sharedBytesOfBlock()) return nullptr;
  GroupedArgs g = *fits;
  bool isSum = p.ragged.role == Ragged::Sum;
  bool isByK = !isSum && p.k[0].strides[B] == 1;
  const auto& kernel = isSum ? kGroupedSums : isByK ? kGroupedRowsByK : kGroupedRowsByN;
  g.tilesM = isSum ? (g.m + kGroupedTile - 1) / kGroupedTile
                   : int32_t(raggedTiles(p.ragged, kGroupedTile));
  int64_t blocks = int64_t(g.tilesM) * ((g.n + kGroupedTile - 1) / kGroupedTile);
  if (isSum) blocks *= g.groups;
  else shared.needWorkspace(g.tilesM * int64_t(sizeof(RaggedTile)));
  return makeKernel([=, &shared, &kernel](const RunContext& context, Operands in, Results out) {
    int64_t pair = 2 * bytesPerElement(p.types[C].elem);
    if (!isAligned(in[0], 16) || !isAligned(in[1], 16) || !isAligned(out[0], pair))
      return other->run(context, in, out);
    GroupedArgs args = g;
    args.a = static_cast<const uint16_t*>(p.a(in));
    args.b = static_cast<const uint16_t*>(p.b(in));
    args.c = refTo(out[0], p.types[C]);
    args.offsets = static_cast<const int32_t*>(in[2]);
    args.add = p.accumulate.addsIn(context);
    if (!isSum) {
      auto* tiles = reinterpret_cast<RaggedTile*>(shared.workspace());
      findTiles(p.ragged, args.offsets, tiles, kGroupedTile, shared);
      args.tiles = tiles;
    }
    shared.launch(
        kernel,
        {.x = uint32_t(blocks), .threads = kGroupedThreads, .sharedBytes = sizeof(GroupedShared)},
        args);
  });
}

}  // namespace planc::cuda
