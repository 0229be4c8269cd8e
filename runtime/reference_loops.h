// Loops over named dims, for the reference only. A Space is the set of all index combinations of
// some dims; a Steps finds an element of one tensor at an index of a space:
//
//   Space space({&a, &b, &result});
//   Steps inA = space.steps(a), inB = space.steps(b), inResult = space.steps(result);
//   space.each([&](Index i) { out[inResult.at(i)] += x[inA.at(i)] * y[inB.at(i)]; });
#pragma once

#include <cassert>
#include <initializer_list>

#include "ir/type.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "runtime/reference.h"

namespace planc {

using Index = llvm::ArrayRef<int64_t>;

// Elements between neighbours along a dim; 0 when the type lacks it or packs it away.
inline int64_t stepAlong(const Type& type, llvm::StringRef dim) {
  int found = type.find(dim);
  if (found < 0 || type.grouping() == dim) return 0;
  int64_t step = 1;
  for (const Dim& inner : llvm::ArrayRef<Dim>(type.dims).drop_front(size_t(found) + 1)) {
    if (type.grouping() != inner.name) step *= inner.size;
  }
  return step;
}

struct Steps {
  llvm::SmallVector<int64_t, 8> perDim;
  int64_t at(Index index) const {
    int64_t sum = 0;
    for (size_t i = 0; i < index.size(); ++i) sum += index[i] * perDim[i];
    return sum;
  }
};

class Space {
 public:
  // The union of the dims of some types. A dim that groups a ragged one is not looped over: with
  // `offsets` its index is the group of the row, and rows of no group are left out; without, it is
  // 0.
  explicit Space(std::initializer_list<const Type*> types, const Array* offsets = nullptr)
      : offsets_(offsets) {
    for (const Type* type : types) {
      for (const Dim& dim : type->dims) add(dim);
    }
  }

  Space& drop(llvm::StringRef name) {
    llvm::erase_if(dims_, [&](const Dim& dim) { return dim.name == name; });
    return *this;
  }

  Steps steps(const Type& type) const {
    Steps steps;
    for (const Dim& dim : dims_) steps.perDim.push_back(stepAlong(type, dim.name));
    return steps;
  }

  int find(llvm::StringRef name) const {
    for (size_t i = 0; i < dims_.size(); ++i) {
      if (dims_[i].name == name) return int(i);
    }
    return -1;
  }

  // Visits every index, the last dim fastest.
  template <class F>
  void each(F&& visit) const {
    llvm::SmallVector<int64_t, 8> index(dims_.size(), 0);
    loop(0, index, visit);
  }

 private:
  void add(const Dim& dim) {
    int found = find(dim.name);
    if (found < 0) {
      dims_.push_back(dim);
    } else if (dim.isRagged()) {
      dims_[found].over = dim.over;
    }
  }

  bool isGroup(const Dim& dim) const {
    return llvm::any_of(dims_, [&](const Dim& other) { return other.over == dim.name; });
  }

  template <class F>
  void loop(size_t depth, llvm::SmallVectorImpl<int64_t>& index, F& visit) const {
    if (depth == dims_.size()) {
      if (setGroup(index)) visit(Index(index));
      return;
    }
    int64_t count = isGroup(dims_[depth]) ? 1 : dims_[depth].size;
    for (int64_t i = 0; i < count; ++i) {
      index[depth] = i;
      loop(depth + 1, index, visit);
    }
  }

  // False when the row belongs to no group.
  bool setGroup(llvm::SmallVectorImpl<int64_t>& index) const {
    if (offsets_ == nullptr) return true;
    for (size_t i = 0; i < dims_.size(); ++i) {
      if (!dims_[i].isRagged()) continue;
      int64_t groups = int64_t(offsets_->size()) - 1, group = 0;
      while (group < groups && double(index[i]) >= (*offsets_)[group + 1]) ++group;
      if (group == groups) return false;
      if (int g = find(dims_[i].over); g >= 0) index[g] = group;
    }
    return true;
  }

  llvm::SmallVector<Dim, 8> dims_;
  const Array* offsets_;
};

// The ops of reference_sequence.cpp and reference_experts.cpp, found by referenceOp.
using Arrays = std::vector<Array>;
Array referenceRope(const Op& op, const Array& x);
Arrays referenceAttend(const Op& op, const Arrays& in);
Arrays referenceAttendGrad(const Op& op, const Arrays& in);
Arrays referenceRoute(const Op& op, const Arrays& in);
Array referenceRouteGrad(const Op& op, const Arrays& in);
Array referenceAdmit(const Op& op, const Array& choice);
Arrays referencePack(const Op& op, const Arrays& in);
Array referenceDispatch(const Op& op, const Arrays& in);
Array referenceDispatchGrad(const Op& op, const Arrays& in);
Array referenceCombine(const Op& op, const Arrays& in);
Arrays referenceCombineGrad(const Op& op, const Arrays& in);
Array referenceRowCounts(const Array& offsets);
Array referenceRowOffsets(const Op& op, const Array& counts);

}  // namespace planc
