// The step log and the progress line. A line goes out with one write, so that other programs may
// follow the file as it grows.
// Tested by tests/unit/io_test.cpp.
#include "runtime/io/log.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

namespace planc {
namespace {

// The shortest text that reads back to the same value; values that came from an f32 print as one.
std::string numberText(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  float narrow = float(value);
  auto result = double(narrow) == value ? std::to_chars(text, std::end(text), narrow)
                                        : std::to_chars(text, std::end(text), value);
  return std::string(text, result.ptr);
}

}  // namespace

std::string stepLine(const StepRecord& record) {
  std::string line = "{\"step\":" + std::to_string(record.step);
  auto field = [&](const char* name, double value) {
    line += std::string(",\"") + name + "\":" + numberText(value);
  };
  field("loss", record.loss);
  field("grad_norm", record.gradientNorm);
  field("lr", record.learningRate);
  field("tokens_per_s", record.tokensPerSecond);
  field("seconds", record.seconds);
  if (record.experts.empty()) return line + "}";
  auto list = [&](const auto& numbers) {
    std::string text;
    for (auto number : numbers) text += (text.empty() ? "" : ",") + numberText(double(number));
    return "[" + text + "]";
  };
  std::string experts;
  for (const ExpertLoads& e : record.experts)
    experts += (experts.empty() ? "{\"name\":\"" : ",{\"name\":\"") + e.name +
               "\",\"at\":" + list(e.at) + ",\"load\":" + list(e.load) +
               ",\"dropped\":" + numberText(e.dropped) + "}";
  return line + ",\"experts\":[" + experts + "]}";
}

std::string summaryLine(const RankSummary& summary) {
  std::string at, sent;
  for (const auto& [axis, coordinate] : summary.at)
    at += (at.empty() ? "\"" : ",\"") + axis + "\":" + std::to_string(coordinate);
  for (const RankSummary::Sent& s : summary.sent)
    sent += (sent.empty() ? "{\"op\":\"" : ",{\"op\":\"") + s.op + "\",\"axes\":[\"" +
            llvm::join(s.axes, "\",\"") + "\"],\"first_bytes\":" + std::to_string(s.first) +
            ",\"last_bytes\":" + std::to_string(s.last) + "}";
  return "{\"rank\":" + std::to_string(summary.rank) + ",\"at\":{" + at +
         "},\"steps\":" + std::to_string(summary.steps) +
         ",\"arena_bytes\":" + std::to_string(summary.arenaBytes) + ",\"sent\":[" + sent + "]}";
}

std::string expertsText(llvm::ArrayRef<ExpertLoads> experts) {
  double busiest = 0, dropped = 0, choices = 0;
  for (const ExpertLoads& e : experts) {
    double sum = std::accumulate(e.load.begin(), e.load.end(), 0.0);
    double most = *std::max_element(e.load.begin(), e.load.end());
    if (sum > 0) busiest = std::max(busiest, most * double(e.load.size()) / sum);
    dropped += e.dropped;
    choices += sum;
  }
  if (choices == 0) return "";
  std::string text = llvm::formatv("  busiest expert {0:f2} x mean", busiest);
  if (dropped > 0) text += llvm::formatv(", {0:f1} % dropped", 100 * dropped / choices);
  return text;
}

llvm::Expected<StepLog> StepLog::open(llvm::StringRef path, bool append) {
  llvm::Expected<File> file = File::openWrite(path, append);
  if (!file) return file.takeError();
  return StepLog(std::move(*file));
}

llvm::Error StepLog::write(const StepRecord& record) {
  return file_.write(llvm::StringRef(stepLine(record) + "\n"));
}

Progress::Progress(int64_t steps) : steps_(steps), on_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) llvm::errs() << '\n';
}

void Progress::show(const StepRecord& record) {
  if (!on_) return;
  shown_ = true;
  llvm::errs() << llvm::formatv("\rstep {0}/{1}  loss {2:f4}  {3:f0} tokens/s{4}\x1b[K", record.step,
                                steps_, record.loss, record.tokensPerSecond,
                                expertsText(record.experts));
}

}  // namespace planc
