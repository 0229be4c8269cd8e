// The step log and the progress line. A line goes out with one write, so that other programs may
// follow the file as it grows.
// Tested by tests/unit/io_test.cpp.
#include "runtime/io/log.h"

#include <unistd.h>

#include <charconv>
#include <cmath>

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
  return line + "}";
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
  llvm::errs() << llvm::formatv("\rstep {0}/{1}  loss {2:f4}  {3:f0} tokens/s\x1b[K", record.step,
                                steps_, record.loss, record.tokensPerSecond);
}

}  // namespace planc
