// The IR: one SSA form for all levels. A Module holds variables (weights, gradients, saved
// activations, inputs) and functions; a Function has one Block; `repeat` and `fused` ops have a
// Block of their own. Ops and values live in the module and are passed by pointer. What an op kind
// means stands in ops.def.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ir/attrs.h"
#include "ir/cluster.h"
#include "ir/grid.h"
#include "ir/type.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"

namespace planc {

class Op;
class Block;
struct Module;

enum class OpKind : uint8_t {
#define OP(Kind, ...) Kind,
#include "ir/ops.def"
};

enum Trait : uint32_t {
  None = 0,
  Elementwise = 1,
  InPlace = 2,
  Effect = 4,
  Var = 8,
  Accumulates = 16,
  Gradient = 32,
  Packs = 64,
  Comm = 128,
};

struct OpInfo {
  OpKind kind;
  llvm::StringRef text;
  int minOperands, maxOperands;  // max -1: any number
  int results;                   // -1: any number
  llvm::StringRef special;       // attribute names, comma-separated, each with `:way` or without
  llvm::StringRef linear;        // operands that may be partial sums: see ops.def
  uint32_t traits;
  llvm::StringRef doc;
};
const OpInfo& info(OpKind kind);
llvm::ArrayRef<OpInfo> allOps();
std::optional<OpKind> opByName(llvm::StringRef text);

// How far one iteration of an enclosing `repeat` (by dim name), or one `microbatch`, moves a place.
struct Stride {
  std::string dim;
  int64_t bytes = 0;
  int64_t ring = 0;  // > 0: iterations count modulo it (a slot's flights)
  bool operator==(const Stride&) const = default;
};

// Where a value lies at rank level: bytes from the arena's start, plus what moves it.
struct Place {
  int64_t offset = 0;
  std::vector<Stride> strides;
  bool operator==(const Place&) const = default;
};

struct Use {
  Op* op;
  unsigned index;
};

class Value {
 public:
  Type type;
  std::string name;            // a hint from the plan; printing makes names unique
  std::optional<Place> place;  // rank level only

  Op* def() const { return def_; }         // null for a block's argument
  Block* block() const { return block_; }  // the block it belongs to
  unsigned index() const { return index_; }
  llvm::ArrayRef<Use> uses() const { return uses_; }
  void replaceAllUsesWith(Value* other);

 private:
  friend class Op;
  friend class Block;
  friend struct Module;
  Op* def_ = nullptr;
  Block* block_ = nullptr;
  unsigned index_ = 0;
  llvm::SmallVector<Use, 4> uses_;
};

enum class VarKind : uint8_t {
  Input,     // i32 tokens of one step, with a leading dim `microbatch` when there are several
  Weight,    // the master copy, initialised by `init`
  Copy,      // a weight in compute precision; `of` names the weight
  Gradient,  // `of` names the weight
  Moment,    // optimizer state; `of` names the weight
  Sum,       // what a rank has added up for the gradient or metric `of`, until @reduce
  Slot,      // an activation saved from @forward for @backward, of one microbatch
  Metric,    // a scalar of the step: loss, gradient norm, ...
  Step,      // the step's number from 1, i32[], set by the runtime
};

struct Init {
  std::string kind = "normal";  // normal, uniform, const
  double value = 0.02;          // standard deviation, half-width, or the constant
  bool operator==(const Init&) const = default;
};

// A stage's part of a stacked variable: of `all` iterations of the whole variable `of`, those from
// `first` on, as many as the piece's outermost dim has.
struct Piece {
  std::string of;  // its name in the model, in files and as a key of randomness
  int64_t first = 0, all = 0;
  bool operator==(const Piece&) const = default;
};

// A named piece of memory that outlives a function. `stack` names its leading dims that stand for
// iterations of enclosing repeats: `wq : f32[layer 4, model 64, ...]` with stack {layer}.
struct Variable {
  std::string name;
  Type type;
  VarKind kind = VarKind::Weight;
  std::string of;
  Words stack;
  Init init;
  bool decay = true;    // weight decay applies (weights only)
  // Weights: > 0: a bias of routing, trained by no gradient but moved by so much a step, up where an
  // expert has fewer tokens than the mean and down where it has more. Its `gradient` is the load.
  double balance = 0;
  int64_t vocab = 0;    // inputs: tokens are < vocab
  std::string follows;  // inputs: holds the token after each one of this input; else empty
  // Inputs: the number, in its sequence, of the document that a token of this input lies in; else empty.
  // A document ends with token `separator`.
  std::string documents;
  int64_t separator = 0;
  bool output = false;  // slots: `planrun eval` writes it
  // Slots: how many microbatches hold one at once; microbatch m uses number m modulo `flights`.
  int64_t flights = 1;
  std::optional<Piece> piece;  // behind `pipeline`: of what this is a part
  // Behind `pipeline`: an earlier stage holds the same variable (a tied weight) and speaks for it
  // where it counts once, in norms and in files.
  bool tied = false;
  Loc loc;
  std::optional<Place> place;

