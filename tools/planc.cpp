// planc: compiles, checks, formats and dumps. Options and exit codes only; the work is done by the
// frontend, the passes and the IR. Tested by tests/tools.
#include <unistd.h>

#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "ir/planx.h"
#include "ir/protocol.h"
#include "ir/table.h"
#include "ir/text.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "passes/pass_manager.h"
#include "tools/command.h"
#include "tools/compile.h"
#include "tools/draw_schedule.h"
#include "tools/explain/command.h"
#include "tools/explain/text.h"
#include "tools/explain/what_if.h"
#include "tools/stages.h"

namespace cl = llvm::cl;
using namespace planc;

namespace {

cl::OptionCategory category("Options");
cl::SubCommand compileCommand("compile", "compile a plan to a .planx");
cl::SubCommand checkCommand("check", "find every error of a plan or a .planx; writes nothing");
cl::SubCommand dumpCommand("dump", "show what a .planx holds");
cl::SubCommand explainCommand(
    "explain", "what a plan costs: memory, messages, work, idle time; -o writes a page");
cl::SubCommand optCommand("opt", "run passes on IR text");
cl::SubCommand fmtCommand("fmt", "rewrite plans in the canonical layout");
cl::SubCommand passesCommand("passes", "list the passes in order");
cl::SubCommand opsCommand("ops", "list the IR's ops");
cl::SubCommand stdCommand("std", "list the standard library, or print a file of it");

cl::opt<std::string> input(cl::Positional, cl::Required, cl::desc("FILE"), cl::cat(category),
                           cl::sub(compileCommand), cl::sub(checkCommand), cl::sub(dumpCommand),
                           cl::sub(explainCommand), cl::sub(optCommand));
cl::list<std::string> fmtInputs(cl::Positional, cl::OneOrMore, cl::desc("FILE..."),
                                cl::cat(category), cl::sub(fmtCommand));
cl::opt<std::string> libraryFile(cl::Positional, cl::desc("[std/NAME.plan]"), cl::cat(category),
                                 cl::sub(stdCommand));
cl::opt<std::string> output("o", cl::desc("Where to write; - is standard output"),
                            cl::value_desc("FILE"), cl::cat(category), cl::sub(compileCommand),
                            cl::sub(explainCommand), cl::sub(optCommand));
cl::list<std::string> defines("D", cl::Prefix, cl::desc("Set a parameter of the model"),
                              cl::value_desc("NAME=VALUE"), cl::cat(category),
                              cl::sub(compileCommand), cl::sub(checkCommand),
                              cl::sub(explainCommand));
cl::opt<std::string> planName("plan", cl::desc("Which plan of the file"), cl::value_desc("NAME"),
                              cl::cat(category), cl::sub(compileCommand), cl::sub(checkCommand),
                              cl::sub(explainCommand));
cl::opt<std::string> cluster(
    "cluster",
    cl::desc("Run on this cluster instead of the plan's: of the plan's files or the library"),
    cl::value_desc("NAME"), cl::cat(category), cl::sub(compileCommand), cl::sub(checkCommand),
    cl::sub(explainCommand));
cl::list<std::string> grid("grid", cl::CommaSeparated, cl::desc("Override the grid's axes"),
                           cl::value_desc("AXIS=SIZE,..."), cl::cat(category),
                           cl::sub(compileCommand), cl::sub(checkCommand), cl::sub(explainCommand));
cl::list<std::string> passNames(
    "passes", cl::CommaSeparated,
    cl::desc("Run these passes instead of all; without `emit` the IR is printed"),
    cl::value_desc("NAME,..."), cl::cat(category), cl::sub(compileCommand), cl::sub(optCommand));
cl::opt<std::string> dumpAfter("dump-after", cl::desc("Show the IR after a pass, or after all"),
                               cl::value_desc("PASS|all"), cl::cat(category),
                               cl::sub(compileCommand), cl::sub(optCommand));
cl::opt<std::string> dumpDir("dump-dir", cl::desc("Write dumps there, a numbered file a pass"),
                             cl::value_desc("DIR"), cl::cat(category), cl::sub(compileCommand),
                             cl::sub(optCommand));
cl::opt<bool> timePasses("time-passes", cl::desc("Show each pass's time"), cl::cat(category),
                         cl::sub(compileCommand), cl::sub(optCommand));
cl::opt<long long> bisect("bisect", cl::init(-1), cl::desc("Run only the first N passes"),
                          cl::value_desc("N"), cl::cat(category), cl::sub(compileCommand),
                          cl::sub(optCommand));
cl::opt<bool> showIds("show-ids", cl::desc("Show each error's id"), cl::cat(category),
                      cl::sub(compileCommand), cl::sub(checkCommand), cl::sub(explainCommand),
                      cl::sub(optCommand));
cl::opt<bool> verifyDiags("verify-diagnostics",
                          cl::desc("Compare errors with the file's expected-error comments"),
                          cl::cat(category), cl::sub(checkCommand));
cl::opt<bool> dumpModel("model", cl::desc("The model-level IR instead of the rank program"),
                        cl::cat(category), cl::sub(dumpCommand));
cl::opt<long long> oneRank("rank", cl::init(0), cl::desc("Which rank"), cl::value_desc("R"),
                           cl::cat(category), cl::sub(dumpCommand), cl::sub(explainCommand));
cl::opt<bool> dumpSchedule("schedule", cl::desc("What each stage of a pipeline does over time"),
                           cl::cat(category), cl::sub(dumpCommand));
cl::opt<std::string> picture(
    "svg", cl::desc("Also write the schedule as a picture; - is standard output, and only it"),
    cl::value_desc("FILE"), cl::cat(category), cl::sub(dumpCommand));
cl::opt<std::string> costsText(
    "costs", cl::init("1,1,1"),
    cl::desc("Times of a chunk's forward, input gradient and weight gradient (default 1,1,1)"),
    cl::value_desc("F,I,W"), cl::cat(category), cl::sub(dumpCommand), cl::sub(explainCommand));
cl::opt<bool> asJson("json", cl::desc("As JSON"), cl::cat(category), cl::sub(explainCommand));
cl::opt<bool> noLocations("no-locations", cl::desc("Leave out places in the plan from IR text"),
                          cl::cat(category), cl::sub(compileCommand), cl::sub(dumpCommand),
                          cl::sub(optCommand));
cl::opt<bool> fmtCheck("check", cl::desc("Write nothing; exit 1 if a file is not canonical"),
                       cl::cat(category), cl::sub(fmtCommand));
cl::opt<bool> fmtInPlace("i", cl::desc("Rewrite the files instead of printing"), cl::cat(category),
                         cl::sub(fmtCommand));
cl::opt<bool> markdown("markdown", cl::desc("As a page of docs/"), cl::cat(category),
                       cl::sub(passesCommand), cl::sub(opsCommand));

constexpr llvm::StringLiteral kTool = "planc";
constexpr llvm::StringLiteral kCostsRule = "--costs takes three numbers from 0, not all 0: F,I,W";

// `name=value` options; false after an error.
bool pairs(const cl::list<std::string>& list, llvm::StringRef option,
           std::vector<std::pair<std::string, std::string>>& into) {
  for (const std::string& text : list) {
    auto [name, value] = llvm::StringRef(text).split('=');
    if (name.empty() || value.empty()) {
      fail(kTool, option + " takes name=value, not '" + text + "'");
      return false;
    }
    for (const auto& [seen, first] : into)
      if (seen == name) {
        fail(kTool, option + " gives '" + name + "' twice");
        return false;
      }
    into.push_back({name.str(), value.str()});
  }
  return true;
}

std::optional<CompileOptions> compileOptions() {
  CompileOptions options;
  options.plan = planName;
  options.cluster = cluster;
  if (!pairs(defines, "-D", options.defines) || !pairs(grid, "--grid", options.grid))
    return std::nullopt;
  return options;
}

Exit finish(const Diagnostics& diags) {
  diags.print(llvm::errs(), showIds);
  return diags.failed() ? kNo : kYes;
}

std::optional<PassOptions> passOptions() {
  PassOptions options;
  auto isPass = [](llvm::StringRef name) {
    return llvm::any_of(allPasses(), [&](const PassInfo& pass) { return pass.name == name; });
  };
  for (const std::string& name : passNames) {
    if (!isPass(name)) {
      fail(kTool, "there is no pass '" + name + "'; 'planc passes' lists them");
      return std::nullopt;
    }
    options.passes.push_back(name);
  }
  if (!dumpAfter.empty() && dumpAfter != "all" && !isPass(dumpAfter)) {
    fail(kTool, "there is no pass '" + dumpAfter + "'; 'planc passes' lists them");
    return std::nullopt;
  }
  if (bisect.getNumOccurrences() > 0 && bisect < 0) {
    fail(kTool, "--bisect takes a number from 0");
    return std::nullopt;
  }
  options.dumpAfter = dumpAfter;
  options.locations = !noLocations;
  options.dumpDir = dumpDir;
  options.time = timePasses;
  options.bisect = bisect;
  options.dumps = &llvm::outs();
  options.times = &llvm::errs();
  return options;
}

// What came of running the passes; kYes when the modules are what was asked for: then warnings are the
// caller's to show.
Exit outcome(PassResult result, const Modules& modules, Diagnostics& diags,
             const std::string& internal) {
  switch (result) {
    case PassResult::Ok:
      return kYes;
    case PassResult::UserError:
      if (!internal.empty()) return fail(kTool, internal);
      return finish(diags);
    case PassResult::InternalError:
      break;
  }
  finish(diags);
  llvm::SmallString<128> path;
  std::error_code error = llvm::sys::fs::createTemporaryFile("planc-fault", "ir", path);
  if (!error) {
    llvm::raw_fd_ostream out(path, error);
    if (!error)
      for (const auto& module : modules) printModule(*module, out);
  }
  return fail(kTool,
              internal + "\nthis is a fault of planc; please report it with the plan and " + path,
              kFault);
}

// The modules as IR text, to -o or standard output.
Exit writeText(const Modules& modules) {
  std::string text;
  llvm::raw_string_ostream out(text);
  PrintOptions options;
  options.locations = !noLocations;
  for (const auto& module : modules) printModule(*module, out, options);
  out.flush();
  if (llvm::Error error = writeOutput(output.empty() ? "-" : output.getValue(), text))
    return fail(kTool, llvm::toString(std::move(error)));
  return kYes;
}

// Compiles the plan and shows what there is to say of it; kNo after errors.
Exit compileInput(const PassOptions& passes, Planx& planx) {
  auto options = compileOptions();
  if (!options) return kUsage;
  Diagnostics diags;
  auto files = readPlan(input, diags, cluster);
  if (diags.failed()) return finish(diags);
  std::string internal;
  PassResult result = compilePlaced(files, *options, passes, planx, diags, internal);
  if (Exit code = outcome(result, planx.roles, diags, internal); code != kYes) return code;
  return finish(diags);
}

Exit compile() {
  auto passes = passOptions();
  if (!passes) return kUsage;
  if (isSameFile(output, input))
    return fail(kTool, "-o '" + output + "' would overwrite the plan", kUsage);
  Planx planx;
  if (Exit code = compileInput(*passes, planx); code != kYes) return code;
  if (planx.roles.front()->level != Level::Rank) {  // passes were left out: show what there is
    bool isShown = !passes->dumpAfter.empty() || !passes->dumpDir.empty();
    return isShown && output.empty() ? kYes : writeText(planx.roles);
  }
  std::string path = output;
  if (path.empty()) {
    if (input == "-") return fail(kTool, "-o is needed with standard input", kUsage);
    llvm::SmallString<128> made(input);
    llvm::sys::path::replace_extension(made, "planx");
    path = made.str().str();
  }
  if (path == "-" && isatty(1)) return fail(kTool, "a .planx is binary: not to a terminal", kUsage);
  if (llvm::Error error = writeOutput(path, writePlanx(planx)))
    return fail(kTool, llvm::toString(std::move(error)));
  return kYes;
}

llvm::Expected<Planx> readProgram() {
  auto bytes = readInput(input);
  if (!bytes) return bytes.takeError();
  auto planx = readPlanx(*bytes);
  if (!planx)
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "'" + input + "': " + llvm::toString(planx.takeError()));
  return planx;
}

