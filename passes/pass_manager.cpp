// The pass list as data, and the runner. Tested by tests/tools/passes.test.
#include "passes/pass_manager.h"

#include <chrono>

#include "ir/text.h"
#include "ir/verify.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/Path.h"

namespace planc {

static const PassInfo kPasses[] = {
    {"autodiff", autodiff, nullptr, "adds the backward program: gradients of every weight"},
    {"recompute", recompute, nullptr, "computes again what the plan says not to save"},
    {"precision", precision, nullptr, "weights used in bf16 get a copy that the step renews"},
    {"optimizer", optimizer, nullptr, "adds clipping, the learning rate and the optimizer's step"},
    {"shard", shard, nullptr, "types every value from the plan's splits: who holds which piece"},
    {"collectives", collectives, nullptr, "casts between sharded types become collectives"},
    {"pipeline", nullptr, pipeline, "cuts the model into stages; sends, receives, the schedule"},
    {"ring", ring, nullptr, "attention over split tokens: keys travel a ring, blocks fold in"},
    {"experts", experts, nullptr, "packed rows go to the ranks of their experts and home"},
    {"fuse", fuse, nullptr, "joins elementwise chains, adds gradients in place"},
    {"prefetch", prefetch, nullptr, "weights that layers gather are gathered a layer ahead"},
    {"overlap", overlap, nullptr, "collectives start early and are waited for late; buckets"},
    {"memory", memory, nullptr, "gives every buffer its offset in one arena of exact size"},
    {"emit", emit, nullptr, "the rank program"},
};

llvm::ArrayRef<PassInfo> allPasses() { return kPasses; }

static bool dump(const Modules& modules, const PassOptions& options, size_t number,
                 llvm::StringRef pass, std::string& internal) {
  if (options.dumpDir.empty()) {
    if (options.dumps) {
      *options.dumps << "// after " << pass << '\n';
      for (const auto& module : modules) printModule(*module, *options.dumps, {options.locations});
    }
    return true;
  }
  llvm::SmallString<128> path(options.dumpDir);
  std::string name = std::to_string(number) + "-" + pass.str() + ".ir";
  llvm::sys::path::append(path, number < 10 ? "0" + name : name);
  std::error_code error = llvm::sys::fs::create_directories(options.dumpDir);
  if (!error) {
    llvm::raw_fd_ostream out(path, error);
    if (!error) {
      for (const auto& module : modules) printModule(*module, out, {options.locations});
      out.flush();
      error = out.error();
      out.clear_error();
    }
  }
  if (error) internal = (path + ": " + error.message()).str();
  return !error;
}

// Runs a pass on all modules; false: it broke one.
static bool run(const PassInfo& pass, Modules& modules, Diagnostics& diags) {
  if (pass.run) {
    for (const auto& module : modules) pass.run(*module, diags);
    return true;
  }
  Modules made;
  for (auto& module : modules)
    for (auto& stage : pass.split(std::move(module), diags)) made.push_back(std::move(stage));
  modules = std::move(made);
  return !modules.empty();
}

PassResult runPasses(Modules& modules, const PassOptions& options, Diagnostics& diags,
                     std::string& internal) {
  std::vector<const PassInfo*> list;
  for (const PassInfo& pass : kPasses)
    if (options.passes.empty()) list.push_back(&pass);
  for (const std::string& name : options.passes)
    for (const PassInfo& pass : kPasses)
      if (pass.name == name) list.push_back(&pass);

  for (size_t i = 0; i < list.size(); ++i) {
    if (options.bisect >= 0 && int64_t(i) >= options.bisect) break;
    const PassInfo& pass = *list[i];
    auto start = std::chrono::steady_clock::now();
    bool isWhole = run(pass, modules, diags);
    auto ran = std::chrono::steady_clock::now();
    if (diags.failed() || !isWhole) return PassResult::UserError;
    for (const auto& module : modules)
      if (llvm::Error error = options.verify ? verify(*module) : llvm::Error::success()) {
        internal = "after pass '" + pass.name.str() + "': " + llvm::toString(std::move(error));
        return PassResult::InternalError;
      }
    if (options.time && options.times) {
      auto ms = [](auto from, auto to) {
        return std::chrono::duration<double, std::milli>(to - from).count();
      };
      *options.times << llvm::format("%-10s %8.3f ms, verified in %8.3f ms\n", pass.name.data(),
                                     ms(start, ran), ms(ran, std::chrono::steady_clock::now()));
    }
    bool wanted = options.dumpAfter == "all" || options.dumpAfter == pass.name ||
                  (!options.dumpDir.empty() && options.dumpAfter.empty());
    if (wanted && !dump(modules, options, i + 1, pass.name, internal)) return PassResult::UserError;
  }
  return PassResult::Ok;
}

}  // namespace planc
