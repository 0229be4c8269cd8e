// Two steps. Each program alone: starts and waits pair up (`pairUp`). Programs together: a run of a
// step in which only messages matter.
//
// Ranks of one role run one text, so they agree by themselves: they enter a group's messages in the
// text's order, and the first wait in that order that could block them all is one that they have
// all started. Ranks of several roles are run (`Simulation`), but not each of them: coordinates of
// an axis that no role names are alike, and exchanging two of them changes nothing. What happens is
// the same in any order of execution, so ranks that such an exchange maps to each other do the
// same, and one of them, the first, stands for all.
//
// Tested by tests/unit/protocol_test.cpp.
#include "ir/protocol.h"

#include <deque>
#include <map>

#include "ir/text.h"
#include "ir/traffic.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace planc {
namespace {

using llvm::Error;
using llvm::Twine;

Error broken(const Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), what);
}

std::string text(const Grid& grid, int64_t rank) {
  std::string text = "rank " + std::to_string(rank);
  Coordinates at(grid, rank);
  for (size_t i = 0; i < grid.axes.size(); ++i)
    text += (i ? ", " : " (") + grid.axes[i].name + " " + std::to_string(at.on(grid.axes[i].name));
  return grid.axes.empty() ? text : text + ")";
}

std::string place(const Module& module, Loc loc) {
  if (!loc.known() || loc.file >= module.files.size()) return "";
  return module.files[loc.file] + ":" + std::to_string(loc.line) + ":" + std::to_string(loc.column);
}

// An op and its line in the plan, on lines of their own.
std::string text(const Op& op) {
  std::string at = place(op.parent()->module(), op.loc);
  return "\n    " + printOp(op) + (at.empty() ? "" : "\n    at " + at);
}

// What the members of a group must have alike in a message, and the words for it.
struct Feature {
  llvm::StringRef name;
  std::string value;
};

// Which slice of its variable a value is, when not this iteration's.
std::string sliceText(const Value& value) {
  const Op* read = value.def();
  if (!read || read->kind != OpKind::Read) return "";
  if (read->isFlag("ahead")) return "ahead";
  return read->attrs.has("index") ? std::to_string(read->attrs.integer("index")) : "";
}

std::vector<Feature> featuresOf(const Op& op) {
  auto list = [](llvm::ArrayRef<Value*> values, auto&& text) {
    return llvm::join(llvm::map_range(values, [&](const Value* v) { return text(*v); }), ", ");
  };
  auto words = [&](llvm::StringRef key) {
    Words words = op.attrs.words(key);
    return words.empty() ? op.attrs.word(key) : llvm::join(words, ", ");
  };
  std::string reduction = op.attrs.word("reduce");
  llvm::ArrayRef<Value*> sent = op.operands();
  return {
      {"kind", op.info().text.str()},
      {"element type", list(sent, [](const Value& v) { return name(v.type.elem).str(); })},
      {"count", list(sent, [](const Value& v) { return std::to_string(v.type.elements()); })},
      {"reduction", reduction.empty() ? "sum" : reduction},
      {"order of axes", words("axes")},
      {"dim", words("dim")},
      {"source dim", words("from")},
      {"target dim", words("to")},
      {"shape", list(sent, [](const Value& v) { return v.type.str(); }) + " to " +
                    list(op.results(), [](const Value& v) { return v.type.str(); })},
      {"tensor", list(op.results(), [](const Value& v) { return v.name; })},
      {"slice", list(sent, sliceText)},
      {"in the last iteration", op.isUnlessLast() ? "left out" : "run"},
      {"place in the plan", place(op.parent()->module(), op.loc)},
  };
}

// ---- One program.

struct Message {
  const Op* op;
  std::vector<size_t> along;  // axes of the grid, in its order; those of one rank left out
  std::string features;       // equal: the same message
};

// What a function does between ranks, with its repeats rolled.
struct Step {
  enum Kind : uint8_t { Start, Wait, Repeat, End } kind;
  size_t at = 0;  // Start and Wait: the message; End: its Repeat
  bool unlessLast = false;
  // Repeat.
  int64_t count = 0;
  bool reverse = false;
};

struct Program {
  std::vector<Message> messages;
  std::vector<std::vector<Step>> functions;
  // The schedule.
  struct Call {
    size_t function;
    int64_t microbatch;
  };
  std::vector<Call> calls;
};

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
    return broken("it waits for what was not started:" + text(op));
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
                  " times, not once:" + text(op));
  if (other) return broken("it uses a message before waiting for it:" + text(op) + text(*other));
  const Op& wait = *waits.front();
  if (wait.parent() != op.parent())
    return broken("it waits for a message in another block than it starts it:" + text(op) +
                  text(wait));
  if (wait.results().size() != op.results().size() ||
      wait.operands().size() < op.results().size() ||
      wait.operands().take_front(op.results().size()) != op.results())
    return broken("it waits for a part of a message:" + text(op) + text(wait));
  if (wait.isUnlessLast() != op.isUnlessLast())
    return broken("the last iteration leaves out one of start and wait:" + text(op) + text(wait));
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

