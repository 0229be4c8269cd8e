// The ranks as they sit in the cluster, coloured by their coordinate on an axis that the reader picks:
// radio buttons before the picture, and rules of the style
// sheet that show what belongs to the checked one. Of more ranks
// than kMostCells one unit is drawn, and its siblings as a cell each. Tested by tests/unit/html_test.cpp.
#include <algorithm>

#include "tools/explain/html_sections.h"
#include "tools/explain/units.h"

namespace planc::html {
namespace {

constexpr int64_t kMostCells = 512;

// How close the ranks along an axis lie: by level, so many of them one of its units holds on every line
// along the axis; behind the last level, all of them.
using Together = std::vector<int64_t>;

// The most ranks of a line that a unit of so many devices holds. A line's ranks rise, so those of one unit
// follow each other.
int64_t mostIn(const PlanAxis& axis, int64_t first, int64_t unit) {
  int64_t most = 1, run = 0, last = -1;
  for (int64_t i = 0; i < axis.size; ++i) {
    int64_t at = (first + i * axis.stride) / unit;
    run = at == last ? run + 1 : 1;
    last = at;
    most = std::max(most, run);
  }
  return most;
}

Together togetherOf(const Cluster& cluster, const PlanAxis& axis, int64_t ranks) {
  Together together(cluster.levels.size() + 1, axis.size);
  // Lines repeat from unit to unit: those that begin among so many ranks show all there are.
  int64_t starts = std::min<int64_t>(ranks, 65536);
  for (size_t level = 0; level < cluster.levels.size(); ++level)
    for (int64_t first = 0; first < starts; ++first)
      if (first / axis.stride % axis.size == 0)
        together[level] =
            std::min(together[level], mostIn(axis, first, cluster.devicesWithin(level + 1)));
  return together;
}

// The innermost level whose unit holds so many of a line's ranks.
size_t levelOf(const Together& together, int64_t count) {
  auto at = llvm::find_if(together, [&](int64_t held) { return held >= count; });
  return size_t(at - together.begin());
}

std::string wiresText(const ClusterLevel& level) {
  std::string text;
  if (level.link() > 0) text = rateText(level.link(), "B/s");
  if (level.latency() > 0) text += (text.empty() ? "" : ", ") + secondsText(level.latency());
  return text.empty() ? "no rates given" : text;
}

// From the fastest wires to the slowest: which axes' messages each level's carry.
void printStrip(Out& out, const Cluster& cluster, llvm::ArrayRef<PlanAxis> axes,
                llvm::ArrayRef<Together> togethers) {
  out << "<ul class=\"strip\">\n";
  for (size_t level = 0; level <= cluster.levels.size(); ++level) {
    std::string chips;
    for (size_t i = axes.size(); i-- > 0;) {
      int64_t here = togethers[i][level], below = level > 0 ? togethers[i][level - 1] : 1;
      if (here <= below) continue;
      chips += "<span class=\"chip\">" + escaped(axes[i].name) + " " + std::to_string(here) +
               (here < axes[i].size ? " of " + std::to_string(axes[i].size) : "") +
               (below > 1 ? " <small>(" + std::to_string(below) + " within a " +
                                escaped(cluster.levels[level - 1].name) + ")</small>"
                          : "") +
               "</span>";
    }
    bool isBeyond = level == cluster.levels.size();
    if (isBeyond && chips.empty()) continue;
    out << "<li><b>"
        << (isBeyond ? "beyond the cluster" : "within a " + escaped(cluster.levels[level].name))
        << "</b><span class=\"wires\">"
        << (isBeyond ? "no wires given" : wiresText(cluster.levels[level])) << "</span>"
        << (chips.empty() ? "<span class=\"wires\">no axis</span>" : chips) << "</li>\n";
  }
  out << "</ul>\n";
}

class GridPicture {
 public:
  GridPicture(Out& out, const Cluster& cluster, std::vector<PlanAxis> axes, int64_t ranks)
      : out_(out), cluster_(cluster), axes_(std::move(axes)), ranks_(ranks) {
    // Of the highest level that fits is drawn all there is of one unit.
    while (drawn_ < cluster.levels.size() &&
           (drawn_ == 0 || cluster.devicesWithin(drawn_ + 1) <= kMostCells))
      ++drawn_;
    while (drawn_ > 0 && cluster.devicesWithin(drawn_ - 1) >= ranks_) --drawn_;
  }

