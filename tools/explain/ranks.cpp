// Read off the rank programs. Tested by tests/tools/explain.test.
#include "tools/explain/ranks.h"

#include <algorithm>
#include <map>

#include "ir/sharding.h"
#include "ir/traffic.h"
#include "llvm/Support/FormatVariadic.h"
#include "tools/explain/text.h"

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

std::vector<Sent> sentBetweenRanks(const Planx& planx) {
  std::vector<Sent> most;
  int64_t mostBytes = -1;
  for (const auto& role : planx.roles) {
    std::map<std::pair<std::string, std::string>, Sent> sums;
    int64_t all = 0;
    for (const Transfer& transfer : trafficOf(*role).transfers) {
      std::string axes = namesOf(transfer.axes), op = transfer.op->info().text.str();
      Sent& sum = sums.try_emplace({axes, op}, Sent{axes, op}).first->second;
      int64_t bytes = saturatingMul(transfer.times, transfer.bytes);
      sum.times = saturatingAdd(sum.times, transfer.times);
      sum.bytes = saturatingAdd(sum.bytes, bytes);
      all = saturatingAdd(all, bytes);
    }
    if (all <= mostBytes) continue;
    mostBytes = all;
    most.clear();
    for (auto& [key, sum] : sums)
      if (sum.bytes > 0) most.push_back(sum);
  }
  std::stable_sort(most.begin(), most.end(),
                   [](const Sent& a, const Sent& b) { return a.bytes > b.bytes; });
  return most;
}

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

std::string explainRanksText(const Planx& planx) {
  std::string text;
  for (const DividedAttention& a : dividedAttention(planx))
    text += llvm::formatv(
                "attention: '{0}' over {1} by {2}{3}: of {4} tokens a rank has {5} queries and "
                "the keys of {6} at once; its pairs are {7:f3} of the mean at most\n",
                a.seq, a.axes, a.method, a.isZigzag ? ", zigzag" : "", a.tokens, a.queries, a.keys,
                a.mostPairs / a.meanPairs)
                .str();
  for (const SentRows& rows : sentRows(planx))
    text += llvm::formatv(
                "experts: {0} of {1} on a rank, over {2}: it packs up to {3} rows and has "
                "room for {4}\n",
                rows.own, rows.experts, rows.axes, rows.packed, rows.room)
                .str();
  std::vector<Sent> sent = sentBetweenRanks(planx);
  if (sent.empty()) return text;
  text += planx.roles.size() > 1 ? "sent by a rank in a step, of the stage that sends the most\n"
                                 : "sent by a rank in a step\n";
  std::vector<std::vector<std::string>> rows{{"times", "bytes", "op", "along"}};
  for (const Sent& s : sent)
    rows.push_back({std::to_string(s.times), std::to_string(s.bytes), s.op, s.axes});
  return text + columns(rows);
}

void explainRanksJson(const Planx& planx, llvm::json::Object& into) {
  namespace json = llvm::json;
  json::Array attention, experts, sent;
  for (const DividedAttention& a : dividedAttention(planx))
    attention.push_back(json::Object{{"dim", a.seq},
                                     {"axes", a.axes},
                                     {"method", a.method},
                                     {"zigzag", a.isZigzag},
                                     {"tokens", a.tokens},
                                     {"queries", a.queries},
                                     {"keys", a.keys},
                                     {"pairs_most", a.mostPairs},
                                     {"pairs_mean", a.meanPairs}});
  for (const SentRows& rows : sentRows(planx))
    experts.push_back(json::Object{{"dim", rows.expert},
                                   {"axes", rows.axes},
                                   {"experts", rows.experts},
                                   {"own", rows.own},
                                   {"rows_packed", rows.packed},
                                   {"rows_room", rows.room}});
  for (const Sent& s : sentBetweenRanks(planx))
    sent.push_back(
        json::Object{{"axes", s.axes}, {"op", s.op}, {"times", s.times}, {"bytes", s.bytes}});
  into["attention"] = std::move(attention);
  into["experts"] = std::move(experts);
  into["sent"] = std::move(sent);
}

}  // namespace planc
