// See norm.h. Memory-bound: each thread of a team has its whole share of the row under way at once
// and keeps it in registers from the first sum to the result, unless the row is too long.
#include "runtime/cuda/norm.h"

#include <cmath>
#include <limits>

#include "runtime/cuda/device_code.h"

namespace planc::cuda {
namespace {

template <class T>
constexpr T kLowest = -std::numeric_limits<T>::infinity();

enum class Kind { Softmax, SoftmaxGrad, Norm, NormGrad, LogSumExp };

// A thread and its share of a row: units of V elements, K of them at most, which it keeps of each
// operand; or with K = 0 any number, which it reads whenever it needs them.
template <class T, int V, int K>
struct Member {
  const RowsArgs& a;
  T* scratch;  // shared, one element a warp
  int lane, team;
  int64_t size;  // 0: there is no such row, but others of the warp have one
  int64_t offsets[kRowTensors];

  PLANC_DEVICE Member(const RowsArgs& args, T* shared, int64_t row, int lane, int team)
      : a(args), scratch(shared), lane(lane), team(team), size(row < args.rows ? args.size : 0) {
#pragma unroll
    for (int t = 0; t < kRowTensors; ++t) offsets[t] = 0;
    for (int l = 0; l < a.loops; ++l) {
      int64_t next = l + 1 == a.loops ? 0 : row / a.sizes[l];
      int64_t i = row - next * a.sizes[l];
      row = next;
#pragma unroll
      for (int t = 0; t < kRowTensors; ++t) offsets[t] += i * a.tensors[t].strides[l];
    }
  }

  PLANC_DEVICE T sum(T x) const {
    if (team > kWarp) return blockSum(x, scratch);
    for (int d = team / 2; d > 0; d /= 2) x += __shfl_xor_sync(kAllLanes, x, d);
    return x;
  }
  PLANC_DEVICE T max(T x) const {
    if (team > kWarp) return blockMax(x, scratch);
    for (int d = team / 2; d > 0; d /= 2) x = greater(x, __shfl_xor_sync(kAllLanes, x, d));
    return x;
  }

  PLANC_DEVICE int64_t place(int64_t unit) const { return (unit * team + lane) * V; }
  PLANC_DEVICE int validAt(int64_t at) const { return size - at < V ? int(size - at) : V; }

  PLANC_DEVICE void load(int tensor, int64_t at, T (&x)[V]) const {
    const RowTensor& from = a.tensors[tensor];
    int valid = validAt(at);
    int64_t first = offsets[tensor] + at * from.step;
    if (from.isVector && valid == V) return cuda::load({from.data, from.elem}, first, x);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      x[i] = i < valid ? loadOne<T>({from.data, from.elem}, first + i * from.step) : T(0);
    }
  }
  PLANC_DEVICE void store(int tensor, int64_t at, const T (&x)[V]) const {
    const RowTensor& to = a.tensors[tensor];
    int valid = validAt(at);
    int64_t first = offsets[tensor] + at * to.step;
    if (to.isVector && valid == V) return cuda::store({to.data, to.elem}, first, x);
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (i < valid) storeOne({to.data, to.elem}, first + i * to.step, x[i]);
  }
  PLANC_DEVICE T one(int tensor) const {
    ConstRef from{a.tensors[tensor].data, a.tensors[tensor].elem};
    return size > 0 ? loadOne<T>(from, offsets[tensor]) : T(0);
  }
  PLANC_DEVICE void setOne(int tensor, T x) const {
    Ref to{a.tensors[tensor].data, a.tensors[tensor].elem};
    if (lane == 0 && size > 0) storeOne(to, offsets[tensor], x);
  }
};

// The units of the first `kIn` operands: visit(units, at, valid).
template <int kIn, class T, int V, int K>
struct Units {
  const Member<T, V, K>& member;
  T kept[K > 0 ? K : 1][kIn][V];

