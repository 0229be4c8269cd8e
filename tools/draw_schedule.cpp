// Tested by tests/unit/draw_test.cpp.
#include "tools/draw_schedule.h"

#include <algorithm>
#include <cmath>

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"
#include "tools/stages.h"

namespace planc {
namespace {

constexpr int64_t kSections = 4;  // of text
// A task's label and a `-`; more for the longest of tasks whose times differ much.
constexpr double kMostCells = 8;

size_t longestLabel(const PipeSchedule& schedule) {
  size_t most = 0;
  for (const auto& tasks : schedule.tasks)
    for (const Task& task : tasks) most = std::max(most, schedule.text(task).size());
  return most;
}

// The shortest and the longest time that a task of the schedule takes; none that take no time.
std::pair<double, double> extremes(const PipeSchedule& schedule, const WorkCosts& costs) {
  std::vector<Work> works = {Work::Forward, Work::Backward};
  if (schedule.splitsBackward()) works = {Work::Forward, Work::InputGradient, Work::WeightGradient};
  double least = 0, most = 0;
  for (Work work : works) {
    double cost = costs.of(work);
    if (cost > 0 && (least == 0 || cost < least)) least = cost;
    most = std::max(most, cost);
  }
  return {least, most};
}

// A round number of which `least` is no more: 1, 2 or 5 times a power of ten.
double roundStep(double least) {
  double power = std::pow(10, std::floor(std::log10(least)));
  for (double factor : {1., 2., 5.})
    if (factor * power >= least) return factor * power;
  return 10 * power;
}

class TextDrawing {
 public:
  TextDrawing(const PipeSchedule& schedule, const Timeline& timeline, const WorkCosts& costs)
      : schedule_(schedule), timeline_(timeline), costs_(costs) {
    auto [least, most] = extremes(schedule, costs);
    double cell = double(longestLabel(schedule) + 1);
    cell_ = int64_t(cell);
    scale_ = std::min(cell / least, cell * kMostCells / most);
    prefix_ = std::to_string(schedule.stages - 1).size() + 8;  // `stage 3 |`
  }

  std::string draw() {
    // Whole shortest tasks in a section, so that their labels are not cut.
    int64_t total = column(timeline_.length), width = int64_t(kDrawColumns - prefix_);
    width = std::max(width / cell_, int64_t{1}) * cell_;
    int64_t sections = std::max<int64_t>(1, (total + width - 1) / width);
    for (int64_t i = 0; i < sections; ++i) {
      if (i > 0) out_ += '\n';
      if (sections > kSections && i == kSections / 2) {
        i = sections - kSections / 2;
        out_ += "... time " + shortNumber(std::round(double(kSections / 2 * width) / scale_)) +
                " to " + shortNumber(std::round(double(i * width) / scale_)) + " is left out\n\n";
      }
      section(i * width, std::min(total, (i + 1) * width));
    }
    return std::move(out_);
  }

 private:
  int64_t column(double time) const { return std::llround(time * scale_); }

  void line(std::string head, std::string row) {
    head.resize(prefix_, ' ');
    out_ += llvm::StringRef(head + row).rtrim().str() + '\n';
  }

  void section(int64_t from, int64_t to) {
    std::string ticks(to - from, ' ');
    double step = roundStep(10 / scale_);
    for (double time = std::ceil(double(from) / scale_ / step) * step; column(time) < to;
         time += step) {
      std::string number = shortNumber(time);
      size_t at = size_t(column(time) - from);
      if (at + number.size() <= ticks.size()) ticks.replace(at, number.size(), number);
    }
    line("time", ticks);
    for (int stage = 0; stage < schedule_.stages; ++stage)
      line("stage " + std::to_string(stage) + " |", row(stage, from, to));
  }

  std::string row(int stage, int64_t from, int64_t to) const {
    std::string row(to - from, ' ');
    const std::vector<double>& starts = timeline_.starts[stage];
    // The last task that begins before the section, and those in it.
    size_t i =
        std::upper_bound(starts.begin(), starts.end(), double(from) / scale_) - starts.begin();
    for (i = i > 0 ? i - 1 : 0; i < starts.size() && column(starts[i]) < to; ++i) {
      const Task& task = schedule_.tasks[stage][i];
      std::string label = schedule_.text(task);
      int64_t begin = column(starts[i]), end = column(starts[i] + costs_.of(task.work));
      for (int64_t x = std::max(begin, from); x < std::min(end, to); ++x)
        row[x - from] = size_t(x - begin) < label.size() ? label[x - begin] : '-';
    }
    return row;
  }

