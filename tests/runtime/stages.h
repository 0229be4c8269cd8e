// Programs of several stages written by hand, for tests of the runtime alone: a small model whose
// layers lie on stages in one part or in several, whose first and last part share a weight, and which
// drops. The same model for one rank is its measure.
//
//   x = table[tokens] * scale; for each layer: x = dropout(x * w); loss = sum(x * scale)
#pragma once

#include <algorithm>

#include "ir/diagnostics.h"
#include "ir/text.h"
#include "tests/runtime/ranks.h"

namespace planc::test {

struct Stages {
  static constexpr int kLayers = 4;

  std::vector<int> stageOf = {0};  // of each part of the model
  int64_t microbatches = 1;
  bool oneForwardOneBackward = false;  // of one part a stage; else all forwards first
  int64_t data = 1;                    // ranks that do the same

  int parts() const { return int(stageOf.size()); }
  int stages() const { return *std::max_element(stageOf.begin(), stageOf.end()) + 1; }
  int64_t ranks() const { return stages() * data; }
  int64_t flights() const {
    return stages() == 1 ? 1 : oneForwardOneBackward ? stages() : microbatches;
  }
};

// Text of one stage's program.
class StageText {
 public:
  StageText(const Stages& layout, int stage) : layout_(layout), stage_(stage) {}

  std::string text() {
    bool isAlone = layout_.stages() == 1;
    line("module p sharded " + (isAlone ? "" : "at pipe " + std::to_string(stage_) + " ") + "{");
    if (!isAlone)
      line("grid pipe " + std::to_string(layout_.stages()) + ", data " +
           std::to_string(layout_.data));
    line("file \"hand.plan\"");
    line("set microbatches = " + std::to_string(layout_.microbatches));
    line("set seed = 3");
    schedule();
    variables();
    function("begin", [&] {
      if (has(last())) line("zero @loss");
    });
    for (int part = 0; part < layout_.parts(); ++part)
      if (has(part)) {
        forward(part);
        backward(part);
        messages(part);
      }
    function("reduce", [&] { reduce(); });
    function("update", [&] { update(); });
    line("}");
    return out_;
  }

 private:
  static constexpr const char* kX = "f64[batch 2, seq 4, model 8]";

  int last() const { return layout_.parts() - 1; }
  bool has(int part) const { return layout_.stageOf[size_t(part)] == stage_; }
  int each() const { return Stages::kLayers / layout_.parts(); }
  bool isTied() const { return layout_.stageOf.front() != layout_.stageOf.back(); }
  bool crosses(int from, int to) const {
    return layout_.stageOf[size_t(from)] != layout_.stageOf[size_t(to)];
  }
  // With one part there are no numbers.
  std::string part(int part) const {
    return layout_.parts() == 1 ? "" : "." + std::to_string(part);
  }
  std::string piece(const std::string& of, int part) const {
    if (layout_.parts() == 1) return "";
    return " piece @" + of + " from " + std::to_string(part * each()) + " of " +
           std::to_string(Stages::kLayers);
  }
  std::string flights() const {
    return layout_.flights() > 1 ? " flights " + std::to_string(layout_.flights()) : "";
  }
  void line(const std::string& text) { out_ += text + "\n"; }
  template <class F>
  void function(const std::string& name, F&& body) {
    line("func @" + name + " {");
    body();
    line("}");
  }

  void weight(const std::string& name, const std::string& type, const std::string& rest,
              const std::string& of, int number, const std::string& init) {
    auto piece = [&](const std::string& whole) {
      return rest + (of.empty() ? "" : this->piece(whole, number));
    };
    std::string suffix = of.empty() ? "" : part(number), base = of.empty() ? name : of;
    std::string tied = base == "scale" && isTied() && !has(0) ? " tied" : "";
    line("var @" + base + suffix + " : " + type + " weight" + piece(base) + init + tied);
    line("var @grad." + base + suffix + " : " + type + " gradient of @" + base + suffix +
         piece("grad." + base) + tied);
    line("var @" + base + ".m" + suffix + " : " + type + " moment of @" + base + suffix +
         piece(base + ".m") + tied);
    weights_.push_back({base, suffix, type});
  }

