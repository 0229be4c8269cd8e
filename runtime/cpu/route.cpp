// Choosing experts, the gradient of the choice's weights, and what follows from the choices alone: who
// finds room, and which packed row each has. Choices are found a token at a time over the pool; a group
// of tokens whose loads and shares are summed is cut into fixed chunks whose sums are added in order.
// Room is counted a sequence at a time, rows in one serial pass: both depend on all earlier tokens.
// Tested by tests/runtime/kernels_test.cpp and tests/runtime/split_kernels_test.cpp.
#include <limits>

#include "ir/verify_shapes.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/math.h"

namespace planc::cpu {
namespace {

constexpr int64_t kChunk = 64;  // tokens whose shares are added up by one task

struct Routing {
  int64_t experts, top, tokens, groups = 1;  // groups: of tokens
  int64_t scoreStep;   // from expert to expert in the scores
  std::string choice;  // the dim of a token's choices
  bool isSoftmax, normalise;
  double scale;
  Space space;  // sequence by sequence, over {scores, the tensors that were given}

  // `types`: tensors by token, the first one by token and choice.
  Routing(const Op& op, const Type& scores, llvm::ArrayRef<const Type*> types)
      : experts(scores.size(op.attrs.word("over"))),
        top(op.attrs.integer("top")),
        scoreStep(strideOf(scores, op.attrs.word("over"))),
        isSoftmax(op.attrs.word("score") != "sigmoid"),
        normalise(op.isFlag("normalise")),
        scale(op.attrs.number("scale", 1)) {
    for (const Dim& dim : types[0]->dims) {
      if (!scores.has(dim.name)) choice = dim.name;
    }
    Type order = types[0]->without(choice);
    tokens = order.elements();
    llvm::SmallVector<Dim, 4> dims = order.dims;
    if (op.attrs.word("per") == "sequence") {
      std::string seq = op.attrs.word("seq");
      const Dim& last = order.dims[size_t(order.find(seq))];
      dims = dimsWithout(order, {seq});
      dims.push_back(last);
      groups = tokens / last.size;
    }
    llvm::SmallVector<const Type*, 6> walked{&scores};
    walked.append(types.begin(), types.end());
    space = Space(dims, walked);
  }

  int64_t perGroup() const { return tokens / groups; }
  int64_t chunksPerGroup() const { return (perGroup() + kChunk - 1) / kChunk; }

  // Calls visit(chunk, first token, end, thread) for all chunks over the pool.
  template <class F>
  void eachChunk(Pool& pool, F&& visitChunk) const {
    pool.parallelFor(groups * chunksPerGroup(), [&](int64_t chunk, int thread) {
      int64_t group = chunk / chunksPerGroup(), at = chunk % chunksPerGroup() * kChunk;
      int64_t begin = group * perGroup() + at,
              end = group * perGroup() + std::min(at + kChunk, perGroup());
      visitChunk(chunk, begin, end, thread);
    });
  }

  // A token's scores; gives their sum before the division of a softmax (1 for its shares).
  template <class T>
  T score(const void* base, Elem elem, int64_t offset, T* row) const {
    const T* x = loadRow(base, elem, offset, scoreStep, experts, row);
    if (isSoftmax) {
      T total = expRow(x, maxRow(x, experts), experts, row);
      for (int64_t e = 0; e < experts; ++e) row[e] /= total;
      return 1;
    }
    T total = 0;
    for (int64_t e = 0; e < experts; ++e) total += row[e] = fastSigmoid(x[e]);
    return total;
  }
};

// The `top` greatest of a row, greatest first, the lower of equals first.
template <class T>
void chooseTop(const T* row, int64_t n, int64_t top, int32_t* chosen) {
  for (int64_t k = 0; k < top; ++k) {
    int64_t best = -1;
    for (int64_t e = 0; e < n; ++e) {
      bool taken = std::find(chosen, chosen + k, int32_t(e)) != chosen + k;
      if (!taken && (best < 0 || row[e] > row[best])) best = e;
    }
    chosen[k] = int32_t(best);
  }
}

// Experts in groups, of which a token chooses from the best alone.
struct Groups {
  int64_t count, kept, size;
  bool byTwo;  // a group is as good as its two best experts together

  Groups(const Op& op, int64_t experts)
      : count(op.attrs.integer("groups", 1)),
        kept(op.attrs.integer("kept", count)),
        size(experts / count),
        byTwo(op.attrs.word("group_score") == "best2") {}

