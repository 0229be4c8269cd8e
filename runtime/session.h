// One rank of a program ready to train: its weights, optimizer state, step and data. What `planrun`
// does, as a library. Every rank has a session; what is marked "together" all ranks call at once, and
// its error is the same on all of them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/op.h"
#include "llvm/Support/Error.h"
#include "runtime/assemble.h"
#include "runtime/comm.h"
#include "runtime/device.h"
#include "runtime/interpreter.h"
#include "runtime/io/log.h"
#include "runtime/io/safetensors.h"
#include "runtime/io/tokens.h"
#include "runtime/roles.h"

namespace planc {

// Steps are counted in an i32.
inline constexpr int64_t kMaxStep = INT32_MAX;

class Session {
 public:
  // Together: prepares the program of this rank; weights are not set yet. All three must outlive the
  // session.
  static llvm::Expected<std::unique_ptr<Session>> create(const Roles& roles, Device& device,
                                                         Communicator& comm);

  // Together: weights by their `init`, optimizer state zero, step 0. `jitter`: as much noise on weights
  // that begin constant.
  llvm::Error initialise(double jitter = 0);
  // Together: weights, optimizer state and step from a checkpoint (a folder or a file) of any grid. A
  // file without optimizer state (weights from elsewhere) starts it at zero; `note` then says so.
  llvm::Error load(llvm::StringRef path, std::string& note);
  // The file of a checkpoint that is named by its folder, or by itself.
  static std::string checkpointFile(llvm::StringRef path);
  // Makes a folder for checkpoints and sees that it can be written to.
  static llvm::Error prepareFolder(llvm::StringRef folder);
  // Together: weights, optimizer state and step into `folder`/checkpoint.safetensors, whole or not
  // at all.
  llvm::Error save(llvm::StringRef folder) const;

  // Together: one training step on the data's next samples.
  llvm::Expected<StepRecord> step(const TokenFile& data);
  // The same in parts, for who compares in between: counts the next step, then together runs one
  // entry of the schedule. Inputs are the caller's.
  void beginStep();
  llvm::Error run(const Call& call) { return interpreter_->run(call, seed_, step_); }
  // Together: one step's losses and gradients from the weights and inputs of a file, without an
  // update; writes `loss`, the logits and `grad.NAME` for every weight, whole.
  llvm::Error evaluate(llvm::StringRef tensors, llvm::StringRef out);

  // The model's inputs on all ranks together: tokens per step, positions per sample, greatest
  // vocabulary that all take.
  int64_t tokensPerStep() const;
  int64_t positions() const;
  int64_t vocab() const;
  int64_t stepsDone() const { return step_; }
  // What this rank's program sent in the last step, by op and axes; what ranks tell each other beside it
  // (norms and losses for people, errors, when to stop) does not count.
  llvm::ArrayRef<SentBytes> sentInStep() const { return sentInStep_; }
  // This rank's coordinate on each axis of the grid.
  std::vector<std::pair<std::string, int64_t>> coordinates() const;
  Interpreter& interpreter() { return *interpreter_; }
  // Steps behind the first are recorded once and replayed, where the device and the program can (and a
  // trace does not want to see them); the op that can't, or null.
  void setRecording(bool records) { records_ = records; }
  const Op* unrecordable() const { return interpreter_->hostOp(); }
  bool isRecordable() const { return isRecordable_; }

 private:
  using Fill = llvm::function_ref<llvm::Error(const Variable& weight, std::byte* into)>;

  Session(const Roles& roles, Communicator& comm);
  llvm::Error setWeights(Fill fill);
  llvm::Error initialiseTogether(const Variable& weight, double jitter, std::byte* into);
  void zeroMoments();
  llvm::Error fillInputs(const TokenFile& data);
  llvm::Error checkTokens(const Variable& input, const std::byte* data) const;
  llvm::Error deriveDocuments(const Variable& input, const SafetensorsFile& in, std::byte* into);
  llvm::Error runSchedule(bool update);
  llvm::Error runCalls(bool update);
  llvm::Error replayStep();
  llvm::Expected<double> metric(llvm::StringRef name) const;
  llvm::Expected<std::vector<double>> wholeMetric(const ModelVariable& metric) const;
  llvm::Error addLoads(StepRecord& record) const;
  llvm::Error takeOutputs(const Call& call);
  // The ranks' pieces of a variable, and the memory that holds the own ones.
  struct Pieces {
    std::vector<RankPiece> list;
    std::vector<HostBytes> own;
  };
  llvm::Expected<Pieces> piecesOf(const ModelVariable& var) const;

  const Roles roles_;
  const Module& program_;  // this rank's
  Communicator& comm_;
  const Coordinates here_;
  const int threads_;  // for start-up work
  std::unique_ptr<Interpreter> interpreter_;
  std::map<std::vector<int64_t>, Group*> copies_;  // ranks that hold the same of a weight
  uint64_t seed_ = 0;
  int64_t step_ = 0;  // steps done, or at hand
  std::vector<int32_t> window_;
  // What evaluate() keeps: slot variables marked `output`, all microbatches of each.
  struct Output {
    std::vector<std::byte> bytes;
    std::vector<bool> isTaken;
  };
  std::map<const Variable*, Output>* outputs_ = nullptr;
  bool records_ = true, isRecordable_ = true;  // the latter on all ranks, or on none
  enum class Recorded { Nothing, Warm, Step } recorded_ = Recorded::Nothing;
  std::vector<SentBytes> sentInStep_, recordedSent_;  // the latter: by the recorded step
};

// Fills a rank's piece of a weight by its initialisation; an element is a function of the seed, the
// weight's name and the element's number in the whole weight alone. Padding is zero.
void initialiseWeight(const Variable& weight, uint64_t seed, std::byte* into,
                      const Coordinates& rank = {});

}  // namespace planc