  void variables() {
    if (has(0)) {
      std::string m = std::to_string(layout_.microbatches);
      bool isStacked = layout_.microbatches > 1;
      line("var @tokens : i32[" + (isStacked ? "microbatch " + m + ", " : "") +
           "batch 2, seq 4] input" + (isStacked ? " stack [microbatch]" : "") + " vocab 256");
      weight("table", "f64[vocab 256, model 8]", "", "", 0, " init normal(0.5)");
    }
    if (has(0) || has(last())) weight("scale", "f64[model 8]", "", "", 0, " init const(1.0)");
    if (has(last())) {
      line("var @loss : f64[] metric");
      line(std::string("var @y : ") + kX + " slot output" + flights());
    }
    std::string layers = "layer " + std::to_string(each());
    for (int i = 0; i < layout_.parts(); ++i) {
      if (!has(i)) continue;
      weight("", "f64[" + layers + ", model 8]", " stack [layer]", "layer.w", i,
             " init uniform(2.0)");
      line("var @xs" + part(i) + " : f64[" + layers + ", batch 2, seq 4, model 8] slot stack [layer]" +
           piece("xs", i) + flights());
      auto slot = [&](const std::string& name) {
        line("var @" + name + part(i) + " : " + kX + " slot" + flights());
      };
      if (i > 0) slot("x.in"), slot("dx.out");
      if (i < last()) slot("x.out"), slot("dx.in");
    }
  }

  // The next part may lie on the same stage.
  void give(const std::string& value, int from, int to) {
    std::string name = from < to ? "x" : "dx";
    line("write @" + name + (crosses(from, to) ? ".out" + part(from) : ".in" + part(to)) + "(%" +
         value + ")");
  }

  void forward(int i) {
    function("forward" + part(i), [&] {
      if (i == 0) {
        line("%tokens = read @tokens : i32[batch 2, seq 4]");
        line("%table = read @table : f64[vocab 256, model 8]");
        line("%scale = read @scale : f64[model 8]");
        line(std::string("%e = lookup(%table, %tokens) {over = vocab} : ") + kX);
        line(std::string("%x = mul(%e, %scale) : ") + kX);
      } else {
        line("%x = read @x.in" + part(i) + " : " + kX);
      }
      line(repeat("%z", "%x", i, false) + "body(%h : " + kX + ") {");
      line("write @xs" + part(i) + "(%h)");
      line("%w = read @layer.w" + part(i) + " : f64[model 8]");
      line(std::string("%m = mul(%h, %w) : ") + kX);
      line(std::string("%d = dropout(%m) {rate = 0.25, site = 3} : ") + kX);
      line("yield(%d)\n}");
      if (i < last()) return give("z", i, i + 1);
      line("write @y(%z)");
      line("%last = read @scale : f64[model 8]");
      line(std::string("%p = mul(%z, %last) : ") + kX);
      line("%l = sum(%p) : f64[]");
      line("accum @loss(%l) {first = 1}");
    });
  }

  void backward(int i) {
    function("backward" + part(i), [&] {
      if (i == last()) {
        line(std::string("%y = read @y : ") + kX);
        line("sum @grad.scale(%y) {first = 1}");
        line(std::string("%ones = const {value = 1.0} : ") + kX);
        line("%last = read @scale : f64[model 8]");
        line(std::string("%dz = mul(%ones, %last) : ") + kX);
      } else {
        line("%dz = read @dx.in" + part(i) + " : " + kX);
      }
      line(repeat("%dx", "%dz", i, true) + "body(%g : " + kX + ") {");
      line(std::string("%d = dropout(%g) {rate = 0.25, site = 3} : ") + kX);
      line("%h = read @xs" + part(i) + " : " + kX);
      line("%w = read @layer.w" + part(i) + " : f64[model 8]");
      line(std::string("%t = mul(%d, %h) : ") + kX);
      line("sum @grad.layer.w" + part(i) + "(%t) {first = 1}");
      line(std::string("%n = mul(%d, %w) : ") + kX);
      line("yield(%n)\n}");
      if (i > 0) return give("dx", i, i - 1);
      line("%tokens = read @tokens : i32[batch 2, seq 4]");
      line("%table = read @table : f64[vocab 256, model 8]");
      line("%scale = read @scale : f64[model 8]");
      line(std::string("%e = lookup(%table, %tokens) {over = vocab} : ") + kX);
      line(std::string("%u = mul(%dx, %e) : ") + kX);
      line(std::string("sum @grad.scale(%u)") + (isTied() ? " {first = 1}" : ""));
      line(std::string("%de = mul(%dx, %scale) : ") + kX);
      line("lookup_grad @grad.table(%tokens, %de) {first = 1, over = vocab}");
    });
  }

  std::string repeat(const std::string& result, const std::string& start, int i, bool reverse) {
    return result + " = repeat(" + start + ") {count = " + std::to_string(each()) +
           ", dim = layer, first = " + std::to_string(i * each()) +
           (reverse ? ", reverse = 1" : "") + "} : " + kX + " ";
  }

