// Three steps. Each program alone: its schedule (ir/verify_schedule.h), and that starts and waits pair up.
// Programs together: a run of a step in which only messages matter.
//
// Ranks of one role run one text, so they agree by themselves: they enter a group's messages in the
// text's order, and the first wait in that order that could block them all is one that they have
// all started. Ranks of several roles are run (`Simulation`), but not each of them: of those that are
// alike (ir/roles.h) one stands for all. What happens is the same in any order of execution. Messages
// in which a rank then is the only one can't block it: they are only counted, so that stages cost what
// passes between them, not their layers' sums.
//
// A group is a set of ranks, for transfers between two of them with the channel. Its messages meet in
// the order in which each member starts them, and one is complete only when those before it are.
//
// Tested by tests/unit/protocol_test.cpp and tests/unit/pipeline_mutants_test.cpp.
#include "ir/protocol.h"

#include <deque>
#include <map>
#include <tuple>

#include "ir/broken.h"
#include "ir/messages.h"
#include "ir/roles.h"
#include "ir/text.h"
#include "ir/traffic.h"
#include "ir/verify_schedule.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

namespace planc {
namespace {

using llvm::Error;
using llvm::Twine;

std::string text(const Grid& grid, int64_t rank) {
  std::string text = "rank " + std::to_string(rank);
  Coordinates at(grid, rank);
  for (size_t i = 0; i < grid.axes.size(); ++i)
    text += (i ? ", " : " (") + grid.axes[i].name + " " + std::to_string(at.on(grid.axes[i].name));
  return grid.axes.empty() ? text : text + ")";
}

class Simulation {
 public:
  Simulation(const Grid& grid, const Ranks& ranks, std::vector<Program> programs);
  Error run();

 private:
  // A rank's part in a group.
  struct Part {
    size_t group, member;
  };
  // Which groups: of the ranks that differ only on some axes; of these, those at some coordinates of one
  // of the axes; with a channel.
  struct GroupKind {
    std::vector<size_t> along;
    size_t axis = 0;
    std::vector<size_t> among = {};  // numbers of told coordinates; empty: all
    int64_t channel = -1;
    bool operator<(const GroupKind& other) const {
      return std::tie(along, axis, among, channel) <
             std::tie(other.along, other.axis, other.among, other.channel);
    }
  };
  using Parts = std::vector<std::optional<Part>>;  // of each rank
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
    size_t role;
    const Program* program;
    std::vector<Part> parts;                                 // of each message
    std::vector<llvm::SmallVector<Entry, 1>> underWay = {};  // of each message: not yet waited for
    int64_t started = 0;
    size_t call = 0, step = 0;  // what it does next
    llvm::SmallVector<Loop, 4> loops = {};
    bool ended = false;  // else it waits, when not ready

    const std::vector<Step>& steps() const {
      return program->functions[program->calls[call].function];
    }
    // Null at the end of the program.
    const Step* next();
    Moment moment() const;
    // Of a message, what it started in this moment.
    Entry* startOf(size_t message);
    // What a rank waits for that is neither ready nor at its end.
    const Entry& waitsFor() { return *startOf(steps()[step].at); }
  };
  // A message that some members have started and others have not.
  struct Open {
    Entry first;
    size_t missing;
  };
  struct Group {
    std::vector<size_t> members;
    std::vector<int64_t> started;  // by each of them
    std::deque<Open> open;
    int64_t complete = 0;  // messages before the open ones
    std::vector<size_t> waiting;
  };

