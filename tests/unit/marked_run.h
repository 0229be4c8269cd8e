// A rank program run with nothing but the addresses that its ops read and write: which bytes some later
// op still needs at each moment, whatever the compiler thinks of lives. For tests of what is held when.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "ir/op.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

namespace planc::test {

class MarkedRun {
 public:
  // A moment is an op; a repeat has two, its begin and its end.
  using Moment = std::pair<const Op*, bool>;
  struct Range {
    int64_t begin, end;
    bool operator<(const Range& other) const {
      return std::pair(begin, end) < std::pair(other.begin, other.end);
    }
  };

  explicit MarkedRun(const Module& role) : role_(role) {
    for (const Call& call : role.schedule) run(call);
    mark();
  }

  // Whether a later op needs any of the bytes that lie there at some time of that moment (or wrote
  // them in vain just then), and all bytes for which that is so.
  bool isNeeded(Moment moment, Range range) const {
    auto at = needed_.find(moment);
    if (at == needed_.end()) return false;
    for (size_t piece = indexOf(range.begin); piece < indexOf(range.end); ++piece)
      if (at->second[piece]) return true;
    return false;
  }
  std::vector<Range> needed(Moment moment) const {
    std::vector<Range> ranges;
    auto at = needed_.find(moment);
    for (size_t piece = 0; at != needed_.end() && piece + 1 < ends_.size(); ++piece)
      if (at->second[piece]) ranges.push_back({ends_[piece], ends_[piece + 1]});
    return ranges;
  }
  bool isRun(Moment moment) const { return needed_.count(moment) != 0; }
  size_t events() const { return events_.size(); }

 private:
  struct Access {
    Range range;
    bool isWrite;
  };
  struct Event {
    Moment moment;
    std::vector<Access> accesses;  // reads, then writes
  };

  void run(const Call& call) {
    const Function* function = role_.findFunction(call.function);
    counters_.assign(1, std::max<int64_t>(call.microbatch, 0));
    dims_.assign(1, "microbatch");
    bool isWait = call.phase == Phase::Wait;
    if (call.phase == Phase::Start) {
      for (const Op* op : function->body->ops)
        if (op->has(Comm)) event(*op, false);
      return;
    }
    run(*function->body, isWait);
  }

  void run(const Block& block, bool waits = false) {
    for (const Op* op : block.ops) {
      if (isLast_ && op->isUnlessLast()) continue;
      if (op->kind == OpKind::Repeat) repeat(*op);
      else event(*op, waits && op->has(Comm));
    }
  }

  void repeat(const Op& op) {
    Event begin{{&op, false}, {}};
    for (unsigned i = 0; i < op.operands().size(); ++i)
      copy(begin, *op.operand(i), *op.body->args()[i]);
    events_.push_back(begin);
    int64_t count = op.attrs.integer("count");
    dims_.push_back(op.attrs.word("dim"));
    counters_.push_back(0);
    bool wasLast = isLast_;
    for (int64_t i = 0; i < count; ++i) {
      counters_.back() = op.isFlag("reverse") ? count - 1 - i : i;
      isLast_ = i + 1 == count;
      run(*op.body);
    }
    isLast_ = wasLast;
    counters_.pop_back();
    dims_.pop_back();
    Event end{{&op, true}, {}};
    for (const Value* result : op.results()) end.accesses.push_back({rangeOf(*result), false});
    events_.push_back(end);
  }

