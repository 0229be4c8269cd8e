// Rotary positions: a row of dim `by` is turned by the angles of its position in the whole of `seq`,
// of which this rank may hold a piece. Cosines and sines are computed once for all kernels of a device,
// in double. Tested by tests/runtime/kernels_test.cpp and split_kernels_test.cpp there.
#include <cmath>

#include "runtime/cpu/rows.h"
#include "runtime/places.h"

namespace planc::cpu {
namespace {

// For each position `width / 2` cosines, then as many sines.
template <class T>
std::shared_ptr<const std::vector<T>> anglesOf(const std::vector<int64_t>& positions, int64_t width,
                                               double theta, Shared& shared) {
  auto& tables = std::get<Shared::Angles<T>>(shared.angles);
  auto& table = tables[{positions, width, theta}];
  if (table) return table;
  std::vector<T> values;
  values.reserve(positions.size() * size_t(width));
  for (int64_t p : positions) {
    auto angle = [&](int64_t i) {
      return double(p) * std::pow(theta, -2.0 * double(i) / double(width));
    };
    for (int64_t i = 0; i < width / 2; ++i) values.push_back(T(std::cos(angle(i))));
    for (int64_t i = 0; i < width / 2; ++i) values.push_back(T(std::sin(angle(i))));
  }
  return table = std::make_shared<const std::vector<T>>(std::move(values));
}

}  // namespace

KernelOr prepareRope(const Op& op, Shared& shared) {
  const Type &x = op.operand(0)->type, &y = op.result()->type;
  std::string by = op.attrs.word("by"), seq = op.attrs.word("seq");
  int64_t n = y.size(by);
  if (n % 2 != 0) return unsupported(op, "dim '" + by + "' has an odd size");
  bool inPairs = op.attrs.word("style") == "pairs", inverse = op.isFlag("inverse");
  double theta = op.attrs.number("theta", 10000);
  // A tensor of one dim whose offset is the position in this rank's piece.
  Type position{Elem::I32, {{seq, y.size(seq), ""}}};
  std::vector<int64_t> positions = positionsOf(y.dims[size_t(y.find(seq))], shared.rank);
  Rows rows(y, by, {&x, &y, &position}, shared);
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    auto angles = anglesOf<T>(positions, n, theta, shared);
    return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
      T turn = inverse ? T(-1) : T(1);
      rows.each<T>(shared.pool, [&](const Rows::Row<T>& row) {
        const T* x = row.load(0, in[0]);
        T* y = row.target(1, out[0]);
        const T *cosine = angles->data() + row.offsets[2] * n, *sine = cosine + n / 2;
        if (inPairs) {
#pragma omp simd
          for (int64_t i = 0; i < n / 2; ++i) {
            T a = x[2 * i], b = x[2 * i + 1], s = turn * sine[i];
            y[2 * i] = a * cosine[i] - b * s;
            y[2 * i + 1] = a * s + b * cosine[i];
          }
        } else {
#pragma omp simd
          for (int64_t i = 0; i < n / 2; ++i) {
            T a = x[i], b = x[i + n / 2], s = turn * sine[i];
            y[i] = a * cosine[i] - b * s;
            y[i + n / 2] = a * s + b * cosine[i];
          }
        }
        row.store(1, y, out[0]);
      });
    });
  });
}

}  // namespace planc::cpu