  const PipeSchedule& schedule_;
  const Timeline& timeline_;
  const WorkCosts& costs_;
  double scale_;  // columns a unit of time
  int64_t cell_;  // columns of a label and what sets it off
  size_t prefix_;
  std::string out_;
};

// ---- Pictures. Sizes are in pixels.

constexpr double kLeft = 70, kTop = 58, kRow = 30, kGap = 6, kBottom = 44, kLetter = 6.6;

// By work, from a stage's first chunk to its last: light to dark.
struct Hue {
  int hue, saturation;
};
constexpr Hue kHues[] = {{213, 75}, {28, 80}, {28, 80}, {145, 45}};
constexpr int kShades = 8;
constexpr int kFirstDark = 7;  // of a forward's shades: with white letters; others stay bright

// 0 to 1 over a stage's chunks; the same of all where it holds one.
constexpr double kOnlyChunk = .35;

constexpr llvm::StringLiteral kOwnStyle =
    ".ink{fill:#222}.soft{fill:#555}.page{fill:#fff}.idle{fill:#eee}.tick{stroke:#888}\n";

std::string escaped(llvm::StringRef text) {
  std::string result;
  llvm::raw_string_ostream out(result);
  llvm::printHTMLEscaped(text, out);
  return out.str();
}

int shadeOf(double depth) { return int(std::lround(depth * (kShades - 1))); }

class Picture {
 public:
  Picture(const PipeSchedule& schedule, const Timeline& timeline, llvm::ArrayRef<WorkCosts> costs,
          const PictureOptions& options)
      : schedule_(schedule), timeline_(timeline), costs_(costs), options_(options), out_(text_) {
    cut();
    double least = 0;
    for (const WorkCosts& chunk : costs) {
      double shortest = extremes(schedule, chunk).first;
      if (shortest > 0 && (least == 0 || shortest < least)) least = shortest;
    }
    double label = double(longestLabel(schedule)) * kLetter + 8;
    // Labels fit where that makes no more than a few screens' width.
    scale_ = std::clamp(label / least, 6 / least, std::max(6 / least, 4000 / length_));
    // Whatever the costs, the picture ends somewhere.
    scale_ = std::min(scale_, 200000 / length_);
    place_.resize(schedule.chunks());
    std::vector<int> held(schedule.stages);
    for (int chunk = 0; chunk < schedule.chunks(); ++chunk)
      place_[chunk] = held[schedule.stageOf[chunk]]++;
    each_ = *std::max_element(held.begin(), held.end());
  }

  std::string draw(llvm::StringRef title) {
    double width = std::max(520., kLeft + length_ * scale_ + 20);
    double bottom = kTop + schedule_.stages * (kRow + kGap);
    std::string name = title.str();
    if (length_ < timeline_.length)
      name += "; the first " + std::to_string(drawn_) + " of " + std::to_string(all_) + " tasks";
    out_ << "<svg ";
    if (!options_.isInPage) out_ << "xmlns=\"http://www.w3.org/2000/svg\" ";
    out_ << llvm::format("width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" ", width,
                         bottom + kBottom, width, bottom + kBottom)
         << "role=\"img\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\">\n"
         << "<title>" << escaped(name) << "</title>\n";
    if (!options_.isInPage) out_ << "<style>\n" << kOwnStyle << pictureStyle() << "</style>\n";
    out_ << "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n";
    words("ink", kLeft, 22, name, "font-size=\"15\" font-weight=\"bold\"");
    words("soft", kLeft, 42, "idle " + percent(timeline_.bubble()) + " of the time");
    legend(kLeft + 140, 42);
    for (int stage = 0; stage < schedule_.stages; ++stage) row(stage);
    axis(bottom + 4);
    out_ << "</svg>\n";
    return out_.str();
  }

 private:
  // How much of the time is drawn: up to the start of the first task that is too much.
  void cut() {
    std::vector<double> starts;
    for (const auto& stage : timeline_.starts)
      starts.insert(starts.end(), stage.begin(), stage.end());
    all_ = drawn_ = starts.size();
    length_ = timeline_.length;
    if (all_ <= options_.mostTasks) return;
    std::nth_element(starts.begin(), starts.begin() + ptrdiff_t(options_.mostTasks), starts.end());
    length_ = starts[options_.mostTasks];
    drawn_ = size_t(
        std::count_if(starts.begin(), starts.end(), [&](double start) { return start < length_; }));
  }

  void words(llvm::StringRef style, double x, double y, llvm::StringRef text,
             llvm::StringRef attributes = "") {
    out_ << "<text class=\"" << style << llvm::format("\" x=\"%.1f\" y=\"%.1f\"", x, y)
         << (attributes.empty() ? "" : " ") << attributes << ">" << escaped(text) << "</text>\n";
  }