  // `again`: what was started is waited for; its buffers have been in use since then.
  void event(const Op& op, bool again) {
    if (op.kind == OpKind::Read) return;
    Event made{{&op, false}, {}};
    auto read = [&](Range range) { made.accesses.push_back({range, false}); };
    auto write = [&](Range range) { made.accesses.push_back({range, true}); };
    switch (op.kind) {
      case OpKind::Yield: {
        const Op& owner = *op.parent()->owner();
        for (unsigned i = 0; i < op.operands().size(); ++i)
          if (!isLast_ || !op.operand(i)->def() || !op.operand(i)->def()->isUnlessLast())
            copy(made, *op.operand(i), *owner.body->args()[i]);
        break;
      }
      case OpKind::Write: {
        Range from = rangeOf(*op.operand(0)), to = sliceOf(*op.var, op.operand(0)->type.bytes());
        read(from);
        if (from.begin != to.begin) write(to);
        break;
      }
      case OpKind::Zero:
        write(sliceOf(*op.var, op.var->type.bytes()));
        break;
      default:
        for (const Value* operand : op.operands()) read(rangeOf(*operand));
        for (const Value* result : op.results()) {
          if (again || op.kind == OpKind::Wait) read(rangeOf(*result));
          write(rangeOf(*result));
        }
        if (op.var != nullptr) {
          Range slice = sliceOf(*op.var, sliceBytes(*op.var));
          read(slice);
          write(slice);
        }
    }
    events_.push_back(std::move(made));
  }

  void copy(Event& event, const Value& from, const Value& to) {
    Range a = rangeOf(from), b = rangeOf(to);
    event.accesses.push_back({a, false});
    if (a.begin != b.begin) event.accesses.push_back({b, true});
  }

  int64_t counter(const std::string& dim) const {
    for (size_t i = dims_.size(); i-- > 0;)
      if (dims_[i] == dim) return counters_[i];
    return 0;
  }
  Range rangeOf(const Value& value) const {
    int64_t at = value.place->offset;
    for (const Stride& stride : value.place->strides) {
      int64_t n = counter(stride.dim);
      at += (stride.ring > 0 ? n % stride.ring : n) * stride.bytes;
    }
    return {at, at + value.type.bytes()};
  }
  int64_t sliceBytes(const Variable& var) const {
    int64_t bytes = var.type.bytes();
    for (const std::string& dim : var.stack)
      if (llvm::is_contained(dims_, dim)) bytes /= var.type.size(dim);
    return bytes;
  }
  // Where the variable's slice of this microbatch and iteration begins.
  Range sliceOf(const Variable& var, int64_t bytes) const {
    int64_t at = var.place->offset, rest = var.type.bytes();
    if (var.flights > 1) at += counter("microbatch") % var.flights * rest;
    for (const std::string& dim : var.stack) {
      if (!llvm::is_contained(dims_, dim)) break;
      rest /= var.type.size(dim);
      at += counter(dim) * rest;
    }
    return {at, at + bytes};
  }

  size_t indexOf(int64_t end) const {
    return size_t(std::lower_bound(ends_.begin(), ends_.end(), end) - ends_.begin());
  }

  // Back from each read to the write that it sees: in between the bytes are needed.
  void mark() {
    std::set<int64_t> ends;
    for (const Event& event : events_)
      for (const Access& access : event.accesses)
        ends.insert({access.range.begin, access.range.end});
    ends_.assign(ends.begin(), ends.end());
    std::vector<int64_t> last(ends_.size(), -1);  // of each piece, the last event that touched it
    for (const Event& event : events_) needed_[event.moment].resize(ends_.size());
    std::vector<std::vector<bool>*> rows;
    for (const Event& event : events_) rows.push_back(&needed_[event.moment]);
    for (size_t now = 0; now < events_.size(); ++now)
      for (const Access& access : events_[now].accesses)
        for (size_t piece = indexOf(access.range.begin); piece < indexOf(access.range.end);
             ++piece) {
          (*rows[now])[piece] = true;
          if (!access.isWrite && last[piece] >= 0)
            for (size_t i = size_t(last[piece]); i < now; ++i) (*rows[i])[piece] = true;
          last[piece] = int64_t(now);
        }
  }

  const Module& role_;
  std::vector<int64_t> counters_;  // the microbatch, then a repeat each
  std::vector<std::string> dims_;  // their names
  bool isLast_ = false;            // in the last iteration of the innermost repeat
  std::vector<Event> events_;
  std::vector<int64_t> ends_;  // of all ranges; between two of them lies a piece
  std::map<Moment, std::vector<bool>> needed_;
};

}  // namespace planc::test
