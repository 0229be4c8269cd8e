// The reference's ops over positions: rope, and attention by its definition (all scores of one
// query at a time).
// Tested by tests/unit/reference_test.cpp.
#include <algorithm>
#include <cmath>

#include "runtime/reference_loops.h"

namespace planc {

Array referenceRope(const Op& op, const Array& x) {
  const Type &from = op.operand(0)->type, &type = op.result()->type;
  Array out(x.size(), 0.0);
  std::string by = op.attrs.word("by");
  bool half = op.attrs.word("style") != "pairs";
  double theta = op.attrs.number("theta", 10000), turn = op.isFlag("inverse") ? -1 : 1;
  int64_t n = type.size(by), stepFrom = stepAlong(from, by), stepTo = stepAlong(type, by);
  Space rows({&type});
  rows.drop(by);
  int seq = rows.find(op.attrs.word("seq"));
  Steps in = rows.steps(from), to = rows.steps(type);
  rows.each([&](Index index) {
    for (int64_t i = 0; i < n / 2; ++i) {
      int64_t a = half ? i : 2 * i, b = half ? i + n / 2 : 2 * i + 1;
      double angle = double(index[size_t(seq)]) * std::pow(theta, -2.0 * double(i) / double(n));
      double cosine = std::cos(angle), sine = turn * std::sin(angle);
      double xa = x[size_t(in.at(index) + a * stepFrom)];
      double xb = x[size_t(in.at(index) + b * stepFrom)];
      out[size_t(to.at(index) + a * stepTo)] = xa * cosine - xb * sine;
      out[size_t(to.at(index) + b * stepTo)] = xa * sine + xb * cosine;
    }
  });
  return out;
}

namespace {

// What attention has in common forward and backward: where queries, keys and values lie.
struct Attention {
  const Type &q, &k, &v;
  std::string seq, by, head, kv;
  int64_t positions, width, valueWidth, window;
  double scale;
  bool causal;
  Space rows;     // one index per query: q's dims less `by`
  Space value{};  // the dims of v that are summed by nothing: its width
  int seqAt, headAt;
  // By position, of queries and of keys; null: no documents.
  const Array *documents = nullptr, *keyDocuments = nullptr;
  Steps rowInDocuments, rowInKeyDocuments;
  int64_t keyDocumentStep = 0;

  Attention(const Op& op, const Arrays& in)
      : q(op.operand(0)->type),
        k(op.operand(1)->type),
        v(op.operand(2)->type),
        seq(op.attrs.word("seq")),
        by(op.attrs.word("by")),
        head(op.attrs.word("head")),
        kv(op.attrs.word("kv")),
        positions(k.size(seq)),
        width(q.size(by)),
        window(op.attrs.integer("window")),
        scale(op.attrs.number("scale", 1 / std::sqrt(double(q.size(by))))),
        causal(op.isFlag("causal")),
        rows({&q}) {
    rows.drop(by);
    seqAt = rows.find(seq);
    headAt = rows.find(head);
    value = Space({&v});
    value.drop(seq).drop(kv.empty() ? head : kv);
    for (const Dim& dim : q.dims) {
      if (dim.name != by) value.drop(dim.name);
    }
    unsigned first = unsigned(op.info().minOperands);
    if (op.operands().size() <= first) return;
    const Type& keys = op.operand(first + 1)->type;
    documents = &in[first];
    keyDocuments = &in[first + 1];
    rowInDocuments = rows.steps(op.operand(first)->type);
    rowInKeyDocuments = rows.steps(keys);
    keyDocumentStep = stepAlong(keys, seq);
    rowInKeyDocuments.perDim[size_t(seqAt)] = 0;
  }

  // The first element of the keys (or values) that a query's row reads, at position 0.
  int64_t keysOf(const Type& type, Index row) const {
    llvm::SmallVector<int64_t, 8> index(row.begin(), row.end());
    index[size_t(seqAt)] = 0;
    int64_t at = rows.steps(type).at(index);
    if (headAt >= 0 && !kv.empty() && kv != head && type.has(kv)) {
      at += index[size_t(headAt)] / (q.size(head) / type.size(kv)) * stepAlong(type, kv);
    }
    return at;
  }

  bool sees(Index row, int64_t position) const {
    int64_t distance = row[size_t(seqAt)] - position;
    if ((causal && distance < 0) || (window > 0 && distance >= window)) return false;
    return documents == nullptr ||
           (*documents)[size_t(rowInDocuments.at(row))] ==
               (*keyDocuments)[size_t(rowInKeyDocuments.at(row) + position * keyDocumentStep)];
  }

