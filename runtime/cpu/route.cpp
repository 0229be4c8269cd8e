// Choosing experts, and the gradient of the choice's weights. Scores, shares and choices are found
// a token at a time over the pool; handing out rows and counting capacity is one serial pass, since
// it depends on all earlier tokens. Tokens are walked sequence by sequence, and a group whose shares
// are summed is cut into fixed chunks whose sums are added in order.
// Tested by tests/runtime/kernels_test.cpp.
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/math.h"

namespace planc::cpu {
namespace {

constexpr int64_t kChunk = 64;  // tokens whose shares are added up by one task

struct Routing {
  int64_t experts, top, tokens, positions = 1, groups = 1;
  int64_t scoreStep;   // from expert to expert in the scores
  std::string choice;  // the dim of a token's choices
  bool isSoftmax, normalise;
  double scale;
  int64_t most = 0;  // tokens that a sequence may send to one expert; 0: any number
  // Sequence by sequence, over {scores, order, the tensors that were given}; `order` counts tokens
  // in the order of their rows.
  Space space;

  // `types`: tensors with one element per (token, choice) or more; the first one orders the rows.
  Routing(const Op& op, const Type& scores, llvm::ArrayRef<const Type*> types)
      : experts(scores.size(op.attrs.word("over"))),
        top(op.attrs.integer("top")),
        scoreStep(strideOf(scores, op.attrs.word("over"))),
        isSoftmax(op.attrs.word("score") != "sigmoid"),
        normalise(op.isFlag("normalise")),
        scale(op.attrs.number("scale", 1)) {
    std::string seq = op.attrs.word("seq");
    for (const Dim& dim : types[0]->dims) {
      if (!scores.has(dim.name)) choice = dim.name;
    }
    Type order = types[0]->without(choice);
    tokens = order.elements();
    llvm::SmallVector<Dim, 4> dims = dimsWithout(order, {seq});
    if (int at = order.find(seq); at >= 0) {
      positions = order.dims[size_t(at)].size;
      dims.push_back(order.dims[size_t(at)]);
    }
    llvm::SmallVector<const Type*, 6> walked{&scores, &order};
    walked.append(types.begin(), types.end());
    space = Space(dims, walked);
    if (op.attrs.word("per") == "sequence") groups = tokens / positions;
    double capacity = op.attrs.number("capacity");
    if (capacity > 0)
      most = int64_t(std::ceil(capacity * double(positions * top) / double(experts)));
  }

  int64_t perGroup() const { return tokens / groups; }
  int64_t chunksPerGroup() const { return (perGroup() + kChunk - 1) / kChunk; }

  // Calls visit(token, offsets, chunk) for all tokens, chunk by chunk over the pool.
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

template <class T>
class RouteKernel : public Kernel {
 public:
  RouteKernel(const Op& op, Routing routing, Shared& shared)
      : routing_(std::move(routing)), shared_(shared) {
    scores_ = op.operand(0)->type.elem;
    gate_ = op.result(1)->type.elem;
    for (unsigned i = 0; i < 2; ++i) {
      const Type& type = op.result(4 + i)->type;
      sums_[i] = {type.elem, strideOf(type, op.attrs.word("over"))};
    }
    for (unsigned i = 0; i < 3; ++i) steps_[i] = strideOf(op.result(i)->type, routing_.choice);
    size_t entries = size_t(routing_.tokens * routing_.top);
    chosen_.resize(entries);
    fits_.resize(entries);
    places_.resize(size_t(routing_.tokens));
    sent_.resize(routing_.most > 0 ? size_t(routing_.tokens / routing_.positions * routing_.experts)
                                   : 0);
    parts_.resize(size_t(routing_.groups * routing_.chunksPerGroup() * routing_.experts));
    counts_.resize(size_t(routing_.groups * routing_.experts));
    groups_.resize(size_t(routing_.groups));
    shared.pool.reserveScratch(routing_.experts * int64_t(sizeof(T)));
    // Where each token's choices and rows are, by the order of rows; where each group's sums are.
    routing_.space.each(0, routing_.tokens, [&](int64_t token, const int64_t* at) {
      places_[size_t(at[kOrder])] = {token, at[kChoice], at[kGate], at[kRow]};
      groups_[size_t(token / routing_.perGroup())] = {at[kLoad], at[kShare]};
    });
  }

