// The state of the `memory` pass; see memory.cpp for the idea.
#pragma once

#include <map>
#include <vector>

#include "ir/op.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

namespace planc {

class MemoryPlan {
 public:
  explicit MemoryPlan(Module& module) : module_(module) {}
  void run();

 private:
  // Bytes that are live from one time to another, both included.
  struct Buffer {
    int64_t bytes;
    int from, to;
    int64_t offset = 0;
  };
  // Where a value lies: in a buffer, or in (a slice of) a variable.
  struct Home {
    int buffer = -1;
    const Variable* var = nullptr;
    Place place;             // within the variable
    bool isCarried = false;  // a repeat's buffer: its life is the repeat's, not the value's
  };

  void copySwappedYields(Block& block);
  void number(const Block& block);
  void findVariableLives();
  void keepBetweenCalls();
  void block(Block& block);
  void placeRepeat(Op& op);
  void placeResult(const Op& op, unsigned i);
  int64_t pack(int64_t base);

  int newBuffer(int64_t bytes, int from, int to);
  int useTime(const Op* user, const Block* home) const;
  int lastUse(const Value* value) const;
  int lastUseBeside(const Value* value, const Op& op) const;
  llvm::SmallVector<Use, 4> writesOf(const Value* value) const;
  const Variable* addedUpInPlace(const Variable& var) const;
  bool canForward(const Op& write) const;
  bool canLieOn(const Op& op, const Value& operand, const Value& result) const;
  size_t usesInside(const Value* value, const Op& repeat) const;
  const Value* dyingOperand(const Op& op, unsigned resultIndex) const;
  Place slicePlace(const Variable& var, const Block& block) const;
  Home variableHome(const Variable& var, const Block& block, const Type& type) const;
  Home readHome(const Op& read) const;

  Module& module_;
  int time_ = 0;
  llvm::DenseMap<const Op*, int> start_, end_;
  std::map<const Function*, std::pair<int, int>> lives_;  // when each function runs
  std::vector<Buffer> buffers_;
  std::map<const Value*, Home> home_;
  llvm::DenseSet<const Value*> taken_;  // another value has taken over their buffer
  llvm::DenseMap<const Variable*, int> slotBuffer_;
  llvm::DenseMap<const Variable*, std::vector<const Op*>> reads_, writes_;
};

}  // namespace planc
