// In which order a stage calls its functions, and where messages start and end in between. A receive
// starts as soon as its place is free, a send as soon as its value is made; each is waited for as late
// as may be. Places are so many that, by the schedule's own timeline, no value ever waits for one: then
// that timeline meets every order there is, so no order of progress can lead to a deadlock. Tested by
// tests/passes/pipeline and the protocol proof of every plan.
#include "llvm/ADT/STLExtras.h"
#include "passes/pipeline.h"

namespace planc {
namespace {

constexpr int64_t kSendsAtOnce = 2;  // values that are made while the receiver is still busy

// From when to when a microbatch needs its place, both included.
struct Span {
  int64_t microbatch;
  double from, to;
};

// The least number of places, microbatch m at m modulo that, at which no two meet.
int64_t smallestRing(std::vector<Span> spans) {
  llvm::sort(spans, [](const Span& a, const Span& b) { return a.from < b.from; });
  std::vector<double> ends;
  for (const Span& span : spans) ends.push_back(span.to);
  llvm::sort(ends);
  size_t most = 1, gone = 0;  // as many as are there at once
  for (size_t i = 0; i < spans.size(); ++i) {
    while (ends[gone] < spans[i].from) ++gone;
    most = std::max(most, i + 1 - gone);
  }
  for (int64_t ring = int64_t(most);; ++ring) {
    std::vector<double> until(size_t(ring), -1);
    bool fits = true;
    for (const Span& span : spans) {
      double& end = until[size_t(span.microbatch % ring)];
      fits &= end < span.from;
      end = span.to;
    }
    if (fits) return ring;
  }
}

std::string messageName(llvm::StringRef what, bool isBackward, int chunk) {
  return (what + (isBackward ? ".backward." : ".forward.") + llvm::Twine(chunk)).str();
}

bool isOf(const Task& task, bool isBackward, int chunk) {
  bool is = isBackward ? task.work == Work::Backward || task.work == Work::InputGradient
                       : task.work == Work::Forward;
  return is && task.chunk == chunk;
}

}  // namespace

void StageBuilder::addMessages(const FunctionCut& cut, int chunk) {
  const std::string& axis = module_->pipeline.axis;
  auto channel = [&](int from, int to) { return int64_t(2 * std::min(from, to) + (from > to)); };
  int before = cut.before(chunk), behind = cut.behind(chunk);
  if (cut.has(before) && !cut.takes[size_t(chunk)].empty() && stageOf(before) != number_) {
    Function& function = *module_->addFunction(messageName("receive", cut.isBackward, chunk));
    Builder builder(function.body.get());
    llvm::SmallVector<Type, 2> types;
    llvm::SmallVector<Variable*> places;
    for (const Value* value : cut.takes[size_t(chunk)]) {
      types.push_back(value->type);
      places.push_back(boundary(*value, before, chunk, false));
      builder.loc = places.front()->loc;
    }
    Op* op = builder.create(OpKind::Receive, {}, types,
                            {{"axes", Words{axis}},
                             {"channel", channel(before, chunk)},
                             {"from", int64_t(stageOf(before))}});
    for (auto [value, result] : llvm::zip(cut.takes[size_t(chunk)], op->results()))
      result->name = value->name;
    for (auto [place, result] : llvm::zip(places, op->results())) builder.write(place, result);
  }
  if (!cut.has(behind) || cut.takes[size_t(behind)].empty() || stageOf(behind) == number_) return;
  Function& function = *module_->addFunction(messageName("send", cut.isBackward, chunk));
  Builder builder(function.body.get());
  llvm::SmallVector<Value*> sent;
  for (const Value* value : cut.takes[size_t(behind)]) {
    Variable* place = boundary(*value, chunk, behind, true);
    if (sent.empty()) builder.loc = place->loc;
    sent.push_back(builder.read(place));
    sent.back()->name = value->name;
  }
  builder.create(OpKind::Send, sent, {},
                 {{"axes", Words{axis}},
                  {"channel", channel(chunk, behind)},
                  {"to", int64_t(stageOf(behind))}});
}

// The calls that stand in front of each task of a stage, and behind the last one.
class StageCalls {
 public:
  StageCalls(const PipeSchedule& schedule, const Timeline& timeline, int stage)
      : schedule_(schedule),
        timeline_(timeline),
        stage_(size_t(stage)),
        starts_(tasks(stage_).size() + 1),
        waits_(tasks(stage_).size() + 1),
        sends_(tasks(stage_).size() + 1) {}

  void receive(bool isBackward, int from, int chunk);
  void send(bool isBackward, int chunk);
  void addTo(std::vector<Call>& calls) const;
  // What is still under way at the end.
  llvm::ArrayRef<Call> rest() const { return waits_.back(); }

 private:
  const std::vector<Task>& tasks(size_t stage) const { return schedule_.tasks[stage]; }
  // For each microbatch, which task of a stage it is.
  std::vector<size_t> places(size_t stage, bool isBackward, int chunk) const;

