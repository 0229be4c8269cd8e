// Programs of a pipeline's stages, as IR text made by a few rules: for tests of what is proved about
// them. The model multiplies each layer's input by a weight; the first and the last stage share a
// weight, `table`, and all sum up a norm.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "ir/planx.h"
#include "ir/text.h"
#include "llvm/ADT/STLExtras.h"

namespace planc::test {

struct StagesOptions {
  int stages = 4;  // at least 2
  int chunks = 1;  // of each stage
  int microbatches = 6;
  int layers = 2;        // of each chunk
  int collectives = 0;   // along `tensor`, of each layer and direction
  bool isAhead = false;  // a stage starts to receive before it computes what goes before
};

// Of one stage: what a chunk does for a microbatch.
struct StageTask {
  bool isForward;
  int chunk;
  int microbatch;
};

// One forward, one backward; with several chunks a stage interleaved: then the microbatches must be a
// multiple of the stages.
inline std::vector<StageTask> stageTasks(const StagesOptions& o, int stage) {
  int all = o.microbatches * o.chunks, group = o.stages * o.chunks;
  auto task = [&](bool isForward, int k) {
    if (o.chunks == 1) return StageTask{isForward, stage, k};
    int part = k % group / o.stages;
    if (!isForward) part = o.chunks - 1 - part;
    return StageTask{isForward, part * o.stages + stage, k / group * o.stages + k % o.stages};
  };
  int ahead = o.stages - 1 - stage;
  if (o.chunks > 1) ahead = 2 * ahead + (o.chunks - 1) * o.stages;
  ahead = std::min(ahead, all);
  std::vector<StageTask> tasks;
  for (int k = 0; k < ahead; ++k) tasks.push_back(task(true, k));
  for (int k = 0; k < all; ++k) {
    if (ahead + k < all) tasks.push_back(task(true, ahead + k));
    tasks.push_back(task(false, k));
  }
  return tasks;
}

class StageText {
 public:
  StageText(const StagesOptions& o, int stage)
      : o_(o), stage_(stage), last_(o.stages * o.chunks - 1), tasks_(stageTasks(o, stage)) {}

  std::string module() {
    for (int chunk = stage_; chunk <= last_; chunk += o_.stages) this->chunk(chunk);
    ends();
    schedule();
    std::string at = std::to_string(stage_);
    return "module stages sharded at pipe " + at +
           " {\n  file \"stages.plan\"\n  set microbatches = " + std::to_string(o_.microbatches) +
           "\n  grid pipe " + std::to_string(o_.stages) +
           ", data 2, tensor 2\n  pipeline [layer] over pipe by one_f_one_b chunks " +
           std::to_string(o_.chunks) + "\n" + calls_ + vars_ + functions_ + "}\n";
  }

 private:
  static std::string number(int64_t n) { return std::to_string(n); }
  bool isFirst(int chunk) const { return chunk == 0; }
  bool isLast(int chunk) const { return chunk == last_; }
  bool hasTable() const { return stage_ == 0 || stage_ == o_.stages - 1; }

