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
    {"autodiff", autodiff, "adds the backward program: gradients of every weight"},
    {"recompute", recompute, "computes again what the plan says not to save"},
    {"precision", precision, "weights used in bf16 get a copy that the step renews"},
    {"optimizer", optimizer, "adds clipping, the learning rate and the optimizer's step"},
    {"shard", shard, "types every value from the plan's splits: who holds which piece"},
    {"collectives", collectives, "casts between sharded types become collectives"},
    {"fuse", fuse, "joins elementwise chains, adds gradients in place"},
    {"prefetch", prefetch, "weights that layers gather are gathered a layer ahead"},
    {"overlap", overlap, "collectives start early and are waited for late; buckets"},
    {"memory", memory, "gives every buffer its offset in one arena of exact size"},
    {"emit", emit, "the rank program"},
};

llvm::ArrayRef<PassInfo> allPasses() { return kPasses; }

static bool dump(const Module& module, const PassOptions& options, size_t number,
                 llvm::StringRef pass, std::string& internal) {
  if (options.dumpDir.empty()) {
    if (options.dumps) {
      *options.dumps << "// after " << pass << '\n';
      printModule(module, *options.dumps, {options.locations});
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
      printModule(module, out, {options.locations});
      out.flush();
      error = out.error();
      out.clear_error();
    }
  }
  if (error) internal = (path + ": " + error.message()).str();
  return !error;
}

PassResult runPasses(Module& module, const PassOptions& options, Diagnostics& diags,
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
    pass.run(module, diags);
    auto ran = std::chrono::steady_clock::now();
    if (diags.failed()) return PassResult::UserError;
    if (llvm::Error error = verify(module)) {
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
    if (wanted && !dump(module, options, i + 1, pass.name, internal)) return PassResult::UserError;
  }
  return PassResult::Ok;
}

}  // namespace planc
