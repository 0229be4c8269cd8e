// What a run tells: a JSON line a step in a file, and a progress line on a terminal.
#pragma once

#include <string>
#include <vector>

#include "llvm/ADT/ArrayRef.h"
#include "runtime/io/file.h"

namespace planc {

// What one routing sent to each expert in a step: of a module's instance (`layer.moe`) in one iteration
// of each repeat around it.
struct ExpertLoads {
  std::string name;
  std::vector<int64_t> at;
  std::vector<double> load;  // choices, those that were dropped too
  double dropped = 0;
};

struct StepRecord {
  int64_t step = 0;
  double loss = 0;
  double gradientNorm = 0;
  double learningRate = 0;
  double tokensPerSecond = 0;
  double seconds = 0;  // since the run began
  std::vector<ExpertLoads> experts = {};  // on rank 0; of a model without them, none
};

// `{"step":1,"loss":5.54,...}` without a line end; with experts, behind the numbers
// `"experts":[{"name":"layer.moe","at":[0],"load":[31,33],"dropped":0},...]`. Numbers read back to the same value; what JSON
// cannot hold (an infinite loss) is null.
std::string stepLine(const StepRecord& record);

// What a rank's run took, told when it is over.
struct RankSummary {
  int rank = 0;
  std::vector<std::pair<std::string, int64_t>> at;  // its coordinate on each axis
  int64_t steps = 0;       // that this run did
  int64_t arenaBytes = 0;  // that the device took for the arena
  // Bytes that its program sent by an op along axes, in the run's first step and in its last.
  struct Sent {
    std::string op;
    std::vector<std::string> axes;
    int64_t first = 0, last = 0;
  };
  std::vector<Sent> sent = {};
};

// `{"rank":0,"at":{"data":0},"steps":3,"arena_bytes":1024,"sent":[{"op":"all_reduce","axes":["data"],
// "first_bytes":7,"last_bytes":7}]}` without a line end.
std::string summaryLine(const RankSummary& summary);

// The most loaded expert of all routings against the mean, and what found no room; nothing of none.
std::string expertsText(llvm::ArrayRef<ExpertLoads> experts);

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
