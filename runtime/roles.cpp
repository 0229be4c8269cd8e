// Tested by tests/runtime/stages_test.cpp.
#include "runtime/roles.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

namespace planc {

bool ModelVariable::isHeldBy(const Module& program) const {
  return llvm::any_of(parts, [&](const Held& held) { return held.program == &program; });
}

Roles::Roles(const Module& program) : programs_{&program} { listVariables(); }

Roles::Roles(const Modules& programs) {
  for (const auto& program : programs) programs_.push_back(program.get());
  listVariables();
}

void Roles::listVariables() {
  for (const GridAxis& axis : grid().axes) {
    auto names = [&](const auto& at) { return at.first == axis.name; };
    if (llvm::any_of(programs_, [&](const Module* m) { return llvm::any_of(m->where, names); }))
      stageAxes_.push_back({axis.name, axis.size});
  }
  llvm::StringMap<size_t> numbers;
  for (const Module* program : programs_)
    for (const auto& var : program->vars) {
      bool isInside = var->kind == VarKind::Copy || var->kind == VarKind::Sum ||
                      var->kind == VarKind::Step ||
                      (var->kind == VarKind::Slot && !var->output);
      if (isInside) continue;
      auto [at, isNew] = numbers.try_emplace(var->wholeName(), variables_.size());
      if (isNew) variables_.push_back({var->wholeName(), var->kind, var->wholeType(), {}});
      variables_[at->second].parts.push_back({program, var.get()});
    }
  std::stable_sort(
      variables_.begin(), variables_.end(),
      [](const ModelVariable& a, const ModelVariable& b) { return a.kind < b.kind; });
}

llvm::Error Roles::check() const {
  for (const ModelVariable& var : variables_)
    for (const Held& held : var.parts)
      if (held.var->kind != var.kind || held.var->wholeType() != var.type)
        return llvm::createStringError(
            llvm::inconvertibleErrorCode(),
            "the ranks' programs differ in '" + var.name + "': " + name(var.kind) + " " +
                var.type.str() + " and " + name(held.var->kind) + " " +
                held.var->wholeType().str());
  return llvm::Error::success();
}

const Module& Roles::program(int64_t rank) const {
  Coordinates here(grid(), rank);
  return **llvm::find_if(programs_, [&](const Module* program) { return program->fits(here); });
}

Axes Roles::copyAxes(const Type& type) const {
  Axes split = type.splitAxes(), others;
  for (const GridAxis& axis : grid().axes)
    if (!hasAxis(split, axis.name) && !hasAxis(stageAxes_, axis.name))
      others.push_back({axis.name, axis.size});
  return others;
}

const ModelVariable* Roles::find(llvm::StringRef name) const {
  auto found =
      llvm::find_if(variables_, [&](const ModelVariable& var) { return var.name == name; });
  return found == variables_.end() ? nullptr : &*found;
}

}  // namespace planc