  // Makes the scores of all experts in other groups lower than any.
  template <class T>
  void leaveOut(T* row, T* byGroup, int32_t* chosen) const {
    if (kept == count) return;
    for (int64_t g = 0; g < count; ++g) {
      T first = std::numeric_limits<T>::lowest(), second = first;
      for (const T* s = row + g * size; s != row + (g + 1) * size; ++s) {
        if (*s > first) second = first, first = *s;
        else if (*s > second) second = *s;
      }
      byGroup[g] = byTwo ? first + second : first;
    }
    chooseTop(byGroup, count, kept, chosen);
    for (int64_t g = 0; g < count; ++g) {
      if (std::find(chosen, chosen + kept, int32_t(g)) == chosen + kept)
        std::fill_n(row + g * size, size, std::numeric_limits<T>::lowest());
    }
  }
};

template <class T>
class RouteKernel : public Kernel {
 public:
  RouteKernel(const Op& op, Routing routing, Shared& shared)
      : routing_(std::move(routing)), limits_(op, routing_.experts), shared_(shared) {
    scores_ = op.operand(0)->type.elem;
    gate_ = op.result(1)->type.elem;
    hasBias_ = op.operands().size() > 1;
    if (hasBias_) bias_ = op.operand(1)->type.elem;
    for (unsigned i = 0; i < 2; ++i) {
      const Type& type = op.result(2 + i)->type;
      sums_[i] = {type.elem, strideOf(type, op.attrs.word("over"))};
      steps_[i] = strideOf(op.result(i)->type, routing_.choice);
    }
    size_t sums = size_t(routing_.groups * routing_.chunksPerGroup() * routing_.experts);
    shares_.resize(sums);
    counts_.resize(sums);
    groups_.resize(size_t(routing_.groups));
    shared.pool.reserveScratch(4 * room() * int64_t(sizeof(T)));
    // Where each group's sums are.
    routing_.space.each(0, routing_.tokens, [&](int64_t token, const int64_t* at) {
      groups_[size_t(token / routing_.perGroup())] = {at[kLoad], at[kShare]};
    });
  }

  void run(const RunContext&, Operands in, Results out) override {
    const Routing& r = routing_;
    r.eachChunk(shared_.pool, [&](int64_t chunk, int64_t begin, int64_t end, int thread) {
      T* row = reinterpret_cast<T*>(shared_.pool.scratch(thread));
      double* shares = &shares_[size_t(chunk * r.experts)];
      int64_t* counts = &counts_[size_t(chunk * r.experts)];
      std::fill_n(shares, r.experts, 0.0);
      std::fill_n(counts, r.experts, 0);
      r.space.each(begin, end, [&](int64_t, const int64_t* at) {
        T total = r.score(in[0], scores_, at[kScores], row), sum = 0;
        for (int64_t e = 0; e < r.experts; ++e) shares[e] += double(row[e] / total);
        const int32_t* chosen = choose(row, in);
        for (int64_t k = 0; k < r.top; ++k) sum += row[chosen[k]];
        for (int64_t k = 0; k < r.top; ++k) {
          ++counts[chosen[k]];
          static_cast<int32_t*>(out[0])[at[kChoice] + k * steps_[0]] = chosen[k];
          T gate = row[chosen[k]] / (r.normalise ? sum : T(1)) * T(r.scale);
          storeOne<T>(gate, out[1], gate_, at[kGate] + k * steps_[1]);
        }
      });
    });
    storeSums(out);
  }

 private:
  enum { kScores, kChoice, kGate, kLoad, kShare };  // offsets of the space
  struct Sums {
    Elem elem;
    int64_t step;  // from expert to expert
  };
  struct Group {
    int64_t load, share;
  };

  int64_t room() const { return (routing_.experts + 15) / 16 * 16; }

  // By the scores and the bias. Scratch: the scores, the biased ones, those of groups, choices.
  const int32_t* choose(T* row, Operands in) const {
    T *biased = row + room(), *byGroup = biased + room();
    auto* chosen = reinterpret_cast<int32_t*>(byGroup + room());
    for (int64_t e = 0; e < routing_.experts; ++e)
      biased[e] = row[e] + (hasBias_ ? loadOne<T>(in[1], bias_, e) : T(0));
    limits_.leaveOut(biased, byGroup, chosen);
    chooseTop(biased, routing_.experts, routing_.top, chosen);
    return chosen;
  }

