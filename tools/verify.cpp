// Makes the one-rank program of the model, widens both to f64 unless told otherwise, runs and reports.
// Where something differs it runs again with saved activations, to find where it begins. Tested by
// tests/tools/verify.test and tests/tools/verify_mpi.test.
#include "tools/verify.h"

#include "llvm/Support/Format.h"
#include "llvm/Support/JSON.h"
#include "passes/pass_manager.h"
#include "passes/widen.h"
#include "runtime/talk.h"
#include "runtime/verify.h"
#include "tools/ranks.h"

namespace planc {
namespace {

// The plan's model as a program for one rank.
std::unique_ptr<Module> oneRankProgram(const Module& model, bool isWide, std::string& fault,
                                       Exit& code) {
  Modules one;
  one.push_back(cloneForOneRank(model));
  if (isWide) widen(*one.front());
  Diagnostics diags;
  PassResult result = runPasses(one, {}, diags, fault);
  if (result == PassResult::Ok) return std::move(one.front());
  code = result == PassResult::InternalError ? kFault : kNo;
  if (fault.empty()) {
    llvm::raw_string_ostream out(fault);
    out << "its model does not compile for one rank\n";
    diags.print(out);
  }
  return nullptr;
}

std::string ranksText(llvm::ArrayRef<int64_t> ranks, const Grid& grid) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (i ? ", " : "") + std::to_string(ranks[i]);
    if (last > i + 1) text += " to " + std::to_string(ranks[last]);
    else if (last > i) text += ", " + std::to_string(ranks[last]);
    i = last;
  }
  // Where all of them stand in the grid, as far as it is one place.
  std::string where;
  for (const GridAxis& axis : grid.axes) {
    int64_t at = Coordinates(grid, ranks.front()).on(axis.name);
    if (axis.size > 1 && llvm::all_of(ranks, [&](int64_t rank) {
          return Coordinates(grid, rank).on(axis.name) == at;
        }))
      where += (where.empty() ? "" : ", ") + axis.name + " " + std::to_string(at);
  }
  return where.empty() ? text : text + " (" + where + ")";
}

std::string place(const Module& model, Loc loc) {
  if (!loc.known() || loc.file >= model.files.size()) return "";
  return model.files[loc.file] + ":" + std::to_string(loc.line) + ":" + std::to_string(loc.column);
}

std::string describe(const Comparison& c) {
  std::string iteration = c.iteration.empty() ? "" : ", " + c.iteration;
  std::string text =
      c.kind + " '" + c.tensor + "'" + iteration + ", step " + std::to_string(c.step);
  if (c.microbatch >= 0) text += ", microbatch " + std::to_string(c.microbatch);
  return text;
}

void printJson(const VerifyReport& report, const Module& model, const VerifyOptions& options,
               int64_t ranks, llvm::StringRef precision) {
  llvm::json::OStream out(llvm::outs(), 1);
  auto number = [&](llvm::StringRef name, double x) {
    if (std::isfinite(x)) out.attribute(name, x);
    else out.attribute(name, nullptr);  // JSON has no infinity
  };
  out.object([&] {
    out.attribute("equal", report.first() == nullptr);
    out.attribute("ranks", ranks);
    out.attribute("steps", options.steps);
    out.attribute("precision", precision);
    out.attribute("bound", options.bound);
    out.attributeArray("tensors", [&] {
      for (const Comparison& c : report.comparisons)
        out.object([&] {
          out.attribute("tensor", c.tensor);
          out.attribute("kind", c.kind);
          if (!c.iteration.empty()) out.attribute("iteration", c.iteration);
          out.attribute("step", c.step);
          if (c.microbatch >= 0) out.attribute("microbatch", c.microbatch);
          number("difference", c.difference);
          number("scale", c.scale);
          out.attribute("bound", c.bound);
          out.attribute("equal", c.ranks.empty());
          if (std::string at = place(model, c.loc); !at.empty()) out.attribute("place", at);
          out.attributeArray("ranks", [&] {
            for (int64_t rank : c.ranks) out.value(rank);
          });
        });
    });
  });
  llvm::outs() << '\n';
}

