// The reference's expert ops: routing by its definition (sort the experts of every token, hand out room
// and rows in order), and moving tokens to and from their packed rows. All experts are here.
// Tested by tests/unit/reference_test.cpp.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/reference_loops.h"

namespace planc {
namespace {

Array zerosLike(const Type& type) { return Array(size_t(type.elements()), 0.0); }

// The tokens of a routing in their order, each with its experts' scores.
struct Tokens {
  struct Token {
    std::vector<int64_t> index;  // in `space`
    Array score, share;          // by expert: the score, and its part of the scores' sum
  };
  std::string over;
  bool isSoftmax;
  int64_t experts, top;
  Space space;  // the token dims, in the order of `choice` (or of the scores, for the gradient)
  std::vector<Token> tokens;

  Tokens(const Op& op, const Type& rowType, const Array& scores)
      : over(op.attrs.word("over")),
        isSoftmax(op.attrs.word("score") != "sigmoid"),
        experts(op.operand(0)->type.size(over)),
        top(op.attrs.integer("top")),
        space({&rowType}) {
    const Type& type = op.operand(0)->type;
    space.drop(choiceDim(rowType, type));
    Steps in = space.steps(type);
    space.each([&](Index i) {
      Token token;
      token.index = i.vec();
      double most = -INFINITY, total = 0;
      for (int64_t e = 0; e < experts; ++e) {
        token.score.push_back(scores[size_t(in.at(i) + e * stepAlong(type, over))]);
        most = std::max(most, token.score.back());
      }
      for (double& s : token.score) {
        s = isSoftmax ? std::exp(s - most) : 1 / (1 + std::exp(-s));
        total += s;
      }
      for (double& s : token.score) {
        token.share.push_back(s / total);
        if (isSoftmax) s /= total;
      }
      tokens.push_back(std::move(token));
    });
  }

  static std::string choiceDim(const Type& rowType, const Type& scores) {
    for (const Dim& dim : rowType.dims) {
      if (!scores.has(dim.name)) return dim.name;
    }
    return "";
  }
};

std::vector<int64_t> bestFirst(const Array& scores) {
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return scores[size_t(a)] > scores[size_t(b)]; });
  return order;
}

// The experts that a token may be sent to, the best first: those of the best groups.
std::vector<int64_t> candidates(const Op& op, const Array& scores) {
  int64_t groups = op.attrs.integer("groups", 1), size = int64_t(scores.size()) / groups;
  Array byGroup;
  for (int64_t g = 0; g < groups; ++g) {
    Array own(scores.begin() + g * size, scores.begin() + (g + 1) * size);
    std::sort(own.begin(), own.end(), std::greater<>());
    byGroup.push_back(op.attrs.word("group_score") == "best2" ? own[0] + own[1] : own[0]);
  }
  std::vector<int64_t> kept = bestFirst(byGroup), order = bestFirst(scores);
  kept.resize(size_t(op.attrs.integer("kept", groups)));
  llvm::erase_if(order, [&](int64_t e) { return !llvm::is_contained(kept, e / size); });
  return order;
}

}  // namespace

Arrays referenceRoute(const Op& op, const Arrays& in) {
  const Type &choiceType = op.result(0)->type, &gateType = op.result(1)->type;
  Tokens routing(op, choiceType, in[0]);
  std::string slot = Tokens::choiceDim(choiceType, op.operand(0)->type);
  Array choice = zerosLike(choiceType), gate = zerosLike(gateType);
  const Type &loadType = op.result(2)->type, &shareType = op.result(3)->type;
  Array load = zerosLike(loadType), share = zerosLike(shareType);
  Steps inChoice = routing.space.steps(choiceType), inGate = routing.space.steps(gateType);
  // Dims that these lack are summed: the tokens of a group.
  Steps inLoad = routing.space.steps(loadType), inShare = routing.space.steps(shareType);
  for (const auto& token : routing.tokens) {
    Array biased = token.score;
    if (in.size() > 1)
      for (size_t e = 0; e < biased.size(); ++e) biased[e] += in[1][e];
    std::vector<int64_t> chosen = candidates(op, biased);
    chosen.resize(size_t(routing.top));
    double total = 0;
    for (int64_t e : chosen) total += token.score[size_t(e)];
    for (int64_t k = 0; k < routing.top; ++k) {
      int64_t e = chosen[size_t(k)];
      double g = token.score[size_t(e)] / (op.isFlag("normalise") ? total : 1);
      choice[size_t(inChoice.at(token.index) + k * stepAlong(choiceType, slot))] = double(e);
      gate[size_t(inGate.at(token.index) + k * stepAlong(gateType, slot))] =
          g * op.attrs.number("scale", 1);
      load[size_t(inLoad.at(token.index) + e * stepAlong(loadType, routing.over))] += 1;
    }
    for (int64_t e = 0; e < routing.experts; ++e)
      share[size_t(inShare.at(token.index) + e * stepAlong(shareType, routing.over))] +=
          token.share[size_t(e)];
  }
  return {choice, gate, load, share};
}

