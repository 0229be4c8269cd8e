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
llvm::Error checkNames(const SafetensorsFile& in, const Roles& roles) {
  for (const auto& [name, entry] : in.tensors()) {
    const ModelVariable* var = roles.find(name);
    if (var && var->kind == VarKind::Moment) continue;  // a checkpoint's optimizer state
    if (!var || (var->kind != VarKind::Weight && var->kind != VarKind::Input))
      return fileError(in.path(), "'" + name + "' is no weight or input of this plan");
  }
  for (const ModelVariable& var : roles.variables())
    if ((var.kind == VarKind::Weight || var.kind == VarKind::Input) &&
        !in.tensors().count(var.name) && var.parts.front().var->documents.empty())
      return fileError(in.path(), "it lacks '" + var.name + "' " + var.type.str());
  return llvm::Error::success();
}

}  // namespace

llvm::Error Session::checkTokens(const Variable& input, const std::byte* data) const {
  const auto* tokens = reinterpret_cast<const int32_t*>(data);
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

// From the tokens of this rank's sequences, which are numbered from their first positions on.
llvm::Error Session::deriveDocuments(const Variable& var, const SafetensorsFile& in,
                                     std::byte* data) {
  Type sequences = var.type;
  const Dim& mine = var.type.dims.back();
  sequences.dims.back() = {mine.name, mine.all()};
  std::vector<int32_t> tokens(size_t(sequences.elements()));
  if (llvm::Error error = in.read(var.documents, sequences, tokens.data(), here_)) return error;
  auto* into = reinterpret_cast<int32_t*>(data);
  for (llvm::MutableArrayRef<int32_t> rest = tokens; !rest.empty();) {
    llvm::MutableArrayRef<int32_t> sequence = rest.take_front(size_t(mine.all()));
    rest = rest.drop_front(sequence.size());
    numberDocuments(sequence, var.separator);
    for (const Segment& segment : here_.segments(mine))
      std::copy_n(sequence.begin() + segment.first, segment.count, into + segment.at);
    into += mine.size;
  }
  return llvm::Error::success();
}

llvm::Error Session::evaluate(llvm::StringRef tensors, llvm::StringRef out) {
  auto in = SafetensorsFile::open(tensors, comm_);
  if (!in) return in.takeError();
  auto readAll = [&]() -> llvm::Error {
    if (llvm::Error error = checkNames(*in, roles_)) return error;
    auto read = [&](const Variable& var, std::byte* into) {
      return in->read(var, into, here_);
    };
    for (const auto& var : program_.vars) {
      if (var->kind != VarKind::Input) continue;
      bool isGiven = in->tensors().count(var->wholeName()) != 0;
      HostBytes bytes = interpreter_->blank(*var);
      if (llvm::Error error =
              isGiven ? read(*var, bytes.data()) : deriveDocuments(*var, *in, bytes.data()))
        return error;
      if (llvm::Error error = checkTokens(*var, bytes.data()))
        return fileError(tensors, llvm::toString(std::move(error)));
      bytes.store();
    }
    return setWeights(read);
  };
  if (llvm::Error error = comm_.agree(readAll())) return error;
  step_ = 0;
  int64_t microbatches = program_.settings.integer("microbatches", 1);
  std::map<const Variable*, Output> outputs;
  for (const auto& var : program_.vars)
    if (var->output)
      outputs[var.get()] = {std::vector<std::byte>(size_t(microbatches * var->type.bytes())),
                            std::vector<bool>(size_t(microbatches))};
  outputs_ = &outputs;
  llvm::Error failed = runSchedule(false);
  outputs_ = nullptr;
  if (failed) return failed;

  std::vector<TensorSource> results;
  std::vector<std::vector<std::byte>> memory;  // of the results
  auto ofAll = [&](Type type) {
    if (microbatches > 1) type.dims.insert(type.dims.begin(), Dim{"microbatch", microbatches, ""});
    return type;
  };
  for (const ModelVariable& var : roles_.variables()) {
    // Beside the gradients that all ranks' microbatches add up to, there may be others' sums.
    const ModelVariable* weight = roles_.find(llvm::StringRef(var.name).substr(strlen("grad.")));
    bool isGradient = var.kind == VarKind::Gradient && weight && var.name == "grad." + weight->name;
    bool isOutput = var.kind == VarKind::Slot;
    if (!isGradient && !isOutput && var.name != "loss" && var.name != "penalty") continue;
    Type type = isOutput ? ofAll(var.type) : var.type;
    auto pieces = piecesOf(var);
    if (!pieces) return pieces.takeError();
    // Every stage may have a metric; it is the same.
    if (var.kind == VarKind::Metric) pieces->list.resize(1);
    for (RankPiece& piece : pieces->list) {
      if (!isOutput) continue;
      piece.type = ofAll(piece.type);
      for (const auto& [slot, output] : outputs)
        if (slot->wholeName() == var.name) piece.data = output.bytes.data();
    }
    auto whole = assemble(comm_, program_.grid, type, pieces->list);
    if (!whole) return whole.takeError();
    memory.push_back(std::move(*whole));
    results.push_back({var.name, type, memory.back().data()});
  }
  return onFirst(comm_, [&] {
    return writeSafetensors(out, results, {{"planc.plan", program_.name}});
  });
}

}  // namespace planc
