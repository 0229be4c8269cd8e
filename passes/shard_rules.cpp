// Which axes the names of an op get: the plan's strict splits in the plan's order, then the weak ones;
// an axis that one name of the op has is not handed out again. Names that the plan does not mention
// but that stand for the same elements as one that it does follow that one.
#include <cmath>
#include <numeric>

#include "llvm/ADT/STLExtras.h"
#include "passes/shard.h"

namespace planc {

SplitRules::SplitRules(Module& module) {
  findRouted(module);
  followHeads(module);
  for (bool weak : {false, true}) addRules(module, weak);
  followTokens(module);
}

void SplitRules::findRouted(const Module& module) {
  for (const auto& function : module.functions)
    walk(*function->body, [&](const Op* op) {
      bool isTable = op->kind == OpKind::Lookup || op->kind == OpKind::LookupGrad ||
                     op->kind == OpKind::CrossEntropy || op->kind == OpKind::CrossEntropyGrad;
      if (isTable) vocabularies_.insert(op->attrs.word("over"));
      if (op->kind != OpKind::Dispatch) return;
      experts_.insert(op->result()->type.grouping());
      for (const Dim& dim : op->operand(1)->type.dims) tokens_.insert(dim.name);
    });
}

// A weak split whose axes no other dim wants is as good as a strict one.
static bool isContested(const Module& module, const Split& split) {
  return llvm::any_of(module.splits, [&](const Split& other) {
    return other.dim != split.dim && llvm::any_of(split.axes, [&](const std::string& axis) {
             return llvm::any_of(other.axes, [&](const std::string& its) {
               for (const Axis& part : module.grid.find(axis))
                 if (hasAxis(module.grid.find(its), part.name)) return true;
               return false;
             });
           });
  });
}

// Each axis of a weak split is a rule of its own: one may be wanted where another is not.
static std::vector<Split> eachAlone(const std::vector<Split>& splits) {
  std::vector<Split> alone;
  for (const Split& split : splits) {
    alone.push_back(split);
    if (!split.isWeak()) continue;
    alone.pop_back();
    for (const std::string& axis : split.axes) {
      alone.push_back(split);
      alone.back().axes = {axis};
    }
  }
  return alone;
}

void SplitRules::addRules(Module& module, bool weak) {
  std::vector<Rule> behind;
  for (const Split& split : eachAlone(module.splits)) {
    if ((split.isWeak() && isContested(module, split)) != weak) continue;
    Rule rule{split.dim, {}, weak, split.loc};
    rule.room = split.room;
    for (const std::string& axis : split.axes)
      for (const Axis& part : module.grid.find(axis))
        if (part.size > 1) rule.axes.push_back(part);
    if (rule.axes.empty()) continue;
    if (split.how == "heads") rule.where = Rule::OutsideAttention;
    rules_.push_back(rule);
    if (split.how == "ring") splitAttention(module, split, rule.axes, rules_);
    if (split.how == "heads") splitAttention(module, split, rule.axes, behind);
  }
  rules_.insert(rules_.end(), behind.begin(), behind.end());
}

// Attention over a dim that is split by ring holds its keys in pieces too, which travel; one by heads
// has its heads cut over these axes, behind their own.
void SplitRules::splitAttention(Module& module, const Split& split, const Axes& axes,
                                std::vector<Rule>& into) {
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      if (keysName(*op).empty() || op->attrs.word("seq") != split.dim) return;
      bool isRing = split.how == "ring";
      if (isRing) op->attrs.set("ring", int64_t{1});
      for (llvm::StringRef key : {"head", "kv"}) {
        std::string dim = isRing ? keysName(*op) : op->attrs.word(key);
        bool isThere = llvm::any_of(into, [&](const Rule& rule) {
          return rule.dim == dim && rule.axes == axes && rule.where == Rule::InAttention;
        });
        if (dim.empty() || isThere) continue;
        into.push_back({dim, axes, false, split.loc, Rule::InAttention});
      }
    });
}