void print(const VerifyReport& report, const Module& model, const VerifyOptions& options,
           const Grid& grid, llvm::StringRef precision) {
  llvm::raw_ostream& out = llvm::outs();
  out << "grid";
  for (const GridAxis& axis : grid.axes) out << ' ' << axis.name << ' ' << axis.size;
  out << ": " << grid.ranks() << " ranks against one, " << options.steps << " steps in "
      << precision << '\n';
  struct OfKind {
    int64_t count = 0;
    double worst = 0, tightest = INFINITY, loosest = 0;
  };
  std::map<std::string, OfKind> kinds;
  std::vector<std::string> order;
  for (const Comparison& c : report.comparisons) {
    if (!kinds.count(c.kind)) order.push_back(c.kind);
    OfKind& kind = kinds[c.kind];
    ++kind.count;
    kind.worst = std::max(kind.worst, c.difference);
    kind.tightest = std::min(kind.tightest, c.bound);
    kind.loosest = std::max(kind.loosest, c.bound);
  }
  bool isNoisy = false;
  for (const std::string& name : order) {
    const OfKind& kind = kinds[name];
    out << llvm::format("  %5lld of kind %-10s  worst difference %.1e, allowed %.1e",
                        (long long)kind.count, name.c_str(), kind.worst, kind.tightest);
    if (kind.loosest > kind.tightest) out << llvm::format(" to %.1e", kind.loosest);
    out << '\n';
    isNoisy |= kind.loosest > options.bound;
  }
  if (isNoisy)
    out << llvm::format("allowed is %.1e, or 4 times what rounding alone does to one rank\n",
                        options.bound);
  const Comparison* first = report.first();
  if (!first) {
    const Comparison* worst = report.worst();
    if (worst) out << "equal; the worst is " << describe(*worst) << '\n';
    return;
  }
  int64_t differ = 0;
  for (const Comparison& c : report.comparisons) differ += !c.ranks.empty();
  out << differ << " tensors differ; in program order first:\n";
  int shown = 0;
  for (const Comparison& c : report.comparisons) {
    if (c.ranks.empty() || ++shown > 8) continue;
    std::string at = place(model, c.loc);
    out << "  " << (at.empty() ? "" : at + ": ") << describe(c) << ": off by "
        << llvm::format("%.3g", c.difference) << " of its largest (allowed "
        << llvm::format("%.1e", c.bound) << ") on " << ranksText(c.ranks, grid) << '\n';
  }
  if (shown > 8) out << "  ... and " << shown - 8 << " more\n";
}

}  // namespace

Exit verify(llvm::StringRef tool, llvm::StringRef path, Planx& planx, Communicator* process,
            const VerifyCommand& command) {
  bool isWide = !command.ownPrecision;
  std::string fault;
  Exit failure = kNo;
  std::unique_ptr<Module> one = oneRankProgram(*planx.model, isWide, fault, failure);
  std::unique_ptr<Module> exact;
  if (one && !isWide && one->settings.word("precision") != "f64")
    exact = oneRankProgram(*planx.model, true, fault, failure);
  if (!fault.empty()) return fail(tool, "'" + path + "': " + fault, failure);
  if (isWide)
    for (const auto& role : planx.roles) widen(*role);
  std::string precision = one->settings.word("precision");
  VerifyOptions options;
  options.steps = command.steps;
  options.timeout = command.ranks.timeout;
  options.isShared = !process;
  options.bound = command.bound > 0     ? command.bound
                  : precision == "f64"  ? 1e-10
                  : precision == "bf16" ? 3e-2
                                        : 1e-5;
  int64_t ranks = planx.grid().ranks();
  VerifyReport report;
  bool isEqual = true;
  for (bool activations : {false, true}) {
    options.activations = activations;
    auto made =
        makeVerification(*one, exact.get(), [] { return makeCpuDevice(1); }, options);
    if (process) made = agree(*process, std::move(made));
    if (!made) return fail(tool, llvm::toString(made.takeError()));
    Exit code = runRanks(tool, process, ranks, options.timeout, [&](Communicator& comm) -> llvm::Error {
      auto rank = Rank::make(planx.grid(), comm, command.ranks);
      if (!rank) return rank.takeError();
      return (*made)->run(planx.roles, rank->comm(), rank->device());
    });
    if (code != kYes) return code;
    report = (*made)->report();
    isEqual = !report.first();
    if (process) {
      auto differs = any(*process, !isEqual);
      if (!differs) return fail(tool, llvm::toString(differs.takeError()));
      isEqual = !*differs;
    }
    if (isEqual) break;
  }
  if (isSilent) return isEqual ? kYes : kNo;
  if (command.json) printJson(report, *one, options, ranks, precision);
  else print(report, *one, options, planx.grid(), precision);
  llvm::outs().flush();  // mpirun may end this process as soon as another has said 1
  return isEqual ? kYes : kNo;
}

}  // namespace planc