  // The type of one slice: without the stack dims that `enclosing` lists.
  Type slice(llvm::ArrayRef<std::string> enclosing) const;
  // Its stack's dims, with their sizes.
  std::vector<Dim> stackDims() const { return {type.dims.begin(), type.dims.begin() + stack.size()}; }
  // The variable of the model that this is, or is a piece of: its name and, of all ranks and stages
  // together, its type, dims in their own order.
  const std::string& wholeName() const { return piece ? piece->of : name; }
  Type wholeType() const;
};

class Op {
 public:
  OpKind kind;
  Attrs attrs;
  Variable* var = nullptr;
  std::unique_ptr<Block> body;
  Loc loc;

  llvm::ArrayRef<Value*> operands() const { return operands_; }
  llvm::ArrayRef<Value*> results() const { return results_; }
  Value* operand(unsigned i) const { return operands_[i]; }
  Value* result(unsigned i = 0) const { return results_[i]; }
  void setOperand(unsigned i, Value* value);
  void addOperand(Value* value);
  void setOperands(llvm::ArrayRef<Value*> values);
  Value* addResult(Type type, llvm::StringRef name);
  void dropResults();  // they must have no uses

  Block* parent() const { return parent_; }
  const OpInfo& info() const { return planc::info(kind); }
  bool has(Trait trait) const { return (info().traits & trait) != 0; }
  bool isFlag(llvm::StringRef key) const { return attrs.integer(key) != 0; }
  // Whether the last iteration of the `repeat` around it leaves the op out.
  bool isUnlessLast() const { return isFlag("unless_last"); }
  // Removes the op from its block and its operands' use lists; its results must have no uses.
  void erase();

 private:
  friend class Block;
  friend class Builder;
  friend struct Module;
  Module* module_ = nullptr;
  Block* parent_ = nullptr;
  llvm::SmallVector<Value*, 4> operands_;
  llvm::SmallVector<Value*, 2> results_;
};

class Block {
 public:
  explicit Block(Module& module, Op* owner) : module_(&module), owner_(owner) {}
  std::vector<Op*> ops;
  llvm::ArrayRef<Value*> args() const { return args_; }
  Value* addArg(Type type, llvm::StringRef name);
  Op* owner() const { return owner_; }  // null for a function's block
  Module& module() const { return *module_; }
  // Names of the dims of the enclosing repeats, outermost first.
  Words enclosing() const;
  // Position of an op of this block.
  size_t indexOf(const Op* op) const;

 private:
  Module* module_;
  Op* owner_;
  std::vector<Value*> args_;
};

struct Function {
  std::string name;
  std::unique_ptr<Block> body;
};

// Run: all of a function. Start, Wait: of a function that only passes messages between stages, their
// start and what remains: other calls may stand in between.
enum class Phase : uint8_t { Run, Start, Wait };

// One entry of the schedule: run a function for a microbatch (-1: once a step).
struct Call {
  std::string function;
  int64_t microbatch = -1;
  Phase phase = Phase::Run;
  bool operator==(const Call&) const = default;
};

// Model: types are whole. Sharded: types say what each rank holds; where a value's type and a use's
// differ stands a collective. Rank: everything has its place.
enum class Level : uint8_t { Model, Sharded, Rank };

// `split DIM over AXES by HOW`, in the plan's order, which is its priority; of one statement there is an
// entry for each method. `how`:
//   (nothing)  the dim is cut in every op; the experts of routed tokens are sent them
//   gather     cut where no other split wants the axes (a weak split); attention gathers its keys
//   ring       cut in every op; attention's keys travel
//   heads      cut in every op but attention, which cuts its heads instead
struct Split {
  std::string dim;
  Words axes;
  std::string how = {};
  std::string order = {};  // ring, gather: `zigzag`, or in order
  // Experts: a rank has room for this many times its even share of rows; 0: for all that could come.
  double room = 0;
  Loc loc = {};
  bool isWeak() const { return how == "gather"; }
};

// `shard optimizer | gradients | weights over AXES`: ZeRO 1, 2 and 3; each includes those before it.
struct Shard {
  std::string what;
  Words axes;
  Loc loc;
};

// `split DIM over AXIS by SCHEDULE`: which repeats are cut into stages, and in which order a stage works.
struct Pipeline {
  std::string axis;       // empty: no pipeline
  Words dims;             // of the repeats that are cut
  std::string schedule = "one_f_one_b";
  int64_t chunks = 1;     // consecutive parts of the model on each stage
  std::vector<int64_t> counts;  // iterations of each part in the model's order; empty: balanced
  std::string order;      // the text of a schedule of the user's own, with its path in `schedule`
  Loc loc;
};

struct Module {
  std::string name;
  Level level = Level::Model;
  // Whose program it is, behind `pipeline`: the ranks at these coordinates (axis and coordinate).
  // None: every rank's.
  std::vector<std::pair<std::string, int64_t>> where;
  // What the plan asks for; keys in docs/ir.md: seed, microbatches, precision, gradients,
  // recompute, optimizer and its numbers.
  Attrs settings;
  // How the plan lays the model over ranks; no axes: one rank.
  Grid grid;
  std::vector<Split> splits;
  std::vector<Shard> shards;
  Pipeline pipeline;
  // What it runs on, and which axes the plan keeps close.
  Cluster cluster;
  std::vector<Within> places;
  std::vector<std::string> files;  // Loc::file indexes it
  std::vector<std::unique_ptr<Variable>> vars;
  std::vector<std::unique_ptr<Function>> functions;
  std::vector<Call> schedule;
  int64_t arenaBytes = 0;  // rank level

