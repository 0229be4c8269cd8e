// planrun: trains and evaluates .planx programs. Options, progress and exit codes only; the work is
// done by runtime/session.h. Tested by tests/tools.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "ir/planx.h"
#include "ir/protocol.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include "runtime/session.h"
#include "runtime/talk.h"
#include "tools/command.h"
#include "tools/ranks.h"
#include "tools/verify.h"

namespace cl = llvm::cl;
using namespace planc;

namespace {

cl::OptionCategory category("Options");
cl::SubCommand runCommand("run", "train a compiled plan");
cl::SubCommand evalCommand("eval", "one step's loss, logits and gradients from given weights");
cl::SubCommand verifyCommand("verify", "compare a plan on all its ranks with its model on one");

cl::opt<std::string> input(cl::Positional, cl::Required, cl::desc("FILE.planx"), cl::cat(category),
                           cl::sub(runCommand), cl::sub(evalCommand), cl::sub(verifyCommand));
cl::opt<long long> verifySteps("steps", cl::init(3), cl::desc("Compare that many steps (3)"),
                               cl::value_desc("N"), cl::cat(category), cl::sub(verifyCommand));
cl::opt<bool> json("json", cl::desc("Every comparison, as JSON"), cl::cat(category),
                   cl::sub(verifyCommand));
cl::opt<std::string> verifyPrecision("precision", cl::init("f64"),
                                     cl::desc("f64 (the default), or plan: the plan's own"),
                                     cl::value_desc("NAME"), cl::cat(category),
                                     cl::sub(verifyCommand));
cl::opt<double> bound("bound", cl::init(0),
                      cl::desc("Largest difference, of a tensor's largest element (f64 1e-10, f32 "
                               "1e-5, bf16 3e-2)"),
                      cl::value_desc("X"), cl::cat(category), cl::sub(verifyCommand));
cl::opt<bool> noCheck("no-check", cl::desc("Leave out the proof that the ranks' programs fit"),
                      cl::cat(category), cl::sub(runCommand), cl::sub(evalCommand),
                      cl::sub(verifyCommand));
cl::opt<std::string> dataPath("data", cl::desc("Training data: text (bytes), .bin or .npy tokens"),
                              cl::value_desc("FILE"), cl::cat(category), cl::sub(runCommand));
cl::opt<long long> steps("steps", cl::init(100), cl::desc("Train up to this step (100)"),
                         cl::value_desc("N"), cl::cat(category), cl::sub(runCommand));
cl::opt<std::string> deviceName("device", cl::init("cpu"), cl::desc("cpu, or cuda: a GPU a rank"),
                                cl::value_desc("NAME"), cl::cat(category), cl::sub(runCommand),
                                cl::sub(evalCommand), cl::sub(verifyCommand));
cl::opt<bool> noGraph("no-graph",
                      cl::desc("Enqueue every op of every step, instead of replaying one "
                               "step's graph (cuda)"),
                      cl::cat(category), cl::sub(runCommand));
cl::opt<std::string> commName(
    "comm",
    cl::desc("What ranks are: threads of this process (the default on "
             "CPUs); mpi: processes of mpirun; tcp: processes that RANK, "
             "WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or Slurm, tell of; "
             "nccl (the default on GPUs): any of these, with messages "
             "between GPUs"),
    cl::value_desc("NAME"), cl::cat(category), cl::sub(runCommand), cl::sub(evalCommand),
    cl::sub(verifyCommand));
cl::opt<int> threads(
    "threads", cl::init(0),
    cl::desc("CPU threads of each rank (all ranks together: as many as there are)"),
    cl::value_desc("N"), cl::cat(category), cl::sub(runCommand), cl::sub(evalCommand));
cl::opt<int> timeout("timeout", cl::init(60),
                     cl::desc("End the run when a rank waits so long for others (60; verify, where "
                              "ranks wait for the one that runs the model: 3600)"),
                     cl::value_desc("SECONDS"), cl::cat(category), cl::sub(runCommand),
                     cl::sub(evalCommand), cl::sub(verifyCommand));
cl::opt<std::string> logPath("log",
                             cl::desc("Write a JSON line a step: loss, ..., tokens by expert"),
                             cl::value_desc("FILE"), cl::cat(category), cl::sub(runCommand));
cl::opt<std::string> summaryPath("summary",
                                 cl::desc("Write a JSON line a rank when done: the memory it took"),
                                 cl::value_desc("FILE"), cl::cat(category), cl::sub(runCommand));
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

Exit fail(const llvm::Twine& what, Exit code = kNo) { return planc::fail(kTool, what, code); }
Exit fail(llvm::Error error) { return fail(llvm::toString(std::move(error))); }

llvm::Error failure(const llvm::Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), what);
}

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
void report(const std::vector<StepRecord>& records, Session& session, int ranks) {
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
  out << llvm::format(
      "%lld steps of %lld tokens, median %.0f tokens/s; arena %s%s\n", (long long)records.size(),
      (long long)session.tokensPerStep(), speeds[speeds.size() / 2],
      bytesText(double(session.interpreter().arenaBytes())).c_str(), ranks > 1 ? " a rank" : "");
  if (!session.interpreter().device().isHost()) return;  // asking for an op is not doing it
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
  if (!planx) return failure("'" + path + "': " + llvm::toString(planx.takeError()));
  if (!noCheck)
    if (llvm::Error error = checkProtocol(*planx))
      return failure("'" + path + "': " + llvm::toString(std::move(error)));
  return planx;
}

