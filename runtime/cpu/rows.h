// Kernels that treat a tensor as rows along one dim: all other dims are loops.
#pragma once

#include "runtime/cpu/kernels.h"

namespace planc::cpu {

// The rows of some tensors along a dim. Tensors that lack the dim have one element a row.
class Rows {
 public:
  // The rows' other dims are those of `main`.
  Rows(const Type& main, llvm::StringRef along, llvm::ArrayRef<const Type*> tensors, Shared& shared)
      : space_(dimsWithout(main, {along}), tensors), size_(main.size(along)) {
    for (const Type* type : tensors) {
      strides_.push_back(strideOf(*type, along));
      elems_.push_back(type->elem);
    }
    shared.pool.reserveScratch(int64_t(tensors.size()) * room() * int64_t(sizeof(double)));
  }

  int64_t count() const { return space_.count(); }
  int64_t size() const { return size_; }

  // One row while it is worked on.
  template <class T>
  struct Row {
    const Rows& rows;
    int64_t index;
    const int64_t* offsets;
    T* scratch;

    const T* load(size_t t, const void* base) const {
      return loadRow(base, rows.elems_[t], offsets[t], rows.strides_[t], rows.size_, spare(t));
    }
    T* target(size_t t, void* base) const {
      return rowTarget(base, rows.elems_[t], offsets[t], rows.strides_[t], spare(t));
    }
    void store(size_t t, const T* row, void* base) const {
      storeRow(row, base, rows.elems_[t], offsets[t], rows.strides_[t], rows.size_);
    }
    T one(size_t t, const void* base) const { return loadOne<T>(base, rows.elems_[t], offsets[t]); }
    void setOne(size_t t, T value, void* base) const {
      storeOne(value, base, rows.elems_[t], offsets[t]);
    }
    // Room for a row of the tensor.
    T* spare(size_t t) const { return scratch + int64_t(t) * rows.room(); }
  };

  // Calls work(row) for every row, over the pool.
  template <class T, class F>
  void each(Pool& pool, F&& work) const {
    eachPiece<T>(pool, rowsPerTask(size_), [&](int64_t, auto&& visitRows) { visitRows(work); });
  }

  // Calls work(piece, visitRows) for pieces of `step` rows; visitRows(f) calls f(row) for its rows.
  template <class T, class F>
  void eachPiece(Pool& pool, int64_t step, F&& work) const {
    pool.parallelPieces(count(), step, [&](int64_t begin, int64_t end, int thread) {
      T* scratch = reinterpret_cast<T*>(pool.scratch(thread));
      work(begin / step, [&](auto&& visit) {
        space_.each(begin, end, [&](int64_t index, const int64_t* offsets) {
          visit(Row<T>{*this, index, offsets, scratch});
        });
      });
    });
  }

 private:
  int64_t room() const { return (size_ + 15) / 16 * 16; }

  Space space_;
  int64_t size_;
  llvm::SmallVector<int64_t, 6> strides_;
  llvm::SmallVector<Elem, 6> elems_;
};

}  // namespace planc::cpu
