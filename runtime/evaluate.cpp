// One step for another framework: weights and inputs in, whole tensors out. Tested by
// tests/runtime/golden_test.cpp and tests/runtime/session_test.cpp.
#include <algorithm>
#include <cstring>

#include "runtime/assemble.h"
#include "runtime/runs.h"
#include "runtime/session.h"
#include "runtime/talk.h"

namespace planc {
namespace {

// What the file holds must be weights and inputs, and all of them.
llvm::Error checkNames(const SafetensorsFile& in, const Module& program) {
  for (const auto& [name, entry] : in.tensors()) {
    const Variable* var = program.findVar(name);
    if (var && var->kind == VarKind::Moment) continue;  // a checkpoint's optimizer state
    if (!var || (var->kind != VarKind::Weight && var->kind != VarKind::Input))
      return fileError(in.path(), "'" + name + "' is no weight or input of this plan");
  }
  for (const auto& var : program.vars)
    if ((var->kind == VarKind::Weight || var->kind == VarKind::Input) &&
        !in.tensors().count(var->name))
      return fileError(in.path(), "it lacks '" + var->name + "' " + var->type.whole().str());
  return llvm::Error::success();
}

}  // namespace

llvm::Error Session::checkTokens(const Variable& input) const {
  const auto* tokens = reinterpret_cast<const int32_t*>(interpreter_->data(input));
  int64_t least = input.follows.empty() ? 0 : -1;  // a target of -1 is left out of the loss
  Runs runs = pieceRuns(input.type, here_);
  return runs.tryEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) -> llvm::Error {
    for (int64_t i = 0; i < count; ++i)
      if (tokens[a + i] < least || tokens[a + i] >= input.vocab)
        return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                       "'" + input.name + "' has " + llvm::Twine(tokens[a + i]) +
                                           " at element " + llvm::Twine(b + i) +
                                           ", and tokens are below " + llvm::Twine(input.vocab));
    return llvm::Error::success();
  });
}

llvm::Error Session::evaluate(llvm::StringRef tensors, llvm::StringRef out) {
  auto in = SafetensorsFile::open(tensors, comm_);
  if (!in) return in.takeError();
  auto readAll = [&]() -> llvm::Error {
    if (llvm::Error error = checkNames(*in, program_)) return error;
    auto read = [&](const Variable& var, std::byte* into) {
      return in->read(var.name, var.type, into, here_);
    };
    for (const auto& var : program_.vars) {
      if (var->kind != VarKind::Input) continue;
      if (llvm::Error error = read(*var, interpreter_->data(*var))) return error;
      if (llvm::Error error = checkTokens(*var))
        return fileError(tensors, llvm::toString(std::move(error)));
    }
    return setWeights(read);
  };
  if (llvm::Error error = comm_.agree(readAll())) return error;
  step_ = 0;
  std::map<std::string, std::vector<std::byte>> outputs;
  outputs_ = &outputs;
  llvm::Error failed = runSchedule(false);
  outputs_ = nullptr;
  if (failed) return failed;

  std::vector<TensorSource> results;
  std::vector<std::vector<std::byte>> memory;  // of the results
  auto add = [&](const std::string& name, const Type& type, const std::byte* piece) -> llvm::Error {
    auto whole = assemble(comm_, program_.grid, type, piece);
    if (!whole) return whole.takeError();
    memory.push_back(std::move(*whole));
    results.push_back({name, type.whole(), memory.back().data()});
    return llvm::Error::success();
  };
  int64_t microbatches = program_.settings.integer("microbatches", 1);
  for (const auto& var : program_.vars) {
    // Beside the gradients that all ranks' microbatches add up to, there may be others' sums.
    bool isGradient = var->kind == VarKind::Gradient && var->name == "grad." + var->of;
    if (isGradient || var->name == "loss" || var->name == "penalty")
      if (llvm::Error error = add(var->name, var->type, interpreter_->data(*var))) return error;
    auto output = outputs.find(var->name);
    if (output == outputs.end()) continue;
    Type type = var->type;
    if (microbatches > 1) type.dims.insert(type.dims.begin(), Dim{"microbatch", microbatches, ""});
    if (llvm::Error error = add(var->name, type, output->second.data())) return error;
  }
  return onFirst(comm_, [&] {
    return writeSafetensors(out, results, {{"planc.plan", program_.name}});
  });
}

}  // namespace planc