// What one rank alone does beside its steps.
struct First {
  std::optional<StepLog> log;
  std::optional<TraceFile> trace;
  File summary;
  std::optional<Progress> progress;
  std::vector<StepRecord> records;

  llvm::Error open() {
    if (!logPath.empty()) {
      auto opened = StepLog::open(logPath, !loadPath.empty());
      if (!opened) return opened.takeError();
      log.emplace(std::move(*opened));
    }
    if (!tracePath.empty()) {
      auto opened = TraceFile::open(tracePath);
      if (!opened) return opened.takeError();
      trace.emplace(std::move(*opened));
    }
    if (!summaryPath.empty()) {
      auto opened = File::openWrite(summaryPath);
      if (!opened) return opened.takeError();
      summary = std::move(*opened);
    }
    progress.emplace(steps);
    return llvm::Error::success();
  }

  llvm::Error add(const StepRecord& record) {
    records.push_back(record);
    progress->show(record);
    return log ? log->write(record) : llvm::Error::success();
  }
};

// A line of each rank, in their order.
llvm::Error summarise(Communicator& comm, const RankSummary& mine, File& into) {
  auto lines = toFirst(comm, summaryLine(mine) + "\n");
  if (!lines) return lines.takeError();
  return onFirst(comm, [&] { return into.write(llvm::StringRef(llvm::join(*lines, ""))); });
}

// All ranks save, and the first says so.
llvm::Error trainOn(Communicator& comm, Session& session, const TokenFile& data) {
  if (session.stepsDone() >= steps)
    return failure("the checkpoint is at step " + llvm::Twine(session.stepsDone()) +
                   ", and --steps is " + llvm::Twine(steps) +
                   "; it counts from the model's first step");
  First first;
  bool isFirst = comm.rank() == 0;
  if (llvm::Error error = onFirst(comm, [&] { return first.open(); })) return error;
  std::optional<Trace> trace;
  if (!tracePath.empty()) {
    auto now = gather(comm, Trace::sharedNow());
    if (!now) return now.takeError();
    trace.emplace(comm.rank(), now->front());
    trace->nameRow("rank " + std::to_string(comm.rank()));
  }
  std::signal(SIGINT, requestStop);
  std::signal(SIGTERM, requestStop);
  std::signal(SIGHUP, requestStop);
  double elapsed = 0;
  int64_t before = session.stepsDone();
  std::vector<SentBytes> sentFirst;
  bool isSaved = false, isStopped = false;
  while (session.stepsDone() < steps && !isStopped) {
    if (trace && session.stepsDone() + 1 == steps) session.interpreter().setTrace(&*trace);
    auto record = session.step(data);
    if (!record) return record.takeError();
    if (record->step == before + 1) sentFirst = session.sentInStep().vec();
    elapsed += record->seconds;
    record->seconds = elapsed;
    if (isFirst)
      if (llvm::Error error = first.add(*record)) return tellOthers(comm, std::move(error));
    if (!std::isfinite(record->loss) || !std::isfinite(record->gradientNorm))
      return failure("the loss or the gradient of step " + llvm::Twine(record->step) +
                     " is not finite; it was not saved");
    isSaved = false;
    if (!saveFolder.empty() && saveEvery > 0 && record->step % saveEvery == 0) {
      if (llvm::Error error = session.save(saveFolder)) return error;
      isSaved = true;
    }
    // A signal may have come to one rank only, or to some after and to some before this step.
    auto stop = any(comm, stopRequested != 0);
    if (!stop) return stop.takeError();
    isStopped = *stop;
  }
  if (!saveFolder.empty() && !isSaved)
    if (llvm::Error error = session.save(saveFolder)) return error;
  if (trace) {
    auto rows = toFirst(comm, trace->events());
    if (!rows) return rows.takeError();
    if (llvm::Error error = onFirst(comm, [&] { return first.trace->write(*rows); })) return error;
  }
  if (!summaryPath.empty()) {
    RankSummary mine{comm.rank(), session.coordinates(), session.stepsDone() - before,
                     session.interpreter().arenaBytes()};
    for (auto [first, last] : llvm::zip(sentFirst, session.sentInStep()))
      mine.sent.push_back({first.op, first.axes, first.bytes, last.bytes});
    if (llvm::Error error = summarise(comm, mine, first.summary)) return error;
  }
  if (isFirst) {
    first.progress.reset();
    if (!saveFolder.empty())
      llvm::outs() << "saved step " << session.stepsDone() << " in " << saveFolder << '\n';
    if (!first.records.empty()) report(first.records, session, comm.size());
  }
  if (isStopped)
    return failure("stopped by a signal after step " + llvm::Twine(session.stepsDone()));
  return llvm::Error::success();
}

