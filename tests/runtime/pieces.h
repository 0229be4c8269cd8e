// One op on every rank of a grid: operands cut into pieces, results put together.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "ir/grid.h"
#include "runtime/random.h"
#include "tests/runtime/device_under_test.h"

namespace planc::test {

// "x 2, t 4": axes, the outermost first.
inline Grid parseGrid(llvm::StringRef text) {
  Grid grid;
  llvm::SmallVector<llvm::StringRef, 3> parts;
  text.split(parts, ',', -1, false);
  for (llvm::StringRef part : parts) {
    auto [name, size] = part.trim().split(' ');
    grid.axes.push_back({name.str(), std::stoll(size.str())});
  }
  return grid;
}

// "x.t": those of the axes that the grid has.
inline Axes parseAxes(llvm::StringRef text, const Grid& grid) {
  Axes axes;
  llvm::SmallVector<llvm::StringRef, 3> names;
  text.split(names, '.', -1, false);
  for (llvm::StringRef name : names) axes.append(grid.find(name));
  return axes;
}

// "f[batch 4/d, vocab 17/x.t] partial(t)": f is f64, i is i32; axes that the grid lacks split
// nothing. "seq 16/x:4+1": in zigzag order of 4 ranks, moved by one.
inline Type parseType(llvm::StringRef text, const Grid& grid) {
  Type type{text[0] == 'i' ? Elem::I32 : Elem::F64};
  llvm::SmallVector<llvm::StringRef, 6> parts;
  auto [dims, partial] = text.drop_front(2).split(']');
  dims.split(parts, ',', -1, false);
  for (llvm::StringRef part : parts) {
    auto [name, size] = part.trim().split(' ');
    auto [held, moved] = size.split('+');
    auto [cut, zigzag] = held.split(':');
    auto [count, axes] = cut.split('/');
    Dim dim{name.str(), std::stoll(count.str())};
    if (!zigzag.empty()) dim.zigzag = std::stoll(zigzag.str());
    type.dims.push_back(splitDim(dim, parseAxes(axes, grid)));
    if (!moved.empty()) type.dims.back().moved = std::stoll(moved.str());
  }
  if (partial.consume_front(" partial(")) type.partial = parseAxes(partial.drop_back(), grid);
  return type;
}

// The index in the whole tensor of a rank's element; -1: it is padding.
inline int64_t wholeIndex(const Type& type, const Coordinates& rank, int64_t local) {
  int64_t index = 0, stride = 1;
  for (const Dim& dim : llvm::reverse(type.dims)) {
    int64_t at = local % dim.size;
    local /= dim.size;
    int64_t found = -1;
    for (const Segment& s : rank.segments(dim))
      if (at >= s.at && at < s.at + s.count) found = s.first + at - s.at;
    if (found < 0) return -1;
    index += found * stride;
    stride *= dim.all();
  }
  return index;
}

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

inline Array pieceOf(const Type& type, const Coordinates& rank, const Array& whole,
                     double padding) {
  Array piece;
  for (int64_t i = 0; i < type.elements(); ++i) {
    int64_t at = wholeIndex(type, rank, i);
    piece.push_back(at < 0 ? padding : whole[size_t(at)]);
  }
  return piece;
}

inline void addPiece(const Type& type, const Coordinates& rank, const Array& piece, Array& whole) {
  for (int64_t i = 0; i < type.elements(); ++i) {
    int64_t at = wholeIndex(type, rank, i);
    if (at < 0) EXPECT_EQ(piece[size_t(i)], 0) << "padding";
    else if (rank.isFirstCopy(type)) whole[size_t(at)] += piece[size_t(i)];
  }
}

// An op in a module of its own, its operands arguments.
struct Bench {
  Module module;
  Op* op;

