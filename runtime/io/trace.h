// What ran when, as Chrome's trace-event JSON: open it in ui.perfetto.dev. Each rank collects its own
// events; one writes them all.
#pragma once

#include <chrono>
#include <string>

#include "runtime/io/file.h"

namespace planc {

class Trace {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static Time now() { return std::chrono::steady_clock::now(); }
  // Microseconds of the clock that programs share.
  static int64_t sharedNow();

  // Events of the row `row`, in time since `zero`, a sharedNow() that all rows have in common.
  explicit Trace(int row = 0, int64_t zero = sharedNow());

  // One bar: `name` ran from `start` to `end`. Bars of a row nest or follow each other. `category` is
  // what one filters by (an op's kind), `detail` is shown on a click.
  void add(llvm::StringRef name, llvm::StringRef category, llvm::StringRef detail, Time start,
           Time end);
  // The row's title.
  void nameRow(llvm::StringRef title);
  // The events so far, without the brackets around them.
  const std::string& events() const { return events_; }

 private:
  void event(llvm::StringRef text);

  int row_;
  Time begin_;
  std::string events_;
};

class TraceFile {
 public:
  static llvm::Expected<TraceFile> open(llvm::StringRef path);
  // The events of all rows; once.
  llvm::Error write(llvm::ArrayRef<std::string> rows);

 private:
  explicit TraceFile(File file) : file_(std::move(file)) {}
  File file_;
};

}  // namespace planc
