// planrun: trains and evaluates .planx programs. Options, progress and exit codes only; the work is
// done by runtime/session.h. Tested by tests/tools.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>

#include "ir/planx.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include "runtime/session.h"
#include "tools/command.h"

namespace cl = llvm::cl;
using namespace planc;

namespace {

cl::OptionCategory category("Options");
cl::SubCommand runCommand("run", "train a compiled plan");
cl::SubCommand evalCommand("eval", "one step's loss, logits and gradients from given weights");

cl::opt<std::string> input(cl::Positional, cl::Required, cl::desc("FILE.planx"), cl::cat(category),
                           cl::sub(runCommand), cl::sub(evalCommand));
cl::opt<std::string> dataPath("data", cl::desc("Training data: text (bytes), .bin or .npy tokens"),
                              cl::value_desc("FILE"), cl::cat(category), cl::sub(runCommand));
cl::opt<long long> steps("steps", cl::init(100), cl::desc("Train up to this step (100)"),
                         cl::value_desc("N"), cl::cat(category), cl::sub(runCommand));
cl::opt<std::string> deviceName("device", cl::init("cpu"), cl::desc("cpu"), cl::value_desc("NAME"),
                                cl::cat(category), cl::sub(runCommand), cl::sub(evalCommand));
cl::opt<std::string> commName("comm", cl::init("threads"), cl::desc("threads"),
                              cl::value_desc("NAME"), cl::cat(category), cl::sub(runCommand));
cl::opt<int> threads("threads", cl::init(0), cl::desc("CPU threads (as many as there are)"),
                     cl::value_desc("N"), cl::cat(category), cl::sub(runCommand),
                     cl::sub(evalCommand));
cl::opt<std::string> logPath("log", cl::desc("Write a JSON line a step"), cl::value_desc("FILE"),
                             cl::cat(category), cl::sub(runCommand));
cl::opt<std::string> tracePath("trace", cl::desc("Write a Chrome/Perfetto trace of the last step"),
                               cl::value_desc("FILE"), cl::cat(category), cl::sub(runCommand));
cl::opt<std::string> saveFolder("save", cl::desc("Save a checkpoint there when done"),
                                cl::value_desc("DIR"), cl::cat(category), cl::sub(runCommand));
cl::opt<long long> saveEvery("save-every", cl::init(0), cl::desc("Also save every N steps"),
                             cl::value_desc("N"), cl::cat(category), cl::sub(runCommand));
cl::opt<std::string> loadPath("load", cl::desc("Continue from a checkpoint"), cl::value_desc("DIR"),
                              cl::cat(category), cl::sub(runCommand));
cl::opt<std::string> tensorsPath("tensors", cl::Required,
                                 cl::desc("Weights and inputs, safetensors"),
                                 cl::value_desc("FILE"), cl::cat(category), cl::sub(evalCommand));
cl::opt<std::string> output("o", cl::Required, cl::desc("Loss, logits and gradients, safetensors"),
                            cl::value_desc("FILE"), cl::cat(category), cl::sub(evalCommand));

constexpr llvm::StringLiteral kTool = "planrun";

Exit fail(llvm::Error error) { return planc::fail(kTool, llvm::toString(std::move(error))); }

// SIGINT and SIGTERM end the run after the step at hand, so that --save still saves.
volatile std::sig_atomic_t stopRequested = 0;
extern "C" void requestStop(int) { stopRequested = 1; }

std::string bytesText(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return llvm::formatv("{0:f1} {1}", bytes, units[unit]).str();
}

// What the run did: losses on the way, speed, memory, where the time went.
void report(const std::vector<StepRecord>& records, Session& session) {
  llvm::raw_ostream& out = llvm::outs();
  out << "  step      loss   grad norm         lr   tokens/s\n";
  size_t rows = std::min<size_t>(records.size(), 10);
  for (size_t i = 0; i < rows; ++i) {
    size_t at = rows == 1 ? 0 : i * (records.size() - 1) / (rows - 1);
    const StepRecord& r = records[at];
    out << llvm::format("%6lld %9.4f %11.4f %10.3g %10.0f\n", (long long)r.step, r.loss,
                        r.gradientNorm, r.learningRate, r.tokensPerSecond);
  }
  std::vector<double> speeds;
  for (const StepRecord& r : records) speeds.push_back(r.tokensPerSecond);
  std::nth_element(speeds.begin(), speeds.begin() + long(speeds.size() / 2), speeds.end());
  out << llvm::format("%lld steps of %lld tokens, median %.0f tokens/s; arena %s\n",
                      (long long)records.size(), (long long)session.tokensPerStep(),
                      speeds[speeds.size() / 2],
                      bytesText(double(session.interpreter().arenaBytes())).c_str());
  std::vector<std::pair<double, llvm::StringRef>> kinds;
  double total = 0;
  llvm::ArrayRef<double> seconds = session.interpreter().secondsByKind();
  for (size_t i = 0; i < seconds.size(); ++i) {
    total += seconds[i];
    if (seconds[i] > 0) kinds.push_back({seconds[i], allOps()[i].text});
  }
  std::sort(kinds.rbegin(), kinds.rend());
  out << "time in ops:";
  double rest = 100;
  for (size_t i = 0; i < kinds.size() && i < 6; ++i) {
    double share = 100 * kinds[i].first / total;
    rest -= share;
    out << llvm::format(" %s %.1f%%,", kinds[i].second.data(), share);
  }
  out << llvm::format(" other %.1f%%\n", std::max(0.0, rest));
}

llvm::Expected<Planx> open(llvm::StringRef path) {
  auto bytes = readInput(path);
  if (!bytes) return bytes.takeError();
  auto planx = readPlanx(*bytes);
  if (!planx)
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "'" + path + "': " + llvm::toString(planx.takeError()));
  return planx;
}