  Bench(OpKind kind, llvm::ArrayRef<Type> operands, llvm::ArrayRef<Type> results,
        const Attrs& attrs) {
    Block* block = module.addFunction("f")->body.get();
    llvm::SmallVector<Value*, 6> values;
    for (const Type& type : operands) values.push_back(block->addArg(type, "x"));
    op = Builder(block).create(kind, values, results, attrs);
  }
};

inline RunContext context() {
  static const int64_t iteration[2] = {3, 1};
  RunContext context;
  context.seed = 7;
  context.step = 5;
  context.microbatch = 2;
  context.iteration = iteration;
  return context;
}

// Runs an op on one rank; result i lies on operand under[i], where that says so.
inline std::vector<Array> runOn(const Coordinates& rank, const Op& op, const std::vector<Array>& in,
                                llvm::ArrayRef<size_t> under = {}) {
  auto device = makeTestDevice(2, rank);
  auto kernel = device->prepare(op);
  llvm::Error failed = kernel ? device->finishPreparing() : kernel.takeError();
  if (failed) {
    ADD_FAILURE() << llvm::toString(std::move(failed));
    std::vector<Array> nothing;
    for (const Value* value : op.results())
      nothing.emplace_back(size_t(value->type.elements()), 0.0);
    return nothing;
  }
  device->beginStep(context().step);
  std::deque<DeviceTensor> memory;
  std::vector<void*> at;
  for (const Value* value : op.operands()) memory.emplace_back(*device, value->type);
  for (const Value* value : op.results()) memory.emplace_back(*device, value->type);
  for (size_t i = 0; i < in.size(); ++i) memory[i].set(in[i]);
  for (DeviceTensor& m : memory) at.push_back(m.data());
  for (size_t i = 0; i < under.size(); ++i) at[in.size() + i] = at[under[i]];
  device->at(op, "");
  (*kernel)->run(context(), at.data(), at.data() + in.size());
  std::vector<Array> out;
  for (size_t i = in.size(), r = 0; i < memory.size(); ++i, ++r) {
    EXPECT_TRUE(memory[i].isIntact()) << "result " << r;
    out.push_back(memory[r < under.size() ? under[r] : i].get());
  }
  return out;
}

inline Array randomValues(const Type& type, llvm::StringRef fill, uint64_t seed) {
  Array values;
  auto [what, number] = fill.split(' ');
  for (int64_t i = 0; i < type.elements(); ++i) {
    double x = uniformAt(seed, uint64_t(i));
    if (what == "ids") x = std::floor((x + 1) / 2 * (std::stod(number.str()) + 1)) - 1;
    if (what == "count") x = std::stod(number.str());
    values.push_back(x);
  }
  return values;
}

// On one rank, in order.
inline std::vector<Type> wholeTypes(const std::vector<Type>& types) {
  std::vector<Type> whole;
  for (const Type& type : types) {
    whole.push_back(type.whole());
    for (Dim& dim : whole.back().dims) dim.zigzag = 0;
  }
  return whole;
}

inline std::vector<Type> typesOf(const std::vector<std::string>& texts, const Grid& grid) {
  std::vector<Type> types;
  for (const std::string& text : texts) types.push_back(parseType(text, grid));
  return types;
}

// The op on every rank, and its results put together.
inline std::vector<Array> runSplit(const Grid& grid, OpKind kind, const std::vector<Type>& operands,
                                   const std::vector<Type>& results, const Attrs& attrs,
                                   const std::vector<Array>& in, bool inPlace = false,
                                   double padding = kNaN) {
  std::vector<Array> sums;
  for (const Type& type : results) sums.emplace_back(size_t(type.whole().elements()), 0.0);
  for (int64_t r = 0; r < grid.ranks(); ++r) {
    SCOPED_TRACE(testing::Message() << "rank " << r);
    Coordinates rank(grid, r);
    Bench bench(kind, operands, results, attrs);
    std::vector<Array> pieces;
    for (size_t i = 0; i < in.size(); ++i)
      pieces.push_back(pieceOf(operands[i], rank, in[i], padding));
    std::vector<Array> out =
        runOn(rank, *bench.op, pieces, inPlace ? llvm::ArrayRef<size_t>(size_t{0}) : llvm::None);
    for (size_t i = 0; i < out.size(); ++i) addPiece(results[i], rank, out[i], sums[i]);
  }
  return sums;
}

inline void expectEqual(const std::vector<Array>& got, const std::vector<Array>& wanted,
                        double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t r = 0; r < got.size(); ++r) {
    ASSERT_EQ(got[r].size(), wanted[r].size());
    for (size_t i = 0; i < got[r].size(); ++i) {
      if (std::abs(got[r][i] - wanted[r][i]) <= tolerance) continue;
      FAIL() << "result " << r << " element " << i << ": " << got[r][i] << ", not " << wanted[r][i];
    }
  }
}

}  // namespace planc::test