Exit checkProgram() {
  if (!defines.empty() || !grid.empty() || !planName.empty() || !cluster.empty() || verifyDiags)
    return fail(kTool, "a .planx takes no options: they are for plans", kUsage);
  auto planx = readProgram();
  if (!planx) return fail(kTool, llvm::toString(planx.takeError()));
  if (llvm::Error error = checkProtocol(*planx))
    return fail(kTool, "'" + input + "': " + llvm::toString(std::move(error)));
  return kYes;
}

// Compiles a plan that has no errors and proves that its ranks' programs fit together.
Exit prove(const std::vector<std::unique_ptr<ast::File>>& files, const CompileOptions& options,
           Diagnostics& diags) {
  Planx planx;
  std::string internal;
  PassResult result = compilePlaced(files, options, PassOptions(), planx, diags, internal);
  if (Exit code = outcome(result, planx.roles, diags, internal); code != kYes) return code;
  llvm::Error error = checkFits(planx);
  if (!error) error = checkProtocol(planx);
  if (error)
    return fail(kTool,
                "plan '" + options.plan + "': " + llvm::toString(std::move(error)) +
                    "\nthis is a fault of planc; please report it with the plan",
                kFault);
  return kYes;
}

Exit check() {
  if (llvm::sys::path::extension(input) == ".planx") return checkProgram();
  auto options = compileOptions();
  if (!options) return kUsage;
  if (verifyDiags) return verifyDiagnostics(input, *options, llvm::errs()) ? kYes : kNo;
  Diagnostics diags;
  auto files = readPlan(input, diags, cluster);
  if (!diags.failed()) checkPlans(files, *options, diags);
  if (diags.failed()) return finish(diags);
  for (const ast::Item& item : files.back()->items) {
    const auto* plan = std::get_if<ast::Plan>(&item);
    if (!plan || (!planName.empty() && planName != plan->name.text)) continue;
    options->plan = plan->name.text;
    if (Exit code = prove(files, *options, diags); code != kYes) return code;
  }
  return finish(diags);
}