Exit train(Session& session, const TokenFile& data, std::optional<StepLog>& log) {
  if (session.stepsDone() >= steps)
    return planc::fail(kTool, "the checkpoint is at step " + llvm::Twine(session.stepsDone()) +
                                  ", and --steps is " + llvm::Twine(steps));
  std::optional<Trace> trace;
  if (!tracePath.empty()) {
    auto opened = Trace::open(tracePath);
    if (!opened) return fail(opened.takeError());
    trace.emplace(std::move(*opened));
    trace->nameRow(0, "rank 0");
  }
  std::signal(SIGINT, requestStop);
  std::signal(SIGTERM, requestStop);
  std::signal(SIGHUP, requestStop);
  Progress progress(steps);
  std::vector<StepRecord> records;
  double elapsed = 0;
  bool saved = false;
  while (session.stepsDone() < steps && !stopRequested) {
    bool isLast = session.stepsDone() + 1 == steps;
    if (trace && isLast) session.interpreter().setTrace(&*trace);
    auto record = session.step(data);
    if (!record) return fail(record.takeError());
    elapsed += record->seconds;
    record->seconds = elapsed;
    records.push_back(*record);
    progress.show(*record);
    if (log)
      if (llvm::Error error = log->write(*record)) return fail(std::move(error));
    if (!std::isfinite(record->loss) || !std::isfinite(record->gradientNorm))
      return planc::fail(kTool, "the loss or the gradient of step " + llvm::Twine(record->step) +
                                    " is not finite; it was not saved");
    saved = false;
    if (!saveFolder.empty() && saveEvery > 0 && record->step % saveEvery == 0) {
      if (llvm::Error error = session.save(saveFolder)) return fail(std::move(error));
      saved = true;
    }
  }
  if (!saveFolder.empty() && !saved)
    if (llvm::Error error = session.save(saveFolder)) return fail(std::move(error));
  if (trace)
    if (llvm::Error error = trace->close()) return fail(std::move(error));
  if (!saveFolder.empty())
    llvm::outs() << "saved step " << session.stepsDone() << " in " << saveFolder << '\n';
  if (!records.empty()) report(records, session);
  if (stopRequested)
    return planc::fail(kTool,
                       "stopped by a signal behind step " + llvm::Twine(session.stepsDone()));
  return kYes;
}

