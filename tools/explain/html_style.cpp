// The page's style: no file, font or picture from elsewhere. Fills keep 3:1 against the page (but gaps) and
// their labels 4.5:1, in both schemes; simulated protanopes and deuteranopes tell all pairs of fills
// apart. The rest is in css order: colours, text, tables, pictures, narrow pages, paper.
// Tested by tests/tools/report.test.
#include "llvm/Support/Format.h"
#include "tools/explain/html_sections.h"

namespace planc::html {
namespace {

// A fill and the ink of its labels.
struct Fill {
  const char *light, *lightInk, *dark, *darkInk;
};
constexpr Fill kFills[] = {
    {"#1b82d9", "#000", "#5386f9", "#000"}, {"#813604", "#fff", "#a44c00", "#fff"},
    {"#4e31b3", "#fff", "#c2a6f7", "#000"}, {"#475258", "#fff", "#65696e", "#fff"},
    {"#32a858", "#000", "#61cd7d", "#000"}, {"#a64f95", "#fff", "#cd4bb7", "#000"},
    {"#926500", "#fff", "#bb8302", "#000"}, {"#a3a7aa", "#000", "#cad2d8", "#000"},
};

// Coordinates along an axis, from the first to the last: lightness rises, so the order is seen in grey too
// (the colour map "viridis").
constexpr const char* kRamp[] = {"#440154", "#481a6c", "#472f7d", "#414487", "#39568c", "#31688e",
                                 "#2a788e", "#23888e", "#1f988b", "#22a884", "#35b779", "#54c568",
                                 "#7ad151", "#a5db36", "#d2e21b", "#fde725"};
constexpr int kFirstBright = 7;  // of the ramp: with black letters

constexpr llvm::StringLiteral kText = R"css(
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
:root { --cell: 46px; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 8px; }
footer { max-width: 1160px; margin: 0 auto; padding: 8px 20px 32px; color: var(--soft); font-size: 13px; }
header { margin-bottom: 20px; }
.eyebrow { color: var(--soft); font-size: 13px; margin: 0; }
h1 { font-size: 30px; line-height: 1.2; margin: 2px 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 20px; line-height: 1.25; margin: 0 0 6px; }
h3 { font-size: 15px; margin: 18px 0 6px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 18px 20px 20px; margin: 0 0 18px; }
p { margin: 6px 0 10px; max-width: 80ch; overflow-wrap: anywhere; }
.note { color: var(--soft); font-size: 13px; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .92em; overflow-wrap: anywhere; }
.sub { color: var(--soft); margin: 0; max-width: none; }
.verdict { border: 1px solid var(--line); border-left: 6px solid var(--soft); border-radius: 8px;
  background: var(--card); padding: 12px 16px; margin: 16px 0; font-size: 17px; max-width: none; }
.verdict b { display: block; font-size: 20px; }
.verdict.yes { border-left-color: var(--good); } .verdict.yes b { color: var(--good); }
.verdict.no { border-left-color: var(--bad); } .verdict.no b { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 10px;
  margin: 0; padding: 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }
.tiles dt { color: var(--soft); font-size: 13px; }
.tiles dd { margin: 0; font-size: 22px; line-height: 1.3; font-weight: 600; }
.tiles dd small { display: block; font-size: 13px; font-weight: 400; color: var(--soft); line-height: 1.4; }

data { white-space: nowrap; }
.scroll { overflow-x: auto; }
.timeline { margin-top: 12px; }
p:last-child { margin-bottom: 0; }
.scroll:focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; }
table { border-collapse: collapse; font-size: 13px; min-width: 50%; font-variant-numeric: tabular-nums; }
.caption { color: var(--soft); margin: 14px 0 2px; font-size: 13px; max-width: none; }
th, td { padding: 4px 9px; border-top: 1px solid var(--line); text-align: right; white-space: nowrap;
  vertical-align: top; }
th:first-child { padding-left: 4px; text-align: left; }
thead th { color: var(--soft); font-weight: 500; border-top: 0; vertical-align: bottom; }
tbody th { font-weight: 500; }
.t { text-align: left; }
td.long { white-space: normal; min-width: 20em; overflow-wrap: anywhere; }
tr.marked { background: var(--mark); }
tr.marked th { font-weight: 700; }
details { margin-top: 12px; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }

ul.reasons { margin: 4px 0; padding-left: 20px; }
.reasons li { max-width: 100ch; overflow-wrap: anywhere; }

.chart { margin: 10px 0 6px; }
.bar { display: grid; grid-template-columns: minmax(84px, 19%) 1fr 86px; gap: 10px; align-items: center;
  margin: 3px 0; font-size: 13px; }
.bar .label { text-align: right; line-height: 1.25; overflow-wrap: anywhere; }
.bar .label small { display: block; color: var(--soft); font-size: 12px; }
.bar .end { font-variant-numeric: tabular-nums; white-space: nowrap; }
.bar.twice { grid-template-columns: minmax(84px, 19%) 1fr 74px 1fr 80px; }
.track { position: relative; display: flex; height: 24px; background: var(--ground); }
.above .track { height: 18px; background: none; }
.limit { position: absolute; top: -3px; bottom: -3px; width: 2px; background: var(--bad);
  box-shadow: 0 0 0 1.5px var(--card); }
.limit-text { position: absolute; bottom: 0; color: var(--bad); font-size: 12px; white-space: nowrap;
  padding: 0 4px; line-height: 18px; }
/* A label goes to a second line, which is not seen, where the piece is too narrow for it. */
.piece { flex: none; height: 24px; overflow: hidden; line-height: 24px; font-size: 12px; text-align: center;
  box-shadow: inset -1px 0 0 var(--card); }
.piece::before { content: ""; display: inline-block; height: 24px; width: 4px; }
.piece span { display: inline-block; white-space: nowrap; padding-right: 4px; vertical-align: top; }
.hatched { background-image: repeating-linear-gradient(135deg, transparent 0 3px, var(--hatch) 3px 6px); }
.piece.hatched span { background-color: inherit; line-height: 16px; margin-top: 4px; padding: 0 4px; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 8px 0; padding: 0;
  font-size: 13px; }
.key { display: inline-block; width: 13px; height: 13px; margin-right: 6px; vertical-align: -2px; }

.strip { display: flex; flex-wrap: wrap; gap: 8px; list-style: none; margin: 10px 0 14px; padding: 0; }
.strip > li { flex: 1 1 180px; border: 1px solid var(--line); border-radius: 8px; padding: 8px 10px; }
.strip .wires { display: block; color: var(--soft); font-size: 12px; }
.chip { display: inline-block; border: 1px solid var(--soft); border-radius: 6px; padding: 1px 8px;
  margin: 5px 6px 0 0; font-size: 13px; }
.chip small { color: var(--soft); font-size: 12px; }
.by { display: inline-flex; flex-wrap: wrap; }
fieldset { border: 0; margin: 0; padding: 0; min-width: 0; }
legend { padding: 0; font-size: 13px; color: var(--soft); }
fieldset > input { margin: 0 5px 0 0; vertical-align: -2px; }
fieldset > label { margin-right: 14px; font-size: 13px; cursor: pointer; }
.units { display: flex; flex-wrap: wrap; gap: 8px; align-items: flex-start; }
.unit { border: 1px solid var(--soft); border-radius: 8px; padding: 5px 7px 7px; margin-top: 8px;
  max-width: 100%; }
.unit .unit { margin-top: 0; }
.unit.wide { width: 100%; }
.unit-name { font-size: 12px; color: var(--soft); margin-bottom: 4px; overflow-wrap: anywhere; }
.cells { display: grid; gap: 2px; }
.cell { border-radius: 3px; min-height: 38px; padding: 2px 0; text-align: center; line-height: 1.2;
  overflow: hidden; background: var(--ground); }
.cell i { font-style: normal; font-size: 11px; display: block; }
.cell b { display: none; font-size: 13px; white-space: nowrap; }
.cell.none { border: 1px dashed var(--line); background: none; }
.cell.none i { color: var(--soft); }
.ramp { display: flex; align-items: center; gap: 8px; font-size: 13px; color: var(--soft); margin: 6px 0 0; }
.ramp b { flex: 0 1 180px; height: 12px; border-radius: 3px; }
.ramp span:first-child { white-space: nowrap; }

.timeline svg { display: block; }
.ink { fill: var(--ink); } .soft { fill: var(--soft); } .page { fill: none; } .idle { fill: var(--ground); }
.tick { stroke: var(--soft); }
.overview { margin: 10px 0; }
.overview .bar { grid-template-columns: minmax(70px, 12%) 1fr; margin: 2px 0; }
.overview .whole { stroke: none; }
.overview svg { width: 100%; height: 16px; display: block; background: var(--ground); }

@media (max-width: 900px) { .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (max-width: 620px) {
  main { padding: 16px 10px 4px; } footer { padding: 4px 10px 20px; }
  section { padding: 14px 12px; }
  h1 { font-size: 24px; }
  .bar { grid-template-columns: 1fr auto; gap: 1px 8px; margin: 8px 0; }
  .bar .label { text-align: left; grid-column: 1; grid-row: 1; }
  .bar .label small { display: inline; margin-left: 6px; }
  .bar .end { grid-column: 2; grid-row: 1; }
  .bar .track { grid-column: 1 / -1; grid-row: 2; }
  .overview .bar { grid-template-columns: 1fr; }
  :root { --cell: 35px; }
  .unit { padding: 4px 5px 5px; }
  .tiles dd { font-size: 19px; }
}
@page { size: landscape; margin: 12mm; }
@media print {
  body { background: #fff; font-size: 11pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  section { border: 0; border-top: 1px solid #999; border-radius: 0; padding: 10px 0; }
  .bar, tr, .unit .cells, .tiles div, .verdict { break-inside: avoid; }
  h2, .caption { break-after: avoid; }
  .scroll { overflow: visible; }
  table { font-size: 7.5pt; } th, td { padding: 2px 5px; }
  .timeline svg { max-width: 100%; height: auto; }
}
)css";

// Light or dark.
std::string colours(bool isDark) {
  std::string text = isDark
                         ? "--page: #0f1216; --card: #15181d; --ink: #e7eaee; --soft: #a7afb9; "
                           "--line: #333a43; --ground: #22272e; --mark: #1d2a3a; --good: #6fd08c; "
                           "--bad: #ff8f80; --focus: #7ab2ff; --hatch: rgba(21, 24, 29, .62);"
                         : "--page: #f5f6f8; --card: #ffffff; --ink: #14181d; --soft: #565f6b; "
                           "--line: #d5dae0; --ground: #eceff2; --mark: #eaf2fd; --good: #17703a; "
                           "--bad: #b3261e; --focus: #1b62c4; --hatch: rgba(255, 255, 255, .62);";
  for (size_t i = 0; i < std::size(kFills); ++i) {
    const Fill& fill = kFills[i];
    text += " --c" + std::to_string(i) + ": " + (isDark ? fill.dark : fill.light) + "; --i" +
            std::to_string(i) + ": " + (isDark ? fill.darkInk : fill.lightInk) + ";";
  }
  return text;
}

}  // namespace

std::string rampFill(int step) { return kRamp[step]; }
int rampSteps() { return int(std::size(kRamp)); }
std::string rampInk(int step) { return step < kFirstBright ? "#fff" : "#000"; }

std::string styleSheet(size_t axes) {
  // Paper is white whatever the screen is.
  std::string text = ":root { color-scheme: light dark; " + colours(false) + " }\n" +
                     "@media screen and (prefers-color-scheme: dark) { :root { " + colours(true) +
                     " } }\n" + kText.drop_front().str();
  for (size_t i = 0; i < std::size(kFills); ++i) {
    std::string number = std::to_string(i);
    text += ".s" + number + " { background-color: var(--c" + number + "); color: var(--i" + number +
            "); }\n.f" + number + " { fill: var(--c" + number + "); }\n";
  }
  // The grid by the axis that is checked.
  for (size_t axis = 0; axis < axes; ++axis) {
    std::string number = std::to_string(axis), checked = "#by" + number + ":checked ~ .grid ";
    text += checked + "b:nth-of-type(" + std::to_string(axis + 1) + ") { display: block; }\n";
    for (int step = 0; step < rampSteps(); ++step)
      text += checked + ".p" + number + "-" + std::to_string(step) +
              " { background: " + rampFill(step) + "; color: " + rampInk(step) + "; }\n";
  }
  return text;
}

}  // namespace planc::html