  // A slot, with as many copies as microbatches lie between its first and its last in flight.
  void slot(const std::string& name, int64_t flights) {
    vars_ += "  var @" + name + " : " + kX + " slot";
    vars_ += flights > 1 ? " flights " + number(flights) + "\n" : "\n";
  }
  int64_t inFlight(int chunk) const {
    int64_t most = 1, first = 0, end = 0;
    for (const StageTask& task : tasks_) {
      if (task.chunk != chunk) continue;
      (task.isForward ? end : first) = task.microbatch + 1;
      most = std::max(most, end - first);
    }
    return most;
  }
  void message(const std::string& what, const std::string& slot, int chunk, bool isSend, int peer,
               int channel) {
    std::string attrs = " {axes = [pipe], channel = " + number(channel) + ", " +
                        (isSend ? "to" : "from") + " = " + number(peer) + "}";
    std::string name = what + "." + number(chunk), loc = " loc(0:" + number(10 + channel) + ":3)\n";
    functions_ += isSend ? "  func @send." + name + " {\n    %" + what + " = read @" + slot +
                               " : " + kX + "\n    send(%" + what + ")" + attrs + loc + "  }\n"
                         : "  func @receive." + name + " {\n    %" + what + " = receive" + attrs +
                               " : " + kX + loc + "    write @" + slot + "(%" + what + ")\n  }\n";
  }
  std::string sums(const std::string& value) const {
    std::string text, from = value;
    for (int i = 0; i < o_.collectives; ++i) {
      std::string n = number(i);
      text += "      %p" + n + " = one_copy(%" + from + ") {axes = [tensor]} : " + kX +
              " partial(tensor)\n" + "      %r" + n + " = all_reduce(%p" + n +
              ") {axes = [tensor]} : " + kX + " loc(0:5:" + number(i + 1) + ")\n";
      from = "r" + n;
    }
    return text + "      yield(%" + from + ")\n    }\n";
  }

  void chunk(int chunk) {
    std::string c = "." + number(chunk), layers = number(o_.layers);
    std::string w = "f32[layer " + layers + ", model 4]";
    vars_ += "  var @w" + c + " : " + w + " weight piece @w from " + number(chunk * o_.layers) +
             " of " + number((last_ + 1) * o_.layers) + " stack [layer]\n" + "  var @grad.w" + c +
             " : " + w + " gradient of @w" + c + " stack [layer]\n" + "  var @sum.w" + c + " : " +
             w + " partial(data) sum of @grad.w" + c + " stack [layer]\n";
    slot("saved" + c, inFlight(chunk));
    slot("y" + c, inFlight(chunk));
    int64_t two = std::min(2, o_.microbatches);
    if (!isFirst(chunk)) {
      slot("x.in" + c, two), slot("dx.out" + c, two);
      message("x", "x.in" + c, chunk, false, (chunk - 1) % o_.stages, 2 * chunk);
      message("dx", "dx.out" + c, chunk, true, (chunk - 1) % o_.stages, 2 * chunk + 1);
    }
    if (!isLast(chunk)) {
      slot("x.out" + c, two), slot("dx.in" + c, two);
      message("x", "x.out" + c, chunk, true, (chunk + 1) % o_.stages, 2 * chunk + 2);
      message("dx", "dx.in" + c, chunk, false, (chunk + 1) % o_.stages, 2 * chunk + 3);
    }
    std::string repeat =
        " {count = " + layers + ", dim = layer, first = " + number(chunk * o_.layers);
    functions_ += "  func @forward" + c + " {\n";
    if (isFirst(chunk))
      functions_ += "    %one = const {value = 1.0} : " + kX +
                    "\n    %t = read @table : f32[model 4]\n" + "    %x = mul(%one, %t) : " + kX +
                    "\n";
    else functions_ += "    %x = read @x.in" + c + " : " + kX + "\n";
    functions_ += "    write @saved" + c + "(%x)\n    %y = repeat(%x)" + repeat + "} : " + kX +
                  " body(%z : " + kX + ") {\n      %w = read @w" + c + " : f32[model 4]\n" +
                  "      %u = mul(%z, %w) : " + kX + "\n" + sums("u") + "    write @y" + c +
                  "(%y)\n";
    if (isLast(chunk))
      functions_ += "    %t = read @table : f32[model 4]\n    %v = mul(%y, %t) : " + kX +
                    "\n    %l = sum(%v) : f32[] partial(data)\n    accum @sum.loss(%l)\n";
    else functions_ += "    write @x.out" + c + "(%y)\n";
    functions_ += "  }\n  func @backward" + c + " {\n    %x = read @saved" + c + " : " + kX +
                  "\n    %y = read @y" + c + " : " + kX + "\n";
    if (isLast(chunk))
      functions_ +=
          "    %dt = sum(%y) : f32[model 4] partial(data)\n    accum @sum.table(%dt) {first = "
          "1}\n" +
          ("    %one = const {value = 1.0} : " + kX) + "\n    %t = read @table : f32[model 4]\n" +
          "    %dy = mul(%one, %t) : " + kX + "\n";
    else functions_ += "    %dy = read @dx.in" + c + " : " + kX + "\n";
    functions_ += "    %dx = repeat(%dy)" + repeat + ", reverse = 1} : " + kX + " body(%z : " + kX +
                  ") {\n      %dw = sum(%z) : f32[model 4] partial(data)\n      accum @sum.w" + c +
                  "(%dw) {first = 1} loc(0:7:1)\n      %w = read @w" + c + " : f32[model 4]\n" +
                  "      %u = mul(%z, %w) : " + kX + "\n" + sums("u");
    if (isFirst(chunk))
      functions_ +=
          "    %dt = sum(%dx) : f32[model 4] partial(data)\n    accum @sum.table(%dt) {first = "
          "1}\n";
    else functions_ += "    write @dx.out" + c + "(%dx)\n";
    functions_ += "  }\n";
  }

