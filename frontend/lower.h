// Lowering, AST to model-level IR: what lower*.cpp share. `lowerModel` is the door; compile.cpp
// calls it. Names are resolved while lowering: a module's body is lowered anew for each call, in a
// frame of its own, and dims are scoped dynamically (a module sees its callers' dims).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "frontend/ast.h"
#include "frontend/check.h"
#include "ir/diagnostics.h"
#include "ir/op.h"

namespace planc {

// A parameter's value as the plan or -D gives it; it replaces the fallback.
struct Override {
  std::string name;
  const ast::Expr* value = nullptr;  // in a plan; null: `text`, from the command line
  std::string text;
};

// Lowers a model under a plan's settings. `dims` gets every dim seen, by name; repeats of one name
// that follow each other in the model count together. Null after errors.
std::unique_ptr<Module> lowerModel(const ast::Module& model, const std::vector<Override>& overrides,
                                   const PlanSettings& settings, const Scope& scope, DimMap& dims,
                                   Diagnostics& diags);

namespace lowering {

inline constexpr unsigned kMaxLowerDepth = 400;        // nested expressions, bodies and calls
inline constexpr unsigned kMaxExpressions = 1u << 20;  // evaluated, over all module instances

// The result of `route`, which only `dispatch` and `combine` take.
struct Routing {
  Value *gate, *row, *offsets;
  llvm::SmallVector<Dim, 4> tokens;  // the dims of a token: those of the scores less the experts'
  Dim expert;
  int64_t rows;  // bound of the packed rows
};

// What a name stands for, or what an expression gives. A poisoned item stands for the result of a
// wrong expression: whatever uses it is poisoned too and reports nothing.
struct Item {
  enum Kind { Poison, Tensor, Input, Weight, Route, Number, Truth, Word } kind = Poison;
  Value* value = nullptr;    // Tensor
  Value* offsets = nullptr;  // Tensor with a ragged dim: where its groups start
  Variable* var = nullptr;   // Input, Weight
  std::shared_ptr<const Routing> routing;
  double number = 0;  // Number; Truth: 0 or 1
  std::string word;
  bool fresh = true;  // made by this expression, not a variable's: an assignment may name it
  bool parameter = false;
  Loc loc;  // where the name was declared

  static Item tensor(Value* value, Value* offsets = nullptr);
  static Item ofNumber(double number);
  bool isStatic() const { return kind == Number || kind == Truth || kind == Word; }
};

// The dims that an expression's result should have: of these, `@` keeps what its operands have.
struct Wanted {
  bool known = false;
  bool broken = false;  // declared, but wrongly: what follows from that is not reported
  llvm::SmallVector<Dim, 4> dims;

  const Dim* find(llvm::StringRef name) const;
  Wanted with(llvm::ArrayRef<Dim> more) const;
  Wanted unknown() const { return {false, broken, {}}; }
};

// A name of a dim in scope. Inside a module, a dim parameter is another name for a caller's dim.
struct DimEntry {
  std::string name;
  Dim dim;
  Loc loc;
};

// One parameter as calls see it.
struct ParamName {
  std::string name;
  bool required = false;
  bool flag = false;  // its bare name as an argument sets it
};

struct Builtin;
struct BoundArgs;

class Lowering {
 public:
  Lowering(Module& module, const PlanSettings& settings, const Scope& scope, DimMap& dims,
           Diagnostics& diags);
  void run(const ast::Module& model, const std::vector<Override>& overrides);

 private:
  // A repeat's body, or a module's: its names and the instances counted for weight names.
  struct BodyScope {
    std::map<std::string, Item, std::less<>> names;
    std::string path;  // of weights made here: `layer.attention.`
    std::map<std::string, int> instances;
  };
  // One instance of a module.
  struct Frame {
    const ast::Module* module = nullptr;
    Loc call;
    std::vector<BodyScope> scopes;  // inner last
    // For each body being lowered, inner last: the statements that follow the current one.
    std::vector<std::pair<const std::vector<ast::Stmt>*, size_t>> rest;
    std::vector<bool> restIsLoop;
    std::optional<Item> result;
    bool returned = false;
  };

