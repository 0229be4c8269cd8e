// Tested by tests/unit/pipeline_mutants_test.cpp.
#include "ir/verify_pieces.h"

#include <map>
#include <set>

#include "ir/broken.h"
#include "ir/roles.h"
#include "ir/traffic.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

namespace planc {
namespace {

using llvm::Error;
using llvm::Twine;

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

// The step that renews one weight renews all that the program holds.
Error checkRenewed(const Module& program, llvm::StringRef axis) {
  std::set<const Variable*> written;
  for (const auto& function : program.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->kind == OpKind::Write && op->var->kind == VarKind::Weight) written.insert(op->var);
    });
  if (written.empty()) return Error::success();
  for (const auto& var : program.vars)
    if (var->kind == VarKind::Weight && !written.count(var.get()))
      return broken("weight '" + var->name + "': no function of " + stage(program, axis) +
                    " renews it, as others are");
  return Error::success();
}

// Programs of ranks that differ only along the axis, in its order.
Error checkColumn(const Module& model, llvm::ArrayRef<const Module*> programs,
                  llvm::StringRef axis) {
  llvm::StringMap<std::vector<Held>> held;
  for (const Module* program : programs) {
    if (Error error = checkRenewed(*program, axis)) return error;
    bool isOfOneStage =
        llvm::any_of(program->where, [&](const auto& at) { return at.first == axis; });
    for (const auto& var : program->vars) {
      if (var->kind != VarKind::Weight) continue;
      if ((var->piece || var->tied) && !isOfOneStage)
        return broken("the program's '" + var->name +
                      "' is a stage's, but no stage's program holds it");
      if (var->tied) continue;
      Held mine{0, var->stack.empty() ? 1 : var->type.dims.front().size, program};
      if (var->piece) mine.first += var->piece->first, mine.end += var->piece->first;
      held[var->wholeName()].push_back(mine);
    }
  }
  for (const auto& weight : model.vars) {
    if (weight->kind != VarKind::Weight) continue;
    auto wrong = [&](const Twine& what) {
      return broken("weight '" + weight->name + "': " + what);
    };
    std::vector<Held>& pieces = held[weight->name];
    if (pieces.empty()) return wrong("no program holds it");
    llvm::stable_sort(pieces, [](const Held& a, const Held& b) { return a.first < b.first; });
    int64_t all = weight->stack.empty() ? 1 : weight->type.dims.front().size, next = 0;
    const Module* last = nullptr;
    for (const Held& piece : pieces) {
      std::string both =
          last ? stage(*last, axis) + " and " + stage(*piece.by, axis) + " both hold " : "";
      if (piece.first < next)
        return wrong(both + (weight->stack.empty()
                                 ? "it, and neither is marked as tied"
                                 : iterations(*weight, piece.first, std::min(next, piece.end))));
      if (piece.first > next)
        return wrong("no program holds " + iterations(*weight, next, piece.first));
      next = piece.end;
      last = piece.by;
    }
    if (next < all) return wrong("no program holds " + iterations(*weight, next, all));
  }
  return Error::success();
}

// The dims of a tensor on all ranks together, whatever their order.
std::vector<std::pair<std::string, int64_t>> dimsOf(const Type& type) {
  std::vector<std::pair<std::string, int64_t>> dims;
  for (const Dim& dim : type.whole().dims) dims.push_back({dim.name, dim.size});
  llvm::sort(dims);
  return dims;
}

// How many sums of such a tensor a program makes among these stages, whoever else has a part in them.
int64_t sumsAmong(const Module& program, llvm::StringRef axis, const std::vector<int64_t>& stages,
                  const Type& type) {
  int64_t sums = 0;
  for (const auto& function : program.functions)
    walk(*function->body, [&](const Op* op) {
      if (op->kind != OpKind::AllReduce) return;
      Axes axes = groupAxes(*op);
      if (!hasAxis(axes, axis)) return;
      std::vector<int64_t> among = coordinatesOf(*op, Coordinates());
      bool isAmongAll =
          among.empty() || (axes[0].name == axis && llvm::all_of(stages, [&](int64_t at) {
                              return llvm::is_contained(among, at);
                            }));
      if (!isAmongAll) return;
      for (const Value* summed : op->operands()) sums += dimsOf(summed->type) == dimsOf(type);
    });
  return sums;
}

// Each stage that holds a tied weight adds up its gradient with all others that do.
Error checkTied(const Module& model, llvm::ArrayRef<const Module*> programs, llvm::StringRef axis) {
  struct Tied {
    std::vector<int64_t> stages;
    std::vector<const Module*> programs;
  };
  std::map<std::string, Tied> held;
  for (const Module* program : programs)
    for (const auto& [name, at] : program->where)
      for (const auto& var : program->vars)
        if (name == axis && var->kind == VarKind::Weight && !var->piece) {
          held[var->name].stages.push_back(at);
          held[var->name].programs.push_back(program);
        }
  for (const auto& [name, tied] : held) {
    if (tied.stages.size() == 1) continue;
    const Variable& weight = *model.findVar(name);
    for (const Module* program : tied.programs) {
      // Weights alike in all that is looked at here need as many sums.
      int64_t wanted = llvm::count_if(held, [&, &tied = tied](const auto& other) {
        return other.second.stages == tied.stages &&
               dimsOf(model.findVar(other.first)->type) == dimsOf(weight.type);
      });
      if (sumsAmong(*program, axis, tied.stages, weight.type) >= wanted) continue;
      std::string stages;
      for (int64_t at : tied.stages) stages += (stages.empty() ? "" : ", ") + std::to_string(at);
      return broken("weight '" + name + "': '" + axis + "' " + stages + " hold it, but " +
                    stage(*program, axis) + " does not sum its gradient among them");
    }
  }
  return Error::success();
}

}  // namespace

Error verifyPieces(const Planx& planx) {
  llvm::StringRef axis = planx.roles.front()->pipeline.axis;
  for (const auto& programs : columns(planx, axis)) {
    if (Error error = checkColumn(*planx.model, programs, axis)) return error;
    if (Error error = checkTied(*planx.model, programs, axis)) return error;
  }
  return Error::success();
}

}  // namespace planc