llvm::Expected<Program> programOf(const Module& module) {
  Program program;
  llvm::DenseMap<const Op*, size_t> numbers;
  for (const auto& function : module.functions)
    if (Error error = addSteps(*function->body, program, program.functions.emplace_back(), numbers))
      return broken("in '@" + function->name + "' " + llvm::toString(std::move(error)));
  for (const Call& call : module.schedule)
    for (size_t i = 0; i < module.functions.size(); ++i)
      if (module.functions[i]->name == call.function) program.calls.push_back({i, call.microbatch});
  return program;
}

// ---- Programs together.

// Of the ranks that an exchange of unnamed coordinates maps to each other, the first. To it belong,
// for each axis of the grid, one of the coordinates that are told apart there.
struct Representative {
  int64_t rank;
  std::vector<size_t> at;  // per axis, which of its coordinates
  size_t role;
};

std::vector<Representative> representativesOf(const Planx& planx) {
  const Grid& grid = planx.grid();
  std::vector<Representative> ranks{{0, {}, 0}};
  for (const GridAxis& axis : grid.axes) {
    std::vector<int64_t> told;  // the coordinates that roles name, and the first that none does
    for (const auto& role : planx.roles)
      for (const auto& [name, at] : role->where)
        if (name == axis.name && at >= 0 && at < axis.size) told.push_back(at);
    llvm::sort(told);
    told.erase(std::unique(told.begin(), told.end()), told.end());
    int64_t free = 0;
    while (size_t(free) < told.size() && told[size_t(free)] == free) ++free;
    if (free < axis.size) told.insert(told.begin() + free, free);
    std::vector<Representative> next;
    for (const Representative& rank : ranks)
      for (size_t i = 0; i < told.size(); ++i) {
        next.push_back({saturatingMul(rank.rank, axis.size) + told[i], rank.at, 0});
        next.back().at.push_back(i);
      }
    ranks = std::move(next);
  }
  for (Representative& rank : ranks) rank.role = planx.roleOf(rank.rank);
  return ranks;
}

class Simulation {
 public:
  Simulation(const Grid& grid, llvm::ArrayRef<Representative> ranks,
             llvm::ArrayRef<Program> programs);
  Error run();

 private:
  // A rank's part in a group.
  struct Part {
    size_t group, member;
  };
  struct Loop {
    size_t repeat;
    int64_t left;
  };
  // For what a message is: its microbatch and the iterations of the repeats around it.
  struct Moment {
    int64_t microbatch = -1;
    llvm::SmallVector<int64_t, 4> iterations;
    bool operator==(const Moment&) const = default;
  };
  // A rank's start of a message.
  struct Entry {
    size_t rank = 0, message = 0;
    int64_t number = 0;     // among those that the rank started in the group, from 0
    int64_t operation = 0;  // among all that it started, from 1
    Moment moment;
  };
  struct Rank {
    int64_t rank;
    const Program* program;
    std::vector<Part> parts;    // of each message
    std::vector<Entry> latest;  // of each message
    int64_t started = 0;
    size_t call = 0, step = 0;  // what it does next
    llvm::SmallVector<Loop, 4> loops;
    bool ended = false;  // else it waits, when not ready

    const std::vector<Step>& steps() const {
      return program->functions[program->calls[call].function];
    }
    // Null at the end of the program.
    const Step* next();
    Moment moment() const;
    // What a rank waits for that is neither ready nor at its end.
    const Entry& waitsFor() const { return latest[steps()[step].at]; }
  };
  // A message that some members have started and others have not.
  struct Open {
    Entry first;
    size_t missing;
  };
  // Ranks that differ only on some axes.
  struct Group {
    std::vector<size_t> members;
    std::vector<int64_t> started;  // by each of them
    std::deque<Open> open;
    int64_t complete = 0;  // messages before the open ones
    std::vector<size_t> waiting;
  };

  // Makes the groups along these axes; each rank's part in its own.
  std::vector<Part> partsOf(llvm::ArrayRef<size_t> along, llvm::ArrayRef<Representative> ranks);
  Error start(size_t rank, size_t message);
  // Runs a rank until it ends or waits.
  Error advance(size_t rank);
  Error differ(const Entry& a, const Entry& b) const;
  Error stuck() const;
  const Message& message(const Entry& entry) const {
    return ranks_[entry.rank].program->messages[entry.message];
  }
  // A member of the group that has not started this rank's message.
  size_t awaited(const Entry& entry) const;
  std::string name(size_t rank) const { return text(grid_, ranks_[rank].rank); }
  std::string momentText(const Entry& entry) const;
  // The rank, its operation, the op and its line, on lines of their own.
  std::string operation(const Entry& entry) const;
  // Which of its group's messages it is.
  std::string place(const Entry& entry) const;