  // Statements (lower.cpp).
  void lowerBody(const std::vector<ast::Stmt>& body, bool isLoop);
  void lower(const ast::DimDecl& decl, Loc loc);
  void lower(const ast::InputDecl& decl, Loc loc);
  bool numbersDocuments(const ast::InputDecl& decl, llvm::ArrayRef<Dim> dims, Variable& var);
  bool isReserved(llvm::StringRef name, Loc loc);
  void lower(const ast::WeightDecl& decl, Loc loc);
  void lower(const ast::Assign& assign, Loc loc);
  void lower(const ast::Repeat& repeat, Loc loc);
  void lower(const ast::If& branch, Loc loc);
  void lower(const ast::Loss& loss, Loc loc);
  void addLoss(Value* value, bool perMicrobatch);
  void addUp(Value* value, llvm::StringRef metric);
  void finish();
  std::vector<std::string> carriedBy(const ast::Repeat& repeat);

  // Names (lower_names.cpp).
  Frame& frame() { return *frames_.back(); }
  BodyScope& scope() { return frame().scopes.back(); }
  const Item* findName(llvm::StringRef name);
  const DimEntry* findDim(llvm::StringRef name) const;
  std::optional<Dim> dimNamed(const ast::Ident& ident);
  bool declareDim(const ast::Ident& name, int64_t size, bool isRepeat);
  void noteUse(llvm::StringRef dim, DimUse use);
  void noteRepeat(llvm::StringRef dim, int64_t count);
  // The dims of a declaration; reports unknown and double ones (then nullopt). `open`: one unknown
  // name may stand for a dim that the value brings, and gets size 0.
  std::optional<llvm::SmallVector<Dim, 4>> resolveDims(llvm::ArrayRef<ast::Ident> dims,
                                                       bool open = false);
  std::string instancePath(llvm::StringRef name);
  std::vector<std::string> visibleNames(bool dimsOnly) const;
  void bindParameters(const ast::Module& module, const std::vector<const ast::Arg*>& args,
                      Frame& callee);
  void bindModelParameters(const ast::Module& model, const std::vector<Override>& overrides);

  // Expressions (lower_expr.cpp).
  Item eval(const ast::Expr& expr, const Wanted& wanted);
  Item evalChain(const ast::Expr& expr, const Wanted& wanted);
  Item evalName(const ast::Expr& expr);
  Item evalLookup(const ast::Expr& expr, const Wanted& wanted);
  Item evalCompare(const ast::Expr& expr);
  Item callModule(const ast::Module& module, const ast::Expr& call);
  // A static value; reports and gives nullopt when the expression is none. A name that stands for
  // nothing is a word where `words` allows it.
  std::optional<Item> evalStatic(const ast::Expr& expr, bool words = false);
  std::optional<double> evalNumber(const ast::Expr& expr);
  std::optional<int64_t> evalInteger(const ast::Expr& expr, llvm::StringRef what);
  // The arguments of a call by parameter; reports wrong ones.
  std::optional<std::vector<const ast::Arg*>> matchArgs(const ast::Expr& call,
                                                        llvm::ArrayRef<ParamName> params, Loc decl);
  // A tensor from an item: reads a weight, makes a number a constant (of `elem`, or of
  // activations). Poison after an error.
  Item toTensor(const Item& item, Loc loc, std::optional<Elem> elem = std::nullopt);
  Item binary(ast::ExprKind kind, const ast::Expr& expr, Item a, Item b, const Wanted& wanted);
  Item elementwise(OpKind kind, Item a, Item b, const Wanted& wanted, Loc loc);
  Item contract(Item a, Item b, const Wanted& keep, Loc loc);
  Item sumTo(Item a, llvm::ArrayRef<Dim> dims, Loc loc);
  Item conform(Item value, llvm::ArrayRef<Dim> dims, llvm::StringRef name, Loc loc, Loc declared);
  bool spread(Item& a, const Item& ragged, Loc loc);
  llvm::SmallVector<Dim, 4> dimsOf(const Item& item) const;
  bool sizesAgree(const Type& a, const Type& b, Loc loc);

