// Attention on tensor cores. Four warps share a tile of queries, each its own rows of it, so that a
// query's scores lie in four neighbouring lanes; keys and values are fetched by turns while the
// other are in use.
#include "runtime/cuda/attention_device.h"
#include "runtime/cuda/mma.h"

namespace planc::cuda {
namespace {

constexpr float kInfinity = __builtin_huge_valf();

// Occupancy: 2 blocks of 128 threads on a multiprocessor, by registers (up to 255 a thread: sums and
// scores alone take 160 at rows of 128, of which a warp has 32); shared memory is 33 KiB a block for
// rows of 64, 49 KiB for 128 and 97 KiB for 256 (of which an A100 holds one).
template <int D>
PLANC_KERNEL(AttendShape<D>::kThreads, 2)
attend(AttendArgs a) {
  using Role = AttendRole;
  using Shape = AttendShape<D>;
  constexpr int kKeys = Shape::kKeys, kThreads = Shape::kThreads;
  constexpr int kRowTiles = Shape::kQueries / 16 / (kThreads / kWarp);
  auto& shared = sharedMemory<typename Shape::Forward>();
  auto [block, head] = blockOf(a.queries);
  int outer = head / a.own;
  AttendHead at(a, outer, head % a.own);
  int lane = int(threadIdx.x) % kWarp, group = lane / 4, pair = lane % 4 * 2;
  int warpRow = int(threadIdx.x) / kWarp * 16 * kRowTiles;
  const AttendTensor &tensorA = a.tensors[Role::A], &tensorLse = a.tensors[Role::Lse];
  Ref toA = {tensorA.data, tensorA.elem}, toLse = {tensorLse.data, tensorLse.elem};
  // Row i of a thread is i / 2 * 16 + i % 2 * 8 rows behind its first.
  auto rowOf = [&](int i) { return warpRow + i / 2 * 16 + i % 2 * 8 + group; };

  float sums[kRowTiles][D / 8][4], most[2 * kRowTiles], total[2 * kRowTiles];
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    most[i] = -kInfinity;
    total[i] = 0;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) sums[i / 2][n][i % 2 * 2] = sums[i / 2][n][i % 2 * 2 + 1] = 0;
  }
  if (block.first == AttendTile::kPadding) {
    int64_t startA = at.start(Role::A) + pair, startLse = at.start(Role::Lse);
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      if (rowOf(i) >= block.rows) continue;
      int64_t row = block.at + rowOf(i);
      float zeros[2] = {0, 0};
      for (int n = 0; n < a.widthV; n += 8) store(toA, startA + row * tensorA.row + n, zeros);
      if (pair == 0) storeOne(toLse, startLse + row * tensorLse.row, 0.f);
    }
    return;
  }

  // What is needed in the end takes no registers until then.
  if (threadIdx.x == 0) {
    shared.startA = at.start(Role::A);
    shared.startLse = at.start(Role::Lse);
  }
  DocumentRange mine = {};
  const int32_t* keyDocuments = nullptr;
  if (a.hasDocuments) {
    const int32_t* ids = at.rows<const int32_t>(Role::OfQueries, block.at);
    int64_t step = a.tensors[Role::OfQueries].row;
    mine = documentsOf(ids, step, block.rows);
    for (int row = int(threadIdx.x); row < block.rows; row += kThreads)
      shared.documents[row] = ids[row * step];
    keyDocuments = at.rows<const int32_t>(Role::OfKeys, 0);
  }
  AsyncCopies copies;
  copyTile<D, Shape::kQueries, kThreads>(copies, shared.q,
                                         at.rows<const uint16_t>(Role::Q, block.at),
                                         a.tensors[Role::Q].row, block.rows, a.widthQ);
  const uint16_t* keys = at.rows<const uint16_t>(Role::K, 0);
  const uint16_t* values = at.rows<const uint16_t>(Role::V, 0);
  TileWalk walk(a.keys, kKeys, keysSeen(a, block), outer, mine);
  auto fetchKeys = [&] {
    AttendTile tile = walk.tile();
    int64_t step = a.tensors[Role::K].row;
    copyTile<D, kKeys, kThreads>(copies, shared.k, keys + tile.at * step, step, tile.rows,
                                 a.widthQ);
    copies.commit();
    if (a.hasDocuments && int(threadIdx.x) < tile.rows)
      shared.keyDocuments[threadIdx.x] =
          keyDocuments[(tile.at + int(threadIdx.x)) * a.tensors[Role::OfKeys].row];
  };

  if (a.goesOn) {
    const AttendTensor &before = a.tensors[Role::Before], &lse = a.tensors[Role::LseBefore];
    int64_t startBefore = at.start(Role::Before) + pair, startOfLse = at.start(Role::LseBefore);
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      int64_t row = block.at + rowOf(i);
      // The keys before are one, with all of the sum.
      total[i] = pair == 0 ? 1.f : 0.f;
      most[i] = kAttendNoKeys;
      if (rowOf(i) >= block.rows) continue;
      most[i] = loadOne<float>({lse.data, lse.elem}, startOfLse + row * lse.row);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        float x[2] = {0, 0};
        if (n * 8 < a.widthV)
          load({before.data, before.elem}, startBefore + row * before.row + n * 8, x);
        sums[i / 2][n][i % 2 * 2] = x[0];
        sums[i / 2][n][i % 2 * 2 + 1] = x[1];
      }
    }
  }

  float scale = float(a.scale) * kLog2E;
  bool goesOn = walk.next();
  if (goesOn) fetchKeys();
  while (goesOn) {
    AttendTile tile = walk.tile();
    bool isOneDocument = !a.hasDocuments || isOne(mine, walk.documents());
    copies.wait<0>();
    __syncthreads();  // the keys are there, and the last values are done with
    int64_t stepV = a.tensors[Role::V].row;
    copyTile<D, kKeys, kThreads>(copies, shared.v, values + tile.at * stepV, stepV, tile.rows,
                                 a.widthV);
    copies.commit();

    float scores[kRowTiles][kKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      if (k * 16 % kColumns == 0 && k * 16 >= a.widthQ) break;
      uint32_t q[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) loadA<D>(q[r], shared.q, warpRow + r * 16, k * 2);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        loadB<D>(b, shared.k, n * 16, k * 2);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          multiply(scores[r][2 * n], q[r], b[0], b[1]);
          multiply(scores[r][2 * n + 1], q[r], b[2], b[3]);
        }
      }
    }
    bool isWhole = tile.rows == kKeys && isOneDocument &&
                   seesAll(a, block.first + warpRow, 16 * kRowTiles, tile.first, kKeys);
    if (!isWhole) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          int key = n * 8 + pair + j;
