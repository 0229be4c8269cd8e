// Plan text that is already in memory: for the formatter, the tests' diagnostics and fuzzing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "frontend/ast.h"
#include "ir/diagnostics.h"
#include "llvm/ADT/StringRef.h"

namespace planc {

// The AST of a source registered with `diags`; null when errors were reported.
std::unique_ptr<ast::File> parseText(uint32_t file, Diagnostics& diags);

// As readPlan, of a text that stands for the file `path`.
std::vector<std::unique_ptr<ast::File>> readPlanText(llvm::StringRef path, std::string text,
                                                     Diagnostics& diags);

}  // namespace planc