  // Builtins (lower_builtins.cpp).
  friend struct Builtin;
  Item callBuiltin(const Builtin& builtin, const ast::Expr& call, const Wanted& wanted);
  Item lowerConcat(const ast::Expr& call, const Wanted& wanted);
  Item lowerUnary(OpKind kind, BoundArgs& args);
  Item lowerMaxMin(OpKind kind, BoundArgs& args);
  bool goesOverGroups(const Item& x, const Dim& over, const ast::Expr& call);
  Item lowerNorm(bool center, BoundArgs& args);
  Item lowerSoftmax(BoundArgs& args);
  Item lowerSum(bool mean, BoundArgs& args);
  Item lowerRope(BoundArgs& args);
  Item lowerAttend(BoundArgs& args);
  Item lowerDropout(BoundArgs& args);
  Item lowerSlice(BoundArgs& args);
  Item lowerRoute(BoundArgs& args);
  std::optional<Attrs> groupsOf(const BoundArgs& args, int64_t experts);
  void lowerPacking(Op& route, double capacity, Routing& routing);
  void countLoads(const Op& route, const Value* gate);
  void addPenalty(Value* penalty);
  void lowerBalance(const Op& route, double factor);
  void lowerLogits(const Op& route, double factor);
  Item lowerDispatch(BoundArgs& args);
  Item lowerCombine(BoundArgs& args);
  Value* lowerCrossEntropy(const ast::Expr& call);
  Variable* countOf(Variable* targets);

  // Reports; inside a module, a note tells the call that leads there.
  template <class... Args>
  Diagnostic& error(Loc loc, Diag id, Args&&... args) {
    Diagnostic& message = diags_.report(loc, id, std::forward<Args>(args)...);
    if (frames_.size() > 1)
      message.note(frames_.back()->call, Diag::CalledHere, frames_.back()->module->name.text);
    return message;
  }

  // Creating ops; the builder's place in the source is set first.
  Builder& at(Loc loc);
  Item poison() const { return {}; }
  Value* emit(OpKind kind, llvm::ArrayRef<Value*> operands, Type type, Attrs attrs, Loc loc);
  bool fits(const Type& type, Loc loc);
  Value* readVar(Variable* var, Loc loc);
  Variable* metric(llvm::StringRef name, Elem elem);

  Module& module_;
  const PlanSettings& settings_;
  const Scope& scope_;
  DimMap& allDims_;
  size_t outerRepeats_ = 0;  // so far, those that stand in no other
  Diagnostics& diags_;
  Elem compute_, scalar_;  // of activations; of losses, gates, statistics and weights
  Builder builder_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<DimEntry> dims_;                    // inner last
  std::map<const Variable*, std::string> vocab_;  // of inputs: the dim's name
  std::map<const Variable*, Variable*> counts_;   // of targets: valid tokens of the step
  std::set<const Variable*> read_;
  std::map<std::pair<uint32_t, uint64_t>, bool> weightUsed_;  // by place of declaration
  std::map<const Variable*, std::pair<uint32_t, uint64_t>> weightPlace_;
  unsigned depth_ = 0, expressions_ = 0, scanned_ = 0;
  bool tooLarge_ = false;
  int losses_ = 0;
};

// Counts recursion; false beyond the limit.
struct DepthGuard {
  explicit DepthGuard(unsigned& depth) : depth(depth) { ++depth; }
  ~DepthGuard() { --depth; }
  unsigned& depth;
};

// Adds `did you mean ...?` for the nearest of some names, else another help (may be empty).
void suggestNearest(Diagnostic& message, llvm::StringRef word,
                    const std::vector<std::string>& names, llvm::StringRef otherwise);
const Builtin* findBuiltin(llvm::StringRef name);
// `batch, seq, model`, for messages.
std::string dimList(llvm::ArrayRef<Dim> dims);
// Dims in the wanted order; those that are not wanted follow in their own.
llvm::SmallVector<Dim, 4> ordered(llvm::ArrayRef<Dim> dims, const Wanted& wanted);

}  // namespace lowering
}  // namespace planc