Array referenceRouteGrad(const Op& op, const Arrays& in) {
  const Array &choice = in[1], &dgate = in[2];
  const Type& choiceType = op.operand(1)->type;
  const Type &dgateType = op.operand(2)->type, &dshareType = op.operand(3)->type;
  const Type& type = op.result()->type;
  Tokens routing(op, choiceType, in[0]);
  std::string slot = Tokens::choiceDim(choiceType, op.operand(0)->type);
  int64_t top = routing.top, experts = routing.experts;
  Array ds = zerosLike(type);

  std::vector<std::vector<int64_t>> choices;
  for (const auto& token : routing.tokens) {
    int64_t at = routing.space.steps(choiceType).at(token.index);
    choices.emplace_back();
    for (int64_t k = 0; k < top; ++k) {
      choices.back().push_back(int64_t(choice[size_t(at + k * stepAlong(choiceType, slot))]));
    }
  }
  double scale = op.attrs.number("scale", 1);

  for (size_t t = 0; t < choices.size(); ++t) {
    const auto& token = routing.tokens[t];
    // Gradients of the scores (dscore) and of their shares (dshare), by expert.
    Array dscore(size_t(experts), 0.0), dshare(size_t(experts), 0.0);
    double total = 0, dot = 0;
    for (int64_t e : choices[t]) total += token.score[size_t(e)];
    for (int64_t k = 0; k < top; ++k) {
      int64_t inGate =
          routing.space.steps(dgateType).at(token.index) + k * stepAlong(dgateType, slot);
      size_t e = size_t(choices[t][size_t(k)]);
      double dg = dgate[size_t(inGate)] * scale;
      dscore[e] += op.isFlag("normalise") ? dg / total : dg;
      dot += dg * token.score[e] / (total * total);
    }
    if (op.isFlag("normalise")) {
      for (int64_t e : choices[t]) dscore[size_t(e)] -= dot;
    }
    double sum = 0, meanShare = 0, meanScore = 0;
    int64_t inDshare = routing.space.steps(dshareType).at(token.index);
    for (size_t e = 0; e < size_t(experts); ++e) {
      dshare[e] = in[3][size_t(inDshare + int64_t(e) * stepAlong(dshareType, routing.over))];
      sum += token.score[e];
      meanShare += dshare[e] * token.share[e];
      meanScore += dscore[e] * token.score[e];
    }
    int64_t to = routing.space.steps(type).at(token.index);
    for (size_t e = 0; e < size_t(experts); ++e) {
      double p = token.score[e];
      double d = routing.isSoftmax ? p * (dscore[e] - meanScore) + p * (dshare[e] - meanShare)
                                   : p * (1 - p) * (dscore[e] + (dshare[e] - meanShare) / sum);
      ds[size_t(to + int64_t(e) * stepAlong(type, routing.over))] = d;
    }
  }
  return ds;
}

// A sequence is known by the index with its position and its choice left out.
Array referenceAdmit(const Op& op, const Array& choice) {
  const Type &type = op.operand(0)->type, &fitType = op.result()->type;
  std::string seq = op.attrs.word("seq"), slot = op.attrs.word("choice");
  int64_t experts = op.attrs.integer("experts"), positions = type.size(seq), top = type.size(slot);
  double most = std::ceil(op.attrs.number("capacity") * double(positions) * double(top) /
                          double(experts));
  Array fit = zerosLike(fitType);
  Space sequences({&type});
  sequences.drop(seq).drop(slot);
  Steps in = sequences.steps(type), to = sequences.steps(fitType);
  sequences.each([&](Index i) {
    Array taken(size_t(experts), 0.0);
    for (int64_t p = 0; p < positions; ++p)
      for (int64_t k = 0; k < top; ++k) {
        int64_t from = in.at(i) + p * stepAlong(type, seq) + k * stepAlong(type, slot);
        int64_t at = to.at(i) + p * stepAlong(fitType, seq) + k * stepAlong(fitType, slot);
        double& count = taken[size_t(choice[size_t(from)])];
        fit[size_t(at)] = count < most ? 1 : 0;
        count += 1;
      }
  });
  return fit;
}