  void box(double x, double y, double width, double height, const std::string& style) {
    out_ << "<rect class=\"" << style
         << llvm::format("\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>\n", x, y, width,
                         height);
  }

  double depth(int chunk) const {
    return each_ > 1 ? double(place_[chunk]) / (each_ - 1) : kOnlyChunk;
  }

  bool isDark(const Task& task) const {
    return task.work == Work::Forward && shadeOf(depth(task.chunk)) >= kFirstDark;
  }

  void row(int stage) {
    double y = kTop + stage * (kRow + kGap);
    box(kLeft, y, length_ * scale_, kRow, "idle");
    words("ink", 12, y + kRow / 2 + 4, "stage " + std::to_string(stage));
    for (size_t i = 0; i < schedule_.tasks[stage].size(); ++i) {
      const Task& task = schedule_.tasks[stage][i];
      double start = timeline_.starts[stage][i];
      if (start >= length_) break;
      double end = start + costsOf(task).of(task.work);
      double x = kLeft + start * scale_, width = (std::min(end, length_) - start) * scale_;
      if (width <= 0) continue;
      box(x, y, width, kRow, taskClass(task.work, depth(task.chunk)));
      std::string label = schedule_.text(task);
      if (double(label.size()) * kLetter > width) label = std::to_string(task.microbatch);
      if (double(label.size()) * kLetter > width) continue;
      words(isDark(task) ? "light" : "dark", x + width / 2, y + kRow / 2 + 4, label);
    }
  }

  const WorkCosts& costsOf(const Task& task) const {
    return costs_.size() > 1 ? costs_[size_t(task.chunk)] : costs_.front();
  }

  void legend(double x, double y) {
    std::vector<std::pair<Work, llvm::StringRef>> entries = {{Work::Forward, "forward"},
                                                             {Work::Backward, "backward"}};
    if (schedule_.splitsBackward())
      entries = {{Work::Forward, "forward"},
                 {Work::InputGradient, "gradient of inputs"},
                 {Work::WeightGradient, "gradient of weights"}};
    for (auto [work, what] : entries) {
      for (int place = 0; place < std::min(each_, 4); ++place, x += 13)
        box(x, y - 10, 12, 12,
            taskClass(work, each_ > 1 ? double(place) / (std::min(each_, 4) - 1) : kOnlyChunk));
      words("soft", x + 4, y, what);
      x += double(what.size()) * 5.6 + 22;
    }
  }

  void axis(double y) {
    double step = roundStep(60 / scale_);
    for (int i = 0; i * step <= length_; ++i) {
      double x = kLeft + i * step * scale_;
      out_ << llvm::format(
          "<line class=\"tick\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x, y - 4, x,
          y);
      words("soft", x, y + 14, shortNumber(i * step), "text-anchor=\"middle\"");
    }
    words("soft", 12, y + 14, "time" + (options_.unit.empty() ? "" : ", " + options_.unit));
  }

  const PipeSchedule& schedule_;
  const Timeline& timeline_;
  llvm::ArrayRef<WorkCosts> costs_;
  const PictureOptions& options_;
  double length_;           // of the time that is drawn
  size_t drawn_, all_;      // tasks
  double scale_;            // pixels a unit of time
  std::vector<int> place_;  // of each chunk among its stage's
  int each_ = 1;            // chunks on a stage
  std::string text_;
  llvm::raw_string_ostream out_;
};

}  // namespace

std::string drawText(const PipeSchedule& schedule, const Timeline& timeline,
                     const WorkCosts& costs) {
  return TextDrawing(schedule, timeline, costs).draw();
}

std::string taskClass(Work work, double depth) {
  return std::string(1, letter(work)) + std::to_string(shadeOf(depth));
}

std::string pictureStyle() {
  std::string text;
  llvm::raw_string_ostream out(text);
  for (Work work : {Work::Forward, Work::Backward, Work::InputGradient, Work::WeightGradient}) {
    Hue hue = kHues[size_t(work)];
    for (int shade = 0; shade < kShades; ++shade)
      out << llvm::format(".%c%d{fill:hsl(%d,%d%%,%.0f%%);stroke:#fff;stroke-width:.6}\n",
                          letter(work), shade, hue.hue, hue.saturation,
                          82 - 34. * shade / (kShades - 1));
  }
  out << ".light{fill:#fff;text-anchor:middle}\n.dark{fill:#000;text-anchor:middle}\n";
  return out.str();
}

std::string drawPicture(const PipeSchedule& schedule, const Timeline& timeline,
                        llvm::ArrayRef<WorkCosts> costs, llvm::StringRef title,
                        const PictureOptions& options) {
  return Picture(schedule, timeline, costs, options).draw(title);
}

}  // namespace planc
