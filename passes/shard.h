// The state of the `shard` pass: shard_rules.cpp (which axes an op's names get), shard_partial.cpp
// (where partial sums stay partial), shard_storage.cpp (how variables are held) and shard.cpp (the
// walk that types every value).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/diagnostics.h"
#include "ir/op.h"
#include "ir/sharding.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/StringSet.h"

namespace planc {

// What the plan's splits say of names, with what follows from them: kv heads follow heads, packed
// rows follow the tokens they are made of.
class SplitRules {
 public:
  // Cuts axes of the module's grid into parts where a follower needs only a part.
  explicit SplitRules(Module& module);

  // The axes that an op's names get. Weak splits also leave alone the axes that are `summed`: those
  // over which the op's operands stay partial.
  Assignment assign(const Op& op, llvm::ArrayRef<Axis> summed = {}) const;
  // The axes that a value's or variable's own names get. Tokens are read where they are wanted:
  // `strictOnly` leaves out weak splits.
  Assignment assign(const Type& type, bool strictOnly = false) const;
  // Whether a dim may be cut unevenly: tokens index it, so padding is never looked up.
  bool isVocabulary(llvm::StringRef dim) const { return vocabularies_.contains(dim); }
  bool isExpert(llvm::StringRef dim) const { return experts_.contains(dim); }

 private:
  struct Rule {
    std::string dim;
    Axes axes;
    bool weak;
    Loc loc;
    enum Where { Everywhere, OutsideAttention, InAttention } where = Everywhere;
    double room = 0;  // of experts
  };
  void findRouted(const Module& module);
  void followHeads(Module& module);
  void addRules(Module& module, bool weak);
  void followTokens(const Module& module);
  static void splitAttention(Module& module, const Split& split, const Axes& axes,
                             std::vector<Rule>& into);
  std::vector<const Rule*> orderFor(llvm::ArrayRef<Dim> dims, const Op* op) const;
  void limitRooms(Assignment& assignment, llvm::ArrayRef<Dim> dims) const;
  Assignment handOut(llvm::ArrayRef<Dim> dims, const Op* op, bool strictOnly,
                     llvm::ArrayRef<Axis> summed) const;

  std::vector<Rule> rules_;  // strict ones first, each kind in the plan's order
  llvm::StringSet<> vocabularies_;
  llvm::StringSet<> experts_;  // dims that packed rows are grouped by
  llvm::StringSet<> tokens_;   // dims of what is packed
};

// Where partial sums stay partial: through linear ops, as long as adding them up later moves fewer
// bytes. See shard_partial.cpp.
class PartialSums {
 public:
  PartialSums(const Module& module, const SplitRules& rules);
  // Whether a partial value is to be added up where it is made, for all its uses.
  bool isReducedAtOnce(const Value* value) const { return reduced_.contains(value); }

 private:
  void estimate(const Block& block);
  Axes possible(const Value* value) const { return possible_.lookup(value); }
  Assignment assign(const Op& op) const;
  int64_t laterCost(const Value* value);
  int64_t useCost(const Value* value, const Use& use);

  const Module& module_;
  const SplitRules& rules_;
  llvm::DenseMap<const Value*, Axes>
      possible_;  // over which it would be partial if nothing was reduced
  llvm::DenseMap<const Value*, int64_t> later_;
  llvm::DenseSet<const Value*> reduced_;
};

// The axes over which an op's operands are partial as its linearity lets them stay so: any of those
// that may alone, all of those that may together. `partial(value)` says over what a value is.
Axes partialOperands(const Op& op, llvm::function_ref<Axes(const Value*)> partial);

// Reports what would count the padding of an uneven piece (shard_padding.cpp).
void checkPadding(const Module& module, Diagnostics& diags);

class Sharder {
 public:
  Sharder(Module& module, Diagnostics& diags)
      : module_(module), diags_(diags), rules_(module), sums_(module, rules_) {}
  void run();

 private:
  void typeAll();
  void checkSizes();
  // shard_storage.cpp
  void typeVariables();
  void typeInput(Variable& input);
  Type heldAs(const Variable& weight) const;
  void typeSlot(Variable& slot);
  Type wanted(const Value* value, const Use& use) const;
  void addShards(Type& type, const Words& stack, llvm::StringRef what) const;
  void finishSums();
  void addReduce(const std::vector<std::pair<Variable*, Variable*>>& sums);

  // shard.cpp
  void block(Block& block);
  void op(Op& op);
  void repeat(Op& op);
  void checkDropout();
  void crossEntropy(Op& op, const Assignment& assignment);
  void operands(Op& op, const Assignment& assignment);
  void results(Op& op, const Assignment& assignment);
  void take(Op& op, unsigned operand, const Type& type, Value* offsets = nullptr);
  void updateOp(Op& op);
  Value* reshard(Value* value, const Type& type, Value* offsets = nullptr);
  void setOrder();
  Value* offsetsFor(Value* rows);
  void noteOffsets(const Op& op);
  void takeOffsets(Op& op, unsigned operand, const Type& type);
  Axes keptPartial(const Value* value) const;

  Module& module_;
  Diagnostics& diags_;
  SplitRules rules_;
  PartialSums sums_;
  bool isUpdate_ = false;
  std::vector<Op*> accums_;  // their variables' partial sums are known at the end
  std::map<std::pair<const Value*, std::string>, Value*> reshards_;
  llvm::DenseMap<Value*, Value*> offsets_;  // of packed rows, as they were packed
  llvm::DenseMap<Value*, Value*> packed_;   // offsets in any shape: those where rows were packed
  llvm::DenseMap<const Variable*, Variable*> slotOffsets_;    // of saved rows
  llvm::DenseMap<const Value*, std::vector<Value*>> sumsOf_;  // reshards that add a value up
};

}  // namespace planc
