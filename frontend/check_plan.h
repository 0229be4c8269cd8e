// Checking one plan: what check_plan.cpp (grid, shards, places), check_split.cpp and
// check_scopes.cpp (splits),
// check_pipeline.cpp (splits of repeats) and check_settings.cpp (the rest) share. `checkPlan` in check.h is the door.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "frontend/ast.h"
#include "frontend/check.h"
#include "ir/diagnostics.h"

namespace planc {

struct OptimizerSetting;

// Of an axis: all of its ranks, those within one unit of a level, or one of each unit.
enum class Extent { All, Within, Across };
Extent extentOf(const ast::Target& target);
inline bool overlap(Extent a, Extent b) { return a == b || a == Extent::All || b == Extent::All; }

class PlanChecker {
 public:
  PlanChecker(const ast::Plan& plan, const Scope& scope, const DimMap& dims, bool complete,
              const CompileOptions& options, PlanSettings& settings, Diagnostics& diags);
  void run();

 private:
  // A dim that must be cut over the ranks of axes. Collected first, so that a help names sizes of an
  // axis that fit every dim it splits.
  struct Cut {
    const ast::Ident* dim;
    const DimInfo* info;
    struct Part {
      const PlanAxis* axis;
      bool isZigzag;  // each rank is dealt two blocks
      Extent extent = Extent::All;
      // Its ranks when the axis has so many.
      int64_t ranks(int64_t ofAxis) const;
      int64_t ranks() const { return ranks(axis->size); }
    };
    std::vector<Part> parts;  // of more than one rank, the outermost first
    // Heads that a dim `by heads` has cut further, in attention over it.
    const ast::Ident* attended = nullptr;

    // What the dim's size must be a multiple of; with `axis`, when that had so many ranks.
    int64_t blocks(const PlanAxis* axis = nullptr, int64_t ranks = 0) const;
    bool fits(int64_t blocks) const { return !misfit(blocks); }
    // A size of the dim that is none.
    std::optional<int64_t> misfit(int64_t blocks) const;
    bool has(const PlanAxis* axis) const;
  };

  // What a target `by heads` asks of the heads.
  struct HeadCut {
    const ast::Ident* dim;
    const DimInfo* info;
    ast::Ident method;
    Cut::Part part;
  };

  // A repeat's dim that is cut into stages.
  struct Cutting {
    const ast::Ident* dim;
    const DimInfo* info;
    const ast::Target* target;
  };

  // The grid, shards, places (check_plan.cpp).
  void change(const PlanChanges& changes);
  void readGrid(const ast::Grid& grid, Loc loc);
  void overrideGrid();
  void changeGrid();
  void checkRanks();
  int64_t devicesWithin(size_t levels) const;
  const PlanAxis* axisNamed(llvm::StringRef name) const;
  std::vector<std::string> axisNames() const;
  const PlanAxis* findAxis(const ast::Ident& name);  // null: reported
  // `use data up to 4, or pipe up to 2`: which single axis could shrink for so many ranks in all.
  static std::string mostRanks(const std::vector<const PlanAxis*>& axes, int64_t ranks);
  bool once(std::map<std::string, Loc>& seen, const ast::Ident& name, Diag id);
  void onlyOne(llvm::StringRef keyword, Loc loc);
  size_t findLevel(const ast::Ident& name, llvm::StringRef keyword);
  void check(const ast::Grid& grid, Loc loc);
  void check(const ast::Shard& shard, Loc loc);
  void check(const ast::Place& place, Loc loc);

  // Splits (check_split.cpp).
  void check(const ast::Split& split, Loc loc);
  void reportUnknownDim(const ast::Ident& dim);
  void checkMethod(const ast::Ident& dim, const DimInfo& info, const ast::Target& target);
  void addCut(const ast::Ident& dim, const DimInfo& info,
              const std::vector<const ast::Target*>& targets);
  void addHeads(const ast::Ident& dim, const DimInfo& info,
                const std::vector<const ast::Target*>& targets);
  void addSplits(const ast::Ident& dim, const DimInfo& info,
                 const std::vector<const ast::Target*>& targets);
  void checkOrders(const ast::Ident& dim, const DimInfo& info,
                   const std::vector<const ast::Target*>& targets);
  void cutHeads();
  void checkCuts();
  std::vector<int64_t> legalRanks(const Cut& cut, const PlanAxis* axis) const;
  std::string help(const Cut& cut) const;
  std::string leaveOut(const Cut& cut) const;

  // Axes that are cut where units of a level end (check_scopes.cpp).
  void cutAxes();
  void cutAxis(PlanAxis& axis, const std::vector<const ast::Target*>& scoped);
  Words partsOf(const PlanAxis& axis, Extent extent) const;

  // Pipelines (check_pipeline.cpp).
  void addRepeat(const ast::Ident& dim, const DimInfo& info,
                 const std::vector<const ast::Target*>& targets);
  void checkPipeline();
  bool isOnePipeline();
  bool readOrder(const ast::Ident& path, const PlanAxis& axis);
  bool checkCounts(const ast::Target& target, const PlanAxis& axis);
  void checkSchedule(const ast::Target& target, const PlanAxis& axis);
  void checkOtherUses(const PlanAxis& axis);

  // Settings (check_settings.cpp).
  void check(const ast::Microbatches& statement, Loc loc);
  void check(const ast::Seed& statement, Loc loc);
  void check(const ast::Precision& statement, Loc loc);
  void check(const ast::Recompute& statement, Loc loc);
  void check(const ast::Optimizer& statement, Loc loc);
  std::optional<Elem> floatElem(const ast::Ident& name);
  void setDefaults(llvm::StringRef optimizer);
  void read(const OptimizerSetting& setting, const ast::Optimizer::Entry& entry);
  double readNumber(const OptimizerSetting& setting, const ast::Quantity& given, double fallback);

  const ast::Plan& plan_;
  const Scope& scope_;
  const DimMap& dims_;
  bool complete_;
  const CompileOptions& options_;
  PlanSettings& settings_;
  Diagnostics& diags_;
  const ast::Cluster* cluster_ = nullptr;
  bool hasGrid_ = false;
  std::vector<Cut> cuts_;
  std::vector<HeadCut> headCuts_;
  std::deque<ast::Ident> headNames_;  // where a method asks for them
  std::vector<Cutting> cuttings_;
  std::map<std::string, Loc> axisLocs_, splitDims_, sharded_, placed_, statements_;
};

// Chunks of the model on each rank of a pipeline; 0: the arguments say something else.
int64_t chunksOf(const ast::Target& target);

std::string quoted(llvm::StringRef name);
// `1, 2 or 4`
std::string either(const std::vector<std::string>& words);
// `4 ranks`, `1 rank by --grid`
std::string rankText(const PlanAxis& axis);
// Adds `did you mean ...?`, else another help, else all of a few names.
void suggestFrom(Diagnostic& message, llvm::StringRef word, const std::vector<std::string>& names,
                 llvm::StringRef otherwise = "");

}  // namespace planc