  // @begin, @reduce, @update and what they use.
  void ends() {
    vars_ +=
        "  var @loss : f32[] metric\n  var @sum.loss : f32[] partial(data) sum of @loss\n"
        "  var @grad_norm : f32[] metric\n";
    functions_ += "  func @begin {\n    zero @sum.loss\n  }\n  func @reduce {\n";
    if (hasTable()) {
      bool isCopy = stage_ != 0;
      vars_ += std::string("  var @table : f32[model 4] weight") + (isCopy ? " tied" : "") +
               "\n  var @grad.table : f32[model 4] gradient of @table\n"
               "  var @sum.table : f32[model 4] partial(data) sum of @grad.table\n";
      functions_ +=
          "    %a = read @sum.table : f32[model 4] partial(data)\n"
          "    %b = all_reduce(%a) {axes = [data]} : f32[model 4] loc(0:8:1)\n";
      functions_ +=
          "    %s = stage_share(%b) {axes = [pipe]} : f32[model 4] partial(pipe)\n"
          "    %table = all_reduce(%s) {axes = [pipe], among = [\"0\", \"" +
          number(o_.stages - 1) + "\"]} : f32[model 4] loc(0:8:2)\n    write @grad.table(%table)\n";
    }
    std::string layers = number(o_.layers), norms, updates;
    for (int chunk = stage_; chunk <= last_; chunk += o_.stages) {
      std::string c = "." + number(chunk), w = "f32[layer " + layers + ", model 4]";
      functions_ += "    %g" + c + " = read @sum.w" + c + " : " + w + " partial(data)\n    %h" + c +
                    " = all_reduce(%g" + c + ") {axes = [data]} : " + w +
                    " loc(0:9:1)\n    write @grad.w" + c + "(%h" + c + ")\n";
      norms += "    %g" + c + " = read @grad.w" + c + " : " + w + "\n    %n" + c +
               " = sum_squares(%g" + c + ") : f32[]\n";
      norms += chunk == stage_ ? "    %m" + c + " = neg(%n" + c + ") : f32[]\n"
                               : "    %m" + c + " = add(%m." + number(chunk - o_.stages) + ", %n" +
                                     c + ") : f32[]\n";
      updates += "    %w" + c + " = read @w" + c + " : " + w + "\n    %v" + c + " = sub(%w" + c +
                 ", %g" + c + ") : " + w + "\n    write @w" + c + "(%v" + c + ")\n";
    }
    if (hasTable())
      updates +=
          "    %t = read @table : f32[model 4]\n    %gt = read @grad.table : f32[model 4]\n"
          "    %nt = sub(%t, %gt) : f32[model 4]\n    write @table(%nt)\n";
    functions_ +=
        "    %loss = read @sum.loss : f32[] partial(data)\n"
        "    %l = all_reduce(%loss) {axes = [data]} : f32[] loc(0:9:2)\n    write @loss(%l)\n"
        "  }\n  func @update {\n" +
        norms + "    %s = stage_share(%m." + number(last_ - o_.stages + 1 + stage_) +
        ") {axes = [pipe]} : f32[] partial(pipe)\n"
        "    %norm = all_reduce(%s) {axes = [pipe]} : f32[] loc(0:9:3)\n"
        "    write @grad_norm(%norm)\n" +
        updates + "  }\n";
  }