  void run(const RunContext&, Operands in, Results out) override {
    choose(in, out);
    handOut(out);
    storeSums(out);
  }

 private:
  enum { kScores, kOrder, kChoice, kGate, kRow, kLoad, kShare };  // offsets of the space
  struct Place {
    int64_t token, choice, gate, row;
  };
  struct Sums {
    Elem elem;
    int64_t step;  // from expert to expert
  };
  struct Group {
    int64_t load, share;
  };

  // Choices, gates as if nothing were dropped, and the chunks' sums of shares.
  void choose(Operands in, Results out) {
    const Routing& r = routing_;
    r.eachChunk(shared_.pool, [&](int64_t chunk, int64_t begin, int64_t end, int thread) {
      T* row = reinterpret_cast<T*>(shared_.pool.scratch(thread));
      double* shares = &parts_[size_t(chunk * r.experts)];
      std::fill_n(shares, r.experts, 0.0);
      r.space.each(begin, end, [&](int64_t, const int64_t* at) {
        T total = r.score(in[0], scores_, at[kScores], row), sum = 0;
        for (int64_t e = 0; e < r.experts; ++e) shares[e] += double(row[e] / total);
        int32_t* chosen = &chosen_[size_t(at[kOrder] * r.top)];
        chooseTop(row, r.experts, r.top, chosen);
        for (int64_t k = 0; k < r.top; ++k) sum += row[chosen[k]];
        for (int64_t k = 0; k < r.top; ++k) {
          static_cast<int32_t*>(out[0])[at[kChoice] + k * steps_[0]] = chosen[k];
          T gate = row[chosen[k]] / (r.normalise ? sum : T(1)) * T(r.scale);
          storeOne<T>(gate, out[1], gate_, at[kGate] + k * steps_[1]);
        }
      });
    });
  }

  // Rows in order of expert, then token, then choice; what exceeds the capacity gets none.
  void handOut(Results out) {
    const Routing& r = routing_;
    std::fill(counts_.begin(), counts_.end(), 0);
    std::fill(sent_.begin(), sent_.end(), 0);
    int32_t* offsets = static_cast<int32_t*>(out[3]);
    std::fill_n(offsets, r.experts + 1, 0);
    for (int64_t t = 0; t < r.tokens; ++t) {
      int64_t token = places_[size_t(t)].token;
      int64_t group = token / r.perGroup(), sequence = token / r.positions;
      for (int64_t k = 0; k < r.top; ++k) {
        int32_t e = chosen_[size_t(t * r.top + k)];
        ++counts_[size_t(group * r.experts + e)];
        bool fits = r.most == 0 || sent_[size_t(sequence * r.experts + e)]++ < r.most;
        fits_[size_t(t * r.top + k)] = fits;
        if (fits) ++offsets[e + 1];
      }
    }
    for (int64_t e = 0; e < r.experts; ++e) offsets[e + 1] += offsets[e];
    // While rows are handed out offsets[e] is the next row of e; it ends up as the start of e + 1.
    for (int64_t t = 0; t < r.tokens; ++t) {
      const Place& place = places_[size_t(t)];
      for (int64_t k = 0; k < r.top; ++k) {
        int32_t& next = offsets[chosen_[size_t(t * r.top + k)]];
        bool fits = fits_[size_t(t * r.top + k)];
        static_cast<int32_t*>(out[2])[place.row + k * steps_[2]] = fits ? next++ : -1;
        if (!fits) storeOne<T>(0, out[1], gate_, place.gate + k * steps_[1]);
      }
    }
    for (int64_t e = r.experts; e > 0; --e) offsets[e] = offsets[e - 1];
    offsets[0] = 0;
  }

  // Each group's loads and shares.
  void storeSums(Results out) const {
    const Routing& r = routing_;
    for (int64_t g = 0; g < r.groups; ++g) {
      const Group& group = groups_[size_t(g)];
      for (int64_t e = 0; e < r.experts; ++e) {
        double share = 0;
        for (int64_t c = 0; c < r.chunksPerGroup(); ++c) {
          share += parts_[size_t((g * r.chunksPerGroup() + c) * r.experts + e)];
        }
        double load = double(counts_[size_t(g * r.experts + e)]);
        storeOne<double>(load, out[4], sums_[0].elem, group.load + e * sums_[0].step);
        storeOne<double>(share, out[5], sums_[1].elem, group.share + e * sums_[1].step);
      }
    }
  }

