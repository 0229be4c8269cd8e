// Dropout. Whether an element is kept is a function of its index in the whole tensor
// (runtime/random.h); here up to 64 elements that are neighbours there are drawn at a time, in loops
// over lanes. Tested by tests/runtime/kernels_test.cpp and split_kernels_test.cpp there.
#include "runtime/random.h"

#include "runtime/cpu/kernels.h"
#include "runtime/whole_index.h"

namespace planc::cpu {
namespace {

constexpr int64_t kLanes = 16, kDrawn = 4 * kLanes;

// The words of philox(key, high, low + lane), lane by lane: out[4 * lane + word].
void drawWords(uint64_t key, uint64_t high, uint64_t low, uint32_t* out) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) {
    uint64_t counter = low + uint64_t(l);
    c0[l] = uint32_t(counter), c1[l] = uint32_t(counter >> 32);
    c2[l] = uint32_t(high), c3[l] = uint32_t(high >> 32);
  }
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) {
      uint64_t p0 = uint64_t(0xD2511F53u) * c0[l], p1 = uint64_t(0xCD9E8D57u) * c2[l];
      uint32_t n0 = uint32_t(p1 >> 32) ^ c1[l] ^ k0, n2 = uint32_t(p0 >> 32) ^ c3[l] ^ k1;
      c1[l] = uint32_t(p1);
      c3[l] = uint32_t(p0);
      c0[l] = n0;
      c2[l] = n2;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int64_t l = 0; l < kLanes; ++l) {
    out[4 * l] = c0[l], out[4 * l + 1] = c1[l], out[4 * l + 2] = c2[l], out[4 * l + 3] = c3[l];
  }
}

// What each element is multiplied with.
template <class T>
void chooseFactors(const uint32_t* words, float rate, T scale, T* factor) {
#pragma omp simd
  for (int64_t i = 0; i < kDrawn; ++i) {
    factor[i] = uniformFloat(words[i]) >= rate ? scale : T(0);
  }
}

}  // namespace

KernelOr prepareDropout(const Op& op, Shared& shared) {
  const Type &x = op.operand(0)->type, &y = op.result()->type;
  float rate = float(op.attrs.number("rate"));
  std::string site = op.attrs.word("site");
  // Usually one loop of stride 1; a permuted operand is followed element by element.
  Space space(memoryDims(y), {&x, &y});
  WholeIndex whole(y, shared.rank);
  Elem from = x.elem, to = y.elem;
  bool isFlat = space.loops().size() == 1 && space.loops()[0].strides[0] == 1;
  return withCompute(op, [&](auto zero) -> KernelOr {
    using T = decltype(zero);
    return makeKernel([=, &shared](const RunContext& context, Operands in, Results out) {
      uint64_t key = randomKey(context.seed, site);
      uint64_t high = dropoutCounter(context.step, context.microbatch, context.iteration.data(),
                                     context.iteration.size());
      T scale = T(1 / (1 - double(rate)));
      shared.pool.parallelPieces(
          space.count(), kTaskElements, [&](int64_t begin, int64_t end, int) {
            // Elements [at, runEnd) in memory are those from `index` on in the whole.
            int64_t at = begin, runEnd = begin, index = 0;
            for (int64_t n; at < end; at += n, index += n) {
              if (at == runEnd) {
                index = whole.at(at);
                runEnd = std::min(end, at + whole.run - at % whole.run);
              }
              int64_t drawn = index % 4;  // four neighbours share a draw
              n = std::min(kDrawn - drawn, runEnd - at);
              uint32_t words[kDrawn];
              T factors[kDrawn], spare[kDrawn], spareOut[kDrawn];
              drawWords(key, high, uint64_t(index) / 4, words);
              chooseFactors(words, rate, scale, factors);
              const T* factor = factors + drawn;
              const T* row = spare;
              if (isFlat) {
                row = loadRow(in[0], from, at, 1, n, spare);
              } else {
                space.each(at, at + n, [&](int64_t i, const int64_t* offsets) {
                  spare[i - at] = loadOne<T>(in[0], from, offsets[0]);
                });
              }
              T* target = rowTarget(out[0], to, at, 1, spareOut);
#pragma omp simd
              for (int64_t i = 0; i < n; ++i) target[i] = row[i] * factor[i];
              storeRow(target, out[0], to, at, 1, n);
            }
          });
    });
  });
}

}  // namespace planc::cpu
