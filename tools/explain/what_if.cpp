// Each trial compiles the plan with one thing changed, as the command line or another statement would have
// it, unverified since nobody runs it, and reads the figures off its programs; trials run side by side.
// Where no single change makes a plan fit, changes of different kinds are tried together.
// Tested by tests/tools/what_if.test.
#include "tools/explain/what_if.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "frontend/ast.h"
#include "ir/traffic.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "tools/compile.h"

namespace planc {
namespace {

constexpr size_t kMostChanges = 3;  // that are told
constexpr size_t kMostTogether = 3;
constexpr size_t kMostTrials = 24;  // of changes together

// What a change is about: two of one kind do not go together.
enum class About : uint8_t { Recompute, Shard, Grid, Batch };

struct Trial {
  std::vector<std::string> statements, arguments;  // as the plan and the command line would say it
  std::set<About> about;
  CompileOptions options;
  // Found by compiling; `why`: it is not legal.
  bool isLegal = false;
  std::string why;
  int64_t ranks = 1;
  Ceiling figures;
};

class Trials {
 public:
  Trials(const Report& report, const std::vector<std::unique_ptr<ast::File>>& files,
         const CompileOptions& options, const Diagnostics& diags)
      : report_(report), files_(files), options_(options), diags_(diags) {}

  void findChanges(Report& into) const;
  std::vector<Ceiling> ceilings() const;

 private:
  Trial start() const;
  void run(Trial& trial) const;
  void run(std::vector<Trial>& trials) const;
  std::vector<Trial> singles() const;
  void addRecompute(std::vector<Trial>& into) const;
  void addShards(std::vector<Trial>& into) const;
  void addGrids(std::vector<Trial>& into) const;
  void addMicrobatches(std::vector<Trial>& into) const;
  static Trial together(const Trial& a, const Trial& b);
  const ast::Plan* plan() const;
  std::vector<std::pair<std::string, int64_t>> axes() const;
  const Module& program() const { return *report_.planx->roles.front(); }

