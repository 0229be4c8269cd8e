// Element types, dims and types. Sizes multiply with saturation, so that a hostile size gives a huge
// number that the verifier refuses instead of an overflow. Tested by tests/unit/ir_test.cpp.
#include "ir/type.h"

#include <limits>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/ErrorHandling.h"
#include "llvm/Support/raw_ostream.h"

namespace planc {

llvm::StringRef name(Elem elem) {
  switch (elem) {
    case Elem::F32:
      return "f32";
    case Elem::BF16:
      return "bf16";
    case Elem::F64:
      return "f64";
    case Elem::I32:
      return "i32";
  }
  llvm_unreachable("element type");
}

std::optional<Elem> elemByName(llvm::StringRef text) {
  return llvm::StringSwitch<std::optional<Elem>>(text)
      .Case("f32", Elem::F32)
      .Case("bf16", Elem::BF16)
      .Case("f64", Elem::F64)
      .Case("i32", Elem::I32)
      .Default(std::nullopt);
}

int64_t bytesPerElement(Elem elem) { return elem == Elem::BF16 ? 2 : elem == Elem::F64 ? 8 : 4; }

int64_t saturatingMul(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

int64_t saturatingAdd(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

int64_t ranksOver(llvm::ArrayRef<Axis> axes) {
  int64_t ranks = 1;
  for (const Axis& axis : axes) ranks = saturatingMul(ranks, axis.size);
  return ranks;
}

bool hasAxis(llvm::ArrayRef<Axis> axes, llvm::StringRef name) {
  return llvm::any_of(axes, [&](const Axis& axis) { return axis.name == name; });
}

Dim splitDim(const Dim& dim, llvm::ArrayRef<Axis> axes) {
  Dim result{dim.name, dim.all(), dim.over, Axes(axes.begin(), axes.end()), 0, dim.zigzag};
  if (axes.empty()) return result;
  int64_t ranks = ranksOver(axes);
  result.whole = result.size;
  result.size = result.whole / ranks + (result.whole % ranks != 0);
  return result;
}

Dim limitRows(Dim dim, int64_t room) {
  if (room >= dim.size) return dim;
  dim.whole = dim.all();
  dim.size = dim.room = room;
  return dim;
}

int Type::find(llvm::StringRef name) const {
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i].name == name) return int(i);
  return -1;
}

int64_t Type::size(llvm::StringRef name) const {
  int at = find(name);
  if (at < 0) llvm::report_fatal_error("planc: type " + llvm::Twine(str()) + " has no dim " + name);
  return dims[at].size;
}

llvm::StringRef Type::grouping() const {
  for (const Dim& dim : dims)
    if (dim.isRagged()) return dim.over;
  return {};
}

int64_t Type::elements() const {
  llvm::StringRef group = grouping();
  int64_t count = 1;
  for (const Dim& dim : dims)
    if (dim.name != group) count = saturatingMul(count, dim.size);
  return count;
}

int64_t Type::bytes() const { return saturatingMul(elements(), bytesPerElement(elem)); }

Type Type::without(llvm::StringRef name) const {
  Type result = *this;
  result.dims.erase(result.dims.begin() + find(name));
  return result;
}

Type Type::withElem(Elem e) const {
  Type result = *this;
  result.elem = e;
  return result;
}

Type Type::whole() const {
  Type result = *this;
  result.partial.clear();
  for (Dim& dim : result.dims) dim = splitDim(dim, {});
  return result;
}

Axes Type::splitAxes() const {
  Axes axes;
  for (const Dim& dim : dims)
    for (const Axis& axis : dim.axes)
      if (!hasAxis(axes, axis.name)) axes.push_back(axis);
  return axes;
}

std::string Type::str() const {
  std::string text;
  llvm::raw_string_ostream out(text);
  out << name(elem) << '[';
  bool first = true;
  for (const Dim& dim : dims) {
    out << (first ? "" : ", ") << dim.name << ' ' << dim.all();
    for (size_t i = 0; i < dim.axes.size(); ++i) out << (i ? "." : "/") << dim.axes[i].name;
    if (dim.zigzag > 0) out << ":zigzag" << dim.zigzag;
    if (dim.moved != 0) out << '+' << dim.moved;
    if (!dim.moves.empty()) out << '+' << dim.moves;
    if (dim.isRagged()) out << '~' << dim.over;
    if (dim.room > 0) out << ":room" << dim.room;
    first = false;
  }
  out << ']';
  for (size_t i = 0; i < partial.size(); ++i) out << (i ? ", " : " partial(") << partial[i].name;
  if (!partial.empty()) out << ')';
  out.flush();
  return text;
}

}  // namespace planc