  void draw() {
    out_ << "<fieldset>\n<legend>Colour and number by</legend>\n";
    size_t checked = axes_.size() - 1;
    for (size_t i = 0; i < axes_.size(); ++i)
      out_ << "<input type=\"radio\" name=\"by\" id=\"by" << i << "\""
           << (i == checked ? " checked=\"checked\"" : "") << "/><label for=\"by" << i << "\">"
           << escaped(axes_[i].name) << "</label>\n";
    out_ << "<div class=\"grid\" role=\"img\" aria-label=\"" << escaped(name()) << "\">\n";
    if (drawn_ == 0) {
      out_ << "<div class=\"units\"><div class=\"unit" << (isWide(ranks_) ? " wide" : "")
           << "\"><div class=\"unit-name\">"
           << "ranks in order; no cluster is named</div>\n";
      cells(0, 1, std::min(ranks_, kMostCells));
      out_ << "</div></div>\n";
    } else {
      out_ << "<div class=\"units\">\n";
      unit(drawn_, 0);
      out_ << "</div>\n";
      for (size_t level = drawn_; level < cluster_.levels.size(); ++level) siblings(level);
    }
    out_ << "</div>\n" << ramp() << "</fieldset>\n";
    if (cells_ < ranks_)
      note(out_,
           "Not all ranks are drawn: the others lie as these do. <code>planc explain --rank "
           "R</code> tells of one what it holds and whom it talks to.");
  }

 private:
  std::string name() const {
    std::string text = "The ranks in the order of the cluster's devices; the coordinates along ";
    for (size_t i = 0; i < axes_.size(); ++i) text += (i ? ", " : "") + axes_[i].name;
    return text + " follow from a rank's number by the table below.";
  }

  // Of a unit's ranks along an axis, the first and the last coordinate; sets off units that don't hold
  // all between.
  std::pair<int64_t, int64_t> coordinates(const PlanAxis& axis, int64_t first,
                                          int64_t count) const {
    int64_t low = first / axis.stride, high = (first + count - 1) / axis.stride;
    if (high - low + 1 >= axis.size) return {0, axis.size - 1};
    // A line's end and the next one's beginning.
    if (low % axis.size > high % axis.size) return {0, axis.size - 1};
    return {low % axis.size, high % axis.size};
  }

  static std::string rangeText(std::pair<int64_t, int64_t> range) {
    std::string text = std::to_string(range.first);
    return range.first == range.second ? text : text + "–" + std::to_string(range.second);
  }

  std::string where(int64_t first, int64_t count) const {
    std::string text;
    for (const PlanAxis& axis : axes_)
      text +=
          (text.empty() ? "" : ", ") + axis.name + " " + rangeText(coordinates(axis, first, count));
    return text;
  }

  // So many ranks from `first` on: one, or those of a unit.
  void cell(int64_t first, int64_t count, const std::string& number, const std::string& what) {
    out_ << "<span class=\"cell";
    std::string values;
    for (size_t i = 0; i < axes_.size(); ++i) {
      auto range = coordinates(axes_[i], first, count);
      if (range.first == range.second) {
        int step =
            axes_[i].size > 1 ? int(range.first * (rampSteps() - 1) / (axes_[i].size - 1)) : 0;
        out_ << " p" << i << "-" << step;
      }
      values += "<b>" + rangeText(range) + "</b>";
    }
    out_ << "\" title=\"" << escaped(what + number + ": " + where(first, count)) << "\"><i>"
         << number << "</i>" << values << "</span>";
  }

  // Whether so many ranks are as wide as the page.
  static bool isWide(int64_t count) { return count > 64; }

  // Ranks as square as can be, and no wider than a narrow page; units in as many columns as there is room.
  std::string columnsOf(int64_t each, int64_t count) const {
    if (each > 1) {
      size_t letters = 0;  // of the longest range, 9 px each
      for (const PlanAxis& axis : axes_)
        letters = std::max(letters, 2 * std::to_string(axis.size - 1).size() + 1);
      return "auto-fill,max(var(--cell)," + std::to_string(letters * 9) + "px))";
    }
    if (isWide(count)) return "auto-fill,var(--cell))";
    int64_t columns = std::min<int64_t>(count, 8);
    for (int64_t c = 2; c <= std::min<int64_t>(count, 8); ++c)
      if (count % c == 0 && c * c >= count) {
        columns = c;
        break;
      }
    return std::to_string(columns) + ",minmax(0,var(--cell)))";
  }

  // Cells of `each` ranks; `count` of them from rank `first` on, of which some may not exist.
  void cells(int64_t first, int64_t each, int64_t count) {
    out_ << "<div class=\"cells\" style=\"grid-template-columns:repeat(" << columnsOf(each, count)
         << "\">";
    for (int64_t i = 0; i < count; ++i) {
      int64_t rank = first + i * each, width = std::min(each, ranks_ - rank);
      if (rank >= ranks_) out_ << "<span class=\"cell none\" title=\"no rank\"><i>–</i></span>";
      else if (each == 1) cell(rank, 1, std::to_string(rank), "rank ");
      else cell(rank, width, std::to_string(i), siblingName_ + " ");
    }
    out_ << "</div>\n";
    if (each == 1) cells_ += std::min(count, ranks_ - first);
  }