  void call(const std::string& phase, const std::string& function, int64_t microbatch) {
    calls_ += "  " + phase + " @" + function;
    calls_ += microbatch < 0 ? "\n" : "(" + number(microbatch) + ")\n";
  }
  void schedule() {
    struct Sent {
      std::string function;
      int microbatch;
    };
    std::vector<Sent> sent;  // not waited for yet
    auto receives = [&](const StageTask& task) {
      return task.isForward ? !isFirst(task.chunk) : !isLast(task.chunk);
    };
    auto start = [&](const StageTask& task) {
      if (receives(task))
        call("start", (task.isForward ? "receive.x." : "receive.dx.") + number(task.chunk),
             task.microbatch);
    };
    call("call", "begin", -1);
    if (o_.isAhead) start(tasks_.front());
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const StageTask& task = tasks_[i];
      if (!o_.isAhead) start(task);
      if (receives(task))
        call("wait", (task.isForward ? "receive.x." : "receive.dx.") + number(task.chunk),
             task.microbatch);
      if (o_.isAhead && i + 1 < tasks_.size()) start(tasks_[i + 1]);
      bool sends = task.isForward ? !isLast(task.chunk) : !isFirst(task.chunk);
      std::string function = (task.isForward ? "send.x." : "send.dx.") + number(task.chunk);
      // Two copies: the one before the last must have gone.
      llvm::erase_if(sent, [&](const Sent& s) {
        if (s.function != function || s.microbatch + 2 > task.microbatch) return false;
        call("wait", function, s.microbatch);
        return true;
      });
      call("call", (task.isForward ? "forward." : "backward.") + number(task.chunk),
           task.microbatch);
      if (!sends) continue;
      call("start", function, task.microbatch);
      sent.push_back({function, task.microbatch});
    }
    for (const Sent& s : sent) call("wait", s.function, s.microbatch);
    call("call", "reduce", -1);
    call("call", "update", -1);
  }

  const std::string kX = "f32[batch 8/data, model 4]";
  const StagesOptions& o_;
  int stage_, last_;
  std::vector<StageTask> tasks_;
  std::string calls_, vars_, functions_;
};

// Programs of all stages, and the model that they are of. Empty, with the errors, when they are not
// sound: the caller sees to it.
inline Planx stages(const StagesOptions& options) {
  Planx planx;
  std::string text;
  for (int stage = 0; stage < options.stages; ++stage) text += StageText(options, stage).module();
  Diagnostics diags;
  planx.roles = parseModules(diags.addFile("stages.ir", text), diags);
  std::string said;
  llvm::raw_string_ostream out(said);
  diags.print(out);
  EXPECT_FALSE(diags.failed()) << out.str();
  if (planx.roles.empty()) std::abort();
  planx.model = std::make_unique<Module>();
  for (const auto& role : planx.roles)
    for (const auto& var : role->vars) {
      if (var->kind != VarKind::Weight || planx.model->findVar(var->wholeName())) continue;
      Variable whole = *var;
      whole.name = var->wholeName();
      whole.type = var->wholeType();
      whole.piece.reset();
      planx.model->addVar(std::move(whole));
    }
  return planx;
}

}  // namespace planc::test