  const Report& report_;
  const std::vector<std::unique_ptr<ast::File>>& files_;
  const CompileOptions& options_;
  const Diagnostics& diags_;
};

Change changeOf(const Trial& trial) {
  return {trial.statements,    trial.arguments,     trial.ranks,
          trial.figures.arena, trial.figures.flops, trial.figures.seconds};
}

std::string gridArgument(llvm::ArrayRef<std::pair<std::string, int64_t>> sizes) {
  std::vector<std::string> words;
  for (const auto& [axis, ranks] : sizes) words.push_back(axis + "=" + std::to_string(ranks));
  return "--grid " + llvm::join(words, ",");
}

// The first error in a line, with what would be right.
std::string firstError(const Diagnostics& diags) {
  for (const Diagnostic& message : diags.messages())
    return message.text + (message.help.empty() ? "" : " (" + message.help + ")");
  return "it does not compile";
}

Trial Trials::start() const {
  Trial trial;
  trial.options = options_;
  trial.options.changes.growCluster = true;
  return trial;
}

void Trials::run(Trial& trial) const {
  Diagnostics diags = diags_;
  Planx planx;
  std::string internal;
  PassOptions passes;
  passes.verify = false;
  // Once, in the order written: the report's times are those of the best order anyway.
  for (const auto& [axis, ranks] : axes()) trial.options.order.push_back(axis);
  PassResult result = compilePlaced(files_, trial.options, passes, planx, diags, internal);
  if (result != PassResult::Ok) {
    trial.why = internal.empty() ? firstError(diags) : internal;
    return;
  }
  if (!meetsPlaces(planx, diags)) {
    trial.why = firstError(diags);
    return;
  }
  trial.isLegal = true;
  trial.ranks = planx.grid().ranks();
  trial.figures = reportOf(planx, report_.costs).asItIs();
}

void Trials::run(std::vector<Trial>& trials) const {
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t i; (i = next++) < trials.size();) run(trials[i]);
  };
  std::vector<std::thread> threads;
  size_t cores = std::max(1u, std::thread::hardware_concurrency());
  for (size_t i = 1; i < std::min(cores, trials.size()); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

const ast::Plan* Trials::plan() const {
  for (const ast::Item& item : files_.back()->items)
    if (auto* plan = std::get_if<ast::Plan>(&item))
      if (options_.plan.empty() || plan->name.text == options_.plan) return plan;
  return nullptr;
}

// The grid's axes as written, those of one rank too, with the sizes that --grid gives.
std::vector<std::pair<std::string, int64_t>> Trials::axes() const {
  std::vector<std::pair<std::string, int64_t>> list;
  if (const ast::Plan* written = plan())
    for (const ast::PlanStmt& stmt : written->body)
      if (auto* grid = std::get_if<ast::Grid>(&stmt.node))
        for (const auto& axis : grid->axes)
          list.push_back({axis.name.text, int64_t(axis.size.value)});
  bool isWritten = !list.empty();
  for (const auto& [name, text] : options_.grid) {
    int64_t size = 1;
    if (llvm::StringRef(text).getAsInteger(10, size)) continue;
    auto at = llvm::find_if(list, [name = &name](const auto& axis) { return axis.first == *name; });
    if (at != list.end()) at->second = size;
    else if (!isWritten) list.push_back({name, size});
  }
  return list;
}

// ---- Changes

void Trials::addRecompute(std::vector<Trial>& into) const {
  Words now = program().settings.words("recompute");
  bool hasAttend = false, hasRepeat = false;
  for (const auto& function : report_.planx->model->functions)
    walk(*function->body, [&](const Op* op) {
      hasAttend |= op->kind == OpKind::Attend;
      hasRepeat |= op->kind == OpKind::Repeat;
    });
  auto add = [&](Words words) {
    Trial trial = start();
    trial.statements = {"recompute " + llvm::join(words, ", ")};
    trial.about = {About::Recompute};
    trial.options.changes.recompute = std::move(words);
    into.push_back(std::move(trial));
  };
  bool isWhole = llvm::is_contained(now, "layer");
  bool isGathered = llvm::any_of(program().shards, [](auto& s) { return s.what == "weights"; });
  if (hasAttend && !isWhole && !llvm::is_contained(now, "attend")) {
    Words more = now;
    more.push_back("attend");
    add(more);
  }
  if (hasRepeat && !isWhole) add({"layer"});
  if (isGathered && !llvm::is_contained(now, "gather")) {
    Words more = now;
    more.push_back("gather");
    add(more);
    if (hasRepeat && !isWhole) add({"layer", "gather"});
  }
}

// ZeRO's stages, over the axes that the plan shards over or, if it does not, over those that split inputs.
void Trials::addShards(std::vector<Trial>& into) const {
  constexpr llvm::StringRef kStages[] = {"optimizer", "gradients", "weights"};
  size_t now = 0;  // stages that the plan has
  Words axes;
  for (const Shard& shard : program().shards)
    for (size_t i = 0; i < std::size(kStages); ++i)
      if (shard.what == kStages[i]) {
        now = std::max(now, i + 1);
        axes = shard.axes;
      }
  if (axes.empty())
    for (const auto& var : program().vars)
      if (var->kind == VarKind::Input)
        for (const Axis& axis : var->type.splitAxes())
          for (const GridAxis& known : program().grid.axes) {
            const std::string& name = known.of.empty() ? known.name : known.of;
            if (known.name == axis.name && !llvm::is_contained(axes, name)) axes.push_back(name);
          }
  if (axes.empty()) return;
  for (size_t i = now; i < std::size(kStages); ++i) {
    Trial trial = start();
    trial.statements = {"shard " + kStages[i].str() + " over " + llvm::join(axes, ", ")};
    trial.about = {About::Shard};
    trial.options.changes.shards = {{kStages[i].str(), axes, Loc()}};
    into.push_back(std::move(trial));
  }
}

// Ranks moved from one axis to another, and an axis doubled.
void Trials::addGrids(std::vector<Trial>& into) const {
  auto list = axes();
  auto add = [&](std::vector<std::pair<std::string, int64_t>> sizes) {
    Trial trial = start();
    trial.options.changes.grid = sizes;
    trial.arguments = {gridArgument(sizes)};
    trial.about = {About::Grid};
    into.push_back(std::move(trial));
  };
  for (const auto& [to, ranks] : list) {
    for (const auto& [from, others] : list)
      if (from != to && others % 2 == 0) add({{from, others / 2}, {to, ranks * 2}});
    add({{to, ranks * 2}});
  }
}

// Half as many samples in each of twice as many microbatches, where the model takes that as a parameter.
void Trials::addMicrobatches(std::vector<Trial>& into) const {
  const ast::Plan* written = plan();
  const Variable* input = nullptr;
  for (const auto& var : report_.planx->model->vars)
    if (var->kind == VarKind::Input && input == nullptr) input = var.get();
  if (written == nullptr || input == nullptr) return;
  size_t at = input->stack.size();
  if (at >= input->type.dims.size()) return;
  const Dim& samples = input->type.dims[at];
  bool isParameter = false;
  for (const auto& file : files_)
    for (const ast::Item& item : file->items)
      if (auto* model = std::get_if<ast::Module>(&item);
          model && model->name.text == written->model.text)
        for (const ast::Param& param : model->params)
          isParameter |= param.name.text == samples.name;
  if (!isParameter || samples.all() % 2 != 0) return;
  Trial trial = start();
  int64_t half = samples.all() / 2;
  trial.options.changes.microbatches = 2 * program().settings.integer("microbatches", 1);
  auto& defines = trial.options.defines;
  llvm::erase_if(defines, [&](const auto& entry) { return entry.first == samples.name; });
  defines.push_back({samples.name, std::to_string(half)});
  trial.statements = {"microbatches " + std::to_string(trial.options.changes.microbatches)};
  trial.arguments = {"-D " + samples.name + "=" + std::to_string(half)};
  trial.about = {About::Batch};
  into.push_back(std::move(trial));
}

std::vector<Trial> Trials::singles() const {
  std::vector<Trial> list;
  addRecompute(list);
  addShards(list);
  addGrids(list);
  addMicrobatches(list);
  return list;
}

// Both changes; of different kinds, so that neither says what the other does.
Trial Trials::together(const Trial& a, const Trial& b) {
  Trial both = a;
  both.why.clear();
  both.isLegal = false;
  llvm::append_range(both.statements, b.statements);
  llvm::append_range(both.arguments, b.arguments);
  both.about.insert(b.about.begin(), b.about.end());
  const PlanChanges& more = b.options.changes;
  PlanChanges& changes = both.options.changes;
  if (more.microbatches > 0) changes.microbatches = more.microbatches;
  if (more.recompute) changes.recompute = more.recompute;
  if (!more.shards.empty()) changes.shards = more.shards;
  if (!more.grid.empty()) changes.grid = more.grid;
  if (b.about.count(About::Batch)) both.options.defines = b.options.defines;
  return both;
}

// Pairs may be cheaper than the single changes that fit; three together are tried for want of others.
void Trials::findChanges(Report& into) const {
  int64_t memory = report_.cluster().memory(), now = report_.fullestStage().memory.arena;
  std::vector<Trial> singles = this->singles(), fitting;
  std::optional<Trial> nearest;
  auto keep = [&](std::vector<Trial>& trials) {
    run(trials);
    into.tried += trials.size();
    for (const Trial& trial : trials) {
      if (!trial.isLegal) continue;
      if (trial.figures.arena <= memory) fitting.push_back(trial);
      if (trial.figures.arena < (nearest ? nearest->figures.arena : now)) nearest = trial;
    }
  };
  auto fits = [&](const Trial& trial) { return trial.figures.arena <= memory; };
  auto helps = [&](const Trial& trial) {
    return trial.isLegal && trial.figures.arena < now && !fits(trial);
  };
  keep(singles);
  std::vector<Trial> last = singles;
  for (size_t count = 2; count <= kMostTogether; ++count) {
    if (count > 2 && fitting.size() >= kMostChanges) break;
    std::vector<Trial> next;
    std::set<std::set<std::string>> seen;
    llvm::stable_sort(last, [](auto& a, auto& b) { return a.figures.arena < b.figures.arena; });
    for (const Trial& a : last)
      for (const Trial& b : singles) {
        bool isApart = llvm::none_of(b.about, [&](About about) { return a.about.count(about); });
        if (!isApart || !helps(a) || !helps(b) || next.size() >= kMostTrials) continue;
        Trial both = together(a, b);
        std::set<std::string> words(both.statements.begin(), both.statements.end());
        words.insert(both.arguments.begin(), both.arguments.end());
        if (seen.insert(words).second) next.push_back(std::move(both));
      }
    keep(next);
    last = std::move(next);
  }
  // Device time of a step; where the cluster gives no rate, work.
  bool isTimed = report_.peakRate() > 0;
  auto price = [&](const Trial& trial) {
    return double(trial.ranks) * (isTimed ? trial.figures.seconds : trial.figures.flops);
  };
  llvm::stable_sort(fitting, [&](auto& a, auto& b) { return price(a) < price(b); });
  if (fitting.size() > kMostChanges) fitting.resize(kMostChanges);
  for (const Trial& trial : fitting) into.changes.push_back(changeOf(trial));
  if (fitting.empty() && nearest) into.nearest = changeOf(*nearest);
}

// ---- Ceilings

std::vector<Ceiling> Trials::ceilings() const {
  std::vector<Trial> trials;
  std::vector<Ceiling> list;
  for (const auto& [axis, ranks] : axes()) {
    Ceiling& ceiling = list.emplace_back();
    ceiling.axis = axis;
    ceiling.ranks = ranks;
    ceiling.next = 2 * ranks;
    trials.emplace_back(start()).options.changes.grid = {{axis, 2 * ranks}};
  }
  run(trials);
  int64_t devices = report_.cluster().devicesWithin(report_.cluster().levels.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Trial& trial = trials[i];
    Ceiling& ceiling = list[i];
    Ceiling figures = trial.figures;
    figures.axis = ceiling.axis;
    figures.ranks = ceiling.ranks;
    figures.next = ceiling.next;
    figures.why = trial.why;
    ceiling = std::move(figures);
    ceiling.isBeyondCluster = report_.cluster().known() && trial.ranks > devices;
  }
  return list;
}

}  // namespace

void tryOtherwise(Report& report, const std::vector<std::unique_ptr<ast::File>>& files,
                  const CompileOptions& options, const Diagnostics& diags) {
  Trials trials(report, files, options, diags);
  if (report.fits() == false) trials.findChanges(report);
  report.ceilings = trials.ceilings();
}

}  // namespace planc
