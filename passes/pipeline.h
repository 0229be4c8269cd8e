// The parts of the `pipeline` pass: what each chunk of the model does (pipeline_cut.cpp), how many
// iterations it gets (pipeline_balance.cpp), the modules of the stages (pipeline_stage.cpp,
// pipeline_step.cpp), the gradients of weights on their own (pipeline_split.cpp), and the order of calls
// and messages (pipeline_calls.cpp).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/diagnostics.h"
#include "ir/op.h"
#include "ir/schedule.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"

namespace planc {

// A repeat that is cut, and its place among the iterations of all of them.
struct CutRepeat {
  const Op* forward;
  const Op* backward;
  int64_t count;
  int64_t begin;  // iterations of the repeats before it
};

// A stretch of @forward or @backward that one chunk does: ops in a row, or some iterations of a repeat.
struct Part {
  int chunk;
  std::vector<const Op*> ops;
  const Op* repeat = nullptr;
  int64_t from = 0, count = 0;         // iterations, as the model counts them
  bool isFirst = true, isLast = true;  // of the repeat's parts, in order of execution
};

// A function cut into chunks. What goes from one chunk to the next is a value of the function, or what
// a repeat carries from its one part to the next: that is named by the body's argument.
struct FunctionCut {
  const Function* function = nullptr;
  bool isBackward = false;
  std::vector<Part> parts;                           // in order of execution
  std::vector<llvm::SetVector<const Value*>> takes;  // of each chunk, from the one before it

  int before(int chunk) const { return isBackward ? chunk + 1 : chunk - 1; }
  int behind(int chunk) const { return isBackward ? chunk - 1 : chunk + 1; }
  bool has(int chunk) const { return chunk >= 0 && chunk < int(takes.size()); }
};

// The model's step cut into chunks.
struct ModelCut {
  const Module* whole = nullptr;
  std::vector<CutRepeat> repeats;
  std::vector<int64_t> bounds;  // chunk c has the iterations [bounds[c], bounds[c + 1])
  FunctionCut forward, backward;
  llvm::DenseMap<const Variable*, int> repeatOf;   // of stacked variables: which repeat stacks them
  std::vector<std::set<const Variable*>> touched;  // by each chunk's work
  std::vector<std::set<const Variable*>>
      saved;  // slots that each chunk's backward reads, not in repeats

  std::map<const Variable*, std::set<int>> touchersOf, holdersOf;  // the latter by weight or metric

  int chunks() const { return int(bounds.size()) - 1; }
  // The stages whose chunks touch a variable.
  const std::set<int>& touchers(const Variable& var) const;
  // The stages that hold a variable which no repeat stacks: those that touch it or, for a weight, its
  // gradient, moments or copy, any of these.
  const std::set<int>& holders(const Variable& var) const;
  // Whether the total of a `sum` takes more than one stage.
  bool isShared(const Variable& sum) const;
  // Whether an earlier stage holds a weight, or what belongs to one, too.
  bool isHeldBefore(const Variable& var, int stage) const;
  // The repeat that stacks a variable; -1: none that is cut.
  int repeatFor(const Variable& var) const {
    auto found = repeatOf.find(&var);
    return found == repeatOf.end() ? -1 : found->second;
  }
  // A chunk's iterations of a repeat; may be none.
  std::pair<int64_t, int64_t> iterations(int chunk, int repeat) const;
};

// The repeats of the model that the pipeline cuts; none after an error.
std::vector<CutRepeat> findRepeats(const Module& whole, Diagnostics& diags);

// How many iterations each chunk gets: so that the slowest chunk is as fast as may be, then the fullest
// as small, then all as even. Every chunk has at least one.
std::vector<int64_t> balance(const Module& whole, llvm::ArrayRef<CutRepeat> repeats,
                             const PipeSchedule& schedule);

ModelCut cutModel(const Module& whole, std::vector<CutRepeat> repeats, std::vector<int64_t> bounds,
                  const PipeSchedule& schedule);

// The weight or metric that a variable belongs to, or itself.
const Variable& familyOf(const Module& whole, const Variable& var);

// Whether a value costs nothing to make where it is wanted: a variable's value, a constant, or how ranks
// hold it or in which order.
bool isLocal(const Value* value);
// Whether an op stands where the model has it; else its value is local, and made where it is wanted.
inline bool isPlaced(const Op& op) { return op.results().empty() || !isLocal(op.result()); }

// Whether a function of the whole module is what chunks do, and not the step's own.
inline bool isWork(llvm::StringRef function) {
  return function == "forward" || function == "backward";
}

// A sum of the step to which several stages add, or of which others hold the total, is a `sum` of each
// stage, which @reduce adds up: gives such gradients and metrics their `sum` where they have none.
// The variable that was added to becomes the sum, and a new one of its name the total.
void addStageSums(Module& whole, const ModelCut& cut);

// What a value of the step's functions (@begin, @reduce, @update) is to the stages: the same on All, on
// Some (that hold what it is made of), of each its own part (Spread over a repeat's stack), or of each
// its share of a sum.
struct Whereabouts {
  enum Kind { All, Some, Spread, Share } kind = All;
  std::set<int> stages = {};  // Some
  int repeat = -1;            // Spread
};

// What one stage runs of the step's functions: from what it writes back to what that is made of.
class StepMarks {
 public:
  StepMarks(const ModelCut& cut, const PipeSchedule& schedule, int stage);