Exit run() {
  if (dataPath.empty()) return planc::fail(kTool, "--data FILE is needed", kUsage);
  if (steps < 1 || steps > kMaxStep)
    return planc::fail(kTool, "--steps takes a number from 1 to 2147483647", kUsage);
  for (const cl::opt<std::string>* option : {&dataPath, &saveFolder, &loadPath, &logPath, &tracePath})
    if (option->getNumOccurrences() > 0 && option->empty())
      return planc::fail(kTool, "--" + option->ArgStr + " is empty", kUsage);
  for (llvm::StringRef out : {llvm::StringRef(logPath), llvm::StringRef(tracePath)})
    for (llvm::StringRef in : {llvm::StringRef(input), llvm::StringRef(dataPath)})
      if (isSameFile(out, in))
        return planc::fail(kTool, "'" + out + "' would be overwritten, and is read", kUsage);
  if (isSameFile(logPath, tracePath))
    return planc::fail(kTool, "--log and --trace name the same file", kUsage);
  if (saveEvery < 0 || (saveEvery > 0 && saveFolder.empty()))
    return planc::fail(kTool, "--save-every takes a number from 1, with --save DIR", kUsage);
  if (commName != "threads")
    return planc::fail(kTool, "there is no communicator '" + commName + "' here; there is: threads",
                       kUsage);
  auto planx = open(input);
  if (!planx) return fail(planx.takeError());
  if (!saveFolder.empty())
    if (llvm::Error error = Session::prepareFolder(saveFolder)) return fail(std::move(error));
  auto data = TokenFile::open(dataPath);
  if (!data) return fail(data.takeError());
  std::unique_ptr<Device> device = makeCpuDevice(threads);
  auto session = Session::create(*planx->roles.front().program, *device);
  if (!session) return fail(session.takeError());
  if (llvm::Error error = data->check((*session)->positions(), (*session)->vocab()))
    return fail(std::move(error));
  if (loadPath.empty()) {
    (*session)->initialise();
  } else {
    std::string note;
    if (llvm::Error error = (*session)->load(loadPath, note)) return fail(std::move(error));
    if (!note.empty()) llvm::errs() << "planrun: note: " << note << '\n';
  }
  std::optional<StepLog> log;
  if (!logPath.empty()) {
    auto opened = StepLog::open(logPath, !loadPath.empty());
    if (!opened) return fail(opened.takeError());
    log.emplace(std::move(*opened));
  }
  return train(**session, *data, log);
}

Exit evaluate() {
  if (isSameFile(output, input) || isSameFile(output, tensorsPath))
    return planc::fail(kTool, "'" + output + "' would be overwritten, and is read", kUsage);
  auto planx = open(input);
  if (!planx) return fail(planx.takeError());
  std::unique_ptr<Device> device = makeCpuDevice(threads);
  auto session = Session::create(*planx->roles.front().program, *device);
  if (!session) return fail(session.takeError());
  if (llvm::Error error = (*session)->evaluate(tensorsPath, output)) return fail(std::move(error));
  return kYes;
}

}  // namespace

int main(int argc, char** argv) {
  reportLostOutput();
  cl::SetVersionPrinter([](llvm::raw_ostream& out) { out << "planrun 0.1.0\n"; });
  for (cl::SubCommand* command : cl::getRegisteredSubcommands())
    cl::HideUnrelatedOptions(category, *command);
  if (!cl::ParseCommandLineOptions(argc, argv, "trains and evaluates compiled plans\n",
                                   &llvm::errs()))
    return kUsage;
  if (threads < 0 || threads > 1024)
    return planc::fail(kTool, "--threads takes a number from 0 to 1024", kUsage);
  if ((runCommand || evalCommand) && deviceName != "cpu")
    return planc::fail(kTool, "there is no device '" + deviceName + "' here; there is: cpu",
                       kUsage);
  if (runCommand) return run();
  if (evalCommand) return evaluate();
  return planc::fail(kTool, "which command? 'planrun --help' lists them", kUsage);
}