  // What a part sends and receives: between parts i and i + 1, channel 2 i forward, 2 i + 1 back.
  void messages(int i) {
    auto attrs = [&](const std::string& word, int peer, int channel) {
      return " {axes = [pipe], channel = " + std::to_string(channel) + ", " + word + " = " +
             std::to_string(layout_.stageOf[size_t(peer)]) + "}";
    };
    auto both = [&](const std::string& name, int peer, int sends, int receives) {
      if (peer < 0 || peer > last() || !crosses(i, peer)) return;
      std::string other = name == "x" ? "dx" : "x";
      function("send." + name + part(i), [&] {
        line("%v = read @" + name + ".out" + part(i) + " : " + kX);
        line("send(%v)" + attrs("to", peer, sends) + " loc(0:" + std::to_string(10 + i) + ":1)");
      });
      function("receive." + other + part(i), [&] {
        line("%v = receive()" + attrs("from", peer, receives) + " : " + kX + " loc(0:" +
             std::to_string(20 + i) + ":1)");
        line("write @" + other + ".in" + part(i) + "(%v)");
      });
    };
    both("x", i + 1, 2 * i, 2 * i + 1);
    both("dx", i - 1, 2 * (i - 1) + 1, 2 * (i - 1));
  }

  void reduce() {
    if (!isTied() || (!has(0) && !has(last()))) return;
    int a = layout_.stageOf.front(), b = layout_.stageOf.back();
    line("%g = read @grad.scale : f64[model 8]");
    line("%share = stage_share(%g) {axes = [pipe]} : f64[model 8] partial(pipe)");
    line("%sum = all_reduce(%share) {among = [\"" + std::to_string(std::min(a, b)) + "\", \"" +
         std::to_string(std::max(a, b)) + "\"], axes = [pipe]} : f64[model 8]");
    line("write @grad.scale(%sum)");
  }

  void update() {
    line("%lr = const {value = 0.05} : f32[]");
    line("%one = const {value = 1.0} : f32[]");
    for (const auto& [base, suffix, type] : weights_) {
      std::string n = std::to_string(++names_);
      line("%w" + n + " = read @" + base + suffix + " : " + type);
      line("%g" + n + " = read @grad." + base + suffix + " : " + type);
      line("%m" + n + " = read @" + base + ".m" + suffix + " : " + type);
      line("%v" + n + ", %u" + n + " = sgd(%w" + n + ", %g" + n + ", %m" + n +
           ", %lr, %one) {decay = 0.0, momentum = 0.5} : " + type + ", " + type);
      line("write @" + base + suffix + "(%v" + n + ")");
      line("write @" + base + ".m" + suffix + "(%u" + n + ")");
    }
  }

  struct Task {
    bool isForward;
    int part;
    int64_t microbatch;
  };
  // Not all stages go forward in the same order; the first microbatch resets what is added up.
  int64_t forwardAt(int stage, int64_t i) const {
    bool isReversed = !layout_.oneForwardOneBackward && stage % 2 && i > 0;
    return isReversed ? layout_.microbatches - i : i;
  }
  std::vector<Task> tasks() const {
    std::vector<Task> list;
    int64_t m = layout_.microbatches;
    if (layout_.oneForwardOneBackward) {
      int64_t ahead = std::min<int64_t>(layout_.stages() - stage_, m);
      for (int64_t i = 0; i < ahead; ++i) list.push_back({true, stage_, i});
      for (int64_t i = 0; i < m; ++i) {
        list.push_back({false, stage_, i});
        if (i + ahead < m) list.push_back({true, stage_, i + ahead});
      }
      return list;
    }
    if (layout_.parts() == 1) {
      for (int64_t i = 0; i < m; ++i) list.push_back({true, 0, i}), list.push_back({false, 0, i});
      return list;
    }
    for (bool isForward : {true, false})
      for (int k = 0; k <= last(); ++k)
        for (int64_t i = 0; i < m; ++i)
          if (int p = isForward ? k : last() - k; has(p))
            list.push_back({isForward, p, isForward ? forwardAt(stage_, i) : i});
    return list;
  }