// kv heads that no split names are held by the ranks that hold their heads: over as many of the heads'
// axes as divide them, the outermost first, and over a part of the next.
void SplitRules::followHeads(Module& module) {
  struct Pair {
    std::string kv, head;
    int64_t count;  // of kv heads
  };
  std::vector<Pair> pairs;
  for (const auto& function : module.functions)
    walk(*function->body, [&](const Op* op) {
      std::string kv = op->attrs.word("kv"), head = op->attrs.word("head");
      auto isKv = [&](const auto& named) { return named == kv; };
      if (op->kind != OpKind::Attend || kv.empty() || kv == head ||
          llvm::any_of(module.splits, [&](const Split& s) { return isKv(s.dim); }) ||
          llvm::any_of(pairs, [&](const Pair& p) { return isKv(p.kv); }))
        return;
      pairs.push_back({kv, head, op->operand(1)->type.size(kv)});
    });
  auto splitOf = [&](llvm::StringRef dim) {
    return llvm::find_if(module.splits,
                         [&](const Split& s) { return s.dim == dim && !s.isWeak(); });
  };
  std::map<std::string, std::set<int64_t>> cuts;
  for (const Pair& pair : pairs) {
    auto split = splitOf(pair.head);
    if (split == module.splits.end()) continue;
    int64_t left = pair.count;
    for (const std::string& axis : split->axes) {
      int64_t size = ranksOver(module.grid.find(axis)), outer = std::gcd(left, size);
      // A part of the plan's axis is not cut further: the plan's name would lose its parts.
      bool isPart = llvm::any_of(
          module.grid.axes, [&](const GridAxis& a) { return a.name == axis && !a.of.empty(); });
      if (outer != size && outer != 1 && !isPart) cuts[axis].insert(outer);
      if (outer != size) break;
      left /= outer;
    }
  }
  for (const auto& [axis, at] : cuts) module.grid.cut(axis, at);
  for (const Pair& pair : pairs) {
    auto split = splitOf(pair.head);
    if (split == module.splits.end()) continue;
    Split follows{.dim = pair.kv, .axes = {}, .loc = split->loc};
    int64_t left = pair.count;
    for (const std::string& axis : split->axes)
      for (const Axis& part : module.grid.find(axis)) {
        if (left == 0 || left % part.size != 0) {
          left = 0;
          continue;
        }
        left /= part.size;
        follows.axes.push_back(part.name);
      }
    if (!follows.axes.empty()) module.splits.insert(split + 1, std::move(follows));
  }
}

// Packed rows are split as the tokens that they are made of.
void SplitRules::followTokens(const Module& module) {
  for (const auto& function : module.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->kind != OpKind::Dispatch) return;
      const Dim* rows =
          llvm::find_if(op->result()->type.dims, [](const Dim& d) { return d.isRagged(); });
      if (rows == op->result()->type.dims.end() ||
          llvm::any_of(rules_, [&](const Rule& rule) { return rule.dim == rows->name; }))
        return;
      Rule follows{rows->name, {}, false, {}};
      size_t last = 0;
      const Type& tokens = op->operand(1)->type;
      Assignment assignment = handOut(tokens.dims, nullptr, true, {});
      for (const Dim& dim : tokens.dims) {
        llvm::ArrayRef<Axis> axes = assignment.of(dim.name);
        follows.axes.append(axes.begin(), axes.end());
        for (size_t i = 0; i < rules_.size(); ++i)
          if (rules_[i].dim == dim.name && !rules_[i].weak) last = std::max(last, i);
      }
      // Axes that tokens are not split over come first: where rows are packed, experts are cut over
      // these alone, and every other piece of the experts is a part of such a one.
      for (Rule& rule : rules_)
        if (rule.dim == rows->over || rule.dim == keysName(rows->over))  // as attention's keys, too
          std::stable_partition(rule.axes.begin(), rule.axes.end(), [&](const Axis& axis) {
            return !hasAxis(follows.axes, axis.name);
          });
      if (!follows.axes.empty()) rules_.insert(rules_.begin() + long(last) + 1, follows);
    });
}

// The rules in the order in which they are asked: the plan's, but for experts. Which row a token has is
// each rank's own affair, so where rows are packed, they and their tokens come first; elsewhere the
// experts do, and rows get what they leave. Where experts have no rows, tokens come first (a router's
// scores), then the experts (their weights).
std::vector<const SplitRules::Rule*> SplitRules::orderFor(llvm::ArrayRef<Dim> dims,
                                                          const Op* op) const {
  bool hasRows = llvm::any_of(dims, [](const Dim& dim) { return dim.isRagged(); });
  bool hasExperts = llvm::any_of(dims, [&](const Dim& dim) { return experts_.contains(dim.name); });
  auto isOfRows = [&](const Rule& rule) {
    if (!hasRows) return hasExperts && tokens_.contains(rule.dim);
    return llvm::any_of(dims, [&](const Dim& dim) {
      return dim.isRagged() && (dim.name == rule.dim ||
                                (op && op->has(Packs) && mayShareAxes(*op, dim.name, rule.dim)));
    });
  };
  bool expertsFirst = hasRows && !(op && op->has(Packs));
  auto rank = [&](const Rule& rule) {
    if (experts_.contains(rule.dim)) return expertsFirst ? 0 : hasExperts ? 2 : 3;
    return isOfRows(rule) ? 1 : 3;
  };
  std::vector<const Rule*> order;
  for (const Rule& rule : rules_) order.push_back(&rule);
  llvm::stable_sort(order, [&](const Rule* a, const Rule* b) { return rank(*a) < rank(*b); });
  return order;
}

