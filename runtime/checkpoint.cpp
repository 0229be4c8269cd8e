// Checkpoints. What one holds follows from the variables' kinds: weights and moments by name, whole,
// whatever the grid; the step in the metadata; gradients, slots and copies are made anew. Tested by
// tests/tools/checkpoint.test and tests/runtime/checkpoint_test.cpp.
#include <cmath>
#include <cstring>

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "runtime/elements.h"
#include "runtime/session.h"
#include "runtime/talk.h"

namespace planc {
namespace {

constexpr llvm::StringLiteral kCheckpoint = "checkpoint.safetensors";

bool isFinite(const Variable& var, const std::byte* data) {
  // Bit by bit: the exponent of an infinity or a NaN is all ones.
  bool isFinite = true;
  int64_t count = var.type.elements();
  if (var.type.elem != Elem::F32) {
    for (int64_t i = 0; i < count; ++i) isFinite &= std::isfinite(fetch(var.type.elem, data, i));
    return isFinite;
  }
  const auto* words = reinterpret_cast<const uint32_t*>(data);
  for (int64_t i = 0; i < count; ++i) isFinite &= (words[i] & 0x7f800000) != 0x7f800000;
  return isFinite;
}

bool isState(VarKind kind) { return kind == VarKind::Weight || kind == VarKind::Moment; }

}  // namespace

std::string Session::checkpointFile(llvm::StringRef path) {
  llvm::SmallString<128> file(path);
  if (llvm::sys::fs::is_directory(path)) llvm::sys::path::append(file, kCheckpoint);
  return file.str().str();
}

llvm::Error Session::load(llvm::StringRef path, std::string& note) {
  llvm::SmallString<128> file(path);
  if (llvm::sys::fs::is_directory(path)) llvm::sys::path::append(file, kCheckpoint);
  auto checkpoint = SafetensorsFile::open(file, comm_);
  if (!checkpoint) return checkpoint.takeError();

  // Names first, so that a file of another model changes nothing.
  std::vector<std::string> missing, unknown;
  bool hasMoments = false;
  for (const ModelVariable& var : roles_.variables()) {
    bool isThere = checkpoint->tensors().count(var.name) != 0;
    if (var.kind == VarKind::Moment) hasMoments |= isThere;
    if (var.kind == VarKind::Weight && !isThere) missing.push_back(var.name);
  }
  for (const ModelVariable& var : roles_.variables())
    if (var.kind == VarKind::Moment && hasMoments && !checkpoint->tensors().count(var.name))
      missing.push_back(var.name);
  for (const auto& [name, entry] : checkpoint->tensors()) {
    const ModelVariable* var = roles_.find(name);
    if (!var || !isState(var->kind)) unknown.push_back(name);
  }
  auto list = [](const std::vector<std::string>& names) {
    std::string text;
    for (size_t i = 0; i < names.size() && i < 4; ++i) text += (i ? ", " : "") + names[i];
    if (names.size() > 4) text += ", ... (" + std::to_string(names.size()) + " in all)";
    return text;
  };
  if (!missing.empty()) return fileError(file, "it lacks " + list(missing));
  if (!unknown.empty())
    return fileError(file, "it holds tensors that this model has not: " + list(unknown));

  int64_t step = 0;
  std::string stepText = checkpoint->metadata("planc.step");
  if (!stepText.empty() && (llvm::StringRef(stepText).getAsInteger(10, step) || step < 0))
    return fileError(file, "its step '" + stepText + "' is no number");
  if (step >= kMaxStep)
    return fileError(file, "its step " + stepText + " is the last one there is");
  // One that can't be trained on is told now, not when the run wants to save.
  auto readFinite = [&](const Variable& var, std::byte* into) -> llvm::Error {
    if (llvm::Error error = checkpoint->read(var, into, here_)) return error;
    return isFinite(var, into) ? llvm::Error::success()
                               : fileError(file, "'" + var.wholeName() + "' is not finite");
  };
  auto readAll = [&]() -> llvm::Error {
    for (const auto& var : program_.vars)
      if (var->kind == VarKind::Moment && hasMoments) {
        HostBytes into = interpreter_->blank(*var);
        if (llvm::Error error = readFinite(*var, into.data())) return error;
        into.store();
      }
    return setWeights(readFinite);
  };
  if (llvm::Error error = comm_.agree(readAll())) return error;
  if (!hasMoments) {
    zeroMoments();
    note = "'" + file.str().str() + "' has no optimizer state: it starts at zero";
  }
  step_ = step;
  return llvm::Error::success();
}

llvm::Error Session::prepareFolder(llvm::StringRef folder) {
  namespace fs = llvm::sys::fs;
  if (std::error_code error = fs::create_directories(folder, true, fs::perms::all_all))
    return fileError(folder, error.message());
  if (!fs::is_directory(folder)) return fileError(folder, "is no folder");
  if (std::error_code error = fs::access(folder, fs::AccessMode::Write))
    return fileError(folder, "cannot write there: " + error.message());
  return llvm::Error::success();
}

llvm::Error Session::save(llvm::StringRef folder) const {
  if (llvm::Error error = onFirst(comm_, [&] { return prepareFolder(folder); })) return error;
  // A checkpoint that can't be trained on must not replace one that can.
  std::map<const Variable*, HostBytes> state;
  auto check = [&]() -> llvm::Error {
    for (const auto& var : program_.vars) {
      if (!isState(var->kind)) continue;
      auto bytes = interpreter_->read(*var);
      if (!bytes) return bytes.takeError();
      if (!isFinite(*var, bytes->data()))
        return fileError(folder, "'" + var->wholeName() + "' is not finite after step " +
                                     llvm::Twine(step_) + "; nothing was saved");
      state.emplace(var.get(), std::move(*bytes));
    }
    return llvm::Error::success();
  };
  if (llvm::Error error = comm_.agree(check())) return error;
  llvm::SmallString<128> path(folder);
  llvm::sys::path::append(path, kCheckpoint);
  std::vector<TensorSource> tensors;
  std::vector<TensorPiece> pieces;
  for (const ModelVariable& var : roles_.variables()) {
    if (!isState(var.kind)) continue;
    for (const Held& held : var.parts) {
      if (held.program != &program_ || held.var->tied) continue;
      Axes copies = roles_.copyAxes(held.var->type);
      Runs runs = pieceRuns(*held.var, here_);
      auto [from, to] = share(runs.elements(), here_.index(copies), ranksOver(copies));
      pieces.push_back({tensors.size(), runs, from, to, state.at(held.var).data()});
    }
    tensors.push_back({var.name, var.type});
  }
  return writeSafetensorsTogether(path, tensors, pieces,
                                  {{"planc.step", std::to_string(step_)},
                                   {"planc.seed", std::to_string(seed_)},
                                   {"planc.plan", program_.name}},
                                  comm_);
}

}  // namespace planc
