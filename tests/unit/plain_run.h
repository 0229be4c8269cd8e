// The oracle of the proof that ranks fit: a plain run of every rank, message by message. No rank stands
// for another, repeats are unrolled, and there is nothing to name what is wrong.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "ir/planx.h"
#include "ir/traffic.h"
#include "llvm/ADT/STLExtras.h"

namespace planc::test {

inline bool fits(const Planx& planx) {
  using Iterations = std::vector<int64_t>;  // the microbatch first
  struct Event {
    bool isStart;
    const Op* op;
    Iterations at;
  };
  struct Rank {
    std::vector<Event> events;
    size_t next = 0;
    std::map<std::pair<const Op*, Iterations>, size_t> number;  // in the group, of what it started
  };
  using Key = std::vector<int64_t>;  // the group's members, and its channel
  auto isTransfer = [](const Op* op) {
    return op->kind == OpKind::Send || op->kind == OpKind::Receive;
  };
  std::map<Key, std::map<int64_t, std::vector<Event>>> started;
  std::vector<Rank> ranks(size_t(planx.grid().ranks()));
  auto members = [&](size_t rank, const Op* op) {
    Key key = membersOf(*op, Coordinates(planx.grid(), int64_t(rank)));
    std::sort(key.begin(), key.end());
    return key;
  };
  auto keyOf = [&](size_t rank, const Op* op) {
    Key key = members(rank, op);
    key.push_back(isTransfer(op) ? op->attrs.integer("channel") : -1);
    return key;
  };
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Module& module = planx.program(int64_t(i));
    Phase phase = Phase::Run;
    std::function<void(const Block&, Iterations)> unroll = [&](const Block& block, Iterations at) {
      bool isLast = block.owner() && at.back() + 1 == block.owner()->attrs.integer("count");
      for (const Op* op : block.ops) {
        if (isLast && op->isUnlessLast()) continue;
        if (op->kind == OpKind::Repeat)
          for (int64_t k = 0; k < op->attrs.integer("count"); ++k) {
            at.push_back(k);
            unroll(*op->body, at);
            at.pop_back();
          }
        if (!op->has(Comm) && op->kind != OpKind::Wait) continue;
        bool isWait = op->kind == OpKind::Wait;
        if (!isWait && phase != Phase::Wait) ranks[i].events.push_back({true, op, at});
        if (phase == Phase::Start) continue;
        if (isWait) ranks[i].events.push_back({false, op->operand(0)->def(), at});
        else if (!op->isFlag("start")) ranks[i].events.push_back({false, op, at});
      }
    };
    for (const Call& call : module.schedule) {
      phase = call.phase;
      unroll(*module.findFunction(call.function)->body, {call.microbatch});
    }
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t i = 0; i < ranks.size(); ++i) {
      Rank& rank = ranks[i];
      while (rank.next < rank.events.size()) {
        const auto& [isStart, op, at] = rank.events[rank.next];
        auto& group = started[keyOf(i, op)];
        size_t& number = rank.number[{op, at}];
        if (isStart) {
          number = group[int64_t(i)].size();
          group[int64_t(i)].push_back(rank.events[rank.next]);
        } else if (llvm::any_of(members(i, op),
                                [&](int64_t member) { return group[member].size() <= number; })) {
          break;
        }
        ++rank.next;
        moved = true;
      }
    }
  }
  for (const Rank& rank : ranks)
    if (rank.next < rank.events.size()) return false;
  for (const auto& [key, group] : started)
    for (const auto& [member, ops] : group)
      for (size_t i = 0; i < ops.size(); ++i) {
        const Event &a = ops[i], &b = group.begin()->second[i];
        auto tensor = [](const Op* op) {
          return op->kind == OpKind::Send ? op->operand(0)->name : op->result()->name;
        };
        if (tensor(a.op) != tensor(b.op) || a.at != b.at ||
            a.op->isUnlessLast() != b.op->isUnlessLast())
          return false;
        bool isOther = member != group.begin()->first;
        if (isTransfer(a.op) != isTransfer(b.op) ||
            (isTransfer(a.op) && isOther && a.op->kind == b.op->kind))
          return false;
      }
  return true;
}

}  // namespace planc::test