  // Receives are started as soon as their memory is free, in the sender's order of microbatches and
  // with the channels in another order on every other stage; sends are waited for when their memory is needed, or at the end.
  void schedule() {
    auto call = [&](const std::string& phase, const std::string& name, int p, int64_t m) {
      line(phase + " @" + name + part(p) + "(" + std::to_string(m) + ")");
    };
    line("call @begin");
    std::vector<std::pair<std::string, int>> receives;
    for (int p = 0; p <= last(); ++p) {
      if (!has(p)) continue;
      if (p > 0 && crosses(p - 1, p)) receives.push_back({"receive.x", p});
      if (p < last() && crosses(p, p + 1)) receives.push_back({"receive.dx", p});
    }
    if (stage_ % 2) std::reverse(receives.begin(), receives.end());
    int64_t flights = layout_.flights(), m = layout_.microbatches;
    for (const auto& [name, p] : receives)
      for (int64_t i = 0; i < std::min(flights, m); ++i)
        call("start", name, p,
             name == "receive.x" ? forwardAt(layout_.stageOf[size_t(p - 1)], i) : i);
    std::vector<std::pair<std::string, std::pair<int, int64_t>>> open;
    for (const Task& task : tasks()) {
      int from = task.isForward ? task.part - 1 : task.part + 1;
      int to = task.isForward ? task.part + 1 : task.part - 1;
      std::string name = task.isForward ? "x" : "dx";
      bool receives = from >= 0 && from <= last() && crosses(from, task.part);
      bool sends = to >= 0 && to <= last() && crosses(task.part, to);
      if (receives) call("wait", "receive." + name, task.part, task.microbatch);
      if (sends && task.microbatch >= flights) {
        call("wait", "send." + name, task.part, task.microbatch - flights);
        llvm::erase_value(open, std::pair{"send." + name,
                                          std::pair{task.part, task.microbatch - flights}});
      }
      call("call", task.isForward ? "forward" : "backward", task.part, task.microbatch);
      if (receives && task.microbatch + flights < m)
        call("start", "receive." + name, task.part, task.microbatch + flights);
      if (sends) {
        call("start", "send." + name, task.part, task.microbatch);
        open.push_back({"send." + name, {task.part, task.microbatch}});
      }
    }
    while (!open.empty()) {
      call("wait", open.back().first, open.back().second.first, open.back().second.second);
      open.pop_back();
    }
    line("call @reduce");
    line("call @update");
  }

  struct Named {
    std::string base, suffix, type;
  };
  const Stages& layout_;
  int stage_, names_ = 0;
  std::vector<Named> weights_;
  std::string out_;
};

// Everything in a place of its own; what is read lies in its variable, and what is received too.
inline void placeStage(Module& module) {
  module.level = Level::Rank;
  auto next = [&](int64_t bytes) {
    Place place{module.arenaBytes, {}};
    module.arenaBytes += (bytes + 63) / 64 * 64;
    return place;
  };
  for (const auto& var : module.vars) var->place = next(var->type.bytes() * var->flights);
  auto slice = [](const Variable& var, const Op& op) {
    Place place = *var.place;
    Type rest = var.type;
    if (var.flights > 1) place.strides.push_back({"microbatch", rest.bytes(), var.flights});
    for (const std::string& dim : var.stack) {
      bool isMicrobatch = var.kind == VarKind::Input;
      if (!isMicrobatch && !llvm::is_contained(op.parent()->enclosing(), dim)) break;
      rest = rest.without(dim);
      place.strides.push_back({dim, rest.bytes()});
    }
    return place;
  };
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      for (Value* result : op->results()) {
        if (op->kind == OpKind::Read) result->place = slice(*op->var, *op);
        else if (op->kind == OpKind::Receive) result->place = slice(*result->uses()[0].op->var, *op);
        else result->place = next(result->type.bytes());
      }
      if (op->kind == OpKind::Repeat)
        for (Value* arg : op->body->args()) arg->place = op->result(arg->index())->place;
    });
}

// The programs of all stages in order; `spoil` changes that of one, while it has no places.
inline Modules stagePrograms(const Stages& layout,
                             const std::function<void(Module&, int stage)>& spoil = {}) {
  std::string text;
  for (int stage = 0; stage < layout.stages(); ++stage) text += StageText(layout, stage).text();
  Diagnostics diags;
  Modules programs = parseModules(diags.addFile("stages.ir", text), diags);
  if (programs.empty()) {
    std::string why;
    llvm::raw_string_ostream out(why);
    diags.print(out);
    ADD_FAILURE() << out.str() << text;
    return programs;
  }
  for (size_t i = 0; i < programs.size(); ++i) {
    if (spoil) spoil(*programs[i], int(i));
    placeStage(*programs[i]);
  }
  return programs;
}

}  // namespace planc::test