// A program's own figures, without what else the plan could be.
Exit explainProgram(const ExplainRequest& request) {
  if (!defines.empty() || !grid.empty() || !planName.empty() || !cluster.empty())
    return fail(kTool, "a .planx takes no options of a plan's: -D, --grid, --plan, --cluster",
                kUsage);
  auto planx = readProgram();
  if (!planx) return fail(kTool, llvm::toString(planx.takeError()));
  return show(reportOf(*planx, request.costs), request);
}

Exit explain() {
  std::optional<WorkCosts> costs = readCosts(costsText);
  if (!costs) return fail(kTool, kCostsRule, kUsage);
  if (isSameFile(output, input))
    return fail(kTool, "-o '" + output + "' would overwrite the plan", kUsage);
  ExplainRequest request{*costs, asJson, output, std::nullopt};
  if (oneRank.getNumOccurrences() > 0) request.rank = oneRank;
  if (output.getNumOccurrences() > 0 && output.empty())
    return fail(kTool, "-o takes a file's name", kUsage);
  if (!output.empty() && (asJson || request.rank))
    return fail(kTool, "-o writes a page of all ranks: not with --json or --rank", kUsage);
  if (llvm::sys::path::extension(input) == ".planx") return explainProgram(request);
  auto options = compileOptions();
  if (!options) return kUsage;
  Diagnostics diags;
  auto files = readPlan(input, diags, cluster);
  if (diags.failed()) return finish(diags);
  Diagnostics unspoilt = diags;
  Planx planx;
  std::string internal;
  PassResult result = compilePlaced(files, *options, PassOptions(), planx, diags, internal);
  if (Exit code = outcome(result, planx.roles, diags, internal); code != kYes) return code;
  if (Exit code = finish(diags); code != kYes) return code;
  Report report = reportOf(planx, *costs);
  if (!request.rank) tryOtherwise(report, files, *options, unspoilt);
  return show(report, request);
}

