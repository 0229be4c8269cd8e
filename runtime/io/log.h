// What a run tells: a JSON line a step in a file, and a progress line on a terminal.
#pragma once

#include <string>

#include "runtime/io/file.h"

namespace planc {

struct StepRecord {
  int64_t step = 0;
  double loss = 0;
  double gradientNorm = 0;
  double learningRate = 0;
  double tokensPerSecond = 0;
  double seconds = 0;  // since the run began
};

// `{"step":1,"loss":5.54,...}` without a line end. Numbers read back to the same value; what JSON
// cannot hold (an infinite loss) is null.
std::string stepLine(const StepRecord& record);

class StepLog {
 public:
  // With `append`, for a run that continues another.
  static llvm::Expected<StepLog> open(llvm::StringRef path, bool append);
  // Writes one line at once, so that a kill loses none that was written.
  llvm::Error write(const StepRecord& record);

 private:
  explicit StepLog(File file) : file_(std::move(file)) {}
  File file_;
};

// One line on standard error that is written over; nothing where that is no terminal.
class Progress {
 public:
  explicit Progress(int64_t steps);
  ~Progress();
  void show(const StepRecord& record);
  bool isOn() const { return on_; }

 private:
  int64_t steps_;
  bool on_;
  bool shown_ = false;
};

}  // namespace planc
