// Runs against counting every element, over split, padded and whole dims.
#include "runtime/runs.h"

#include <gtest/gtest.h>

#include <map>

namespace planc {
namespace {

const Grid kGrid{{{"data", 2}, {"seq", 3}, {"tensor", 4}}};

Dim dim(const char* name, int64_t whole, std::vector<const char*> axes = {}) {
  Axes list;
  for (const char* axis : axes) list.push_back(kGrid.find(axis).front());
  return splitDim({name, whole}, list);
}

Dim zigzag(int64_t ranks, Dim dim, int64_t moved = 0) {
  dim.zigzag = ranks;
  dim.moved = moved;
  return dim;
}

const Type kTypes[] = {
    {Elem::F32, {}},
    {Elem::F32, {dim("a", 5)}},
    {Elem::F32, {dim("a", 4), dim("b", 6)}},
    {Elem::F32, {dim("a", 4, {"data"}), dim("b", 6)}},
    {Elem::F32, {dim("a", 4), dim("b", 6, {"data"})}},
    {Elem::F32, {dim("a", 4, {"tensor"}), dim("b", 6, {"data"}), dim("c", 3)}},
    {Elem::F32, {dim("a", 2), dim("b", 24, {"data", "tensor"}), dim("c", 6, {"seq"})}},
    {Elem::F32, {dim("a", 17, {"tensor"}), dim("b", 2)}},
    {Elem::F32, {dim("b", 2), dim("a", 17, {"data", "tensor"})}},
    {Elem::F32, {dim("a", 2, {"tensor"}), dim("b", 3)}},
    {Elem::F32, {zigzag(3, dim("a", 24))}},
    {Elem::F32, {dim("b", 2), zigzag(4, dim("a", 24, {"tensor"})), dim("c", 5)}},
    {Elem::F32, {zigzag(2, dim("a", 12, {"data"}), 1), zigzag(3, dim("c", 12, {"seq"}))}},
    {Elem::F32, {dim("b", 2), zigzag(3, dim("a", 24, {"seq", "tensor"})), dim("c", 3)}},
    {Elem::F32, {zigzag(4, dim("a", 24, {"seq"})), dim("c", 3)}},
};

// Where the element that lies at `index` of a dim stands in the dim's own order.
int64_t inOrder(const Dim& dim, int64_t index) {
  if (dim.zigzag == 0) return index;
  int64_t size = dim.all() / (2 * dim.zigzag), block = index / size;
  int64_t first = block % 2 == 0 ? block / 2 : 2 * dim.zigzag - 1 - block / 2;
  return first * size + index % size;
}

// Where each element of a rank's memory lies in the whole tensor.
std::map<int64_t, int64_t> byHand(const Type& type, const Coordinates& rank) {
  std::map<int64_t, int64_t> places;
  for (int64_t a = 0; a < type.elements(); ++a) {
    int64_t rest = a, b = 0, stride = 1;
    bool exists = true;
    for (size_t i = type.dims.size(); i-- > 0;) {
      const Dim& dim = type.dims[i];
      int64_t ranks = ranksOver(dim.axes);
      int64_t index = (rank.index(dim.axes) + ranks - dim.moved) % ranks * dim.size + rest % dim.size;
      rest /= dim.size;
      exists &= index < dim.all();
      b += inOrder(dim, index) * stride;
      stride *= dim.all();
    }
    if (exists) places[a] = b;
  }
  return places;
}

TEST(Runs, CoverWhatExistsOfAPiece) {
  for (const Type& type : kTypes) {
    std::map<int64_t, int> owners;
    for (int64_t r = 0; r < kGrid.ranks(); ++r) {
      Coordinates rank(kGrid, r);
      Runs runs = pieceRuns(type, rank);
      std::map<int64_t, int64_t> places;
      runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
        for (int64_t i = 0; i < count; ++i) places[a + i] = b + i;
      });
      EXPECT_EQ(places, byHand(type, rank)) << type.str() << " on rank " << r;
      EXPECT_EQ(int64_t(places.size()), runs.elements());
      if (rank.isFirstCopy(type))
        for (auto [a, b] : places) ++owners[b];
    }
    EXPECT_EQ(int64_t(owners.size()), type.whole().elements()) << type.str();
    for (auto [b, count] : owners) EXPECT_EQ(count, 1) << type.str() << " element " << b;
  }
}

TEST(Runs, AreAsLongAsCanBe) {
  auto length = [](const Type& type) { return pieceRuns(type, Coordinates(kGrid, 0)).length(); };
  EXPECT_EQ(length(kTypes[0]), 1);
  EXPECT_EQ(length(kTypes[2]), 24);  // whole: one run
  EXPECT_EQ(length(kTypes[3]), 12);  // split outermost: one run
  EXPECT_EQ(length(kTypes[4]), 3);
  EXPECT_EQ(length(kTypes[5]), 9);
  EXPECT_EQ(length(kTypes[10]), 4);   // blocks of 4, the last two neighbours
  EXPECT_EQ(length(kTypes[11]), 15);  // blocks of 3
  EXPECT_EQ(pieceRuns(kTypes[11], Coordinates(kGrid, 3)).length(), 30);  // its blocks are neighbours
}

TEST(Runs, PartsAreTheWhole) {
  Runs runs = pieceRuns(kTypes[5], Coordinates(kGrid, 5));
  std::vector<int64_t> whole, parts;
  auto collect = [](std::vector<int64_t>& into) {
    return [&](int64_t a, int64_t b, int64_t count) {
      for (int64_t i = 0; i < count; ++i) into.push_back((a + i) * 1000 + b + i);
    };
  };
  runs.forEach(0, runs.elements(), collect(whole));
  for (int64_t from = 0; from < runs.elements(); from += 4)
    runs.forEach(from, std::min(from + 4, runs.elements()), collect(parts));
  EXPECT_EQ(whole, parts);
}

}  // namespace
}  // namespace planc