#pragma unroll
          for (int i = 0; i < 2 * kRowTiles; ++i) {
            bool isSeen = key < tile.rows && sees(a, block.first + rowOf(i), tile.first + key) &&
                          (isOneDocument || shared.documents[rowOf(i)] == shared.keyDocuments[key]);
            if (!isSeen) scores[i / 2][n][i % 2 * 2 + j] = -kInfinity;
          }
        }
      }
    }
    copies.wait<0>();
    __syncthreads();  // the values are there, and the keys are done with
    goesOn = walk.next();
    if (goesOn) fetchKeys();

#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      auto& row = scores[i / 2];
      int half = i % 2 * 2;
      float high = row[0][half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) high = fmaxf(high, fmaxf(row[n][half], row[n][half + 1]));
      high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, 1));
      high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, 2));
      float now = fmaxf(most[i], high * float(a.scale));
      // A query that saw no key yet has no maximum: its exponentials are all zero.
      float shift = now > -kInfinity ? now : 0.f;
      float rescale = fastExp2((most[i] - shift) * kLog2E), sum = 0;
      most[i] = now;
      shift *= kLog2E;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int j = half; j < half + 2; ++j)
          sum += row[n][j] = fastExp2(row[n][j] * scale - shift);
      }
      total[i] = total[i] * rescale + sum;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        sums[i / 2][n][half] *= rescale;
        sums[i / 2][n][half + 1] *= rescale;
      }
    }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t p[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* two = &scores[r][2 * k + i / 2][i % 2 * 2];
          p[r][i] = packBf16(two[0], two[1]);
        }
      }
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        if (n * 16 % kColumns == 0 && n * 16 >= a.widthV) break;
        uint32_t b[4];
        loadBTransposed<D>(b, shared.v, k * 16, n * 2);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          multiply(sums[r][2 * n], p[r], b[0], b[1]);
          multiply(sums[r][2 * n + 1], p[r], b[2], b[3]);
        }
      }
    }
  }
  copies.wait<0>();
  __syncthreads();
  int64_t startA = shared.startA + pair, startLse = shared.startLse;

#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    float sum = total[i];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    // Asked so that NaNs stay.
    float inverse = sum == 0 ? 0.f : 1.f / sum;
    // Of the keys before alone it is as it was.
    float lse = sum == 0 ? kAttendNoKeys : most[i] + logf(sum);
    if (rowOf(i) >= block.rows) continue;
    int64_t row = block.at + rowOf(i);
    if (pair == 0) storeOne(toLse, startLse + row * tensorLse.row, lse);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      float x[2] = {sums[i / 2][n][i % 2 * 2] * inverse, sums[i / 2][n][i % 2 * 2 + 1] * inverse};
      if (n * 8 < a.widthV) store(toA, startA + row * tensorA.row + n * 8, x);
    }
  }
}

}  // namespace

PLANC_HANDLE(kAttend64, AttendArgs, 128, attend<64>)
PLANC_HANDLE(kAttend128, AttendArgs, 128, attend<128>)
PLANC_HANDLE(kAttend256, AttendArgs, 128, attend<256>)

}  // namespace planc::cuda