  bool fits(const Coordinates& rank) const;  // whether it is this rank's program

  Module() = default;
  Module(Module&&) = delete;

  Variable* findVar(llvm::StringRef name) const;
  Function* findFunction(llvm::StringRef name) const;
  // A new variable; the name gets a number behind it when taken.
  Variable* addVar(Variable variable);
  // Gives a variable a name that no other has.
  void rename(Variable& variable, std::string name);
  void eraseVars(llvm::function_ref<bool(const Variable&)> isErased);
  Function* addFunction(llvm::StringRef name);
  Op* newOp(OpKind kind);
  Value* newValue();

 private:
  std::deque<Op> ops_;
  std::deque<Value> values_;
  llvm::StringMap<Variable*> varByName_;
  llvm::StringMap<unsigned> nextNumber_;  // behind a name that is taken
};

using Modules = std::vector<std::unique_ptr<Module>>;

// Creates ops at a place in a block.
class Builder {
 public:
  explicit Builder(Block* block) : block_(block), at_(block->ops.size()) {}
  Builder(Block* block, size_t at) : block_(block), at_(at) {}

  Loc loc;
  Block* block() const { return block_; }
  Module& module() const { return block_->module(); }
  size_t position() const { return at_; }

  Op* create(OpKind kind, llvm::ArrayRef<Value*> operands, llvm::ArrayRef<Type> results,
             Attrs attrs = {}, Variable* var = nullptr, llvm::StringRef name = "");
  // With one result, which is returned.
  // The op again, where it stands in the plan, with other operands and variable: kind, attributes, types
  // and names, but no body.
  Op* copy(const Op& op, llvm::ArrayRef<Value*> operands, Variable* var = nullptr);
  Value* value(OpKind kind, llvm::ArrayRef<Value*> operands, Type result, Attrs attrs = {},
               llvm::StringRef name = "");
  // Elementwise: the result's dims are the first operand's, then those that only later ones have.
  Value* elementwise(OpKind kind, llvm::ArrayRef<Value*> operands, llvm::StringRef name = "");
  Value* constant(double value, Type type);
  Value* read(Variable* var);  // the slice that the enclosing repeats pick
  void write(Variable* var, Value* value);
  // A `repeat` over the initial values, its body's arguments made; the caller fills and yields.
  Op* repeat(llvm::StringRef dim, int64_t count, bool reverse, llvm::ArrayRef<Value*> init);

 private:
  Block* block_;
  size_t at_;
};

// The log-sum-exp of no keys: far below all scores, and no infinity whose difference is a NaN.
inline constexpr double kNoKeys = -1e38;

// What a dim is to an op, by the rule that heads ops.def. Special: must be whole on every rank.
enum class DimRole { Parallel, Summed, Special };
DimRole dimRole(const Op& op, llvm::StringRef dim);

llvm::StringRef name(Level level);
llvm::StringRef name(VarKind kind);
llvm::StringRef name(Phase phase);  // `call`, `start`, `wait`, as IR text has them
std::optional<VarKind> varKindByName(llvm::StringRef text);

// Visits the ops of a block in order, bodies after their op; `visit(op)`.
template <class F>
void walk(const Block& block, F&& visit) {
  for (Op* op : block.ops) {
    visit(op);
    if (op->body) walk(*op->body, visit);
  }
}

}  // namespace planc