Exit drawProgram(const Planx& planx) {
  std::optional<WorkCosts> costs = readCosts(costsText);
  if (!costs) return fail(kTool, kCostsRule, kUsage);
  std::optional<Stages> stages = stagesOf(planx);
  if (!stages) return fail(kTool, "'" + input + "' has no pipeline whose schedule could be drawn");
  if (picture != "-") llvm::outs() << showSchedule(*stages, *costs);
  if (picture.empty()) return kYes;
  size_t tasks = 0;
  for (const auto& list : stages->schedule.tasks) tasks += list.size();
  if (tasks > kMaxDrawnTasks)
    return fail(kTool, "--svg draws up to " + llvm::Twine(kMaxDrawnTasks) +
                           " tasks, and there are " + llvm::Twine(tasks) +
                           "; fewer microbatches show the same pattern");
  Timeline timeline = stages->timeline(*costs);
  if (llvm::Error error =
          writeOutput(picture, drawPicture(stages->schedule, timeline, *costs, stages->title())))
    return fail(kTool, llvm::toString(std::move(error)));
  return kYes;
}

Exit dump() {
  bool isDrawn = dumpSchedule || !picture.empty();
  if (!isDrawn && costsText.getNumOccurrences() > 0)
    return fail(kTool, "--costs goes with --schedule or --svg", kUsage);
  if (isSameFile(picture, input))
    return fail(kTool, "--svg '" + picture + "' would overwrite the program", kUsage);
  auto planx = readProgram();
  if (!planx) return fail(kTool, llvm::toString(planx.takeError()));
  if (isDrawn) return drawProgram(*planx);
  int64_t ranks = planx->grid().ranks();
  if (oneRank < 0 || oneRank >= ranks) return fail(kTool, noRank(oneRank, ranks));
  PrintOptions options;
  options.rank = oneRank.getNumOccurrences() > 0 && !dumpModel ? int64_t(oneRank) : -1;
  options.locations = !noLocations;
  printModule(dumpModel ? *planx->model : planx->program(oneRank), llvm::outs(), options);
  return kYes;
}

