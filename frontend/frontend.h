// The folder's only door: plan text in, model-level IR out. Errors go to Diagnostics; nothing throws
// and nothing exits.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/diagnostics.h"
#include "ir/op.h"

namespace planc {

namespace ast {
struct File;
}

// A plan otherwise than it is written, as if its statements said so: what `planc explain` tries.
struct PlanChanges {
  std::vector<std::pair<std::string, int64_t>> grid;  // sizes of axes, over --grid's
  int64_t microbatches = 0;        // 0: as written
  std::optional<Words> recompute;  // as PlanSettings has it
  std::vector<Shard> shards;       // instead of the plan's, if there are any
  bool growCluster = false;        // its outermost level has as many units as the grid needs
};

struct CompileOptions {
  std::string plan;     // which plan; empty: the only one
  std::string cluster;  // instead of the plan's: one of the files or of the library
  // -D name=value: overrides of parameters; --grid data=2: of axes.
  std::vector<std::pair<std::string, std::string>> defines, grid;
  // The grid's axes in this order, the outermost first; empty: as written.
  Words order;
  PlanChanges changes;
};

// Limits on input; documented in docs/language.md.
inline constexpr size_t kMaxFileBytes = 16u << 20;
inline constexpr unsigned kMaxDepth = 200;  // nested brackets and unary chains
inline constexpr unsigned kMaxTokens = 1u << 20;
inline constexpr int64_t kMaxDimSize = int64_t{1} << 40;

// Reads a file (or `-`, standard input), and the files it imports: `std/...` from the library built
// into the binary, others beside the importing file. Files in dependency order, the given one last.
// A `cluster` that none of them declares is taken from the library.
std::vector<std::unique_ptr<ast::File>> readPlan(llvm::StringRef path, Diagnostics& diags,
                                                 llvm::StringRef cluster = "");

// Checks every declaration and every plan of the files (or the one asked for), then lowers that plan
// to a model-level module whose @forward computes the loss. Null when there are errors.
std::unique_ptr<Module> compilePlan(const std::vector<std::unique_ptr<ast::File>>& files,
                                    const CompileOptions& options, Diagnostics& diags);

// Checks all plans (`planc check`), lowering each to find every error; true when there is none.
bool checkPlans(const std::vector<std::unique_ptr<ast::File>>& files, const CompileOptions& options,
                Diagnostics& diags);

// The canonical layout of a plan file, comments kept; nullopt when it does not parse.
std::optional<std::string> formatPlan(llvm::StringRef path, std::string text, Diagnostics& diags);

// Checks a file of wrong plans against the messages that its comments expect; the form stands in
// verify_diagnostics.cpp. Writes what is missing or unexpected; true when nothing is.
bool verifyDiagnostics(llvm::StringRef path, const CompileOptions& options, llvm::raw_ostream& err);

// The files of std/, for `planc std`: (name, text).
llvm::ArrayRef<std::pair<llvm::StringRef, llvm::StringRef>> standardLibrary();

}  // namespace planc
