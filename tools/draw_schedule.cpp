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

std::string escaped(llvm::StringRef text) {
  std::string result;
  llvm::raw_string_ostream out(result);
  llvm::printHTMLEscaped(text, out);
  return out.str();
}

class Picture {
 public:
  Picture(const PipeSchedule& schedule, const Timeline& timeline, const WorkCosts& costs)
      : schedule_(schedule), timeline_(timeline), costs_(costs), out_(text_) {
    auto [least, most] = extremes(schedule, costs);
    double label = double(longestLabel(schedule)) * kLetter + 8;
    // Labels fit where that makes no more than a few screens' width.
    scale_ = std::clamp(label / least, 6 / least, std::max(6 / least, 4000 / timeline.length));
    place_.resize(schedule.chunks());
    std::vector<int> held(schedule.stages);
    for (int chunk = 0; chunk < schedule.chunks(); ++chunk)
      place_[chunk] = held[schedule.stageOf[chunk]]++;
    each_ = *std::max_element(held.begin(), held.end());
  }

  std::string draw(llvm::StringRef title) {
    double width = std::max(520., kLeft + timeline_.length * scale_ + 20);
    double bottom = kTop + schedule_.stages * (kRow + kGap);
    out_ << llvm::format(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" ", width,
                bottom + kBottom)
         << "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\">\n"
         << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    words(kLeft, 22, title, "font-size=\"15\" font-weight=\"bold\"");
    words(kLeft, 42, "idle " + percent(timeline_.bubble()) + " of the time", "fill=\"#555\"");
    legend(kLeft + 140, 42);
    for (int stage = 0; stage < schedule_.stages; ++stage) row(stage);
    axis(bottom + 4);
    out_ << "</svg>\n";
    return out_.str();
  }

 private:
  void words(double x, double y, llvm::StringRef text, llvm::StringRef attributes) {
    out_ << llvm::format("<text x=\"%.1f\" y=\"%.1f\" ", x, y) << attributes << ">" << escaped(text)
         << "</text>\n";
  }

  void box(double x, double y, double width, double height, const std::string& fill) {
    out_ << llvm::format("<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"", x, y,
                         width, height)
         << fill << "\" stroke=\"white\" stroke-width=\"0.6\"/>\n";
  }

  // 0 to 1 over a stage's chunks.
  double depth(int chunk) const { return each_ > 1 ? double(place_[chunk]) / (each_ - 1) : .35; }

  std::string fill(Work work, double depth) const {
    Hue hue = kHues[size_t(work)];
    std::string text;
    llvm::raw_string_ostream(text)
        << llvm::format("hsl(%d,%d%%,%.0f%%)", hue.hue, hue.saturation, 82 - 34 * depth);
    return text;
  }

  void row(int stage) {
    double y = kTop + stage * (kRow + kGap);
    out_ << llvm::format(
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"#eee\"/>\n", kLeft, y,
        timeline_.length * scale_, kRow);
    words(12, y + kRow / 2 + 4, "stage " + std::to_string(stage), "");
    for (size_t i = 0; i < schedule_.tasks[stage].size(); ++i) {
      const Task& task = schedule_.tasks[stage][i];
      double x = kLeft + timeline_.starts[stage][i] * scale_;
      double width = costs_.of(task.work) * scale_;
      if (width <= 0) continue;
      box(x, y, width, kRow, fill(task.work, depth(task.chunk)));
      std::string label = schedule_.text(task);
      if (double(label.size()) * kLetter > width) label = std::to_string(task.microbatch);
      if (double(label.size()) * kLetter > width) continue;
      words(x + width / 2, y + kRow / 2 + 4, label,
            depth(task.chunk) > .6 ? "text-anchor=\"middle\" fill=\"white\""
                                   : "text-anchor=\"middle\" fill=\"#222\"");
    }
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
            fill(work, each_ > 1 ? double(place) / (std::min(each_, 4) - 1) : .35));
      words(x + 4, y, what, "fill=\"#555\"");
      x += double(what.size()) * 5.6 + 22;
    }
  }

  void axis(double y) {
    double step = roundStep(60 / scale_);
    for (double time = 0; time <= timeline_.length; time += step) {
      double x = kLeft + time * scale_;
      out_ << llvm::format(
          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#888\"/>\n", x, y - 4, x,
          y);
      words(x, y + 14, shortNumber(time), "text-anchor=\"middle\" fill=\"#555\"");
    }
    words(12, y + 14, "time", "fill=\"#555\"");
  }

  const PipeSchedule& schedule_;
  const Timeline& timeline_;
  const WorkCosts& costs_;
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

std::string drawPicture(const PipeSchedule& schedule, const Timeline& timeline,
                        const WorkCosts& costs, llvm::StringRef title) {
  return Picture(schedule, timeline, costs).draw(title);
}

}  // namespace planc