  // The unit of the first `levels` levels that begins at a rank.
  void unit(size_t levels, int64_t first) {
    const ClusterLevel& level = cluster_.levels[levels - 1];
    int64_t devices = cluster_.devicesWithin(levels);
    int64_t held = std::min(devices, ranks_ - first);
    bool isLine = levels == 1 && isWide(devices);
    out_ << "<div class=\"unit" << (isLine ? " wide" : "") << "\"><div class=\"unit-name\">"
         << escaped(level.name) << " " << first / devices << "</div>\n";
    if (levels == 1) {
      cells(first, 1, std::min(devices, kMostCells));
    } else {
      int64_t inner = cluster_.devicesWithin(levels - 1), units = (held + inner - 1) / inner;
      out_ << "<div class=\"units\">\n";
      for (int64_t i = 0; i < units; ++i) unit(levels - 1, first + i * inner);
      out_ << "</div>\n";
      if (units < level.count)
        out_ << "<div class=\"unit-name\">" << units << " of " << level.count << " used</div>\n";
    }
    out_ << "</div>\n";
  }

  // All units of the level below that ranks lie in, in one unit of this level, a cell each.
  void siblings(size_t levels) {
    int64_t each = cluster_.devicesWithin(levels);
    int64_t units = std::min(cluster_.levels[levels].count, (ranks_ + each - 1) / each);
    if (units < 2) return;
    siblingName_ = cluster_.levels[levels - 1].name;
    out_ << "<div class=\"unit wide\"><div class=\"unit-name\">"
         << escaped(cluster_.levels[levels].name) << " 0: × " << groupedText(units) << " like that "
         << escaped(siblingName_);
    if (units > kMostCells) out_ << ", of which " << kMostCells << " are drawn";
    out_ << "</div>\n";
    cells(0, each, std::min(units, kMostCells));
    out_ << "</div>\n";
  }

  std::string ramp() const {
    std::string stops;
    for (int step = 0; step < rampSteps(); ++step) stops += "," + rampFill(step);
    return "<p class=\"ramp\"><span>first</span><b style=\"background:linear-gradient(90deg" +
           stops + ")\"></b><span>last along the axis; grey: several</span></p>\n";
  }

  Out& out_;
  const Cluster& cluster_;
  std::vector<PlanAxis> axes_;
  int64_t ranks_;
  size_t drawn_ = 0;   // levels, whose one unit is drawn whole
  int64_t cells_ = 0;  // of ranks
  std::string siblingName_;
};

void printAxes(Out& out, const Cluster& cluster, llvm::ArrayRef<PlanAxis> axes,
               llvm::ArrayRef<Together> togethers) {
  Table table{
      "The grid's axes, the outermost first. A rank's coordinate is its number over the "
      "stride, modulo the size.",
      {{"axis", true}, {"size"}, {"stride"}},
      {}};
  for (const ClusterLevel& level : cluster.levels)
    table.columns.push_back({"in a " + level.name, false});
  if (!cluster.levels.empty()) table.columns.push_back({"all share a", true});
  for (size_t i = 0; i < axes.size(); ++i) {
    auto& row = table.rows.emplace_back(std::vector<std::string>{
        escaped(axes[i].name), count(axes[i].size), count(axes[i].stride)});
    if (cluster.levels.empty()) continue;
    for (size_t level = 0; level < cluster.levels.size(); ++level)
      row.push_back(count(togethers[i][level]));
    row.push_back(escaped(levelText(cluster, levelOf(togethers[i], axes[i].size))));
  }
  print(out, table);
}

}  // namespace

void printGrid(Out& out, const Report& report) {
  const Cluster& cluster = report.cluster();
  int64_t ranks = report.planx->grid().ranks();
  std::vector<PlanAxis> axes;
  for (const PlanAxis& axis : axesOf(report.planx->grid()))
    if (axis.size > 1) axes.push_back(axis);
  open(out, "grid", "Where the ranks sit");
  if (axes.empty()) {
    paragraph(out, "One rank, on one device.");
    return close(out);
  }
  std::vector<Together> togethers;
  for (const PlanAxis& axis : axes) togethers.push_back(togetherOf(cluster, axis, ranks));
  if (!cluster.levels.empty()) {
    paragraph(out,
              "From the fastest wires to the slowest, and the axes whose messages travel them.");
    printStrip(out, cluster, axes, togethers);
  }
  GridPicture(out, cluster, axes, ranks).draw();
  printAxes(out, cluster, axes, togethers);
  close(out);
}

}  // namespace planc::html