  // Each group's loads and shares.
  void storeSums(Results out) const {
    const Routing& r = routing_;
    for (int64_t g = 0; g < r.groups; ++g) {
      const Group& group = groups_[size_t(g)];
      for (int64_t e = 0; e < r.experts; ++e) {
        double share = 0, load = 0;
        for (int64_t c = 0; c < r.chunksPerGroup(); ++c) {
          size_t at = size_t((g * r.chunksPerGroup() + c) * r.experts + e);
          share += shares_[at];
          load += double(counts_[at]);
        }
        storeOne<double>(load, out[2], sums_[0].elem, group.load + e * sums_[0].step);
        storeOne<double>(share, out[3], sums_[1].elem, group.share + e * sums_[1].step);
      }
    }
  }

  Routing routing_;
  Groups limits_;
  Shared& shared_;
  Elem scores_, gate_, bias_ = Elem::F32;
  bool hasBias_;
  int64_t steps_[2];  // from choice to choice in choice and gate
  Sums sums_[2];      // load, share
  std::vector<Group> groups_;
  std::vector<double> shares_;  // by chunk and expert
  std::vector<int64_t> counts_;
};

// A choice is an index in memory, whatever wrote it.
int64_t expertOf(int32_t choice, int64_t experts) {
  return std::clamp<int64_t>(choice, 0, experts - 1);
}

template <class T>
class RouteGradKernel : public Kernel {
 public:
  RouteGradKernel(const Op& op, Routing routing, Shared& shared)
      : routing_(std::move(routing)), shared_(shared) {
    scores_ = op.operand(0)->type.elem;
    dgate_ = op.operand(2)->type.elem;
    dshare_ = op.operand(3)->type.elem;
    ds_ = op.result()->type.elem;
    for (unsigned i = 0; i < 2; ++i) steps_[i] = strideOf(op.operand(i + 1)->type, routing_.choice);
    shareStep_ = strideOf(op.operand(3)->type, op.attrs.word("over"));
    resultStep_ = strideOf(op.result()->type, op.attrs.word("over"));
    shared.pool.reserveScratch(4 * (routing_.experts + 16) * int64_t(sizeof(T)));
  }

  void run(const RunContext&, Operands in, Results out) override {
    routing_.eachChunk(shared_.pool, [&](int64_t, int64_t begin, int64_t end, int thread) {
      T* scratch = reinterpret_cast<T*>(shared_.pool.scratch(thread));
      routing_.space.each(begin, end,
                          [&](int64_t, const int64_t* at) { token(at, scratch, in, out); });
    });
  }

 private:
  enum { kScores, kChoice, kDgate, kDshare, kResult };  // offsets of the space

  void token(const int64_t* at, T* scratch, Operands in, Results out) const {
    const Routing& r = routing_;
    int64_t room = r.experts + 16;
    T *score = scratch, *dscore = scratch + room, *ds = scratch + 2 * room;
    T* dshareRow = scratch + 3 * room;
    T total = r.score(in[0], scores_, at[kScores], score);
    std::fill_n(dscore, r.experts, T(0));
    auto chosen = [&](int64_t k) {
      return expertOf(static_cast<const int32_t*>(in[1])[at[kChoice] + k * steps_[0]], r.experts);
    };
    T sum = 0, dot = 0;
    for (int64_t k = 0; k < r.top; ++k) sum += score[chosen(k)];
    for (int64_t k = 0; k < r.top; ++k) {
      T dgate = loadOne<T>(in[2], dgate_, at[kDgate] + k * steps_[1]) * T(r.scale);
      dscore[chosen(k)] += r.normalise ? dgate / sum : dgate;
      dot += dgate * score[chosen(k)] / (sum * sum);
    }
    for (int64_t k = 0; r.normalise && k < r.top; ++k) dscore[chosen(k)] -= dot;

    const T* dshare = loadRow(in[3], dshare_, at[kDshare], shareStep_, r.experts, dshareRow);
    T meanScore = 0, meanShare = 0;
    for (int64_t e = 0; e < r.experts; ++e) {
      meanScore += dscore[e] * score[e];
      meanShare += dshare[e] * score[e] / total;
    }
    for (int64_t e = 0; e < r.experts; ++e) {
      T p = score[e], viaShare = dshare[e] - meanShare;
      ds[e] = r.isSoftmax ? p * (dscore[e] - meanScore + viaShare)
                          : p * (T(1) - p) * (dscore[e] + viaShare / total);
    }
    storeRow(ds, out[0], ds_, at[kResult], resultStep_, r.experts);
  }