  double score(const Array& queries, const Array& keys, Index row, int64_t position) const {
    int64_t inQ = rows.steps(q).at(row), inK = keysOf(k, row) + position * stepAlong(k, seq);
    double dot = 0;
    for (int64_t d = 0; d < width; ++d) {
      dot += queries[size_t(inQ + d * stepAlong(q, by))] * keys[size_t(inK + d * stepAlong(k, by))];
    }
    return dot * scale;
  }
};

Array zerosLike(const Type& type) { return Array(size_t(type.elements()), 0.0); }

}  // namespace

// attend, and attend_block: there the keys before are one more, whose score is their log-sum-exp and
// whose value is what they gave.
Arrays referenceAttend(const Op& op, const Arrays& in) {
  Attention attention(op, in);
  bool goesOn = op.kind == OpKind::AttendBlock;
  const Type &v = attention.v, &type = op.result(0)->type, &lseType = op.result(1)->type;
  const Type& beforeType = goesOn ? op.operand(3)->type : type;
  const Type& lseBeforeType = goesOn ? op.operand(4)->type : lseType;
  Array a = zerosLike(type), lse = zerosLike(lseType);
  const Space &rows = attention.rows, &value = attention.value;
  Steps rowInA = rows.steps(type), rowInLse = rows.steps(lseType);
  Steps rowBefore = rows.steps(beforeType), rowInLseBefore = rows.steps(lseBeforeType);
  Steps widthInV = value.steps(v), widthInA = value.steps(type);
  Steps widthBefore = value.steps(beforeType);
  rows.each([&](Index row) {
    double before = goesOn ? in[4][size_t(rowInLseBefore.at(row))] : kNoKeys;
    double most = before;
    Array scores(size_t(attention.positions), -INFINITY);
    for (int64_t p = 0; p < attention.positions; ++p) {
      if (attention.sees(row, p)) scores[size_t(p)] = attention.score(in[0], in[1], row, p);
      most = std::max(most, scores[size_t(p)]);
    }
    double total = std::exp(before - most);  // beside any key's score, no keys give 0
    for (double score : scores) total += std::exp(score - most);
    lse[size_t(rowInLse.at(row))] = most + std::log(total);
    if (goesOn)
      value.each([&](Index d) {
        a[size_t(rowInA.at(row) + widthInA.at(d))] =
            std::exp(before - most) / total * in[3][size_t(rowBefore.at(row) + widthBefore.at(d))];
      });
    for (int64_t p = 0; p < attention.positions; ++p) {
      double weight = std::exp(scores[size_t(p)] - most) / total;
      int64_t inV = attention.keysOf(v, row) + p * stepAlong(v, attention.seq);
      value.each([&](Index d) {
        a[size_t(rowInA.at(row) + widthInA.at(d))] += weight * in[2][size_t(inV + widthInV.at(d))];
      });
    }
  });
  return {a, lse};
}

// With p the probabilities and dp = da . v:  ds = p * (dp - sum_keys(p * dp)), and that sum is
// da . a. Then dq = scale * ds k, dk = scale * ds q, dv = p da.
Arrays referenceAttendGrad(const Op& op, const Arrays& in) {
  Attention attention(op, in);
  const Array &queries = in[0], &keys = in[1], &values = in[2], &a = in[3], &lse = in[4];
  const Array& da = in[5];
  const Type &q = attention.q, &k = attention.k, &v = attention.v;
  const Type &aType = op.operand(3)->type, &daType = op.operand(5)->type;
  const Type &dqType = op.result(0)->type, &dkType = op.result(1)->type;
  const Type& dvType = op.result(2)->type;
  Array dq = zerosLike(dqType), dk = zerosLike(dkType), dv = zerosLike(dvType);
  const Space &rows = attention.rows, &value = attention.value;
  const std::string &seq = attention.seq, &by = attention.by;
  Steps rowInLse = rows.steps(op.operand(4)->type);
  Steps widthInA = value.steps(aType), widthInDa = value.steps(daType);
  Steps widthInV = value.steps(v), widthInDv = value.steps(dvType);
  rows.each([&](Index row) {
    int64_t inDa = rows.steps(daType).at(row), inA = rows.steps(aType).at(row);
    int64_t inQ = rows.steps(q).at(row), inDq = rows.steps(dqType).at(row);
    double dot = 0;
    value.each([&](Index d) {
      dot += da[size_t(inDa + widthInDa.at(d))] * a[size_t(inA + widthInA.at(d))];
    });
    for (int64_t p = 0; p < attention.positions; ++p) {
      if (!attention.sees(row, p)) continue;
      double score = attention.score(queries, keys, row, p);
      double weight = std::exp(score - lse[size_t(rowInLse.at(row))]), dp = 0;
      int64_t inV = attention.keysOf(v, row) + p * stepAlong(v, seq);
      int64_t inDv = attention.keysOf(dvType, row) + p * stepAlong(dvType, seq);
      value.each([&](Index d) {
        double y = da[size_t(inDa + widthInDa.at(d))];
        dp += y * values[size_t(inV + widthInV.at(d))];
        dv[size_t(inDv + widthInDv.at(d))] += weight * y;
      });
      double ds = weight * (dp - dot) * attention.scale;
      int64_t inK = attention.keysOf(k, row) + p * stepAlong(k, seq);
      int64_t inDk = attention.keysOf(dkType, row) + p * stepAlong(dkType, seq);
      for (int64_t d = 0; d < attention.width; ++d) {
        dq[size_t(inDq + d * stepAlong(dqType, by))] +=
            ds * keys[size_t(inK + d * stepAlong(k, by))];
        dk[size_t(inDk + d * stepAlong(dkType, by))] +=
            ds * queries[size_t(inQ + d * stepAlong(q, by))];
      }
    }
  });
  return {dq, dk, dv};
}

}  // namespace planc