  PLANC_DEVICE explicit Units(const Member<T, V, K>& m) : member(m) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int t = 0; t < kIn; ++t)
        if (m.place(k) < m.size) m.load(t, m.place(k), kept[k][t]);
    }
  }
  template <class F>
  PLANC_DEVICE void each(F&& visit) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      int64_t at = member.place(k);
      if (at < member.size) visit(kept[k], at, member.validAt(at));
    }
    for (int64_t k = 0; K == 0 && member.place(k) < member.size; ++k) {
      int64_t at = member.place(k);
      T read[kIn][V];
#pragma unroll
      for (int t = 0; t < kIn; ++t) member.load(t, at, read[t]);
      visit(read, at, member.validAt(at));
    }
  }
  // The team's sum of term(units, i) over the row's elements.
  template <class F>
  PLANC_DEVICE T sum(F&& term) const {
    T total = T(0);
    each([&](const T(&x)[kIn][V], int64_t, int valid) {
#pragma unroll
      for (int i = 0; i < V; ++i) total += i < valid ? term(x, i) : T(0);
    });
    return member.sum(total);
  }
  PLANC_DEVICE T max() const {
    T most = kLowest<T>;
    each([&](const T(&x)[kIn][V], int64_t, int valid) {
#pragma unroll
      for (int i = 0; i < V; ++i)
        if (i < valid) most = greater(most, x[0][i]);
    });
    return member.max(most);
  }
  template <class F>
  PLANC_DEVICE void store(int tensor, F&& value) const {
    each([&](const T(&x)[kIn][V], int64_t at, int) {
      T y[V];
#pragma unroll
      for (int i = 0; i < V; ++i) y[i] = value(x, i);
      member.store(tensor, at, y);
    });
  }
};

template <Kind kind, class T, int V, int K>
PLANC_DEVICE void work(const RowsArgs& a, const Member<T, V, K>& member) {
  T size = T(a.size);
  if constexpr (kind == Kind::Softmax) {
    Units<1, T, V, K> units(member);
    T most = units.max();
    T total = units.sum([&](auto& x, int i) { return std::exp(x[0][i] - most); });
    T scale = T(1) / total;
    units.store(1, [&](auto& x, int i) { return std::exp(x[0][i] - most) * scale; });
  }
  if constexpr (kind == Kind::LogSumExp) {
    Units<1, T, V, K> units(member);
    T most = units.max(), shift = most > kLowest<T> ? most : T(0);
    T total = units.sum([&](auto& x, int i) { return std::exp(x[0][i] - shift); });
    member.setOne(1, shift + std::log(total));
  }
  if constexpr (kind == Kind::SoftmaxGrad) {
    Units<2, T, V, K> units(member);
    T dot = units.sum([&](auto& x, int i) { return x[0][i] * x[1][i]; });
    units.store(2, [&](auto& x, int i) { return x[0][i] * (x[1][i] - dot); });
  }
  if constexpr (kind == Kind::Norm) {
    Units<1, T, V, K> units(member);
    T mean = T(0);
    if (a.center) mean = units.sum([&](auto& x, int i) { return x[0][i]; }) / size;
    T squares =
        units.sum([&](auto& x, int i) { return (x[0][i] - mean) * (x[0][i] - mean); });
    T scale = T(1) / std::sqrt(squares / size + T(a.eps));
    units.store(1, [&](auto& x, int i) { return (x[0][i] - mean) * scale; });
    member.setOne(2, scale);
  }
  if constexpr (kind == Kind::NormGrad) {
    Units<2, T, V, K> units(member);
    T meanDot = units.sum([&](auto& x, int i) { return x[0][i] * x[1][i]; }) / size;
    T mean = T(0), scale = member.one(2);
    if (a.center) mean = units.sum([&](auto& x, int i) { return x[0][i]; }) / size;
    units.store(3, [&](auto& x, int i) { return scale * (x[0][i] - x[1][i] * meanDot - mean); });
  }
}

// Occupancy: 1024 threads on a multiprocessor (64 registers a thread), each with 16 elements under
// way: one block for the longest rows, two and more where a row has fewer threads.
template <Kind kind, int units>
PLANC_KERNEL(kTeamThreads, 1) teams(RowsArgs a) {
  float* scratch = &sharedMemory<float>();
  int teamsInBlock = int(blockDim.x) / a.team;
  int64_t row = int64_t(blockIdx.x) * teamsInBlock + threadIdx.x / a.team;
  int lane = int(threadIdx.x) % a.team;
  work<kind>(a, Member<float, kRowWidth, units>(a, scratch, row, lane, a.team));
}

template <Kind kind, class T>
PLANC_KERNEL(kAloneThreads, 2) alone(RowsArgs a) {
  int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= a.rows) return;
  work<kind>(a, Member<T, 1, 0>(a, nullptr, row, 0, 1));
}

}  // namespace

#define HANDLES(Name, units)                                                         \
  PLANC_HANDLE(k##Name##Teams, RowsArgs, kTeamThreads, teams<Kind::Name, units>)     \
  PLANC_HANDLE(k##Name##Long, RowsArgs, kTeamThreads, teams<Kind::Name, 0>)          \
  PLANC_HANDLE(k##Name##AloneF32, RowsArgs, kAloneThreads, alone<Kind::Name, float>) \
  PLANC_HANDLE(k##Name##AloneF64, RowsArgs, kAloneThreads, alone<Kind::Name, double>)
PLANC_ROW_KERNELS(HANDLES)
#undef HANDLES

}  // namespace planc::cuda
