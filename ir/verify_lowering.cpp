// Types say where each element lies, not what attention does with it: a window that one way of cutting
// tokens forgets is no fault of types or messages. Tested by tests/unit/lowering_test.cpp.
#include "ir/verify_lowering.h"

#include <array>
#include <map>

#include "ir/broken.h"
#include "ir/roles.h"
#include "ir/sharding.h"
#include "ir/text.h"
#include "llvm/ADT/DenseMap.h"

namespace planc {
namespace {

using llvm::Error;
using llvm::Twine;

constexpr std::array<const char*, 8> kKeys{"seq",    "by",     "head",      "kv",
                                           "causal", "window", "documents", "scale"};
using Asked = std::array<std::string, kKeys.size()>;  // the value of each, as text

Asked askedOf(const Op& op) {
  bool hasDocuments = int(op.operands().size()) > op.info().minOperands;
  return {op.attrs.word("seq"),
          op.attrs.word("by"),
          op.attrs.word("head"),
          op.attrs.word("kv"),
          std::to_string(op.attrs.integer("causal")),
          std::to_string(op.attrs.integer("window")),
          std::to_string(int(hasDocuments)),
          numberText(op.attrs.number("scale"))};
}

std::string placeOf(const Op& op) {
  const Words& files = op.parent()->module().files;
  std::string file = op.loc.known() && op.loc.file < files.size() ? files[op.loc.file] : "?";
  return file + ":" + std::to_string(op.loc.line) + ":" + std::to_string(op.loc.column);
}

// How often an op runs for one microbatch. A ring's loop goes over blocks of one attention.
int64_t timesOf(const Op& op, bool isInRing) {
  int64_t times = 1;
  for (const Block* block = op.parent(); block->owner(); block = block->owner()->parent()) {
    if (!isInRing) times = saturatingMul(times, block->owner()->attrs.integer("count"));
    isInRing = false;
  }
  return times;
}

// Attention of the model, by place and by what it asks.
using Model = std::map<std::string, std::map<Asked, int64_t>>;

Model attentionOf(const Module& model) {
  Model made;
  for (const auto& function : model.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->kind != OpKind::Attend) return;
      int64_t& times = made[placeOf(*op)][askedOf(*op)];
      times = saturatingAdd(times, timesOf(*op, false));
    });
  return made;
}

Error named(const Op& op, const Twine& what) {
  return broken("'" + op.info().text + "' at " + placeOf(op) + ": " + what);
}

// How many values differ, and which: "its window is 0, the model's is 5".
std::pair<size_t, std::string> difference(const Asked& mine, const Asked& other,
                                          const std::string& whose) {
  std::pair<size_t, std::string> made{0, ""};
  for (size_t i = 0; i < kKeys.size(); ++i)
    if (mine[i] != other[i])
      made.second += (made.first++ ? "; its " : "its ") + std::string(kKeys[i]) + " is " + mine[i] +
                     ", " + whose + " is " + other[i];
  return made;
}

// What differs from the model's attention that is most alike.
Error differs(const Op& op, const std::map<Asked, int64_t>& model) {
  std::pair<size_t, std::string> least{kKeys.size() + 1, ""};
  for (const auto& [asked, times] : model) {
    auto found = difference(askedOf(op), asked, "the model's");
    if (found.first < least.first) least = found;
    else if (found.first == least.first) least.second += "; or " + found.second;
  }
  return named(op, least.second);
}

// The log-sum-exp of all keys, which tells one attention of a function from others: its gradients, of
// whatever blocks, go by it, and so does what a backward pass computes again.
const Value* logSumExpOf(const Op& op) {
  if (op.kind == OpKind::AttendGrad) return op.operand(4);
  const Value* made = op.result(1);
  if (op.kind == OpKind::Attend || !op.parent()->owner()) return made;
  for (const Use& use : made->uses())
    if (use.op->kind == OpKind::Yield) return op.parent()->owner()->result(use.index);
  return made;
}

// All parts of one attention are alike; `seen`: the first of each in a function.
Error checkParts(const Op& op, llvm::DenseMap<const Value*, const Op*>& seen) {
  const Op* first = seen.try_emplace(logSumExpOf(op), &op).first->second;
  auto found = difference(askedOf(op), askedOf(*first), "another part's");
  return found.first == 0 ? Error::success() : named(op, found.second);
}

// One kind of attention in one kind of function (`backward`, of all chunks): the programs' functions do a
// layer's at most once.
struct Part {
  std::string function;
  OpKind kind;
  std::string place;
  Asked asked;
  auto operator<=>(const Part&) const = default;
};

Error checkColumn(const Model& model, llvm::ArrayRef<const Module*> programs) {
  std::map<Part, int64_t> done;
  for (const Module* program : programs)
    for (const auto& function : program->functions) {
      std::vector<const Op*> ops;
      walk(*function->body, [&](const Op* op) {
        if (isAttention(*op)) ops.push_back(op);
      });
      llvm::DenseMap<const Value*, const Op*> parts;
      for (const Op* op : ops) {
        auto there = model.find(placeOf(*op));
        if (there == model.end()) return named(*op, "the model has no attention there");
        Asked asked = askedOf(*op);
        auto same = there->second.find(asked);
        if (same == there->second.end()) return differs(*op, there->second);
        if (Error error = checkParts(*op, parts)) return error;
        // A backward pass counts by the rank's own block.
        const Type& keys = op->operand(1)->type;
        int at = keys.find(asked[0]);
        bool isMoved = at >= 0 && keys.dims[size_t(at)].isMoved();
        if (isMoved && op->kind == OpKind::AttendGrad) continue;
        std::string kind = llvm::StringRef(function->name).split('.').first.str();
        int64_t& times = done[{kind, op->kind, placeOf(*op), asked}];
        times = saturatingAdd(times, timesOf(*op, op->kind == OpKind::AttendBlock));
        if (times <= same->second) continue;
        std::string all;
        for (size_t i = 0; i < kKeys.size(); ++i)
          all += (i ? ", " : "") + std::string(kKeys[i]) + " " + asked[i];
        return named(*op, "'" + function->name + "' does it " + Twine(times) +
                              " times a microbatch with " + all + "; the model " +
                              Twine(same->second) + " times");
      }
    }
  return Error::success();
}

}  // namespace

Error verifyLowering(const Planx& planx) {
  Model model = attentionOf(*planx.model);
  for (const auto& programs : columns(planx, planx.roles.front()->pipeline.axis))
    if (Error error = checkColumn(model, programs)) return error;
  return Error::success();
}

}  // namespace planc
