// Where ranks stand, against counts by hand.
#include "ir/grid.h"

#include <gtest/gtest.h>

#include <map>

namespace planc {
namespace {

// 2 x (2 x 2) x 3 ranks: `tensor` is in two parts.
const Grid kGrid{{{"data", 2}, {"tensor_a", 2, "tensor"}, {"tensor_b", 2, "tensor"}, {"seq", 3}}};

Axes axesOf(std::initializer_list<const char*> names) {
  Axes axes;
  for (const char* name : names) axes.append(kGrid.find(name));
  return axes;
}

using Ranks = std::vector<int64_t>;

TEST(Grid, TheLastAxisIsFastest) {
  EXPECT_EQ(kGrid.ranks(), 24);
  Coordinates rank(kGrid, 19);  // 1 * 12 + 1 * 6 + 0 * 3 + 1
  EXPECT_EQ(rank.on("data"), 1);
  EXPECT_EQ(rank.on("tensor_a"), 1);
  EXPECT_EQ(rank.on("tensor_b"), 0);
  EXPECT_EQ(rank.on("seq"), 1);
  EXPECT_EQ(rank.on("other"), 0);
}

TEST(Grid, FindsAnAxisOrItsParts) {
  EXPECT_EQ(axesOf({"tensor"}), axesOf({"tensor_a", "tensor_b"}));
  EXPECT_EQ(ranksOver(kGrid.find("tensor")), 4);
  EXPECT_TRUE(kGrid.find("other").empty());
  Axes axes = axesOf({"seq", "data", "tensor_b"});
  kGrid.sort(axes);
  EXPECT_EQ(axes, axesOf({"data", "tensor_b", "seq"}));
}

TEST(Grid, CutsAnAxisIntoParts) {
  auto cut = [](std::vector<GridAxis> axes, const char* axis, std::set<int64_t> at) {
    Grid grid{std::move(axes)};
    grid.cut(axis, at);
    return grid.axes;
  };
  using List = std::vector<GridAxis>;
  EXPECT_EQ(cut({{"x", 2}, {"y", 12}, {"z", 3}}, "y", {2, 6}),
            (List{{"x", 2}, {"y_a", 2, "y"}, {"y_b", 3, "y"}, {"y_c", 2, "y"}, {"z", 3}}));
  // Names that are taken.
  EXPECT_EQ(cut({{"y", 8}, {"y_b", 3}}, "y", {4}),
            (List{{"y__a", 4, "y"}, {"y__b", 2, "y"}, {"y_b", 3}}));
  // What divides nothing, and what is in parts.
  EXPECT_EQ(cut({{"y", 8}}, "y", {3, 1, 8}), (List{{"y", 8}}));
  EXPECT_EQ(cut({{"y", 8}}, "x", {2}), (List{{"y", 8}}));
  EXPECT_EQ(cut({{"y_a", 2, "y"}, {"y_b", 2, "y"}}, "y", {2}),
            (List{{"y_a", 2, "y"}, {"y_b", 2, "y"}}));
}

TEST(Grid, GroupsAreInTheOrderOfTheirAxes) {
  Coordinates rank(kGrid, 19);
  EXPECT_EQ(rank.group(axesOf({"seq"})), (Ranks{18, 19, 20}));
  EXPECT_EQ(rank.group(axesOf({"data"})), (Ranks{7, 19}));
  EXPECT_EQ(rank.group(axesOf({"data", "seq"})), (Ranks{6, 7, 8, 18, 19, 20}));
  EXPECT_EQ(rank.group(axesOf({"seq", "data"})), (Ranks{6, 18, 7, 19, 8, 20}));
  EXPECT_EQ(rank.group({}), (Ranks{19}));
  // Each rank is at its own number, and all members see the same group.
  for (const Axes& axes :
       {axesOf({"seq", "data"}), axesOf({"tensor"}), axesOf({"tensor_b", "data"})})
    for (int64_t r = 0; r < kGrid.ranks(); ++r) {
      Coordinates at(kGrid, r);
      Ranks group = at.group(axes);
      ASSERT_EQ(int64_t(group.size()), ranksOver(axes));
      EXPECT_EQ(group[size_t(at.index(axes))], r);
      for (int64_t other : group) EXPECT_EQ(Coordinates(kGrid, other).group(axes), group);
    }
}

// Every element lies on as many ranks as the axes that do not split it have, padding on none.
TEST(Grid, PiecesHoldEachElement) {
  for (int64_t size : {24, 17, 5, 3})
    for (const Axes& axes :
         {axesOf({"seq"}), axesOf({"tensor"}), axesOf({"seq", "data"}), Axes()}) {
      Dim dim = splitDim({"d", size}, axes);
      std::map<int64_t, int64_t> times;
      int64_t firsts = 0;
      for (int64_t r = 0; r < kGrid.ranks(); ++r) {
        Coordinates rank(kGrid, r);
        for (int64_t i = 0; i < rank.valid(dim); ++i) ++times[rank.offset(dim) + i];
        firsts += rank.isFirstCopy({Elem::F32, {dim}}) ? rank.valid(dim) : 0;
      }
      EXPECT_EQ(int64_t(times.size()), size);
      EXPECT_EQ(times.rbegin()->first, size - 1);
      for (auto [at, count] : times) EXPECT_EQ(count, kGrid.ranks() / ranksOver(axes)) << at;
      EXPECT_EQ(firsts, size);
    }
}

// Blocks 0, 2c-1, 1, 2c-2, ... behind each other, and what ranks hold of them.
TEST(Grid, SegmentsOfAPiece) {
  auto segments = [](Dim dim, int64_t rank, int64_t iteration = 0) {
    return Coordinates(kGrid, rank).segments(dim, iteration);
  };
  EXPECT_EQ(segments(splitDim({"d", 17}, axesOf({"seq"})), 2), (Segments{{0, 12, 5}}));
  Dim zigzag{"d", 24};
  zigzag.zigzag = 3;
  EXPECT_EQ(segments(zigzag, 0),
            (Segments{{0, 0, 4}, {4, 20, 4}, {8, 4, 4}, {12, 16, 4}, {16, 8, 8}}));
  Dim cut = splitDim(zigzag, axesOf({"seq"}));
  EXPECT_EQ(segments(cut, 0), (Segments{{0, 0, 4}, {4, 20, 4}}));
  EXPECT_EQ(segments(cut, 1), (Segments{{0, 4, 4}, {4, 16, 4}}));
  EXPECT_EQ(segments(cut, 2), (Segments{{0, 8, 8}}));
  // Half a piece, and a sixth, which begins inside a block.
  EXPECT_EQ(segments(splitDim(zigzag, axesOf({"seq", "data"})), 13), (Segments{{0, 16, 4}}));
  EXPECT_EQ(segments(splitDim(zigzag, axesOf({"seq", "tensor"})), 10), (Segments{{0, 18, 2}}));
  EXPECT_EQ(segments(splitDim(zigzag, axesOf({"tensor"})), 3), (Segments{{0, 22, 2}, {2, 4, 4}}));
  // Another rank's: of the one before, and of one more before it in each iteration.
  cut.moved = 1;
  EXPECT_EQ(segments(cut, 1), (Segments{{0, 0, 4}, {4, 20, 4}}));
  cut.moves = "ring";
  EXPECT_EQ(segments(cut, 1, 1), (Segments{{0, 8, 8}}));
  EXPECT_EQ(segments(cut, 1, 5), (Segments{{0, 4, 4}, {4, 16, 4}}));
}

TEST(Grid, OneRankWithoutAxes) {
  Coordinates rank;
  EXPECT_EQ(Grid().ranks(), 1);
  EXPECT_EQ(rank.group({}), (Ranks{0}));
  EXPECT_EQ(rank.valid({"d", 7}), 7);
  EXPECT_TRUE(rank.isFirstCopy({Elem::F32, {{"d", 7}}}));
}

}  // namespace
}  // namespace planc
