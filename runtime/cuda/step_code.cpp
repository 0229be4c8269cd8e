// Slots are given out as registers are: a value has one from where it is made to where it is last
// read, unless its only reader is the next step, which finds it in acc. Tested by
// tests/gpu/kernels_gpu_test.cpp.
#include "runtime/cuda/step_code.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/Support/ErrorHandling.h"

namespace planc::cuda {
namespace {

StepKind stepKind(OpKind kind) {
  switch (kind) {
#define CASE(Kind)    \
  case OpKind::Kind: \
    return StepKind::Kind;
    PLANC_STEPS(CASE)
#undef CASE
    default:
      llvm_unreachable("not an elementwise op");
  }
}

// A step with the chain's values (-1: none is read); `value` is what acc holds behind it.
struct Draft {
  StepKind kind;
  int a, b, value;
  int output = -1;
};

class Coder {
 public:
  explicit Coder(const Chain& chain) : chain_(chain) {}

  StepCode run() {
    draft();
    findReads();
    giveSlots();
    return std::move(code_);
  }

 private:
  bool isInput(int value) const { return size_t(value) < chain_.inputs.size(); }
  const Chain::Step& stepOf(int value) const {
    return chain_.steps[size_t(value) - chain_.inputs.size()];
  }
  bool isConst(int value) const { return !isInput(value) && stepOf(value).kind == OpKind::Const; }

  // The steps that a result needs.
  std::vector<bool> liveSteps() const {
    std::vector<bool> live(chain_.steps.size(), false);
    auto need = [&](int value) {
      if (value < 0) return;
      value = chain_.source(value);
      if (!isInput(value)) live[size_t(value) - chain_.inputs.size()] = true;
    };
    for (const auto& output : chain_.outputs) need(output.value);
    if (chain_.sum) need(chain_.sum->value);
    for (size_t s = live.size(); s-- > 0;) {
      if (!live[s]) continue;
      need(chain_.steps[s].a);
      need(chain_.steps[s].b);
    }
    return live;
  }

  void draft() {
    auto storeAll = [&](int value) {
      for (size_t o = 0; o < chain_.outputs.size(); ++o) {
        if (chain_.source(chain_.outputs[o].value) != value) continue;
        drafts_.push_back({StepKind::Store, value, -1, value, int(o)});
      }
    };
    auto moveAndStore = [&](int value) {
      size_t at = drafts_.size();
      drafts_.push_back({StepKind::Move, value, -1, value});
      storeAll(value);
      if (drafts_.size() == at + 1) drafts_.pop_back();
    };
    for (size_t i = 0; i < chain_.inputs.size(); ++i) moveAndStore(int(i));
    std::vector<bool> live = liveSteps();
    for (size_t s = 0; s < live.size(); ++s) {
      const Chain::Step& step = chain_.steps[s];
      int value = chain_.valueOfStep(s);
      if (!live[s] || step.kind == OpKind::Cast) continue;
      if (step.kind == OpKind::Const) {
        moveAndStore(value);
        continue;
      }
      int b = step.b < 0 ? -1 : chain_.source(step.b);
      drafts_.push_back({stepKind(step.kind), chain_.source(step.a), b, value});
      storeAll(value);
    }
    if (!chain_.sum) return;
    int value = chain_.source(chain_.sum->value);
    if (drafts_.empty() || drafts_.back().value != value)
      drafts_.push_back({StepKind::Move, value, -1, value});
  }

  // Where each value is last read from a slot.
  void findReads() {
    int acc = -1;
    for (size_t i = 0; i < drafts_.size(); ++i) {
      const Draft& draft = drafts_[i];
      for (int value : {draft.a, draft.b})
        if (value >= 0 && value != acc && !isConst(value)) lastRead_[value] = i;
      acc = draft.value;
    }
  }

  int16_t constant(double value) {
    auto found = llvm::find(code_.constants, value);
    if (found == code_.constants.end()) found = code_.constants.insert(found, value);
    return constantCode(int(found - code_.constants.begin()));
  }

  int take() {
    if (free_.empty()) return code_.slots++;
    return free_.pop_back_val();
  }

  void giveSlots() {
    for (size_t i = 0; i < chain_.inputs.size(); ++i) {
      if (!lastRead_.count(int(i))) continue;
      slot_[int(i)] = take();
      code_.inputs.push_back(int(i));
    }
    int acc = -1;
    for (size_t i = 0; i < drafts_.size(); ++i) {
      const Draft& draft = drafts_[i];
      auto operand = [&](int value) {
        if (value < 0 || value == acc) return kAcc;
        return isConst(value) ? constant(stepOf(value).constant) : int16_t(slot_.lookup(value));
      };
      Step step{draft.kind, operand(draft.a), operand(draft.b), int16_t(draft.output)};
      acc = draft.value;
      if (draft.kind == StepKind::Store) {
        code_.steps.push_back(step);
        continue;
      }
      for (int value : {draft.a, draft.b}) {
        auto found = slot_.find(value);
        if (found == slot_.end() || lastRead_.lookup(value) != i) continue;
        free_.push_back(found->second);
        slot_.erase(found);
      }
      auto read = lastRead_.find(draft.value);
      bool isRead = read != lastRead_.end() && read->second > i;
      if (isRead && !slot_.count(draft.value)) {
        slot_[draft.value] = take();
        step.to = int16_t(slot_[draft.value]);
      }
      code_.steps.push_back(step);
    }
  }

  const Chain& chain_;
  std::vector<Draft> drafts_;
  llvm::DenseMap<int, size_t> lastRead_;
  llvm::DenseMap<int, int> slot_;
  llvm::SmallVector<int, 16> free_;
  StepCode code_;
};

}  // namespace

StepCode codeOf(const Chain& chain) { return Coder(chain).run(); }

}  // namespace planc::cuda