// Rows that arrive at a rank may be limited to a multiple of its even share.
void SplitRules::limitRooms(Assignment& assignment, llvm::ArrayRef<Dim> dims) const {
  for (const Dim& rows : dims) {
    if (!rows.isRagged()) continue;
    double room = 0;
    Axes packed;  // what rows are cut over where they are packed
    for (const Rule& rule : rules_) {
      if (rule.dim == rows.over) room = rule.room;
      if (rule.dim == rows.name) packed = rule.axes;
    }
    llvm::ArrayRef<Axis> all = assignment.of(rows.over);
    Axes own(all.begin(), all.end());
    llvm::erase_if(own, [&](const Axis& axis) { return hasAxis(packed, axis.name); });
    bool arrive = llvm::any_of(assignment.of(rows.over),
                               [&](const Axis& axis) { return hasAxis(packed, axis.name); });
    if (room <= 0 || !arrive) continue;
    int64_t ranks = saturatingMul(ranksOver(packed), ranksOver(own));
    double even = double(rows.all()) / double(ranks);
    assignment.room.push_back({rows.name, int64_t(std::ceil(room * even))});
  }
}

Assignment SplitRules::handOut(llvm::ArrayRef<Dim> dims, const Op* op, bool strictOnly,
                               llvm::ArrayRef<Axis> summed) const {
  Assignment assignment;
  auto isFree = [&](const Axis& axis, llvm::StringRef name, bool weak) {
    if (weak && hasAxis(summed, axis.name)) return false;
    return llvm::none_of(assignment.names, [&](const auto& entry) {
      return hasAxis(entry.second, axis.name) &&
             (entry.first == name || !op || !mayShareAxes(*op, entry.first, name));
    });
  };
  bool isAttention = op && !keysName(*op).empty();
  for (const Rule* next : orderFor(dims, op)) {
    const Rule& rule = *next;
    if (rule.weak && (strictOnly || (op && op->has(Packs)))) continue;
    if (rule.where == Rule::InAttention && !isAttention) continue;
    if (rule.where == Rule::OutsideAttention && isAttention && rule.dim == op->attrs.word("seq"))
      continue;
    auto dim = llvm::find_if(dims, [&](const Dim& d) { return d.name == rule.dim; });
    if (dim == dims.end()) continue;
    // A cross-entropy over a split vocabulary is made of parts.
    bool isMadeOfParts =
        op && op->kind == OpKind::CrossEntropy && rule.dim == op->attrs.word("over");
    if (op && !isMadeOfParts && dimRole(*op, rule.dim) == DimRole::Special) continue;
    Axes axes;
    for (const Axis& axis : rule.axes)
      if (isFree(axis, rule.dim, rule.weak)) axes.push_back(axis);
    // A weak split takes all of its axes or none: with a part, the rest would be gathered apart.
    if (axes.empty() || (rule.weak && axes.size() < rule.axes.size())) continue;
    int64_t ranks = saturatingMul(ranksOver(axes), ranksOver(assignment.of(rule.dim)));
    if (dim->all() % ranks != 0 && !isVocabulary(rule.dim)) continue;
    assignment.add(rule.dim, axes);
  }
  // Names that share axes are cut alike: the kv heads of a piece of the heads are its own only when
  // their axes lead the heads'.
  if (isAttention)
    for (auto& [name, axes] : assignment.names)
      if (name == op->attrs.word("kv") && name != op->attrs.word("head")) {
        llvm::ArrayRef<Axis> head = assignment.of(op->attrs.word("head"));
        size_t shared = 0;
        while (shared < axes.size() && shared < head.size() && axes[shared] == head[shared])
          ++shared;
        axes.resize(shared);
      }
  if (!(op && op->has(Packs))) limitRooms(assignment, dims);
  return assignment;
}

Assignment SplitRules::assign(const Op& op, llvm::ArrayRef<Axis> summed) const {
  return handOut(dimsOf(op), &op, false, summed);
}

Assignment SplitRules::assign(const Type& type, bool strictOnly) const {
  return handOut(type.dims, nullptr, strictOnly, {});
}

}  // namespace planc