  Routing routing_;
  Shared& shared_;
  Elem scores_, gate_;
  int64_t steps_[3];  // from choice to choice in the results
  Sums sums_[2];      // load, share
  std::vector<int32_t> chosen_, sent_, counts_;
  std::vector<uint8_t> fits_;
  std::vector<Place> places_;
  std::vector<Group> groups_;
  std::vector<double> parts_;
};

template <class T>
class RouteGradKernel : public Kernel {
 public:
  RouteGradKernel(const Op& op, Routing routing, Shared& shared)
      : routing_(std::move(routing)), shared_(shared) {
    scores_ = op.operand(0)->type.elem;
    dgate_ = op.operand(3)->type.elem;
    dshare_ = op.operand(4)->type.elem;
    ds_ = op.result()->type.elem;
    for (unsigned i = 0; i < 3; ++i) steps_[i] = strideOf(op.operand(i + 1)->type, routing_.choice);
    shareStep_ = strideOf(op.operand(4)->type, op.attrs.word("over"));
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
  enum { kScores, kOrder, kChoice, kRow, kDgate, kDshare, kResult };  // offsets of the space

  // A choice is an index in memory, whatever wrote it.
  int64_t expert(int64_t choice) const {
    return std::clamp<int64_t>(choice, 0, routing_.experts - 1);
  }

  void token(const int64_t* at, T* scratch, Operands in, Results out) const {
    const Routing& r = routing_;
    int64_t room = r.experts + 16;
    T *score = scratch, *dscore = scratch + room, *ds = scratch + 2 * room;
    T* dshareRow = scratch + 3 * room;
    T total = r.score(in[0], scores_, at[kScores], score);
    std::fill_n(dscore, r.experts, T(0));
    auto chosen = [&](int64_t k) {
      return expert(static_cast<const int32_t*>(in[1])[at[kChoice] + k * steps_[0]]);
    };
    T sum = 0, dot = 0;
    for (int64_t k = 0; k < r.top; ++k) sum += score[chosen(k)];
    for (int64_t k = 0; k < r.top; ++k) {
      if (static_cast<const int32_t*>(in[2])[at[kRow] + k * steps_[1]] < 0) continue;
      T dgate = loadOne<T>(in[3], dgate_, at[kDgate] + k * steps_[2]) * T(r.scale);
      dscore[chosen(k)] += r.normalise ? dgate / sum : dgate;
      dot += dgate * score[chosen(k)] / (sum * sum);
    }
    for (int64_t k = 0; r.normalise && k < r.top; ++k) dscore[chosen(k)] -= dot;

    const T* dshare = loadRow(in[4], dshare_, at[kDshare], shareStep_, r.experts, dshareRow);
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
  int64_t steps_[3];                // from choice to choice in choice, row and dgate
  int64_t shareStep_, resultStep_;  // from expert to expert
};

}  // namespace

KernelOr prepareRoute(const Op& op, Shared& shared) {
  const Type& scores = op.operand(0)->type;
  Routing routing(op, scores,
                  {&op.result(0)->type, &op.result(1)->type, &op.result(2)->type,
                   &op.result(4)->type, &op.result(5)->type});
  return withCompute(op, [&](auto zero) -> KernelOr {
    return std::make_unique<RouteKernel<decltype(zero)>>(op, std::move(routing), shared);
  });
}

KernelOr prepareRouteGrad(const Op& op, Shared& shared) {
  const Type& scores = op.operand(0)->type;
  Routing routing(op, scores,
                  {&op.operand(1)->type, &op.operand(2)->type, &op.operand(3)->type,
                   &op.operand(4)->type, &op.result()->type});
  return withCompute(op, [&](auto zero) -> KernelOr {
    return std::make_unique<RouteGradKernel<decltype(zero)>>(op, std::move(routing), shared);
  });
}

}  // namespace planc::cpu
