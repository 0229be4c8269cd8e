// Strides and spaces. Merging loops that collapse is what makes one kernel serve all orders of
// dims: usual layouts merge to one or two long loops. Tested by tests/runtime/kernels_test.cpp.
#include "runtime/layout.h"

namespace planc {

int64_t strideOf(const Type& type, llvm::StringRef dim) {
  llvm::StringRef group = type.grouping();
  int64_t stride = 1;
  for (const Dim& d : llvm::reverse(type.dims)) {
    if (d.name == dim) return d.name == group ? 0 : stride;
    if (d.name != group) stride *= d.size;
  }
  return 0;
}

llvm::SmallVector<Dim, 4> dimsWithout(const Type& type, llvm::ArrayRef<llvm::StringRef> names) {
  llvm::SmallVector<Dim, 4> dims;
  for (const Dim& d : type.dims) {
    if (d.name != type.grouping() && !llvm::is_contained(names, d.name)) dims.push_back(d);
  }
  return dims;
}

llvm::SmallVector<Dim, 4> memoryDims(const Type& type) { return dimsWithout(type, {}); }

Type resultType(const Op& op, unsigned i) {
  if (i < op.results().size()) return op.result(i)->type;
  return op.var->slice(op.parent()->enclosing());
}

bool collapses(const Loop& outer, const Loop& inner) {
  for (size_t t = 0; t < inner.strides.size(); ++t) {
    if (outer.strides[t] != inner.strides[t] * inner.size) return false;
  }
  return true;
}

void merge(llvm::SmallVectorImpl<Loop>& loops, size_t tensors) {
  llvm::SmallVector<Loop, 4> merged;
  for (const Loop& axis : loops) {
    if (axis.size == 1) continue;
    if (!merged.empty() && collapses(merged.back(), axis)) {
      merged.back().size *= axis.size;
      merged.back().strides = axis.strides;
    } else {
      merged.push_back(axis);
    }
  }
  if (merged.empty()) merged.push_back({1, llvm::SmallVector<int64_t, 6>(tensors, 0)});
  loops.assign(merged.begin(), merged.end());
}

Space::Space(llvm::ArrayRef<Dim> dims, llvm::ArrayRef<const Type*> types) {
  loops_.clear();
  for (const Dim& dim : dims) {
    Loop axis{dim.size, {}};
    for (const Type* type : types) axis.strides.push_back(strideOf(*type, dim.name));
    count_ *= dim.size;
    loops_.push_back(std::move(axis));
  }
  merge(loops_, types.size());
}

void Space::at(int64_t index, int64_t* offsets) const {
  std::fill_n(offsets, loops_.front().strides.size(), 0);
  for (const Loop& axis : llvm::reverse(loops_)) {
    int64_t i = index % axis.size;
    index /= axis.size;
    for (size_t t = 0; t < axis.strides.size(); ++t) offsets[t] += i * axis.strides[t];
  }
}

}  // namespace planc