llvm::Error runOn(Rank& rank, const Planx& planx) {
  Communicator& comm = rank.comm();
  auto prepare = [] {
    return saveFolder.empty() ? llvm::Error::success() : Session::prepareFolder(saveFolder);
  };
  if (llvm::Error error = onFirst(comm, prepare)) return error;
  auto data = agree(comm, TokenFile::open(dataPath));
  if (!data) return data.takeError();
  auto made = Session::create(planx.roles, rank.device(), comm);
  if (!made) return made.takeError();
  Session& session = **made;
  session.setRecording(!noGraph);
  if (rank.device().canRecord() && !noGraph && !session.isRecordable() && comm.rank() == 0) {
    const Op* op = session.unrecordable();
    llvm::errs() << "planrun: note: steps run op by op, not as one graph: "
                 << (op ? "'" + op->info().text.str() + "' (" + session.interpreter().placeOf(*op) +
                              ")"
                        : "'exchange_rows' of another stage")
                 << " needs its counts on the host\n";
  }
  if (llvm::Error error =
          comm.agree(data->check(session.positions(), session.vocab(), comm.rank(), comm.size())))
    return error;
  if (loadPath.empty()) {
    if (llvm::Error error = session.initialise()) return error;
  } else {
    std::string note;
    if (llvm::Error error = session.load(loadPath, note)) return error;
    if (!note.empty() && comm.rank() == 0) llvm::errs() << "planrun: note: " << note << '\n';
  }
  return trainOn(comm, session, *data);
}

// The program, for as many ranks as there are processes.
llvm::Expected<Planx> openFor(Communicator* process) {
  if (!process) return open(input);
  auto planx = agree(*process, open(input));
  if (!planx) return planx.takeError();
  int64_t ranks = planx->grid().ranks();
  if (process->size() != ranks)
    return failure("'" + input + "' is for " + llvm::Twine(ranks) +
                   " ranks, and the processes are " + llvm::Twine(process->size()) +
                   ": start as many, or compile it for another --grid");
  return planx;
}

// In `verify` ranks wait for the one that runs the model.
std::chrono::seconds patience() {
  return std::chrono::seconds(verifyCommand && timeout.getNumOccurrences() == 0 ? 3600
                                                                                : int(timeout));
}

RankOptions rankOptions(const Communicator* process) {
  return {deviceName, process != nullptr, threads, patience()};
}

// Runs `body` on every rank of the program that this process has.
template <class F>
Exit onRanks(Communicator* process, F&& body) {
  auto planx = openFor(process);
  if (!planx) return fail(planx.takeError());
  return runRanks(kTool, process, planx->grid().ranks(), std::chrono::seconds(timeout),
                  [&](Communicator& comm) -> llvm::Error {
                    auto rank = Rank::make(planx->grid(), comm, rankOptions(process));
                    if (!rank) return rank.takeError();
                    return body(*rank, *planx);
                  });
}

