// The reference's expert ops: routing by its definition (sort the experts of every token, hand out
// rows in order), and moving tokens to and from their packed rows.
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
    int64_t sequence = 0;        // which one it is in
    Array score, share;          // by expert: the score, and its part of the scores' sum
  };
  std::string over;
  bool isSoftmax;
  int64_t experts, top, positions = 1;
  Space space;  // the token dims, in the order of `choice` (or of the scores, for the gradient)
  std::vector<Token> tokens;

  Tokens(const Op& op, const Type& rowType, const Array& scores)
      : over(op.attrs.word("over")),
        isSoftmax(op.attrs.word("score") != "sigmoid"),
        experts(op.operand(0)->type.size(over)),
        top(op.attrs.integer("top")),
        space({&rowType}) {
    const Type& type = op.operand(0)->type;
    std::string seq = op.attrs.word("seq");
    space.drop(choiceDim(rowType, type));
    Steps in = space.steps(type);
    // A sequence is known by the token's index with its position left out.
    Type others = rowType.without(choiceDim(rowType, type));
    if (others.has(seq)) {
      positions = others.size(seq);
      others = others.without(seq);
    }
    Steps inOthers = space.steps(others);
    space.each([&](Index i) {
      Token token;
      token.index = i.vec();
      token.sequence = inOthers.at(i);
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

}  // namespace

Arrays referenceRoute(const Op& op, const Array& scores) {
  const Type &choiceType = op.result(0)->type, &gateType = op.result(1)->type;
  const Type& rowType = op.result(2)->type;
  Tokens routing(op, choiceType, scores);
  std::string slot = Tokens::choiceDim(choiceType, op.operand(0)->type);
  int64_t top = routing.top, experts = routing.experts;
  Array choice = zerosLike(choiceType), gate = zerosLike(gateType), row = zerosLike(rowType);
  Array offsets(size_t(experts) + 1, 0.0);

  std::vector<std::vector<int64_t>> choices;
  for (const auto& token : routing.tokens) {
    std::vector<int64_t> order(size_t(experts), 0);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return token.score[size_t(a)] > token.score[size_t(b)];
    });
    order.resize(size_t(top));
    choices.push_back(order);
  }

  // Which (token, choice) fits: the sequence's tokens in order, each one's choices in order.
  double capacity = op.attrs.number("capacity");
  double most = std::ceil(capacity * double(routing.positions) * double(top) / double(experts));
  std::map<std::pair<int64_t, int64_t>, double> sent;  // by sequence and expert
  std::vector<std::vector<bool>> fits;
  for (size_t t = 0; t < choices.size(); ++t) {
    fits.emplace_back();
    for (int64_t e : choices[t]) {
      double& count = sent[{routing.tokens[t].sequence, e}];
      fits.back().push_back(capacity <= 0 || count < most);
      if (fits.back().back()) count += 1;
    }
  }

  Steps inChoice = routing.space.steps(choiceType), inGate = routing.space.steps(gateType);
  Steps inRow = routing.space.steps(rowType);
  double next = 0;
  for (int64_t e = 0; e < experts; ++e) {
    for (size_t t = 0; t < choices.size(); ++t) {
      const auto& token = routing.tokens[t];
      double total = 0;
      for (int64_t c : choices[t]) total += token.score[size_t(c)];
      for (int64_t k = 0; k < top; ++k) {
        if (choices[t][size_t(k)] != e) continue;
        bool fit = fits[t][size_t(k)];
        double g = token.score[size_t(e)] / (op.isFlag("normalise") ? total : 1);
        choice[size_t(inChoice.at(token.index) + k * stepAlong(choiceType, slot))] = double(e);
        gate[size_t(inGate.at(token.index) + k * stepAlong(gateType, slot))] =
            fit ? g * op.attrs.number("scale", 1) : 0;
        row[size_t(inRow.at(token.index) + k * stepAlong(rowType, slot))] = fit ? next++ : -1;
      }
    }
    offsets[size_t(e) + 1] = next;
  }

  // Dims that these lack are summed: the tokens of a group.
  const Type &loadType = op.result(4)->type, &shareType = op.result(5)->type;
  Array load = zerosLike(loadType), share = zerosLike(shareType);
  Steps inLoad = routing.space.steps(loadType), inShare = routing.space.steps(shareType);
  for (size_t t = 0; t < choices.size(); ++t) {
    const auto& token = routing.tokens[t];
    for (int64_t e : choices[t]) {
      load[size_t(inLoad.at(token.index) + e * stepAlong(loadType, routing.over))] += 1;
    }
    for (int64_t e = 0; e < experts; ++e) {
      share[size_t(inShare.at(token.index) + e * stepAlong(shareType, routing.over))] +=
          token.share[size_t(e)];
    }
  }
  return {choice, gate, row, offsets, load, share};
}

Array referenceRouteGrad(const Op& op, const Arrays& in) {
  const Array &choice = in[1], &row = in[2], &dgate = in[3];
  const Type &choiceType = op.operand(1)->type, &rowType = op.operand(2)->type;
  const Type &dgateType = op.operand(3)->type, &dshareType = op.operand(4)->type;
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
      int64_t inRow = routing.space.steps(rowType).at(token.index) + k * stepAlong(rowType, slot);
      int64_t inGate =
          routing.space.steps(dgateType).at(token.index) + k * stepAlong(dgateType, slot);
      if (row[size_t(inRow)] < 0) continue;
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
      dshare[e] = in[4][size_t(inDshare + int64_t(e) * stepAlong(dshareType, routing.over))];
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
