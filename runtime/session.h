// A program ready to train: its weights, optimizer state, step and data. What `planrun` does, as a
// library.
#pragma once

#include <memory>
#include <string>

#include "ir/op.h"
#include "llvm/Support/Error.h"
#include "runtime/device.h"
#include "runtime/interpreter.h"
#include "runtime/io/log.h"
#include "runtime/io/safetensors.h"
#include "runtime/io/tokens.h"

namespace planc {

// Steps are counted in an i32.
inline constexpr int64_t kMaxStep = INT32_MAX;

class Session {
 public:
  // Prepares the program; weights are not set yet. Both must outlive the session.
  static llvm::Expected<std::unique_ptr<Session>> create(const Module& program, Device& device);

  // Weights by their `init`, optimizer state zero, step 0.
  void initialise();
  // Weights, optimizer state and step from a checkpoint (a folder or a file). A file without
  // optimizer state (weights from elsewhere) starts it at zero; `note` then says so.
  llvm::Error load(llvm::StringRef path, std::string& note);
  // Makes a folder for checkpoints and sees that it can be written to.
  static llvm::Error prepareFolder(llvm::StringRef folder);
  // Weights, optimizer state and step into `folder`/checkpoint.safetensors, whole or not at all.
  llvm::Error save(llvm::StringRef folder) const;

  // One training step on the data's next samples.
  llvm::Expected<StepRecord> step(const TokenFile& data);
  // One step's losses and gradients from the weights and inputs of a file, without an update; writes
  // `loss`, the logits and `grad.NAME` for every weight.
  llvm::Error evaluate(llvm::StringRef tensors, llvm::StringRef out);

  // The program's inputs: tokens per step, positions per sample, greatest vocabulary that all take.
  int64_t tokensPerStep() const;
  int64_t positions() const;
  int64_t vocab() const;
  int64_t stepsDone() const { return step_; }
  Interpreter& interpreter() { return *interpreter_; }

 private:
  explicit Session(const Module& program) : program_(program) {}
  void renewCopies();
  llvm::Error fillInputs(const TokenFile& data);
  void runSchedule(bool update);
  double metric(llvm::StringRef name) const;

  const Module& program_;
  std::unique_ptr<Interpreter> interpreter_;
  uint64_t seed_ = 0;
  int64_t step_ = 0;  // steps done
  std::vector<int32_t> window_;
  // What evaluate() keeps of each microbatch: slot variables marked `output`.
  std::map<std::string, std::vector<std::byte>>* outputs_ = nullptr;
};

// Fills `count` elements of a weight by its initialisation; element i is a function of the seed, the
// weight's name and i alone.
void initialiseWeight(const Variable& weight, uint64_t seed, std::byte* into);

}  // namespace planc