  const Grid& grid_;
  std::vector<Rank> ranks_;
  std::vector<Group> groups_;
  std::vector<size_t> ready_;
};

Simulation::Simulation(const Grid& grid, llvm::ArrayRef<Representative> ranks,
                       llvm::ArrayRef<Program> programs)
    : grid_(grid) {
  for (const Representative& rank : ranks) {
    ready_.push_back(ranks.size() - 1 - ready_.size());  // the last is taken first
    Rank& made = ranks_.emplace_back();
    made.rank = rank.rank;
    made.program = &programs[rank.role];
    made.parts.resize(made.program->messages.size());
    made.latest.resize(made.parts.size());
  }
  // Ranks belong to a group by where they stand, whether they ever enter it or not.
  std::map<std::vector<size_t>, std::vector<Part>> parts;  // by axes; of each rank
  for (Rank& rank : ranks_)
    for (size_t message = 0; message < rank.parts.size(); ++message) {
      const std::vector<size_t>& along = rank.program->messages[message].along;
      auto [at, isNew] = parts.try_emplace(along);
      if (isNew) at->second = partsOf(along, ranks);
      rank.parts[message] = at->second[size_t(&rank - ranks_.data())];
    }
}

std::vector<Simulation::Part> Simulation::partsOf(llvm::ArrayRef<size_t> along,
                                                  llvm::ArrayRef<Representative> ranks) {
  std::vector<Part> parts;
  std::map<std::vector<size_t>, size_t> groups;  // by the place on the other axes
  for (size_t i = 0; i < ranks.size(); ++i) {
    std::vector<size_t> place = ranks[i].at;
    for (size_t axis : along) place[axis] = 0;
    auto [at, isNew] = groups.try_emplace(place, groups_.size());
    if (isNew) groups_.emplace_back();
    Group& group = groups_[at->second];
    parts.push_back({at->second, group.members.size()});
    group.members.push_back(i);
    group.started.push_back(0);
  }
  return parts;
}

const Step* Simulation::Rank::next() {
  while (call < program->calls.size()) {
    if (step == steps().size()) {
      ++call;
      step = 0;
      continue;
    }
    const Step& found = steps()[step];
    switch (found.kind) {
      case Step::Start:
      case Step::Wait:
        if (!found.unlessLast || loops.back().left > 1) return &found;
        ++step;
        break;
      case Step::Repeat:
        loops.push_back({step++, found.count});
        break;
      case Step::End:
        if (--loops.back().left > 0) {
          step = loops.back().repeat + 1;
        } else {
          loops.pop_back();
          ++step;
        }
        break;
    }
  }
  return nullptr;
}

Simulation::Moment Simulation::Rank::moment() const {
  Moment moment{program->calls[call].microbatch, {}};
  for (const Loop& loop : loops) {
    const Step& repeat = steps()[loop.repeat];
    moment.iterations.push_back(repeat.reverse ? loop.left - 1 : repeat.count - loop.left);
  }
  return moment;
}

Error Simulation::start(size_t number, size_t message) {
  Rank& rank = ranks_[number];
  auto [at, member] = rank.parts[message];
  Group& group = groups_[at];
  Entry& mine = rank.latest[message];
  mine = {number, message, group.started[member]++, ++rank.started, rank.moment()};
  if (size_t(mine.number - group.complete) == group.open.size())
    group.open.push_back({mine, group.members.size()});
  Open& open = group.open[size_t(mine.number - group.complete)];
  if (this->message(open.first).features != this->message(mine).features ||
      open.first.moment != mine.moment)
    return open.first.rank < number ? differ(open.first, mine) : differ(mine, open.first);
  if (--open.missing > 0) return Error::success();
  // Members start in order, so those before it are complete.
  group.open.pop_front();
  ++group.complete;
  ready_.insert(ready_.end(), group.waiting.begin(), group.waiting.end());
  group.waiting.clear();
  return Error::success();
}

Error Simulation::advance(size_t number) {
  Rank& rank = ranks_[number];
  while (const Step* step = rank.next()) {
    if (step->kind == Step::Start) {
      if (Error error = start(number, step->at)) return error;
    } else if (Group& group = groups_[rank.parts[step->at].group];
               rank.latest[step->at].number >= group.complete) {
      group.waiting.push_back(number);
      return Error::success();
    }
    ++rank.step;
  }
  rank.ended = true;
  return Error::success();
}

