// Tested by tests/unit/pipeline_mutants_test.cpp.
#include "ir/verify_pieces.h"

#include <map>
#include <set>

#include "ir/roles.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

namespace planc {
namespace {

using llvm::Error;
using llvm::Twine;

Error broken(const Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), what);
}

// Iterations of a weight that a program holds; of one that is not stacked, the only one.
struct Held {
  int64_t first, end;
  const Module* by;
};

std::string stage(const Module& program, llvm::StringRef axis) {
  for (const auto& [name, at] : program.where)
    if (name == axis) return "'" + name + " " + std::to_string(at) + "'";
  return "'" + program.name + "'";
}

std::string iterations(const Variable& weight, int64_t first, int64_t end) {
  std::string text = std::to_string(first);
  if (end > first + 1) text += " to " + std::to_string(end - 1);
  return "'" + weight.stack.front() + "' " + text;
}

// Programs of ranks that differ only along the axis, in its order.
Error checkColumn(const Module& model, llvm::ArrayRef<const Module*> programs, llvm::StringRef axis) {
  llvm::StringMap<std::vector<Held>> held;
  for (const Module* program : programs) {
    bool isOfOneStage = llvm::any_of(program->where, [&](const auto& at) { return at.first == axis; });
    for (const auto& var : program->vars) {
      if (var->kind != VarKind::Weight) continue;
      if ((var->piece || var->tied) && !isOfOneStage)
        return broken("the program's '" + var->name + "' is a stage's, but no stage's program holds it");
      if (var->tied) continue;
      Held mine{0, var->stack.empty() ? 1 : var->type.dims.front().size, program};
      if (var->piece) mine.first += var->piece->first, mine.end += var->piece->first;
      held[var->wholeName()].push_back(mine);
    }
  }
  for (const auto& weight : model.vars) {
    if (weight->kind != VarKind::Weight) continue;
    auto wrong = [&](const Twine& what) { return broken("weight '" + weight->name + "': " + what); };
    std::vector<Held>& pieces = held[weight->name];
    if (pieces.empty()) return wrong("no program holds it");
    llvm::stable_sort(pieces, [](const Held& a, const Held& b) { return a.first < b.first; });
    int64_t all = weight->stack.empty() ? 1 : weight->type.dims.front().size, next = 0;
    const Module* last = nullptr;
    for (const Held& piece : pieces) {
      std::string both = last ? stage(*last, axis) + " and " + stage(*piece.by, axis) + " both hold " : "";
      if (piece.first < next)
        return wrong(both + (weight->stack.empty()
                                 ? "it, and neither is marked as tied"
                                 : iterations(*weight, piece.first, std::min(next, piece.end))));
      if (piece.first > next) return wrong("no program holds " + iterations(*weight, next, piece.first));
      next = piece.end;
      last = piece.by;
    }
    if (next < all) return wrong("no program holds " + iterations(*weight, next, all));
  }
  return Error::success();
}

}  // namespace

Error verifyPieces(const Planx& planx) {
  const Grid& grid = planx.grid();
  llvm::StringRef axis = planx.roles.front()->pipeline.axis;
  Ranks ranks = ranksToldApart(planx);
  std::map<std::vector<size_t>, std::vector<const Module*>> columns;  // by the other coordinates
  for (const Representative& rank : ranks.list) {
    std::vector<size_t> place = rank.at;
    for (size_t i = 0; i < grid.axes.size(); ++i)
      if (grid.axes[i].name == axis) place[i] = 0;
    columns[place].push_back(planx.roles[rank.role].get());
  }
  std::set<std::vector<const Module*>> checked;
  for (const auto& [place, programs] : columns)
    if (checked.insert(programs).second)
      if (Error error = checkColumn(*planx.model, programs, axis)) return error;
  return Error::success();
}

}  // namespace planc