  Routing routing_;
  Shared& shared_;
  Elem scores_, dgate_, dshare_, ds_;
  int64_t steps_[2];                // from choice to choice in choice and dgate
  int64_t shareStep_, resultStep_;  // from expert to expert
};

}  // namespace

KernelOr prepareRoute(const Op& op, Shared& shared) {
  const Type& scores = op.operand(0)->type;
  Routing routing(op, scores,
                  {&op.result(0)->type, &op.result(1)->type, &op.result(2)->type,
                   &op.result(3)->type});
  return withCompute(op, [&](auto zero) -> KernelOr {
    return std::make_unique<RouteKernel<decltype(zero)>>(op, std::move(routing), shared);
  });
}

KernelOr prepareRouteGrad(const Op& op, Shared& shared) {
  const Type& scores = op.operand(0)->type;
  Routing routing(op, scores,
                  {&op.operand(1)->type, &op.operand(2)->type, &op.operand(3)->type,
                   &op.result()->type});
  return withCompute(op, [&](auto zero) -> KernelOr {
    return std::make_unique<RouteGradKernel<decltype(zero)>>(op, std::move(routing), shared);
  });
}

KernelOr prepareAdmit(const Op& op, Shared& shared) {
  const Type &choice = op.operand(0)->type, &fit = op.result()->type;
  std::string seq = op.attrs.word("seq"), slot = op.attrs.word("choice");
  const Dim& positions = choice.dims[size_t(choice.find(seq))];
  Space sequences(dimsWithout(choice, {seq, slot}), {&choice, &fit});
  // The earlier position comes first, wherever it lies.
  Segments segments = shared.rank.segments(positions);
  llvm::sort(segments, [](const Segment& a, const Segment& b) { return a.first < b.first; });
  int64_t experts = op.attrs.integer("experts"), most = admitted(op), top = choice.size(slot);
  int64_t steps[2][2] = {{strideOf(choice, seq), strideOf(choice, slot)},
                         {strideOf(fit, seq), strideOf(fit, slot)}};
  shared.pool.reserveScratch(experts * int64_t(sizeof(int64_t)));
  Elem elem = fit.elem;
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    shared.pool.parallelFor(sequences.count(), [&](int64_t sequence, int thread) {
      auto* taken = reinterpret_cast<int64_t*>(shared.pool.scratch(thread));
      std::fill_n(taken, experts, 0);
      int64_t at[2];
      sequences.at(sequence, at);
      for (const Segment& segment : segments)
        for (int64_t p = segment.at; p < segment.at + segment.count; ++p)
          for (int64_t k = 0; k < top; ++k) {
            int32_t chosen = static_cast<const int32_t*>(
                in[0])[at[0] + p * steps[0][0] + k * steps[0][1]];
            bool fits = taken[expertOf(chosen, experts)]++ < most;
            storeOne<double>(fits, out[0], elem, at[1] + p * steps[1][0] + k * steps[1][1]);
          }
    });
  });
}

KernelOr preparePack(const Op& op, Shared&) {
  const Type &choice = op.operand(0)->type, &row = op.result(0)->type;
  bool isLimited = op.operands().size() > 1;
  const Type& fit = op.operand(isLimited ? 1 : 0)->type;
  std::string slot = op.attrs.word("choice");
  llvm::SmallVector<Dim, 4> dims = dimsWithout(choice, {slot});
  dims.push_back(choice.dims[size_t(choice.find(slot))]);
  Space entries(dims, {&choice, &fit, &row});
  int64_t experts = op.attrs.integer("experts");
  Elem fitElem = fit.elem;
  return makeKernel([=](const RunContext&, Operands in, Results out) {
    int32_t* offsets = static_cast<int32_t*>(out[1]);
    std::fill_n(offsets, experts + 1, 0);
    // Calls visit(expert, row's place) for what has room, and marks the others, in the order of tokens.
    auto each = [&](auto&& visit) {
      entries.each(0, entries.count(), [&](int64_t, const int64_t* at) {
        int32_t& to = static_cast<int32_t*>(out[0])[at[2]];
        if (isLimited && loadOne<float>(in[1], fitElem, at[1]) == 0) to = -1;
        else visit(expertOf(static_cast<const int32_t*>(in[0])[at[0]], experts), to);
      });
    };
    each([&](int64_t e, int32_t&) { ++offsets[e + 1]; });
    for (int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
    // While rows are handed out offsets[e] is the next row of e; it ends up as the start of e + 1.
    each([&](int64_t e, int32_t& to) { to = offsets[e]++; });
    for (int64_t e = experts; e > 0; --e) offsets[e] = offsets[e - 1];
    offsets[0] = 0;
  });
}

}  // namespace planc::cpu