Arrays referencePack(const Op& op, const Arrays& in) {
  const Type &choiceType = op.operand(0)->type, &rowType = op.result()->type;
  std::string slot = op.attrs.word("choice");
  int64_t experts = op.attrs.integer("experts");
  Array row(size_t(rowType.elements()), -1.0), offsets(size_t(experts) + 1, 0.0);
  Space tokens({&choiceType});
  tokens.drop(slot);
  Steps inChoice = tokens.steps(choiceType), inRow = tokens.steps(rowType);
  double next = 0;
  for (int64_t e = 0; e < experts; ++e) {
    tokens.each([&](Index i) {
      for (int64_t k = 0; k < choiceType.size(slot); ++k) {
        size_t at = size_t(inChoice.at(i) + k * stepAlong(choiceType, slot));
        bool fits = true;
        if (in.size() > 1) {
          const Type& fitType = op.operand(1)->type;
          fits = in[1][size_t(tokens.steps(fitType).at(i) + k * stepAlong(fitType, slot))] != 0;
        }
        if (fits && int64_t(in[0][at]) == e)
          row[size_t(inRow.at(i) + k * stepAlong(rowType, slot))] = next++;
      }
    });
    offsets[size_t(e) + 1] = next;
  }
  return {row, offsets};
}

namespace {

// Visits every element of every token that has a row: visit(index, row). The space must hold the
// dims of `rowType`.
template <class F>
void eachSent(const Space& space, const Type& rowType, const Array& row, F&& visit) {
  Steps inRow = space.steps(rowType);
  space.each([&](Index i) {
    double r = row[size_t(inRow.at(i))];
    if (r >= 0) visit(i, int64_t(r));
  });
}

// Elements between packed rows.
int64_t rowStep(const Type& packed) {
  for (const Dim& dim : packed.dims) {
    if (dim.isRagged()) return stepAlong(packed, dim.name);
  }
  return 0;
}

}  // namespace

Array referenceDispatch(const Op& op, const Arrays& in) {
  const Type &x = op.operand(0)->type, &rowType = op.operand(1)->type, &type = op.result()->type;
  Array out = zerosLike(type);
  Space space({&rowType, &x});
  Steps from = space.steps(x), to = space.steps(type);
  eachSent(space, rowType, in[1], [&](Index i, int64_t row) {
    out[size_t(to.at(i) + row * rowStep(type))] = in[0][size_t(from.at(i))];
  });
  return out;
}

Array referenceDispatchGrad(const Op& op, const Arrays& in) {
  const Type &dt = op.operand(0)->type, &rowType = op.operand(1)->type;
  const Type& type = op.result()->type;
  Array out = zerosLike(type);
  Space space({&rowType, &type});
  Steps from = space.steps(dt), to = space.steps(type);
  eachSent(space, rowType, in[1], [&](Index i, int64_t row) {
    out[size_t(to.at(i))] += in[0][size_t(from.at(i) + row * rowStep(dt))];
  });
  return out;
}

Array referenceCombine(const Op& op, const Arrays& in) {
  const Type &o = op.operand(0)->type, &gate = op.operand(1)->type, &rowType = op.operand(2)->type;
  const Type& type = op.result()->type;
  Array out = zerosLike(type);
  Space space({&rowType, &type});
  Steps inO = space.steps(o), inGate = space.steps(gate), to = space.steps(type);
  eachSent(space, rowType, in[2], [&](Index i, int64_t row) {
    out[size_t(to.at(i))] +=
        in[1][size_t(inGate.at(i))] * in[0][size_t(inO.at(i) + row * rowStep(o))];
  });
  return out;
}

Arrays referenceCombineGrad(const Op& op, const Arrays& in) {
  const Type &dy = op.operand(0)->type, &o = op.operand(1)->type, &gate = op.operand(2)->type;
  const Type &rowType = op.operand(3)->type, &doType = op.result(0)->type;
  const Type& dgateType = op.result(1)->type;
  Array dOut = zerosLike(doType), dgate = zerosLike(dgateType);
  Space space({&rowType, &dy});
  Steps inDy = space.steps(dy), inO = space.steps(o), inGate = space.steps(gate);
  Steps toO = space.steps(doType), toGate = space.steps(dgateType);
  eachSent(space, rowType, in[3], [&](Index i, int64_t row) {
    double d = in[0][size_t(inDy.at(i))];
    dOut[size_t(toO.at(i) + row * rowStep(doType))] = d * in[2][size_t(inGate.at(i))];
    dgate[size_t(toGate.at(i))] += d * in[1][size_t(inO.at(i) + row * rowStep(o))];
  });
  return {dOut, dgate};
}

// On one rank, whose experts are all.
Array referenceRowCounts(const Array& offsets) {
  Array counts;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) counts.push_back(offsets[e + 1] - offsets[e]);
  return counts;
}

Array referenceRowOffsets(const Op& op, const Array& counts) {
  size_t experts = size_t(op.operand(0)->type.dims.back().size);
  Array offsets{0};
  for (size_t e = 0; e < experts; ++e) {
    double rows = 0;
    for (size_t i = e; i < counts.size(); i += experts) rows += counts[i];
    offsets.push_back(offsets.back() + rows);
  }
  return offsets;
}

}  // namespace planc
