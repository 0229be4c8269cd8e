// Read off the rank programs. Tested by tests/tools/explain.test.
#include "tools/explain/ranks.h"

#include <algorithm>

#include "ir/sharding.h"
#include "ir/traffic.h"
#include "llvm/Support/FormatVariadic.h"
#include "tools/stages.h"

namespace planc {
namespace {

std::string namesOf(llvm::ArrayRef<Axis> axes) {
  std::string text;
  for (const Axis& axis : axes) text += (text.empty() ? "" : ", ") + axis.name;
  return text;
}

template <class F>
void eachOp(const Planx& planx, F&& visit) {
  for (const auto& role : planx.roles)
    for (const auto& function : role->functions)
      walk(*function->body, [&](const Op* op) { visit(*role, *op); });
}

// The pairs of the queries before `position` and the keys that they see: up to their own or all, less
// those before the window.
double pairsBefore(const Op& attend, int64_t position, int64_t tokens) {
  double p = double(position), window = double(attend.attrs.integer("window"));
  double pairs = attend.isFlag("causal") ? p * (p + 1) / 2 : p * double(tokens);
  double beyond = window > 0 ? std::max(0.0, p - window) : 0;
  return pairs - beyond * (beyond + 1) / 2;
}

DividedAttention divided(const Module& role, const Op& attend, const Dim& queries,
                         const Dim& keys) {
  DividedAttention made{queries.name,
                        namesOf(queries.axes),
                        attend.kind == OpKind::AttendBlock ? "ring" : "gather",
                        queries.zigzag > 0,
                        queries.all(),
                        queries.size,
                        keys.size};
  // Ranks that differ on other axes hold the same tokens.
  for (const auto& rank : Coordinates(role.grid, 0).group(queries.axes)) {
    double pairs = 0;
    for (const Segment& segment : Coordinates(role.grid, rank).segments(queries))
      pairs += pairsBefore(attend, segment.first + segment.count, queries.all()) -
               pairsBefore(attend, segment.first, queries.all());
    made.mostPairs = std::max(made.mostPairs, pairs);
    made.meanPairs += pairs / double(ranksOver(queries.axes));
  }
  return made;
}

}  // namespace

std::vector<DividedAttention> dividedAttention(const Planx& planx) {
  std::vector<DividedAttention> list;
  eachOp(planx, [&](const Module& role, const Op& op) {
    if (op.kind != OpKind::Attend && op.kind != OpKind::AttendBlock) return;
    const Type &q = op.operand(0)->type, &k = op.operand(1)->type;
    std::string seq = op.attrs.word("seq");
    const Dim &queries = q.dims[size_t(q.find(seq))], &keys = k.dims[size_t(k.find(seq))];
    std::string heads;  // axes that cut heads here and tokens elsewhere
    for (const Split& split : role.splits)
      if (split.dim == seq && split.how == "heads")
        for (const std::string& axis : split.axes) heads += (heads.empty() ? "" : ", ") + axis;
    if (!queries.isSplit() && heads.empty()) return;
    DividedAttention made = divided(role, op, queries, keys);
    if (!queries.isSplit()) made.method.clear();
    // Queries that are cut further than the keys of a ring have these gathered.
    else if (made.method == "ring" && keys.axes.size() < queries.axes.size())
      made.method += " and gather";
    if (!heads.empty()) {
      made.method += (made.method.empty() ? "heads" : " and heads");
      made.axes += (made.axes.empty() ? "" : ", ") + heads;
    }
    bool isSeen = llvm::any_of(list, [&](const DividedAttention& other) {
      return other.seq == made.seq && other.axes == made.axes && other.method == made.method &&
             other.tokens == made.tokens && other.mostPairs == made.mostPairs;
    });
    if (!isSeen) list.push_back(made);
  });
  return list;
}

std::vector<SentRows> sentRows(const Planx& planx) {
  std::vector<SentRows> list;
  eachOp(planx, [&](const Module&, const Op& op) {
    if (op.kind != OpKind::ExchangeRows || op.isFlag("home")) return;
    const Type &from = op.operand(0)->type, &to = op.result()->type;
    SentRows made{to.dims[0].name, namesOf(groupAxes(op)), to.dims[0].all(),
                  to.dims[0].size, from.dims[1].size,      to.dims[1].size};
    bool isSeen = llvm::any_of(list, [&](const SentRows& other) {
      return other.expert == made.expert && other.axes == made.axes && other.room == made.room &&
             other.packed == made.packed;
    });
    if (!isSeen) list.push_back(made);
  });
  return list;
}

std::string betweenText(const std::vector<DividedAttention>& attention,
                        const std::vector<SentRows>& rows, const std::vector<ExpertRows>& experts) {
  std::string text;
  for (const DividedAttention& a : attention)
    text += llvm::formatv(
                "attention: '{0}' over {1} by {2}{3}: of {4} tokens a rank has {5} queries and "
                "the keys of {6} at once; its pairs are {7:f3} of the mean at most\n",
                a.seq, a.axes, a.method, a.isZigzag ? ", zigzag" : "", a.tokens, a.queries, a.keys,
                a.mostPairs / a.meanPairs)
                .str();
  for (const SentRows& r : rows)
    text += llvm::formatv(
                "experts: {0} of {1} on a rank, over {2}: it packs up to {3} rows and has "
                "room for {4}\n",
                r.own, r.experts, r.axes, r.packed, r.room)
                .str();
  for (const ExpertRows& e : experts)
    text += llvm::formatv(
                "experts: of '{0}' a rank computes {1} rows when all get equal shares, and at most "
                "{2}, which is {3:f2} times as many\n",
                e.expert, shortNumber(e.even), e.most, e.bound())
                .str();
  return text;
}

}  // namespace planc