Exit opt() {
  auto passes = passOptions();
  if (!passes) return kUsage;
  auto text = readInput(input);
  if (!text) return fail(kTool, llvm::toString(text.takeError()));
  Diagnostics diags;
  Modules modules = parseModules(diags.addFile(input, *text), diags);
  if (modules.empty()) return finish(diags);
  // `opt` runs what it is told, and nothing if it is told nothing. What passes say is about places
  // in the plans that the modules name.
  Diagnostics planDiags;
  for (const std::string& path : modules.front()->files) {
    auto plan = llvm::MemoryBuffer::getFile(path);
    planDiags.addFile(path, plan ? (*plan)->getBuffer().str() : std::string());
  }
  if (!passes->passes.empty()) {
    std::string internal;
    PassResult result = runPasses(modules, *passes, planDiags, internal);
    if (Exit code = outcome(result, modules, planDiags, internal); code != kYes) return code;
    finish(planDiags);
  }
  return writeText(modules);
}

Exit format() {
  Exit code = kYes;
  for (const std::string& path : fmtInputs) {
    auto text = readInput(path);
    if (!text) {
      code = fail(kTool, llvm::toString(text.takeError()));
      continue;
    }
    Diagnostics diags;
    std::optional<std::string> formatted = formatPlan(path, *text, diags);
    if (!formatted) {
      code = finish(diags);
    } else if (fmtCheck) {
      if (*formatted != *text) code = fail(kTool, "'" + path + "' is not in the canonical layout");
    } else if (llvm::Error error = fmtInPlace && path != "-" ? *formatted == *text
                                                                   ? llvm::Error::success()
                                                                   : writeOutput(path, *formatted)
                                                             : writeOutput("-", *formatted)) {
      code = fail(kTool, llvm::toString(std::move(error)));
    }
  }
  return code;
}

Exit showLibrary() {
  for (const auto& [name, text] : standardLibrary()) {
    if (libraryFile.empty()) {
      llvm::outs() << name << '\n';
    } else if (libraryFile == name) {
      llvm::outs() << text;
      return kYes;
    }
  }
  if (libraryFile.empty()) return kYes;
  return fail(kTool, "the standard library has no '" + libraryFile + "'; 'planc std' lists it");
}

Exit listPasses() {
  if (markdown)
    llvm::outs() << "<!-- Generated by `planc passes --markdown`; passes/pass_manager.cpp holds "
                    "the list. -->\n# Passes\n\nIn this order; "
                    "`passes/passes.h` says why.\n\n| pass | what it does |\n| --- | --- |\n";
  for (const PassInfo& pass : allPasses()) {
    if (markdown) llvm::outs() << "| `" << pass.name << "` | " << pass.summary << " |\n";
    else llvm::outs() << llvm::left_justify(pass.name, 12) << pass.summary << '\n';
  }
  return kYes;
}

}  // namespace

int main(int argc, char** argv) {
  reportLostOutput();
  cl::SetVersionPrinter([](llvm::raw_ostream& out) { out << "planc 0.1.0\n"; });
  for (cl::SubCommand* command : cl::getRegisteredSubcommands())
    cl::HideUnrelatedOptions(category, *command);
  if (!cl::ParseCommandLineOptions(
          argc, argv, "compiles plans for training models across many ranks\n", &llvm::errs()))
    return kUsage;
  if (compileCommand) return compile();
  if (checkCommand) return check();
  if (dumpCommand) return dump();
  if (explainCommand) return explain();
  if (optCommand) return opt();
  if (fmtCommand) return format();
  if (passesCommand) return listPasses();
  if (stdCommand) return showLibrary();
  if (opsCommand) {
    printOpTable(llvm::outs(), markdown);
    return kYes;
  }
  return fail(kTool, "which command? 'planc --help' lists them", kUsage);
}
