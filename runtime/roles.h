// The programs of a run's ranks, and what they hold together: a variable of the model may lie on all
// ranks, on those of one stage, in pieces on several, or whole on some (tied).
#pragma once

#include <string>
#include <vector>

#include "ir/op.h"
#include "llvm/Support/Error.h"

namespace planc {

// A program's variable that is, or is a piece of, a variable of the model.
struct Held {
  const Module* program;
  const Variable* var;
};

struct ModelVariable {
  std::string name;
  VarKind kind;
  Type type;  // whole
  std::vector<Held> parts;

  bool isHeldBy(const Module& program) const;
};

// The programs must outlive this.
class Roles {
 public:
  // One that all ranks run, or several, told apart by `where`.
  Roles(const Module& program);
  Roles(const Modules& programs);

  // Whether all hold the same variables in the same whole types.
  llvm::Error check() const;

  const Grid& grid() const { return programs_.front()->grid; }
  llvm::ArrayRef<const Module*> programs() const { return programs_; }
  const Module& program(int64_t rank) const;
  // Axes along which ranks run different programs: they need not hold the same variables.
  const Axes& stageAxes() const { return stageAxes_; }
  // The axes along which ranks run one program and hold the same of a value that is no partial sum.
  Axes copyAxes(const Type& type) const;

  // What is found outside of a step (inputs, weights, gradients, moments, metrics, outputs), a kind
  // behind the other, in the programs' order: the same on all ranks.
  const std::vector<ModelVariable>& variables() const { return variables_; }
  const ModelVariable* find(llvm::StringRef name) const;

 private:
  void listVariables();

  std::vector<const Module*> programs_;
  Axes stageAxes_;
  std::vector<ModelVariable> variables_;
};

}  // namespace planc
