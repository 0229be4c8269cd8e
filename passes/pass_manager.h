// Runs a list of passes by name: verifies after each, dumps, times, stops early.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "passes/passes.h"

namespace planc {

struct PassOptions {
  std::vector<std::string> passes;  // names in order; empty: all
  std::string dumpAfter;            // a pass's name, or `all`
  std::string dumpDir;              // write dumps as files there instead of to `dumps`
  bool locations = true;            // in dumps
  bool time = false;
  bool verify = true;  // after each pass; false: for programs that are looked at and thrown away
  int64_t bisect = -1;  // run only the first N passes
  llvm::raw_ostream* dumps = nullptr;
  llvm::raw_ostream* times = nullptr;
};

enum class PassResult { Ok, UserError, InternalError };

// From one module to one a role. InternalError: a pass broke the IR; `internal` says which, and the op.
PassResult runPasses(Modules& modules, const PassOptions& options, Diagnostics& diags,
                     std::string& internal);

}  // namespace planc