Error Simulation::run() {
  while (!ready_.empty()) {
    size_t rank = ready_.back();
    ready_.pop_back();
    if (Error error = advance(rank)) return error;
  }
  return llvm::all_of(ranks_, [](const Rank& rank) { return rank.ended; }) ? Error::success()
                                                                           : stuck();
}

std::string Simulation::momentText(const Entry& entry) const {
  const Moment& moment = entry.moment;
  std::string text;
  if (moment.microbatch >= 0) text = "microbatch " + std::to_string(moment.microbatch);
  Words dims = message(entry).op->parent()->enclosing();
  for (size_t i = 0; i < dims.size(); ++i)
    text += (text.empty() ? "" : ", ") + dims[i] + " " + std::to_string(moment.iterations[i]);
  return text;
}

std::string Simulation::operation(const Entry& entry) const {
  std::string moment = momentText(entry);
  return "\n  " + name(entry.rank) + ", operation " + std::to_string(entry.operation) +
         (moment.empty() ? "" : ", " + moment) + ":" + text(*message(entry).op);
}

std::string Simulation::place(const Entry& entry) const {
  constexpr size_t kShown = 8;
  const Message& message = this->message(entry);
  std::vector<int64_t> ranks =
      Coordinates(grid_, ranks_[entry.rank].rank).group(groupAxes(*message.op));
  std::string text = "message " + std::to_string(entry.number + 1) + " of the group over ";
  for (size_t axis : message.along) text += grid_.axes[axis].name + ", ";
  text += "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kShown; ++i)
    text += (i ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > kShown ? text + ", ... (" + std::to_string(ranks.size()) + " in all)"
                               : text;
}

Error Simulation::differ(const Entry& a, const Entry& b) const {
  auto featuresA = featuresOf(*message(a).op), featuresB = featuresOf(*message(b).op);
  featuresA.push_back({"iteration", momentText(a)});
  featuresB.push_back({"iteration", momentText(b)});
  size_t i = 0;
  while (featuresA[i].value == featuresB[i].value) ++i;
  return broken("ranks " + Twine(ranks_[a.rank].rank) + " and " + Twine(ranks_[b.rank].rank) +
                " enter different operations: " + featuresA[i].name + " '" + featuresA[i].value +
                "' and '" + featuresB[i].value + "'" + operation(a) + operation(b) +
                "\n  both are " + place(a));
}

size_t Simulation::awaited(const Entry& entry) const {
  const Group& group = groups_[ranks_[entry.rank].parts[entry.message].group];
  size_t member = 0;
  while (group.started[member] > entry.number) ++member;
  return group.members[member];
}

// Each waiting rank waits for one that has not started its message: that leads to a rank that has
// ended, or in a circle.
Error Simulation::stuck() const {
  std::vector<size_t> chain;
  size_t at =
      size_t(llvm::find_if(ranks_, [](const Rank& rank) { return !rank.ended; }) - ranks_.begin());
  while (!ranks_[at].ended && !llvm::is_contained(chain, at)) {
    chain.push_back(at);
    at = awaited(ranks_[at].waitsFor());
  }
  bool isCircle = !ranks_[at].ended;
  chain.erase(chain.begin(), isCircle ? llvm::find(chain, at) : std::prev(chain.end()));
  std::string text = isCircle ? "ranks wait for each other for ever"
                              : name(chain.back()) + " waits for ever: " + name(at) + " has ended";
  for (size_t rank : chain) {
    const Entry& entry = ranks_[rank].waitsFor();
    text += operation(entry) + "\n    waits for " + name(awaited(entry)) + ": " + place(entry);
  }
  if (!isCircle)
    text += "\n  " + name(at) + " has ended after " + std::to_string(ranks_[at].started) +
            " operations";
  return broken(text);
}

}  // namespace

Error checkProtocol(const Planx& planx) {
  std::vector<Representative> ranks = representativesOf(planx);
  std::vector<Program> programs(planx.roles.size());
  std::vector<bool> isKnown(planx.roles.size());
  for (const Representative& rank : ranks) {
    if (isKnown[rank.role]) continue;
    auto program = programOf(*planx.roles[rank.role]);
    if (!program)
      return broken("the program of " + text(planx.grid(), rank.rank) +
                    " is not sound: " + llvm::toString(program.takeError()));
    programs[rank.role] = std::move(*program);
    isKnown[rank.role] = true;
  }
  // One text agrees with itself.
  if (llvm::count(isKnown, true) == 1) return Error::success();
  return Simulation(planx.grid(), ranks, programs).run();
}

}  // namespace planc
