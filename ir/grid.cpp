// Grids and coordinates. Tested by tests/unit/grid_test.cpp.
#include "ir/grid.h"

#include <algorithm>

#include "llvm/ADT/STLExtras.h"

namespace planc {

int64_t Grid::ranks() const {
  int64_t ranks = 1;
  for (const GridAxis& axis : axes) ranks = saturatingMul(ranks, axis.size);
  return ranks;
}

Axes Grid::find(llvm::StringRef name) const {
  Axes found;
  for (const GridAxis& axis : axes)
    if (axis.name == name || axis.of == name) found.push_back({axis.name, axis.size});
  return found;
}

void Grid::cut(llvm::StringRef axis, const std::set<int64_t>& at) {
  auto whole = llvm::find_if(axes, [&](const GridAxis& a) { return a.name == axis; });
  if (whole == axes.end()) return;
  std::vector<GridAxis> parts;
  int64_t done = 1;
  auto part = [&](int64_t until) {
    if (until < 1 || until % done != 0 || whole->size % until != 0 || until == done) return;
    parts.push_back({"", until / done, whole->name});
    done = until;
  };
  for (int64_t until : at) part(until);
  part(whole->size);
  if (parts.size() < 2) return;
  std::string mark = "_";
  auto isTaken = [&](llvm::StringRef name) {
    return llvm::any_of(axes, [&](const GridAxis& a) { return a.name == name; });
  };
  for (size_t i = 0; i < parts.size(); ++i)
    while (isTaken(axis.str() + mark + char('a' + i))) mark += "_";
  for (size_t i = 0; i < parts.size(); ++i) parts[i].name = axis.str() + mark + char('a' + i);
  auto place = axes.erase(whole);
  axes.insert(place, parts.begin(), parts.end());
}

void Grid::sort(Axes& list) const {
  auto at = [&](const Axis& axis) {
    return llvm::find_if(axes, [&](const GridAxis& other) { return other.name == axis.name; }) -
           axes.begin();
  };
  std::sort(list.begin(), list.end(), [&](const Axis& a, const Axis& b) { return at(a) < at(b); });
}

Coordinates::Coordinates(const Grid& grid, int64_t rank) : rank_(rank) {
  int64_t stride = 1;
  for (auto axis = grid.axes.rbegin(); axis != grid.axes.rend(); ++axis) {
    positions_.push_back({axis->name, axis->size, rank / stride % axis->size, stride});
    stride *= axis->size;
  }
}

int64_t Coordinates::on(llvm::StringRef axis) const {
  for (const Position& position : positions_)
    if (position.axis == axis) return position.at;
  return 0;
}

int64_t Coordinates::index(llvm::ArrayRef<Axis> axes) const {
  int64_t index = 0;
  for (const Axis& axis : axes) index = index * axis.size + on(axis.name);
  return index;
}

std::vector<int64_t> Coordinates::group(llvm::ArrayRef<Axis> axes) const {
  std::vector<int64_t> ranks{rank_};
  for (const Axis& axis : axes) {
    auto position =
        llvm::find_if(positions_, [&](const Position& p) { return p.axis == axis.name; });
    if (position == positions_.end()) continue;
    std::vector<int64_t> more;
    for (int64_t rank : ranks)
      for (int64_t at = 0; at < position->size; ++at)
        more.push_back(rank + (at - position->at) * position->stride);
    ranks = std::move(more);
  }
  return ranks;
}

int64_t Coordinates::valid(const Dim& dim) const {
  return std::clamp<int64_t>(dim.all() - offset(dim), 0, dim.size);
}

Segments Coordinates::segments(const Dim& dim, int64_t iteration) const {
  int64_t pieces = ranksOver(dim.axes);
  int64_t piece = index(dim.axes);
  if (dim.isMoved()) piece = ((piece - dim.moved - iteration) % pieces + pieces) % pieces;
  int64_t begin = piece * dim.size;
  int64_t count = std::clamp<int64_t>(dim.all() - begin, 0, dim.size);
  if (dim.zigzag == 0) return {{0, begin, count}};
  // Block b as it lies is, in the dim's order, b/2 from the front or from the back.
  Segments segments;
  int64_t blocks = 2 * dim.zigzag, size = dim.all() / blocks;
  for (int64_t done = 0; done < count;) {
    int64_t stored = begin + done, block = stored / size, inside = stored % size;
    int64_t first = (block % 2 == 0 ? block / 2 : blocks - 1 - block / 2) * size + inside;
    int64_t n = std::min(size - inside, count - done);
    if (!segments.empty() && segments.back().first + segments.back().count == first)
      segments.back().count += n;
    else segments.push_back({done, first, n});
    done += n;
  }
  return segments;
}

bool Coordinates::isFirstCopy(const Type& type) const {
  Axes split = type.splitAxes();
  return llvm::all_of(positions_, [&](const Position& position) {
    return position.at == 0 || hasAxis(split, position.axis) ||
           hasAxis(type.partial, position.axis);
  });
}

}  // namespace planc
