// What can be checked without lowering a model: declarations, overrides, and a plan's settings
// against the sizes that the model's dims evaluate to. compile.cpp calls, in this order:
// checkFiles, choosePlan, (evaluates the dims), checkPlan.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "ir/diagnostics.h"
#include "ir/grid.h"
#include "ir/type.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace planc {

// Every declaration of the files by name; of duplicates the first.
struct Scope {
  std::map<std::string, const ast::Device*, std::less<>> devices;
  std::map<std::string, const ast::Cluster*, std::less<>> clusters;
  std::map<std::string, const ast::Module*, std::less<>> modules;  // modules and models
  std::map<std::string, const ast::Plan*, std::less<>> plans;
  std::vector<const ast::Plan*> ownPlans;  // those of the last file, in its order

  const ast::Module* module(llvm::StringRef name) const;    // null: none
  std::vector<std::string> moduleNames(bool models) const;  // for suggestions
};

// What a model does with a dim, as far as splits care: bits of DimInfo::uses.
enum DimUse : unsigned {
  kSamples = 1,       // the first dim of an input
  kPositions = 2,     // a later one
  kTokens = 4,        // an input's tokens index it: a vocabulary
  kAttended = 8,      // `attend` goes over it
  kHeads = 16,        // of `attend`'s queries
  kKvHeads = 32,      // of its keys and values
  kRouted = 64,       // `route` goes over it
  kIterations = 128,  // a `repeat` counts it
  kAllSeen = 256,     // an `attend` over it is not causal
};

// A dim of the model as evaluated, and where it is declared.
struct DimInfo {
  int64_t size = 0;
  Loc loc;
  unsigned uses = 0;
  std::set<int64_t> others = {};     // sizes that the name has elsewhere in the model
  std::set<std::string> heads = {};  // of those that `attend` over it; empty: it has none
  // Of repeats that count it: the iterations of those that stand in no other repeat, all together,
  // the place of the first of these among the model's, and whether there are others.
  int64_t iterations = 0;
  size_t order = 0;
  bool isInner = false;

  // A vocabulary may be uneven: rows of padding at its end are zero and never chosen.
  bool isPaddable() const { return uses == kTokens; }
};
using DimMap = std::map<std::string, DimInfo>;

// An axis of a plan's grid. Its size is the plan's or, if told apart from it, the one of --grid.
struct PlanAxis {
  std::string name;
  int64_t size = 1;
  bool isFromOption = false;
  // Where splits say `within` a level: so many ranks of it can lie in one unit; 0: none says so.
  int64_t within = 0;

  // Of `ranks` of it, those that lie in one unit.
  int64_t inside(int64_t ranks) const { return std::min(ranks, within); }
};

// What a plan asks for, defaults filled in.
struct PlanSettings {
  std::string name;
  int64_t seed = 0;
  int64_t microbatches = 1;
  Elem precision = Elem::F32;
  Elem gradients = Elem::F32;
  Words recompute;  // builtins, `layer`, `gather`; `none` gives an empty list
  std::string optimizer = "adamw";
  // lr warmup cosine floor beta1 beta2 eps decay momentum clip: all are present for each optimizer;
  // those that it lacks are 0.
  std::map<std::string, double> numbers;
  std::vector<PlanAxis> grid;  // after --grid
  int64_t ranks = 1;           // the product of the grid's sizes
  Grid layout;                 // as modules hold it: without axes of one rank, others cut by scopes
  Loc gridLoc;                 // of the `grid` statement, or of the plan
  // As modules hold them: without axes of one rank and what has no other.
  std::vector<Split> splits;
  std::vector<Shard> shards;
  Pipeline pipeline;
  Cluster cluster;
  std::vector<Within> places;
};

// Fills `scope` and checks all declarations: duplicates, units, devices, clusters, parameters,
// statements at places where they can't stand, a plan's model and cluster, and its overrides (names
// known, none twice) with those of -D and --grid. True when it found no error.
bool checkFiles(const std::vector<std::unique_ptr<ast::File>>& files, const CompileOptions& options,
                Scope& scope, Diagnostics& diags);

// The plan that the options ask for: `options.plan`, or the only one of the last file. Null:
// reported.
const ast::Plan* choosePlan(const Scope& scope, const CompileOptions& options, Diagnostics& diags);

// Checks a plan's statements against the sizes of the model's dims and fills `settings`. `dims` may
// be incomplete when the model has errors of its own: then pass `complete` false, and unknown dims
// are not reported. True when it found no error.
bool checkPlan(const ast::Plan& plan, const Scope& scope, const DimMap& dims, bool complete,
               const CompileOptions& options, PlanSettings& settings, Diagnostics& diags);

// The builtin functions' names (docs/language.md lists them), sorted: for suggestions and
// `recompute`.
llvm::ArrayRef<llvm::StringRef> builtinNames();

// A cluster that checkFiles found no error in, of a device of the scope.
Cluster clusterOf(const ast::Cluster& cluster, const Scope& scope);

// A quantity in base units: bytes, bytes/s, seconds, operations/s, or a plain number.
enum class UnitKind { None, Bytes, BytesPerSecond, Seconds, OpsPerSecond };
// Reports a missing or wrong unit; `what` is the key that the quantity belongs to.
std::optional<double> inBaseUnits(const ast::Quantity& quantity, UnitKind kind, Diagnostics& diags,
                                  llvm::StringRef what);
// A plain whole number from `least` to `most`; reports anything else.
std::optional<int64_t> wholeNumber(const ast::Quantity& quantity, llvm::StringRef what,
                                   int64_t least, int64_t most, Diagnostics& diags);
// `8`, `0.0003`: for messages.
std::string printNumber(double value);

}  // namespace planc
