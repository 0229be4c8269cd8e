// Plans and IR text to modules, for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "ir/planx.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/pass_manager.h"

namespace planc::test {

inline std::string messages(const Diagnostics& diags) {
  std::string text;
  llvm::raw_string_ostream out(text);
  diags.print(out);
  return out.str();
}

inline std::unique_ptr<Module> compileFile(const std::string& path,
                                           const CompileOptions& options = {}) {
  Diagnostics diags;
  auto files = readPlan(path, diags);
  std::unique_ptr<Module> module;
  if (!diags.failed()) module = compilePlan(files, options, diags);
  EXPECT_TRUE(module) << path << "\n" << messages(diags);
  return module;
}

// A plan given as text. It is written to a file, since reading takes paths.
inline std::unique_ptr<Module> compileText(const std::string& text,
                                           const CompileOptions& options = {}) {
  // ctest runs tests side by side: each process has its own file.
  std::string path = ::testing::TempDir() + "plan-" + std::to_string(::getpid()) + ".plan";
  std::error_code error;
  {
    llvm::raw_fd_ostream out(path, error);
    out << text;
  }
  auto module = compileFile(path, options);
  std::remove(path.c_str());
  return module;
}

inline void runAll(Modules& modules, std::vector<std::string> passes = {}) {
  Diagnostics diags;
  PassOptions options;
  options.passes = std::move(passes);
  std::string internal;
  PassResult result = runPasses(modules, options, diags, internal);
  EXPECT_EQ(result, PassResult::Ok) << internal << messages(diags);
}

// A module that stays one: its plan has no pipeline.
inline void runAll(Module& module, std::vector<std::string> passes = {}) {
  Modules modules;
  modules.emplace_back(&module);
  runAll(modules, std::move(passes));
  for (auto& made : modules) (void)made.release();
}

inline std::string print(const Module& module) {
  std::string text;
  llvm::raw_string_ostream out(text);
  printModule(module, out);
  return out.str();
}

inline std::unique_ptr<Module> parse(const std::string& text) {
  Diagnostics diags;
  auto module = parseModule(diags.addFile("test.ir", text), diags);
  EXPECT_TRUE(module) << messages(diags);
  return module;
}

}  // namespace planc::test