  const PipeSchedule& schedule_;
  const Timeline& timeline_;
  size_t stage_;
  std::vector<std::vector<Call>> starts_, waits_;  // in front of each task
  std::vector<std::vector<Call>> sends_;           // behind it
};

std::vector<size_t> StageCalls::places(size_t stage, bool isBackward, int chunk) const {
  std::vector<size_t> places(size_t(schedule_.microbatches));
  for (size_t i = 0; i < tasks(stage).size(); ++i)
    if (isOf(tasks(stage)[i], isBackward, chunk)) places[size_t(tasks(stage)[i].microbatch)] = i;
  return places;
}

void StageCalls::receive(bool isBackward, int from, int chunk) {
  size_t sender = size_t(schedule_.stageOf[size_t(from)]);
  std::vector<size_t> made = places(sender, isBackward, from);
  std::vector<size_t> used = places(stage_, isBackward, chunk);
  // A task ends when the next thing of its stage may start.
  auto end = [&](size_t stage, size_t task) {
    return timeline_.starts[stage][task] + WorkCosts().of(tasks(stage)[task].work);
  };
  std::vector<Span> spans;
  std::vector<int64_t> order;  // as they are sent
  for (int64_t m = 0; m < schedule_.microbatches; ++m) {
    // A place that is free as another is wanted serves: leave out the end.
    double to = end(stage_, used[size_t(m)]) * (1 - 1e-9) - 1e-9;
    spans.push_back({m, end(sender, made[size_t(m)]), to});
    order.push_back(m);
  }
  llvm::sort(order, [&](int64_t a, int64_t b) { return made[size_t(a)] < made[size_t(b)]; });
  std::string name = messageName("receive", isBackward, chunk);
  std::vector<size_t> at(size_t(schedule_.microbatches));
  for (int64_t ring = smallestRing(spans);; ++ring) {
    std::vector<size_t> free(size_t(ring), 0);
    size_t last = 0;
    bool fits = true;
    for (int64_t m : order) {
      size_t& place = free[size_t(m % ring)];
      last = at[size_t(m)] = std::max(last, place);
      place = used[size_t(m)] + 1;
      fits &= last <= used[size_t(m)];
    }
    if (fits) break;
  }
  for (int64_t m : order) {
    starts_[at[size_t(m)]].push_back({name, m, Phase::Start});
    waits_[used[size_t(m)]].push_back({name, m, Phase::Wait});
  }
}

void StageCalls::send(bool isBackward, int chunk) {
  std::string name = messageName("send", isBackward, chunk);
  int64_t ring = std::min(kSendsAtOnce, schedule_.microbatches);
  std::vector<int64_t> under(size_t(ring), -1);
  for (size_t i = 0; i < tasks(stage_).size(); ++i) {
    const Task& task = tasks(stage_)[i];
    if (!isOf(task, isBackward, chunk)) continue;
    int64_t& place = under[size_t(task.microbatch % ring)];
    if (place >= 0) waits_[i].push_back({name, place, Phase::Wait});
    sends_[i].push_back({name, task.microbatch, Phase::Start});
    place = task.microbatch;
  }
  llvm::sort(under);
  for (int64_t m : under)
    if (m >= 0) waits_.back().push_back({name, m, Phase::Wait});
}

void StageCalls::addTo(std::vector<Call>& calls) const {
  for (size_t i = 0; i < tasks(stage_).size(); ++i) {
    const Task& task = tasks(stage_)[i];
    calls.insert(calls.end(), starts_[i].begin(), starts_[i].end());
    calls.insert(calls.end(), waits_[i].begin(), waits_[i].end());
    calls.push_back({functionName(task.work, task.chunk), task.microbatch});
    calls.insert(calls.end(), sends_[i].begin(), sends_[i].end());
  }
}

// How many microbatches hold a saved value at once, by the calls that touch it.
static void setFlights(Module& module) {
  std::map<const Variable*, std::set<std::string>> users;
  for (const auto& function : module.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->var && op->var->kind == VarKind::Slot) users[op->var].insert(function->name);
    });
  std::map<std::string, std::vector<size_t>> calls;
  for (size_t i = 0; i < module.schedule.size(); ++i)
    if (module.schedule[i].microbatch >= 0) calls[module.schedule[i].function].push_back(i);
  auto flightsOf = [&](const std::set<std::string>& functions) -> int64_t {
    std::map<int64_t, Span> spans;
    for (const std::string& function : functions)
      for (size_t i : calls[function]) {
        int64_t microbatch = module.schedule[i].microbatch;
        Span& span =
            spans.try_emplace(microbatch, Span{microbatch, double(i), double(i)}).first->second;
        span.from = std::min(span.from, double(i));
        span.to = std::max(span.to, double(i));
      }
    std::vector<Span> list;
    for (const auto& [microbatch, span] : spans) list.push_back(span);
    return list.empty() ? 1 : smallestRing(std::move(list));
  };
  std::map<std::set<std::string>, int64_t> known;  // most slots have the same users
  for (const auto& var : module.vars) {
    auto found = users.find(var.get());
    if (found == users.end()) continue;
    int64_t& flights = known[found->second];
    if (flights == 0) flights = flightsOf(found->second);
    var->flights = flights;
  }
}

void StageBuilder::addCalls() {
  StageCalls calls(schedule_, timeline_, number_);
  for (int chunk : chunks_)
    for (const FunctionCut* cut : {&cut_.forward, &cut_.backward}) {
      int before = cut->before(chunk), behind = cut->behind(chunk);
      if (cut->has(before) && !cut->takes[size_t(chunk)].empty() && stageOf(before) != number_)
        calls.receive(cut->isBackward, before, chunk);
      if (cut->has(behind) && !cut->takes[size_t(behind)].empty() && stageOf(behind) != number_)
        calls.send(cut->isBackward, chunk);
    }
  bool isBehind = false;
  for (const Call& call : cut_.whole->schedule) {
    if (isWork(call.function)) {
      if (!isBehind) calls.addTo(module_->schedule);
      isBehind = true;
      continue;
    }
    // Sums of the step need not wait for the last messages to leave.
    if (call.function == "update")
      module_->schedule.insert(module_->schedule.end(), calls.rest().begin(), calls.rest().end());
    module_->schedule.push_back(call);
  }
  setFlights(*module_);
}

}  // namespace planc