Exit run(Communicator* process) {
  if (dataPath.empty()) return fail("--data FILE is needed", kUsage);
  if (steps < 1 || steps > kMaxStep)
    return fail("--steps takes a number from 1 to 2147483647", kUsage);
  for (const cl::opt<std::string>* option :
       {&dataPath, &saveFolder, &loadPath, &logPath, &tracePath, &summaryPath})
    if (option->getNumOccurrences() > 0 && option->empty())
      return fail("--" + option->ArgStr + " is empty", kUsage);
  for (llvm::StringRef out :
       {llvm::StringRef(logPath), llvm::StringRef(tracePath), llvm::StringRef(summaryPath)})
    for (const std::string& in :
         {input.getValue(), dataPath.getValue(), Session::checkpointFile(loadPath),
          Session::checkpointFile(saveFolder)})
      if (isSameFile(out, in))
        return fail("'" + out + "' would be overwritten, and is read", kUsage);
  if (isSameFile(logPath, tracePath)) return fail("--log and --trace name the same file", kUsage);
  if (isSameFile(summaryPath, logPath) || isSameFile(summaryPath, tracePath))
    return fail("--summary names the same file as --log or --trace", kUsage);
  if (saveEvery < 0 || (saveEvery > 0 && saveFolder.empty()))
    return fail("--save-every takes a number from 1, with --save DIR", kUsage);
  return onRanks(process, runOn);
}

Exit evaluate(Communicator* process) {
  if (isSameFile(output, input) || isSameFile(output, tensorsPath))
    return fail("'" + output + "' would be overwritten, and is read", kUsage);
  return onRanks(process, [](Rank& rank, const Planx& planx) -> llvm::Error {
    auto session = Session::create(planx.roles, rank.device(), rank.comm());
    if (!session) return session.takeError();
    return (*session)->evaluate(tensorsPath, output);
  });
}

Exit verify(Communicator* process) {
  if (verifySteps < 1 || verifySteps > 1000)
    return fail("--steps takes a number from 1 to 1000", kUsage);
  if (bound.getNumOccurrences() > 0 && !(bound > 0 && std::isfinite(bound)))
    return fail("--bound takes a number above 0", kUsage);
  if (verifyPrecision != "f64" && verifyPrecision != "plan")
    return fail("--precision takes f64 or plan", kUsage);
  auto planx = openFor(process);
  if (!planx) return fail(planx.takeError());
  return planc::verify(kTool, input, *planx, process,
                       {verifySteps, verifyPrecision == "plan", bound, json, rankOptions(process)});
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
  if (!runCommand && !evalCommand && !verifyCommand)
    return fail("which command? 'planrun --help' lists them", kUsage);
  if (timeout < 1) return fail("--timeout takes a number from 1", kUsage);
  if (threads < 0 || threads > 1024) return fail("--threads takes a number from 0 to 1024", kUsage);
  if (deviceName != "cpu" && deviceName != "cuda")
    return fail("there is no device '" + deviceName + "'; there are: cpu, cuda", kUsage);
  bool isGpu = deviceName == "cuda";
  llvm::StringRef comm = commName;
  if (comm.empty()) comm = isGpu ? "nccl" : "threads";
  if (comm != "threads" && comm != "mpi" && comm != "tcp" && comm != "nccl")
    return fail("there is no communicator '" + commName + "'; there are: threads, mpi, tcp, nccl",
                kUsage);
  if ((comm == "nccl") != isGpu)
    return fail(isGpu ? "GPUs send messages by NCCL: leave --comm out, or say nccl"
                      : "NCCL's messages go between GPUs: add --device cuda",
                kUsage);
  if (isGpu && threads > 0) return fail("--threads is for CPUs", kUsage);
  if (!isGpu && noGraph) return fail("--no-graph is for --device cuda", kUsage);
  if (comm == "threads")
    if (std::string why = startedApart(); !why.empty()) return fail(why, kUsage);
  auto process = joinProcesses(comm, patience());
  if (!process) return fail(process.takeError());
  isSilent = *process && (*process)->rank() != 0;
  if (verifyCommand) return verify(process->get());
  return runCommand ? run(process->get()) : evaluate(process->get());
}
