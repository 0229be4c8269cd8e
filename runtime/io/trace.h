// Writes what ran when, as Chrome's trace-event JSON: open it in ui.perfetto.dev.
#pragma once

#include <chrono>
#include <string>

#include "runtime/io/file.h"

namespace planc {

class Trace {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static llvm::Expected<Trace> open(llvm::StringRef path);

  static Time now() { return std::chrono::steady_clock::now(); }
  // One bar: `name` ran from `start` to `end`, in row `row`. Bars of a row nest or follow each
  // other. `category` is what one filters by (an op's kind), `detail` is shown on a click.
  void add(llvm::StringRef name, llvm::StringRef category, llvm::StringRef detail, Time start,
           Time end, int row = 0);
  // A row's title.
  void nameRow(int row, llvm::StringRef title);
  // Completes the file; the first error of any write.
  llvm::Error close();

 private:
  explicit Trace(File file) : file_(std::move(file)), begin_(now()) {}
  void event(llvm::StringRef text);

  File file_;
  Time begin_;
  std::string buffer_;
  bool first_ = true;
  std::string failure_;
};

}  // namespace planc
