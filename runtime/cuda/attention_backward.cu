// Attention's gradients on tensor cores. The probabilities are made again from the saved
// log-sum-exp. Two passes of one form: a block has a tile of one side (x0, x1) and meets those of
// the other (y0, y1):
//   of queries: x = q, da; y = k, v:     dq = scale * ds y0
//   of keys:    x = k, v;  y = q, da:    dk = scale * ds y0, dv = p y1
// with p = exp2(scale * x0 y0 - lse), ds = p * (x1 y1 - da . a). A pass over queries makes the
// scores twice, but no sum depends on the order in which blocks run.
#include "runtime/cuda/attention_device.h"
#include "runtime/cuda/mma.h"

namespace planc::cuda {
namespace {

enum class Pass { Queries, KeysAndValues, Keys, Values };

// Columns [0, width) of 16 rows to memory, times `scale`.
template <int D>
PLANC_DEVICE void storeRows(const AttendTensor& tensor, int64_t start, int row, int rows, int width,
                            float scale, const float (&sums)[D / 8][4]) {
  int lane = int(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int at = row + lane / 4 + i * 8;
    if (at >= rows) continue;
    int64_t first = start + at * tensor.row + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      float x[2] = {sums[n][i * 2] * scale, sums[n][i * 2 + 1] * scale};
      if (n * 8 < width) store({tensor.data, tensor.elem}, first + n * 8, x);
    }
  }
}

// products += rows [row, row + 16) of x times those of y.
template <int D, int kStep>
PLANC_DEVICE void multiplyRows(const uint16_t* x, int row, const uint16_t* y, int width,
                               float (&products)[kStep / 8][4]) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    if (k * 16 % kColumns == 0 && k * 16 >= width) break;
    uint32_t a[4];
    loadA<D>(a, x, row, k * 2);
#pragma unroll
    for (int n = 0; n < kStep / 16; ++n) {
      uint32_t b[4];
      loadB<D>(b, y, n * 16, k * 2);
      multiply(products[2 * n], a, b[0], b[1]);
      multiply(products[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// sums += weights times the rows of y.
template <int D, int kStep>
PLANC_DEVICE void addRows(const float (&weights)[kStep / 8][4], const uint16_t* y, int width,
                          float (&sums)[D / 8][4]) {
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* two = &weights[2 * k + i / 2][i % 2 * 2];
      a[i] = packBf16(two[0], two[1]);
    }
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      if (n * 16 % kColumns == 0 && n * 16 >= width) break;
      uint32_t b[4];
      loadBTransposed<D>(b, y, k * 16, n * 2);
      multiply(sums[2 * n], a, b[0], b[1]);
      multiply(sums[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Occupancy: 2 blocks of 128 threads on a multiprocessor by registers (up to 255 a thread: a pass
// over keys holds two sums and two products); shared memory is 50 KiB a block for rows of 64, 65
// KiB for 128 and 129 KiB for 256, of which a multiprocessor holds one.
template <int D, Pass kPass>
PLANC_KERNEL(AttendShape<D>::kThreads, 2)
attendGrad(AttendArgs a) {
  using Role = AttendRole;
  using Shape = AttendShape<D>;
  constexpr int kRows = Shape::kRows, kStep = Shape::kStep, kThreads = Shape::kThreads;
  constexpr bool isOfKeys = kPass != Pass::Queries;
  constexpr bool hasSlopes = kPass != Pass::Values, hasValues = isOfKeys && kPass != Pass::Keys;
  constexpr int kX0 = isOfKeys ? Role::K : Role::Q, kX1 = isOfKeys ? Role::V : Role::Da;
  constexpr int kY0 = isOfKeys ? Role::Q : Role::K, kY1 = isOfKeys ? Role::Da : Role::V;
  auto& shared = sharedMemory<typename Shape::Backward>();
  const AttendSide& moving = isOfKeys ? a.queries : a.keys;
  auto [block, head] = blockOf(isOfKeys ? a.keys : a.queries);
  int outer = isOfKeys ? head : head / a.own, inner = isOfKeys ? 0 : head % a.own;
  int lane = int(threadIdx.x) % kWarp, group = lane / 4, pair = lane % 4 * 2;
  int warpRow = int(threadIdx.x) / kWarp * 16;

  float first[hasSlopes ? D / 8 : 1][4] = {}, second[hasValues ? D / 8 : 1][4] = {};
  bool isPadding = block.first == AttendTile::kPadding;
  AsyncCopies copies;
  DocumentRange mine = {};
  int32_t documents[2] = {};
  float stats[2][2] = {};
  if (!isPadding) {
    AttendHead at(a, outer, inner);
    copyTile<D, kRows, kThreads>(copies, shared.x0, at.rows<const uint16_t>(kX0, block.at),
                                 a.tensors[kX0].row, block.rows, a.widthQ);
    if (hasSlopes)
      copyTile<D, kRows, kThreads>(copies, shared.x1, at.rows<const uint16_t>(kX1, block.at),
                                   a.tensors[kX1].row, block.rows, a.widthV);
    constexpr int kIds = isOfKeys ? Role::OfKeys : Role::OfQueries;
    const int32_t* ids = at.rows<const int32_t>(kIds, block.at);
    if (a.hasDocuments) mine = documentsOf(ids, a.tensors[kIds].row, block.rows);
    const float* found = static_cast<const float*>(a.stats);
    for (int i = 0; i < 2; ++i) {
      int row = warpRow + group + i * 8;
      if (row >= block.rows) continue;
      if (a.hasDocuments) documents[i] = ids[row * a.tensors[kIds].row];
      if (isOfKeys) continue;
      int64_t number = int64_t(head) * a.queryRows + block.at + row;
      stats[i][0] = found[number * 2];
      stats[i][1] = found[number * 2 + 1];
    }
  }

  AttendRange seen = isOfKeys ? queriesSeeing(a, block) : keysSeen(a, block);
  TileWalk walk(moving, kStep, seen, isOfKeys ? outer * a.own : outer, mine);
  // To the next tile, of the same head or the next one.
  auto advance = [&] {
    if (isPadding || (isOfKeys && a.own == 0)) return false;
    while (!walk.next()) {
      if (!isOfKeys || ++inner == a.own) return false;
      walk.restart(outer * a.own + inner);
    }
    return true;
  };
  auto fetch = [&](int turn) {
    AttendTile tile = walk.tile();
    AttendHead at(a, outer, inner);
    copyTile<D, kStep, kThreads>(copies, shared.y0[turn], at.rows<const uint16_t>(kY0, tile.at),
                                 a.tensors[kY0].row, tile.rows, a.widthQ);
    copyTile<D, kStep, kThreads>(copies, shared.y1[turn], at.rows<const uint16_t>(kY1, tile.at),
                                 a.tensors[kY1].row, tile.rows, a.widthV);
    int row = int(threadIdx.x);
    if (row >= kStep) return;
    if (isOfKeys) {
      int64_t number = (int64_t(outer) * a.own + inner) * a.queryRows + tile.at + row;
      bool exists = row < tile.rows;
      copies.copy8(shared.stats[turn][row],
                   static_cast<const float*>(a.stats) + (exists ? number * 2 : 0), exists);
    }
    constexpr int kIds = isOfKeys ? Role::OfQueries : Role::OfKeys;
    if (a.hasDocuments && row < tile.rows)
      shared.documents[turn][row] = *at.rows<const int32_t>(kIds, tile.at + row);
  };

  float scale = float(a.scale) * kLog2E;
  bool goesOn = advance();
  if (goesOn) fetch(0);
  copies.commit();
  for (int turn = 0; goesOn; turn ^= 1) {
    AttendTile tile = walk.tile();
    bool isOneDocument = !a.hasDocuments || isOne(mine, walk.documents());
    goesOn = advance();
    if (goesOn) fetch(turn ^ 1);
    copies.commit();
    copies.wait<1>();
    __syncthreads();
    float scores[kStep / 8][4] = {}, slopes[hasSlopes ? kStep / 8 : 1][4] = {};
    multiplyRows<D, kStep>(shared.x0, warpRow, shared.y0[turn], a.widthQ, scores);
    if constexpr (hasSlopes)
      multiplyRows<D, kStep>(shared.x1, warpRow, shared.y1[turn], a.widthV, slopes);
    int firstRow = block.first + warpRow;
    bool isWhole = tile.rows == kStep && isOneDocument &&
                   (isOfKeys ? seesAll(a, tile.first, kStep, firstRow, 16)
                             : seesAll(a, firstRow, 16, tile.first, kStep));
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int row = group + i / 2 * 8, column = n * 8 + pair + i % 2;
        const float(&stat)[2] = isOfKeys ? shared.stats[turn][column] : stats[i / 2];
        float p = fastExp2(scores[n][i] * scale - stat[0]);
        if (!isWhole) {
          int x = firstRow + row, y = tile.first + column;
          bool isSeen = column < tile.rows && (isOfKeys ? sees(a, y, x) : sees(a, x, y)) &&
                        (isOneDocument || documents[i / 2] == shared.documents[turn][column]);
          if (!isSeen) p = 0;
        }
        scores[n][i] = p;
        if constexpr (hasSlopes) slopes[n][i] = p * (slopes[n][i] - stat[1]);
      }
    }
    if constexpr (hasValues) addRows<D, kStep>(scores, shared.y1[turn], a.widthV, second);
    if constexpr (hasSlopes) addRows<D, kStep>(slopes, shared.y0[turn], a.widthQ, first);
    __syncthreads();  // done with what the next turn overwrites
  }
  copies.wait<0>();

  AttendHead at(a, outer, isOfKeys ? 0 : inner);
  constexpr int kFirst = isOfKeys ? Role::Dk : Role::Dq;
  if constexpr (hasSlopes)
    storeRows<D>(a.tensors[kFirst], at.start(kFirst) + block.at * a.tensors[kFirst].row, warpRow,
                 block.rows, a.widthQ, float(a.scale), first);
  if constexpr (hasValues)
    storeRows<D>(a.tensors[Role::Dv], at.start(Role::Dv) + block.at * a.tensors[Role::Dv].row,
                 warpRow, block.rows, a.widthV, 1.f, second);
}

}  // namespace

PLANC_HANDLE(kAttendGradQ64, AttendArgs, 128, attendGrad<64, Pass::Queries>)
PLANC_HANDLE(kAttendGradQ128, AttendArgs, 128, attendGrad<128, Pass::Queries>)
PLANC_HANDLE(kAttendGradQ256, AttendArgs, 128, attendGrad<256, Pass::Queries>)
PLANC_HANDLE(kAttendGradKV64, AttendArgs, 128, attendGrad<64, Pass::KeysAndValues>)
PLANC_HANDLE(kAttendGradKV128, AttendArgs, 128, attendGrad<128, Pass::KeysAndValues>)
PLANC_HANDLE(kAttendGradK256, AttendArgs, 128, attendGrad<256, Pass::Keys>)
PLANC_HANDLE(kAttendGradV256, AttendArgs, 128, attendGrad<256, Pass::Values>)

}  // namespace planc::cuda
