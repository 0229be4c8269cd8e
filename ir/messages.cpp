// Tested by tests/unit/protocol_test.cpp.
#include "ir/messages.h"

#include "ir/broken.h"
#include "ir/text.h"
#include "ir/traffic.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"

namespace planc {
namespace {

using llvm::Error;
using llvm::Twine;

// Which slice of its variable a value is, when not this iteration's.
std::string sliceText(const Value& value) {
  const Op* read = value.def();
  if (!read || read->kind != OpKind::Read) return "";
  if (read->isFlag("ahead")) return "ahead";
  return read->attrs.has("index") ? std::to_string(read->attrs.integer("index")) : "";
}

}  // namespace

std::vector<Feature> featuresOf(const Op& op) {
  auto list = [](llvm::ArrayRef<Value*> values, auto&& text) {
    return llvm::join(llvm::map_range(values, [&](const Value* v) { return text(*v); }), ", ");
  };
  auto words = [&](llvm::StringRef key) {
    Words words = op.attrs.words(key);
    return words.empty() ? op.attrs.word(key) : llvm::join(words, ", ");
  };
  std::string reduction = op.attrs.word("reduce");
  llvm::ArrayRef<Value*> sent = op.kind == OpKind::Receive ? op.results() : op.operands();
  // A transfer's sides: what one sends is what the other receives.
  if (op.kind == OpKind::Send || op.kind == OpKind::Receive)
    return {
        {"element type", list(sent, [](const Value& v) { return name(v.type.elem).str(); })},
        {"count", list(sent, [](const Value& v) { return std::to_string(v.type.elements()); })},
        {"shape", list(sent, [](const Value& v) { return v.type.str(); })},
        {"tensor", list(sent, [](const Value& v) { return v.name; })},
        {"in the last iteration", op.isUnlessLast() ? "left out" : "run"},
        {"place in the plan", placeInPlan(op)},
    };
  // How many rows go where, each rank knows when it runs; alike is what there is room for.
  bool isRows = op.kind == OpKind::ExchangeRows;
  return {
      {"kind", op.info().text.str()},
      {"element type", list(sent, [](const Value& v) { return name(v.type.elem).str(); })},
      {"way", op.isFlag("home") ? "home" : ""},
      {isRows ? "room" : "count",
       list(sent, [](const Value& v) { return std::to_string(v.type.elements()); })},
      {"reduction", reduction.empty() ? "sum" : reduction},
      {"order of axes", words("axes")},
      {"dim", words("dim")},
      {"source dim", words("from")},
      {"target dim", words("to")},
      {"places moved",
       op.kind == OpKind::Rotate ? std::to_string(op.attrs.integer("by", 1)) : std::string()},
      {"shape", list(sent, [](const Value& v) { return v.type.str(); }) + " to " +
                    list(op.results(), [](const Value& v) { return v.type.str(); })},
      {"tensor", list(op.results(), [](const Value& v) { return v.name; })},
      {"slice", list(sent, sliceText)},
      {"in the last iteration", op.isUnlessLast() ? "left out" : "run"},
      {"place in the plan", placeInPlan(op)},
  };
}

namespace {

Message messageOf(const Op& op) {
  Message message{&op, {}, {}};
  llvm::ArrayRef<GridAxis> axes = op.parent()->module().grid.axes;
  Axes along = groupAxes(op);
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i].size > 1 && hasAxis(along, axes[i].name)) message.along.push_back(i);
  for (const Feature& feature : featuresOf(op)) message.features += feature.value + '\n';
  return message;
}

bool isStart(const Op& op) { return op.has(Comm) && op.isFlag("start"); }

