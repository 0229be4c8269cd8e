// See elementwise.h. Memory-bound: a thread has the loads of all its inputs under way before it
// computes, 16 bytes each (32 where f32 is read 8 at a time).
#include "runtime/cuda/elementwise.h"

#include <cmath>

#include "runtime/cuda/device_code.h"

namespace planc::cuda {
namespace {

template <class T>
PLANC_DEVICE T sigmoid(T a) {
  return T(1) / (T(1) + std::exp(-a));
}
template <class T>
PLANC_DEVICE T normalCdf(T a) {
  return T(0.5) * std::erfc(a * T(-0.7071067811865476));
}

template <StepKind kind, class T>
PLANC_DEVICE T evaluate(T a, T b) {
  constexpr T kRoot2OverPi = T(0.7978845608028654), kCubic = T(0.044715);
  constexpr T kDensity = T(0.3989422804014327);  // 1 / sqrt(2 pi)
  if constexpr (kind == StepKind::Add) return a + b;
  if constexpr (kind == StepKind::Sub) return a - b;
  if constexpr (kind == StepKind::Mul) return a * b;
  if constexpr (kind == StepKind::Div) return a / b;
  if constexpr (kind == StepKind::Max) return a > b ? a : b;
  if constexpr (kind == StepKind::Min) return a < b ? a : b;
  if constexpr (kind == StepKind::Ge) return a >= b ? T(1) : T(0);
  if constexpr (kind == StepKind::Neg) return -a;
  if constexpr (kind == StepKind::Exp) return std::exp(a);
  if constexpr (kind == StepKind::Log) return std::log(a);
  if constexpr (kind == StepKind::Sqrt) return std::sqrt(a);
  if constexpr (kind == StepKind::Rsqrt) return T(1) / std::sqrt(a);
  if constexpr (kind == StepKind::Square) return a * a;
  if constexpr (kind == StepKind::Tanh) return std::tanh(a);
  if constexpr (kind == StepKind::Sigmoid) return sigmoid(a);
  if constexpr (kind == StepKind::Relu) return a > T(0) ? a : T(0);
  if constexpr (kind == StepKind::Silu) return a * sigmoid(a);
  if constexpr (kind == StepKind::Gelu) return a * normalCdf(a);
  if constexpr (kind == StepKind::GeluTanh) {
    return T(0.5) * a * (T(1) + std::tanh(kRoot2OverPi * (a + kCubic * a * a * a)));
  }
  if constexpr (kind == StepKind::ReluGrad) return a > T(0) ? b : T(0);
  if constexpr (kind == StepKind::SiluGrad) {
    T s = sigmoid(a);
    return b * s * (T(1) + a * (T(1) - s));
  }
  if constexpr (kind == StepKind::GeluGrad) {
    return b * (normalCdf(a) + a * kDensity * std::exp(T(-0.5) * a * a));
  }
  if constexpr (kind == StepKind::GeluTanhGrad) {
    T t = std::tanh(kRoot2OverPi * (a + kCubic * a * a * a));
    T slope = kRoot2OverPi * (T(1) + T(3) * kCubic * a * a);
    return b * T(0.5) * ((T(1) + t) + a * (T(1) - t * t) * slope);
  }
}

template <class T, int V>
PLANC_DEVICE void fill(T (&x)[V], T value) {
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = value;
}
template <class T, int V>
PLANC_DEVICE void assign(T (&x)[V], const T (&from)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = from[i];
}

// acc = kind(acc, b).
template <class T, int V>
PLANC_DEVICE void apply(StepKind kind, T (&acc)[V], const T (&b)[V]) {
  switch (kind) {
#define CASE(Kind)                                                             \
  case StepKind::Kind:                                                         \
    _Pragma("unroll") for (int i = 0; i < V; ++i) {                            \
      acc[i] = evaluate<StepKind::Kind>(acc[i], b[i]);                         \
    }                                                                          \
    return;
    PLANC_STEPS(CASE)
#undef CASE
    case StepKind::Move:
    case StepKind::Store:
      return;
  }
}

// Slots [kFrom, kTo) of a thread, found by branches that all threads take alike: registers have no
// addresses.
template <int kFrom, int kTo, int V, class F>
PLANC_DEVICE void withSlot(float (*slots)[V], int slot, F&& f) {
  if constexpr (kTo - kFrom == 1) {
    f(slots[kFrom]);
  } else {
    constexpr int kMiddle = (kFrom + kTo) / 2;
    if (slot < kMiddle) withSlot<kFrom, kMiddle, V>(slots, slot, f);
    else withSlot<kMiddle, kTo, V>(slots, slot, f);
  }
}

// Whether a unit is loaded as packed bf16, to be unpacked when all loads are under way.
PLANC_DEVICE bool isPacked(const ChainTensor& tensor, bool isWhole) {
  return isWhole && tensor.access == Access::Vector && tensor.elem == Elem::BF16;
}

template <int V>
PLANC_DEVICE void loadUnit(const ChainTensor& tensor, int64_t at, int valid, float (&x)[V]) {
  ConstRef from{tensor.data, tensor.elem};
  if (isPacked(tensor, valid == V)) {
    struct alignas(2 * V) Pairs { uint32_t v[V / 2]; };
    Pairs pairs = *reinterpret_cast<const Pairs*>(static_cast<const uint16_t*>(tensor.data) + at);
#pragma unroll
    for (int i = 0; i < V / 2; ++i) x[i] = __uint_as_float(pairs.v[i]);
    return;
  }
  if (tensor.access == Access::Vector && valid == V) return load(from, at, x);
  if (tensor.access == Access::Same) return fill(x, loadOne<float>(from, at));
#pragma unroll
  for (int i = 0; i < V; ++i)
    x[i] = i < valid ? loadOne<float>(from, at + i * tensor.step) : 0.0f;
}

template <int V>
PLANC_DEVICE void unpack(float (&x)[V]) {
#pragma unroll
  for (int i = V / 2 - 1; i >= 0; --i) {
    uint32_t pair = __float_as_uint(x[i]);
    x[2 * i + 1] = __uint_as_float(pair & 0xffff0000u);
    x[2 * i] = __uint_as_float(pair << 16);
  }
}

template <int V>
PLANC_DEVICE void storeUnit(Ref into, Access access, int64_t step, int64_t at, int valid,
                            const float (&x)[V]) {
  if (access == Access::Vector && valid == V) return store(into, at, x);
  if (access == Access::Same) return storeOne(into, at, x[0]);
#pragma unroll
  for (int i = 0; i < V; ++i)
    if (i < valid) storeOne(into, at + i * step, x[i]);
}

// A thread's place in the loops.
template <class Index, int kLoops>
struct Place {
  Index at[kLoops];