  // A chunk's (Spread) or the stage's (-1) value is wanted.
  bool isMarked(const Value* value, int chunk) const { return marked_.count({value, chunk}) != 0; }
  // A sum of shares whose total the stage wants, or to which it adds: it takes part in adding it up.
  bool wantsTotal(const Value* value) const { return totals_.count(value) != 0; }
  const std::set<const Value*>& totals() const { return totals_; }
  // The stage takes part in what others want and it has a share of.
  void join(const std::set<const Value*>& totals);
  bool isShareWanted(const Value* value) const { return shares_.count(value) != 0; }
  // Whether the stage runs an op that touches a variable, for a chunk (stacked) or once (-1).
  bool isRoot(const Op& op, int chunk) const { return roots_.count({&op, chunk}) != 0; }
  // Whether the stage has a share of a sum.
  bool contributes(const Value* value) const;
  const Whereabouts& whereIs(const Value* value) const;
  const std::vector<int>& chunks() const { return chunks_; }
  // Chunks of the stage that have iterations of a repeat.
  std::vector<int> chunksOf(int repeat) const;
  // Whether this stage counts a value that it and others hold.
  bool speaksFor(const Value* value) const;

 private:
  void addRoots(const Function& function, const Block& block);
  void mark(const Value* value, int chunk);
  void markShare(const Value* value);
  void operands(const Op& op, int chunk, bool isShare);

  const ModelCut& cut_;
  const PipeSchedule& schedule_;
  const int stage_;
  std::vector<int> chunks_;
  std::set<std::pair<const Value*, int>> marked_;
  std::set<const Value*> shares_, totals_;
  std::set<std::pair<const Op*, int>> roots_;
  mutable std::map<const Value*, Whereabouts> where_;  // references stay
};

// One stage's module, as it is being made.
class StageBuilder {
 public:
  StageBuilder(const ModelCut& cut, const PipeSchedule& schedule, const Timeline& timeline,
               llvm::ArrayRef<StepMarks> marks, int number);
  std::unique_ptr<Module> make();

 private:
  // pipeline_stage.cpp
  void addWork(const FunctionCut& cut, int chunk);
  void saveForOthers(Builder& builder, int chunk);
  Value* get(Builder& builder, const Value* value, int chunk);
  Op* clone(Builder& builder, const Op& op, int chunk);
  void prepareBody(Builder& builder, const Op& op, int chunk);
  void cloneBody(const Op& from, Op& to, int chunk);
  void clonePart(Builder& builder, const Part& part);
  Variable* variable(const Variable& var, int chunk);
  Variable* boundary(const Value& value, int from, int to, bool isOut);
  std::string nameOf(const Variable& var, int chunk) const;
  void setFirst();
  void eraseUntouched();

  // pipeline_step.cpp
  void addStep();
  void addStepFunction(const Function& function);
  void stepOp(Builder& builder, const Op& op, int chunk);
  void stepRepeats(Builder& builder, const Op& op, int chunk);
  void stepBody(const Block& from, Block& to, int chunk, int repeat);
  void shareOp(Builder& builder, const Op& op);
  Value* share(const Value* value);
  Value* total(Builder& builder, const Value* value);
  Value* stepValue(Builder& builder, const Value* value, int chunk);
  const StepMarks& mine() const { return marks_[size_t(number_)]; }

  // pipeline_split.cpp
  void splitBackward(int chunk);

  // pipeline_calls.cpp
  void addMessages(const FunctionCut& cut, int chunk);
  void addCalls();

  int stageOf(int chunk) const { return schedule_.stageOf[size_t(chunk)]; }
  bool holdsSeveral() const { return chunks_.size() > 1; }

  const ModelCut& cut_;
  const PipeSchedule& schedule_;
  const Timeline& timeline_;
  llvm::ArrayRef<StepMarks> marks_;  // of all stages
  const int number_;
  std::vector<int> chunks_;
  std::unique_ptr<Module> module_;
  llvm::DenseMap<const Value*, Value*> env_;                   // of the function at hand
  std::map<std::pair<const Variable*, int>, Variable*> vars_;  // by chunk; -1: the stage's own
  enum class Side { In, Out, Kept };
  std::map<std::tuple<const Value*, Side, int>, Variable*>
      boundaries_;                                       // by the chunk at that side
  std::map<std::pair<const Value*, int>, Value*> step_;  // of the step's function at hand, by chunk
  llvm::DenseMap<const Value*, Value*> shares_, totals_;
};

}  // namespace planc