// A started message belongs to one `wait`, in its own block, and to nobody else until then.
Error pairUp(const Op& op) {
  if (op.kind == OpKind::Wait) {
    const Op* started = op.operand(0)->def();
    if (started && isStart(*started)) return Error::success();
    return broken("it waits for what was not started:" + describe(op));
  }
  if (!isStart(op)) return Error::success();
  std::vector<const Op*> waits;
  const Op* other = nullptr;
  for (const Value* result : op.results())
    for (const Use& use : result->uses()) {
      bool isWait = use.op->kind == OpKind::Wait;
      if (!isWait) other = use.op;
      else if (!llvm::is_contained(waits, use.op)) waits.push_back(use.op);
    }
  if (waits.size() != 1)
    return broken("it starts a message and waits for it " + Twine(waits.size()) +
                  " times, not once:" + describe(op));
  if (other)
    return broken("it uses a message before waiting for it:" + describe(op) + describe(*other));
  const Op& wait = *waits.front();
  if (wait.parent() != op.parent())
    return broken("it waits for a message in another block than it starts it:" + describe(op) +
                  describe(wait));
  if (wait.results().size() != op.results().size() ||
      wait.operands().size() < op.results().size() ||
      wait.operands().take_front(op.results().size()) != op.results())
    return broken("it waits for a part of a message:" + describe(op) + describe(wait));
  if (wait.isUnlessLast() != op.isUnlessLast())
    return broken("the last iteration leaves out one of start and wait:" + describe(op) +
                  describe(wait));
  return Error::success();
}

Error addSteps(const Block& block, Program& program, std::vector<Step>& steps,
               llvm::DenseMap<const Op*, size_t>& numbers) {
  for (const Op* op : block.ops) {
    if (op->kind == OpKind::Repeat) {
      size_t begin = steps.size();
      steps.push_back({Step::Repeat, 0, false, op->attrs.integer("count"), op->isFlag("reverse")});
      if (Error error = addSteps(*op->body, program, steps, numbers)) return error;
      if (steps.size() == begin + 1) steps.pop_back();  // nothing between ranks in there
      else steps.push_back({Step::End, begin});
    }
    if (!op->has(Comm) && op->kind != OpKind::Wait) continue;
    if (Error error = pairUp(*op)) return error;
    if (op->kind == OpKind::Wait) {
      steps.push_back({Step::Wait, numbers.lookup(op->operand(0)->def()), op->isUnlessLast()});
      continue;
    }
    size_t number = program.messages.size();
    numbers[op] = number;
    program.messages.push_back(messageOf(*op));
    steps.push_back({Step::Start, number, op->isUnlessLast()});
    if (!isStart(*op)) steps.push_back({Step::Wait, number, op->isUnlessLast()});
  }
  return Error::success();
}

}  // namespace

llvm::Expected<Program> programOf(const Module& module) {
  Program program;
  llvm::DenseMap<const Op*, size_t> numbers;
  for (const auto& function : module.functions)
    if (Error error = addSteps(*function->body, program, program.functions.emplace_back(), numbers))
      return broken("in '@" + function->name + "' " + llvm::toString(std::move(error)));
  llvm::StringMap<size_t> functions;
  for (size_t i = 0; i < module.functions.size(); ++i) functions[module.functions[i]->name] = i;
  for (const Call& call : module.schedule)
    program.calls.push_back({functions.lookup(call.function), call.microbatch, call.phase});
  return program;
}

Steps withoutAlone(const Steps& steps, const std::vector<bool>& isAlone) {
  Steps kept;
  auto skip = [&](int64_t count, bool unlessLast) {
    if (!kept.empty() && kept.back().kind == Step::Skip && kept.back().unlessLast == unlessLast)
      kept.back().count = saturatingAdd(kept.back().count, count);
    else kept.push_back({Step::Skip, 0, unlessLast, count});
  };
  std::vector<size_t> repeats;  // the open ones, in `kept`
  for (const Step& step : steps) {
    switch (step.kind) {
      case Step::Start:
        if (isAlone[step.at]) skip(1, step.unlessLast);
        else kept.push_back(step);
        break;
      case Step::Wait:
        if (!isAlone[step.at]) kept.push_back(step);
        break;
      case Step::Skip:
        skip(step.count, step.unlessLast);
        break;
      case Step::Repeat:
        repeats.push_back(kept.size());
        kept.push_back(step);
        break;
      case Step::End: {
        size_t begin = repeats.back();
        repeats.pop_back();
        int64_t count = kept[begin].count, starts = 0;
        bool isAll = true;
        for (size_t i = begin + 1; i < kept.size(); ++i) {
          isAll &= kept[i].kind == Step::Skip;
          starts = saturatingAdd(
              starts, saturatingMul(kept[i].count, kept[i].unlessLast ? count - 1 : count));
        }
        if (isAll) {
          kept.resize(begin);
          skip(starts, false);
        } else {
          kept.push_back({Step::End, begin});
        }
        break;
      }
    }
  }
  return kept;
}

}  // namespace planc