  GroupKind kindOf(const Message& message, const Representative& rank) const;
  // Makes the groups of a kind; each rank's part in its own.
  Parts partsOf(const GroupKind& kind);
  // Takes out of the programs what is between a rank and nobody else.
  void dropAlone();
  Error start(size_t rank, size_t message);
  // Runs a rank until it ends or waits.
  Error advance(size_t rank);
  Error differ(const Entry& a, const Entry& b) const;
  // How many of a group's messages a rank starts in a step.
  int64_t startsIn(size_t rank, size_t group) const;
  Error stuck();
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
  const Ranks& apart_;
  std::vector<Program> programs_;              // of each role
  std::vector<std::vector<size_t>> features_;  // of each role's messages: a number for each text
  std::vector<Rank> ranks_;
  std::vector<Group> groups_;
  std::vector<size_t> ready_;
};

Simulation::Simulation(const Grid& grid, const Ranks& ranks, std::vector<Program> programs)
    : grid_(grid), apart_(ranks), programs_(std::move(programs)) {
  llvm::StringMap<size_t> numbers;
  for (const Program& program : programs_) {
    auto& features = features_.emplace_back();
    for (const Message& message : program.messages)
      features.push_back(numbers.try_emplace(message.features, numbers.size()).first->second);
  }
  // Ranks belong to a group by where they stand, whether they ever enter it or not.
  std::map<GroupKind, Parts> parts;
  for (const Representative& at : ranks.list) {
    size_t number = ranks_.size();
    ready_.push_back(ranks.list.size() - 1 - number);  // the last is taken first
    Rank& rank = ranks_.emplace_back(Rank{at.rank, at.role, &programs_[at.role], {}});
    for (const Message& message : rank.program->messages) {
      auto [kind, isNew] = parts.try_emplace(kindOf(message, at));
      if (isNew) kind->second = partsOf(kind->first);
      rank.parts.push_back(*kind->second[number]);
    }
    rank.underWay.resize(rank.parts.size());
  }
  dropAlone();
}

Simulation::GroupKind Simulation::kindOf(const Message& message, const Representative& rank) const {
  GroupKind kind{message.along};
  Axes axes = groupAxes(*message.op);
  if (axes.empty() || axes[0].size == 1) return kind;
  while (grid_.axes[kind.axis].name != axes[0].name) ++kind.axis;
  const std::vector<int64_t>& told = apart_.told[kind.axis];
  for (int64_t at : coordinatesOf(*message.op, Coordinates(grid_, rank.rank)))
    if (auto found = llvm::find(told, at); found != told.end())
      kind.among.push_back(size_t(found - told.begin()));
  if (message.isTransfer()) kind.channel = message.op->attrs.integer("channel");
  // All of an axis, listed or not, are one group.
  else if (kind.among.size() == size_t(axes[0].size)) kind.among.clear();
  if (kind.among.empty()) kind.axis = 0;
  return kind;
}

Simulation::Parts Simulation::partsOf(const GroupKind& kind) {
  Parts parts;
  std::map<std::vector<size_t>, size_t> groups;  // by the place on the other axes
  for (size_t i = 0; i < apart_.list.size(); ++i) {
    std::vector<size_t> place = apart_.list[i].at;
    parts.emplace_back();
    if (!kind.among.empty() && !llvm::is_contained(kind.among, place[kind.axis])) continue;
    for (size_t axis : kind.along) place[axis] = 0;
    auto [at, isNew] = groups.try_emplace(place, groups_.size());
    if (isNew) groups_.emplace_back();
    Group& group = groups_[at->second];
    parts.back() = Part{at->second, group.members.size()};
    group.members.push_back(i);
    group.started.push_back(0);
  }
  return parts;
}

void Simulation::dropAlone() {
  std::vector<std::vector<bool>> isAlone;  // of each role's messages
  for (const Program& program : programs_) isAlone.emplace_back(program.messages.size(), true);
  for (const Rank& rank : ranks_)
    for (size_t i = 0; i < rank.parts.size(); ++i)
      if (groups_[rank.parts[i].group].members.size() > 1) isAlone[rank.role][i] = false;
  for (size_t role = 0; role < programs_.size(); ++role)
    for (Steps& steps : programs_[role].functions) steps = withoutAlone(steps, isAlone[role]);
}

const Step* Simulation::Rank::next() {
  while (call < program->calls.size()) {
    if (step == steps().size()) {
      ++call;
      step = 0;
      continue;
    }
    const Step& found = steps()[step];
    Phase phase = program->calls[call].phase;
    bool isLeftOut = found.unlessLast && loops.back().left == 1;
    switch (found.kind) {
      case Step::Start:
        if (!isLeftOut && phase != Phase::Wait) return &found;
        ++step;
        break;
      case Step::Wait:
        if (!isLeftOut && phase != Phase::Start) return &found;
        ++step;
        break;
      case Step::Skip:
        if (!isLeftOut) started += found.count;
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

Simulation::Entry* Simulation::Rank::startOf(size_t message) {
  Moment now = moment();
  return llvm::find_if(underWay[message], [&](const Entry& entry) { return entry.moment == now; });
}

Error Simulation::start(size_t number, size_t message) {
  Rank& rank = ranks_[number];
  auto [at, member] = rank.parts[message];
  Group& group = groups_[at];
  const Entry& mine = rank.underWay[message].emplace_back(
      Entry{number, message, group.started[member]++, ++rank.started, rank.moment()});
  if (size_t(mine.number - group.complete) == group.open.size())
    group.open.push_back({mine, group.members.size()});
  Open& open = group.open[size_t(mine.number - group.complete)];
  auto features = [&](const Entry& entry) {
    return features_[ranks_[entry.rank].role][entry.message];
  };
  // Of a transfer's two sides each is there once.
  bool isOneSide = this->message(mine).isTransfer() && open.first.rank != number &&
                   this->message(open.first).op->kind == this->message(mine).op->kind;
  if (isOneSide || features(open.first) != features(mine) || open.first.moment != mine.moment)
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
    } else {
      Group& group = groups_[rank.parts[step->at].group];
      Entry* started = rank.startOf(step->at);
      if (started->number >= group.complete) {
        group.waiting.push_back(number);
        return Error::success();
      }
      rank.underWay[step->at].erase(started);
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
         (moment.empty() ? "" : ", " + moment) + ":" + describe(*message(entry).op);
}

std::string Simulation::place(const Entry& entry) const {
  constexpr size_t kShown = 8;
  const Message& message = this->message(entry);
  std::vector<int64_t> ranks = membersOf(*message.op, Coordinates(grid_, ranks_[entry.rank].rank));
  std::string text = "message " + std::to_string(entry.number + 1) + " of ";
  if (message.isTransfer())
    text += "channel " + std::to_string(message.op->attrs.integer("channel")) + " between ";
  else text += "the group over ";
  if (!message.isTransfer())
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
  std::string who = "ranks " + std::to_string(ranks_[a.rank].rank) + " and " +
                    std::to_string(ranks_[b.rank].rank);
  const Op& opA = *message(a).op;
  if (message(a).isTransfer() && opA.kind == message(b).op->kind)
    return broken(who + " both " + opA.info().text + " to each other" + operation(a) +
                  operation(b) + "\n  both are " + place(a));
  size_t i = 0;
  while (featuresA[i].value == featuresB[i].value) ++i;
  return broken(who + " enter different operations: " + featuresA[i].name + " '" +
                featuresA[i].value + "' and '" + featuresB[i].value + "'" + operation(a) +
                operation(b) + "\n  both are " + place(a));
}

size_t Simulation::awaited(const Entry& entry) const {
  const Group& group = groups_[ranks_[entry.rank].parts[entry.message].group];
  size_t member = 0;
  while (group.started[member] > entry.number) ++member;
  return group.members[member];
}

int64_t Simulation::startsIn(size_t number, size_t group) const {
  const Rank& rank = ranks_[number];
  std::vector<int64_t> ofFunction;
  for (const Steps& steps : rank.program->functions) {
    int64_t starts = 0;
    std::vector<int64_t> counts;  // of the repeats around, and how often each runs in all
    int64_t times = 1;
    for (const Step& step : steps) {
      if (step.kind == Step::Repeat)
        counts.push_back(step.count), times = saturatingMul(times, step.count);
      if (step.kind == Step::End) times /= counts.back(), counts.pop_back();
      if (step.kind == Step::Start && rank.parts[step.at].group == group)
        starts = saturatingAdd(starts, step.unlessLast ? times - times / counts.back() : times);
    }
    ofFunction.push_back(starts);
  }
  int64_t starts = 0;
  for (const Program::Call& call : rank.program->calls)
    if (call.phase != Phase::Wait) starts = saturatingAdd(starts, ofFunction[call.function]);
  return starts;
}

// Each waiting rank waits for one that has not started its message: that leads to a rank that has
// ended, or in a circle.
Error Simulation::stuck() {
  std::vector<size_t> chain;
  size_t at =
      size_t(llvm::find_if(ranks_, [](const Rank& rank) { return !rank.ended; }) - ranks_.begin());
  while (!ranks_[at].ended && !llvm::is_contained(chain, at)) {
    chain.push_back(at);
    at = awaited(ranks_[at].waitsFor());
  }
  bool isCircle = !ranks_[at].ended;
  // What another never starts says more than the circle that comes of it.
  for (size_t i = 0; isCircle && i < ranks_.size(); ++i) {
    if (ranks_[i].ended) continue;
    const Entry& entry = ranks_[i].waitsFor();
    size_t other = awaited(entry);
    int64_t starts = startsIn(other, ranks_[i].parts[entry.message].group);
    if (starts <= entry.number)
      return broken(name(i) + " waits for ever: " + name(other) + " starts " + Twine(starts) +
                    " of such messages in all" + operation(entry) + "\n    is " + place(entry));
  }
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

// A message that its own ranks take no part in.
static const Message* strange(const Program& program, const Coordinates& rank) {
  for (const Message& message : program.messages) {
    Axes axes = groupAxes(*message.op);
    std::vector<int64_t> among = coordinatesOf(*message.op, rank);
    if (!axes.empty() && !among.empty() && !llvm::is_contained(among, rank.on(axes[0].name)))
      return &message;
  }
  return nullptr;
}

Error checkProtocol(const Planx& planx) {
  Ranks ranks = ranksToldApart(planx);
  std::vector<Program> programs(planx.roles.size());
  std::vector<bool> isKnown(planx.roles.size());
  bool isOneText = true;
  for (const Representative& rank : ranks.list) {
    Program& program = programs[rank.role];
    auto unsound = [&](Error error) {
      return broken("the program of " + text(planx.grid(), rank.rank) +
                    " is not sound: " + llvm::toString(std::move(error)));
    };
    if (!isKnown[rank.role]) {
      if (Error error = verifySchedule(*planx.roles[rank.role])) return unsound(std::move(error));
      auto made = programOf(*planx.roles[rank.role]);
      if (!made) return unsound(made.takeError());
      program = std::move(*made);
      isKnown[rank.role] = true;
    }
    if (const Message* message = strange(program, Coordinates(planx.grid(), rank.rank)))
      return unsound(broken("it is not among the ranks of its message:" + describe(*message->op)));
    isOneText &= rank.role == ranks.list.front().role &&
                 llvm::none_of(program.messages, [](const Message& m) { return m.isTransfer(); });
  }
  // One text agrees with itself.
  if (isOneText) return Error::success();
  return Simulation(planx.grid(), ranks, std::move(programs)).run();
}

}  // namespace planc