  // Loops [from, to) at the index that they make together. All of a warp have the same loops.
  PLANC_DEVICE void set(const Index (&sizes)[kLoops], int from, int to, Index index) {
#pragma unroll
    for (int l = 0; l < kLoops; ++l) {
      if (l < from || l >= to) continue;
      Index next = l + 1 == to ? 0 : index / sizes[l];
      at[l] = index - next * sizes[l];
      index = next;
    }
  }
  PLANC_DEVICE int64_t offset(const int64_t (&strides)[kLoops]) const {
    int64_t sum = 0;
#pragma unroll
    for (int l = 0; l < kLoops; ++l) sum += int64_t(at[l]) * strides[l];
    return sum;
  }
  // Of all places with the same element of a tensor that lacks loops, one is the first.
  PLANC_DEVICE bool isFirst(const int64_t (&strides)[kLoops]) const {
    bool first = true;
#pragma unroll
    for (int l = 0; l < kLoops; ++l) first &= at[l] == 0 || strides[l] != 0;
    return first;
  }
  PLANC_DEVICE Index on(int loop) const {
    Index index = 0;
#pragma unroll
    for (int l = 0; l < kLoops; ++l) index = l == loop ? at[l] : index;
    return index;
  }
};

// Runs the program at a place; acc holds the last step's value.
template <int V, int S>
PLANC_DEVICE int runUnit(const ChainArgs& a, const Place<uint32_t, kChainLoops>& place,
                         float (&acc)[V]) {
  int valid = V;
  if (a.split.unitLoop >= 0) {
    int64_t left = a.split.unitSize - int64_t(place.on(a.split.unitLoop)) * V;
    valid = left < V ? int(left) : V;
  }
  float slots[S][V];
#pragma unroll
  for (int i = 0; i < S; ++i) {
    if (i < a.inputs) {
      loadUnit(a.tensors[i], place.offset(a.tensors[i].strides), valid, slots[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < S; ++i) {
    if (i < a.inputs && isPacked(a.tensors[i], valid == V)) unpack(slots[i]);
  }
  fill(acc, 0.0f);
  auto fetch = [&](int code, float(&into)[V]) {
    if (code < kAcc) return fill(into, a.constants[-2 - code]);
    withSlot<0, S, V>(slots, code, [&](float(&slot)[V]) { assign(into, slot); });
  };
  for (int s = 0; s < a.steps; ++s) {
    Step step = a.code[s];
    if (step.kind == StepKind::Store) {
      const ChainTensor& to = a.tensors[a.inputs + step.to];
      if (place.isFirst(to.strides)) {
        storeUnit({to.data, to.elem}, to.access, to.step, place.offset(to.strides), valid, acc);
      }
      continue;
    }
    float b[V];
    if (step.b == kAcc) assign(b, acc);
    else fetch(step.b, b);
    if (step.a != kAcc) fetch(step.a, acc);
    apply(step.kind, acc, b);
    if (step.to >= 0) {
      withSlot<0, S, V>(slots, step.to, [&](float(&slot)[V]) { assign(slot, acc); });
    }
  }
  return valid;
}

// Adds up a block's items (counted in Index): run(cell, item, x) gives one unit, put(cell, total)
// takes a cell's. The order depends on the split alone. Totals live in `scratch`, V elements a
// thread of shared memory: registers are for the slots.
template <class Index, class T, int V, class Run, class Put>
PLANC_DEVICE void sumBlock(const Split& split, T* scratch, Run&& run, Put&& put) {
  int thread = int(threadIdx.x), threads = int(blockDim.x);
  int shares = split.itemThreads, width = threads / shares;
  // Neighbouring threads have neighbouring units.
  int share = split.addsUp ? thread % shares : thread / width;
  int column = split.addsUp ? thread / shares : thread % width;
  Index cell = Index(blockIdx.x) * width + column;
  Index item = Index(split.items * blockIdx.y / split.chunks);
  Index end = Index(split.items * (blockIdx.y + 1) / split.chunks);
  bool exists = int64_t(cell) < split.cells;
  T* mine = scratch + share * width + column;
#pragma unroll
  for (int i = 0; i < V; ++i) mine[i * threads] = T(0);
  if (exists) {
    for (item += share; item < end; item += shares) {
      T x[V];
      run(cell, item, x);
#pragma unroll
      for (int i = 0; i < V; ++i) mine[i * threads] += x[i];
    }
  }
  if (split.addsUp) {
#pragma unroll
    for (int i = 1; i < V; ++i) mine[0] += mine[i * threads];
  }
  int rows = split.addsUp ? 1 : V;
  for (int half = shares / 2; half > 0; half /= 2) {
    __syncthreads();
    if (share >= half) continue;
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (i < rows) mine[i * threads] += mine[i * threads + half * width];
  }
  if (share > 0 || !exists) return;
  T total[V];
#pragma unroll
  for (int i = 0; i < V; ++i) total[i] = mine[i * threads];
  put(cell, total);
}

// Occupancy: 6, 5 or 4 blocks of 128 threads on a multiprocessor (80, 96 or 128 registers a thread,
// which hold the slots); each thread has up to 16 or 32 bytes a slot under way.
template <int V, int S, int kBlocks>
PLANC_KERNEL(kChainThreads, kBlocks) chain(ChainArgs a) {
  int64_t unit = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (unit >= a.split.cells) return;
  Place<uint32_t, kChainLoops> place{};
  place.set(a.sizes, 0, a.loops, uint32_t(unit));
  float acc[V];
  runUnit<V, S>(a, place, acc);
}

template <int V, int S, int kBlocks>
PLANC_KERNEL(kChainThreads, kBlocks) chainSum(ChainArgs a) {
  float* scratch = &sharedMemory<float>();
  const ChainTensor& target = a.tensors[a.inputs + a.outputs];
  Place<uint32_t, kChainLoops> place{};
  auto run = [&](uint32_t cell, uint32_t item, float(&x)[V]) {
    place.set(a.sizes, 0, a.cellLoops, cell);
    place.set(a.sizes, a.cellLoops, a.loops, item);
    int valid = runUnit<V, S>(a, place, x);
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = i < valid ? x[i] : 0.0f;
  };
  auto put = [&](uint32_t cell, float(&total)[V]) {
    place.set(a.sizes, 0, a.cellLoops, cell);
    int64_t at = int64_t(blockIdx.y) * a.chunkStride, left = V;
#pragma unroll
    for (int l = 0; l < kChainLoops; ++l)
      if (l < a.cellLoops) at += int64_t(place.at[l]) * target.strides[l];
    if (a.split.addsUp) left = 1;
    else if (a.split.unitLoop >= 0)
      left = a.split.unitSize - int64_t(place.on(a.split.unitLoop)) * V;
    int valid = left < V ? int(left) : V;
    Ref into{target.data, target.elem};
    if (a.split.adds) {
#pragma unroll
      for (int i = 0; i < V; ++i)
        if (i < valid) total[i] += loadOne<float>(asConst(into), at + i * target.step);
    }
    if (a.split.addsUp) storeOne(into, at, total[0]);
    else storeUnit(into, target.access, target.step, at, valid, total);
  };
  sumBlock<uint32_t, float, V>(a.split, scratch, run, put);
}

// One element of any chain. `slots`: this thread's, blockDim.x apart.
template <class T>
PLANC_DEVICE T runLong(const LongArgs& a, const Place<int64_t, kLongLoops>& place, T* slots) {
  auto slot = [&](int i) -> T& { return slots[int64_t(i) * blockDim.x]; };
  for (int i = 0; i < a.inputs; ++i) {
    slot(i) = loadOne<T>({a.data[i], a.tensors[i].elem}, place.offset(a.tensors[i].strides));
  }
  T acc[1] = {T(0)};
  for (int s = 0; s < a.steps; ++s) {
    Step step = a.code[s];
    if (step.kind == StepKind::Store) {
      const LongTensor& to = a.tensors[a.inputs + step.to];
      if (place.isFirst(to.strides)) {
        storeOne({a.data[a.inputs + step.to], to.elem}, place.offset(to.strides), acc[0]);
      }
      continue;
    }
    auto fetch = [&](int code) {
      if (code == kAcc) return acc[0];
      return code < kAcc ? T(a.constants[-2 - code]) : slot(code);
    };
    T b[1] = {fetch(step.b)};
    acc[0] = fetch(step.a);
    apply(step.kind, acc, b);
    if (step.to >= 0) slot(step.to) = acc[0];
  }
  return acc[0];
}

// Occupancy: as the slots in shared memory allow.
template <class T>
PLANC_KERNEL(kChainThreads, 4) longChain(LongArgs a) {
  T* shared = &sharedMemory<T>();
  T* slots = shared + threadIdx.x;
  T* scratch = shared + int64_t(a.slots) * blockDim.x;
  Place<int64_t, kLongLoops> place{};
  if (!a.split.sums) {
    int64_t cell = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (cell >= a.split.cells) return;
    place.set(a.sizes, 0, a.loops, cell);
    runLong(a, place, slots);
    return;
  }
  auto run = [&](int64_t cell, int64_t item, T(&x)[1]) {
    place.set(a.sizes, 0, a.cellLoops, cell);
    place.set(a.sizes, a.cellLoops, a.loops, item);
    x[0] = runLong(a, place, slots);
  };
  auto put = [&](int64_t cell, T(&total)[1]) {
    place.set(a.sizes, 0, a.cellLoops, cell);
    int64_t at = int64_t(blockIdx.y) * a.chunkStride;
#pragma unroll
    for (int l = 0; l < kLongLoops; ++l)
      if (l < a.cellLoops) at += place.at[l] * a.target.strides[l];
    Ref into{a.data[a.inputs + a.outputs], a.target.elem};
    if (a.split.adds) total[0] += loadOne<T>(asConst(into), at);
    storeOne(into, at, total[0]);
  };
  sumBlock<int64_t, T, 1>(a.split, scratch, run, put);
}

// A tile a block, 16 elements a thread under way; rows of shared memory are one element longer, so
// that columns of it lie in different banks.
// Occupancy: 4 blocks of 256 threads, 17 KB of shared memory each.
template <class T>
PLANC_KERNEL(kTransposeThreads, 4) transpose(TransposeArgs a) {
  constexpr int kRowsAtOnce = kTransposeThreads / kTile, kEach = kTile / kRowsAtOnce;
  T* tile = &sharedMemory<T>();
  int64_t columnTiles = (a.columns + kTile - 1) / kTile, rowTiles = (a.rows + kTile - 1) / kTile;
  int64_t block = blockIdx.x, plane = block / (columnTiles * rowTiles);
  int64_t row = block / columnTiles % rowTiles * kTile, column = block % columnTiles * kTile;
  int64_t from = 0, to = 0;
  for (int l = 0; l < a.planeLoops; ++l) {
    int64_t i = plane % a.planeSizes[l];
    plane /= a.planeSizes[l];
    from += i * a.fromPlanes[l];
    to += i * a.toPlanes[l];
  }
  int x = int(threadIdx.x) % kTile, y = int(threadIdx.x) / kTile;
  T each[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    int64_t r = row + y + i * kRowsAtOnce, c = column + x;
    bool exists = r < a.rows && c < a.columns;
    each[i] = exists ? loadOne<T>(a.from, from + r * a.fromRow + c) : T(0);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) tile[(y + i * kRowsAtOnce) * (kTile + 1) + x] = each[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    int64_t r = row + x, c = column + y + i * kRowsAtOnce;
    if (r < a.rows && c < a.columns) {
      storeOne(a.to, to + c * a.toColumn + r, tile[x * (kTile + 1) + y + i * kRowsAtOnce]);
    }
  }
}

}  // namespace

PLANC_HANDLE(kChainFew, ChainArgs, kChainThreads, chain<8, kFewSlots, 6>)
PLANC_HANDLE(kChainSome, ChainArgs, kChainThreads, chain<8, kSomeSlots, 4>)
PLANC_HANDLE(kChainMany, ChainArgs, kChainThreads, chain<4, kManySlots, 4>)
PLANC_HANDLE(kChainSumFew, ChainArgs, kChainThreads, chainSum<8, kFewSumSlots, 5>)
PLANC_HANDLE(kChainSumSome, ChainArgs, kChainThreads, chainSum<8, kSomeSlots, 4>)
PLANC_HANDLE(kChainSumMany, ChainArgs, kChainThreads, chainSum<4, kManySlots, 4>)
PLANC_HANDLE(kLongChainF32, LongArgs, kChainThreads, longChain<float>)
PLANC_HANDLE(kLongChainF64, LongArgs, kChainThreads, longChain<double>)
PLANC_HANDLE(kTransposeF32, TransposeArgs, kTransposeThreads, transpose<float>)
PLANC_HANDLE(kTransposeF64, TransposeArgs, kTransposeThreads, transpose<double>)

}  // namespace planc::cuda
