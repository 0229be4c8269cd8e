// The shape rules' class and what they share, for ir/verify_shapes.cpp, shapes_attention.cpp and
// shapes_experts.cpp alone.
#pragma once

#include <algorithm>
#include <string>

#include "ir/broken.h"
#include "ir/sharding.h"
#include "ir/verify_shapes.h"

#define TRY(expression) \
  if (llvm::Error error = (expression)) return error

namespace planc {

namespace shapes {

using Dims = llvm::SmallVector<Dim, 4>;

inline const Dim* findDim(const Dims& dims, llvm::StringRef name) {
  for (const Dim& dim : dims)
    if (dim.name == name) return &dim;
  return nullptr;
}

inline bool sameSet(const Dims& a, const Dims& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const Dim& dim) {
           const Dim* other = findDim(b, dim.name);
           return other && *other == dim;
         });
}

inline Dims unite(const Dims& a, const Dims& b) {
  Dims all = a;
  for (const Dim& dim : b)
    if (!findDim(all, dim.name)) all.push_back(dim);
  return all;
}

inline Dims less(Dims dims, std::initializer_list<llvm::StringRef> names) {
  for (llvm::StringRef name : names)
    llvm::erase_if(dims, [&](const Dim& dim) { return dim.name == name; });
  return dims;
}

inline std::string list(const Dims& dims) {
  std::string text = Type{Elem::F32, dims}.str();
  return text.substr(text.find('['));
}

inline llvm::Error expectDims(llvm::StringRef what, const Dims& is, const Dims& wanted) {
  if (sameSet(is, wanted)) return llvm::Error::success();
  return broken(what + " has dims " + list(is) + ", not " + list(wanted));
}

inline llvm::Error expectElem(llvm::StringRef what, const Type& type, bool isInt) {
  if ((type.elem == Elem::I32) == isInt) return llvm::Error::success();
  return broken(what + (isInt ? " must hold i32" : " must hold floating-point numbers"));
}

// Whether rows lie alike in both types: the same pieces of the same experts.
inline bool sameRows(const Type& a, const Type& b) {
  for (const Dim& dim : a.dims)
    if (dim.isRagged() || dim.name == a.grouping()) {
      const Dim* other = findDim(b.dims, dim.name);
      if (!other || *other != dim) return false;
    }
  return true;
}

class Shapes {
 public:
  Shapes(const Op& op, const Words& enclosing, const ValueSources& sources)
      : op_(op), enclosing_(enclosing), sources_(sources) {}

  llvm::Error run();

 private:
  const Dims& in(unsigned i) const { return op_.operand(i)->type.dims; }
  const Dims& out(unsigned i = 0) const { return op_.result(i)->type.dims; }
  // The result's type, or the slice that an accumulating op adds to.
  Type outcome() const { return op_.var ? op_.var->slice(enclosing_) : op_.result()->type; }
  std::string word(llvm::StringRef key) const { return op_.attrs.word(key); }
  llvm::Error needs(llvm::StringRef key, unsigned operand) const;
  llvm::Error elements() const;
  llvm::Error consistent() const;
  llvm::Error ids(unsigned operand, const Dim& dim, llvm::StringRef what) const;
  const Op* packOf(const Value* value, unsigned result) const;
  int64_t rowsOf(const Op& pack) const;
  llvm::Error routed(unsigned row, unsigned offsets, const Dims& rows) const;
  llvm::Error offsetsOf(unsigned operand, const Type& ragged) const;

  llvm::Error variableOp() const;
  llvm::Error elementwise() const;
  llvm::Error einsum() const;
  llvm::Error sum() const;
  llvm::Error spread() const;
  llvm::Error over() const;
  llvm::Error lookup() const;
  llvm::Error crossEntropy() const;
  llvm::Error crossEntropyPart() const;
  llvm::Error crossEntropyTotal() const;
  llvm::Error attend() const;
  llvm::Error keysPositions() const;
  llvm::Error documents() const;
  llvm::Error concat() const;
  llvm::Error slice() const;
  llvm::Error route() const;
  llvm::Error routeGrad() const;
  llvm::Error groupedChoice(int64_t experts) const;
  llvm::Error admit() const;
  llvm::Error pack() const;
  llvm::Error dispatch() const;
  llvm::Error combine() const;
  llvm::Error rowCounts() const;
  llvm::Error rowOffsets() const;
  llvm::Error counted(unsigned operand) const;
  llvm::Error optimizer() const;

  const Op& op_;
  const Words& enclosing_;
  const ValueSources& sources_;
};

}  // namespace shapes

}  // namespace planc
