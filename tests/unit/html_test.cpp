// The page of `planc explain -o`: markup, escaping, every figure, nothing from elsewhere.
// What a browser makes of it: tests/tools/report.test.
#include "tools/explain/html.h"

#include <set>

#include "reports.h"
#include "tools/explain/html_parts.h"
#include "tools/explain/html_sections.h"
#include "tools/explain/units.h"

namespace planc {
namespace {

using test::invent;
using test::ReportOf;

const std::string kRoot = PLANC_SOURCE_DIR;

// What is wrong with a page's markup, for readers of HTML and of XML; empty: nothing.
std::string faultOf(llvm::StringRef page) {
  const std::set<std::string> empty = {"meta", "input", "!DOCTYPE"};
  std::vector<std::string> open;
  while (true) {
    size_t at = page.find('<');
    llvm::StringRef text = page.substr(0, at);
    if (text.contains('>') && open.back() != "style")
      return "a bare '>' before " + page.substr(at, 40).str();
    for (size_t amp = text.find('&'); amp != llvm::StringRef::npos; amp = text.find('&', amp + 1)) {
      llvm::StringRef entity = text.substr(amp, 7);
      if (llvm::none_of(std::initializer_list<llvm::StringRef>{"&amp;", "&lt;", "&gt;", "&quot;",
                                                               "&apos;", "&#39;"},
                        [&](llvm::StringRef known) { return entity.startswith(known); }))
        return "an entity that XML lacks: " + entity.str();
    }
    if (at == llvm::StringRef::npos) break;
    page = page.drop_front(at + 1);
    size_t end = page.find('>');
    if (end == llvm::StringRef::npos) return "a tag without an end";
    llvm::StringRef tag = page.substr(0, end);
    if (tag.contains('<')) return "'<' in a tag: " + tag.str();
    if (tag.count('"') % 2 != 0) return "an odd quote: " + tag.str();
    page = page.drop_front(end + 1);
    std::string name = tag.ltrim('/').take_until([](char c) { return c == ' ' || c == '/'; }).str();
    if (tag.startswith("/")) {
      if (open.empty() || open.back() != name) return "</" + name + "> closes nothing";
      open.pop_back();
    } else if (empty.count(name) == 0 && !tag.endswith("/")) {
      open.push_back(name);
    } else if (name != "!DOCTYPE" && !tag.endswith("/")) {
      return "<" + name + "> is left open";
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is left open";
}

// A row of a table that has other cells than the head; empty: none.
std::string raggedRow(llvm::StringRef page) {
  size_t columns = 0;
  llvm::SmallVector<llvm::StringRef, 0> rows;
  page.split(rows, "<tr");
  for (llvm::StringRef row : llvm::drop_begin(rows)) {
    row = row.split("</tr>").first;
    size_t cells = row.count("</th>") + row.count("</td>");
    if (row.contains("scope=\"col\"")) columns = cells;
    if (cells != columns) return row.str();
  }
  return "";
}

void expectClean(const std::string& page) {
  EXPECT_EQ(faultOf(page), "");
  EXPECT_EQ(raggedRow(page), "");
  for (llvm::StringRef reference :
       {"http:", "https:", "src=", "url(", "@import", "<script", "href="})
    EXPECT_FALSE(llvm::StringRef(page).contains(reference)) << reference.str();
  // Each id once.
  std::set<std::string> ids;
  llvm::StringRef rest = page;
  for (size_t at = rest.find(" id=\""); at != llvm::StringRef::npos; at = rest.find(" id=\"")) {
    rest = rest.drop_front(at + 5);
    EXPECT_TRUE(ids.insert(rest.take_until([](char c) { return c == '"'; }).str()).second);
  }
}

bool shows(const std::string& page, llvm::StringRef text) {
  return llvm::StringRef(page).contains(text);
}

void expectInteger(const std::string& page, int64_t value, llvm::StringRef what) {
  EXPECT_TRUE(shows(page, "<data value=\"" + std::to_string(value) + "\""))
      << what.str() << " " << value;
}

void expectNumber(const std::string& page, double value, llvm::StringRef what) {
  std::string cell = html::figure(value, "");
  EXPECT_TRUE(shows(page, llvm::StringRef(cell).split("></").first)) << what.str() << " " << cell;
}

void expectPlacing(const std::string& page, const Placing& placing) {
  expectNumber(page, placing.seconds, "placing");
  for (double bytes : placing.bytes) expectNumber(page, bytes, "bytes of a level");
  EXPECT_TRUE(shows(page, llvm::join(placing.axes, " · ")));
}

void expectStage(const std::string& page, const StageBill& stage) {
  const MemoryBill& bill = stage.memory;
  for (int64_t bytes : {bill.arena, bill.weights, bill.gradients, bill.optimizer, bill.inputs,
                        bill.activations, bill.messages, bill.workspace, bill.gaps})
    expectInteger(page, bytes, "memory");
  for (const SavedChunk& saved : bill.saved) {
    expectInteger(page, saved.bytes, "a chunk's");
    expectInteger(page, saved.bytes * saved.flights, "all flights'");
  }
  expectInteger(page, stage.parameters, "parameters");
  for (const Talk& talk : stage.talks) {
    expectInteger(page, talk.bytes, "sent");
    expectInteger(page, talk.calls, "calls");
    expectNumber(page, talk.seconds, "on the wires");
    expectNumber(page, talk.hidden, "hidden");
    expectNumber(page, talk.seconds - talk.hidden, "not hidden");
  }
  for (double figure :
       {stage.work.flops, stage.work.again, stage.work.otherFlops, stage.work.memoryBytes,
        stage.work.intensity(), stage.time.compute, stage.time.exposed})
    expectNumber(page, figure, "work");
}

TEST(Html, EveryFigure) {
  ReportOf made(kRoot + "/examples/llama3_405b_128k.plan");
  Report& report = made.report;
  invent(report);
  report.stages[report.fullest].memory.arena += int64_t{1} << 40;  // it does not fit
  std::string page = reportHtml(report);
  expectClean(page);
  for (const StageBill& stage : report.stages) expectStage(page, stage);
  for (const HeldValue& value : report.fullestStage().memory.largest)
    expectInteger(page, value.bytes, "largest");
  expectInteger(page, report.tokens, "tokens");
  expectInteger(page, report.parameters, "parameters");
  for (double figure : {report.modelFlops, report.flops, report.again})
    expectNumber(page, figure, "FLOPs");
  expectNumber(page, report.time.seconds, "a step");
  expectNumber(page, report.time.bubble, "bubble");
  const Placement& placement = *report.placement;
  for (const Placing& placing :
       {placement.chosen, placement.written, *placement.runnerUp, *placement.unbound})
    expectPlacing(page, placing);
  for (const Across& across : placement.across) expectPlacing(page, across.placing);
  for (const Change& change : report.changes) {
    EXPECT_TRUE(shows(page, change.text()));
    expectInteger(page, change.arena, "a change's");
  }
  expectNumber(page, report.changes[0].seconds, "a change's");
  for (const Ceiling& ceiling : report.ceilings) {
    if (!ceiling.why.empty()) continue;
    expectInteger(page, ceiling.arena, "a ceiling's");
    expectInteger(page, ceiling.bytesSent, "a ceiling's");
    expectNumber(page, ceiling.flops, "a ceiling's");
  }
  EXPECT_TRUE(shows(page, "More ranks than the cluster has devices"));
  // The same report, the same bytes; and small enough to send.
  EXPECT_EQ(page, reportHtml(report));
  EXPECT_LT(page.size(), 3000000u);
}

// As the compiler made them: pages of plans with and without grid, cluster and pipeline.
TEST(Html, RealPlans) {
  for (const char* path : {"/examples/quickstart.plan", "/examples/five_axes.plan",
                           "/examples/deepseek_v3.plan", "/examples/gpt2_small.plan"}) {
    SCOPED_TRACE(path);
    ReportOf made(kRoot + path);
    expectClean(reportHtml(made.report));
    invent(made.report);
    expectClean(reportHtml(made.report));
  }
}

TEST(Html, Verdict) {
  ReportOf made(kRoot + "/examples/five_axes.plan", [] {
    CompileOptions options;
    options.cluster = "h100_pod";
    return options;
  }());
  MemoryBill& bill = made.report.stages[made.report.fullest].memory;
  bill.arena = int64_t{80} << 30;
  EXPECT_TRUE(shows(reportHtml(made.report), "✓ Fits, with <data value=\"0\""));
  ++bill.arena;
  EXPECT_TRUE(shows(reportHtml(made.report), "✗ Does not fit: <data value=\"1\""));
  ReportOf none(kRoot + "/examples/five_axes.plan");
  EXPECT_TRUE(shows(reportHtml(none.report), "No cluster is named"));
}

// What a plan's author or file system makes up stays text.
TEST(Html, HostileNames) {
  const std::string hostile = "</p><b x='1' y=\"2\">&amp;]]>\x01\xff\xEF\xBF\xBFü";
  ReportOf made(kRoot + "/examples/five_axes.plan", [] {
    CompileOptions options;
    options.cluster = "h100_pod";
    return options;
  }());
  Report& report = made.report;
  invent(report);
  report.stages[report.fullest].memory.arena += int64_t{1} << 40;
  report.plan = hostile;
  made.planx.model->files = {hostile};
  made.planx.roles.front()->cluster.device = hostile;
  made.planx.roles.front()->cluster.levels[0].name = hostile;
  for (StageBill& stage : report.stages) {
    stage.layers = stage.title = hostile;
    stage.talks[0].axes = {hostile, hostile};
    for (HeldValue& value : stage.memory.largest) value.name = value.kind = hostile;
  }
  report.pipeline->chunks[0] = hostile;
  report.changes[0].statements = {hostile};
  report.ceilings[0].why = report.ceilings[0].axis = hostile;
  report.placement->chosen.axes[0] = report.placement->across[0].axis = hostile;
  report.attention = {{hostile, hostile, hostile}};
  report.rows = {{hostile, hostile}};
  std::string page = reportHtml(report);
  expectClean(page);
  EXPECT_FALSE(shows(page, "<b x"));
  EXPECT_FALSE(shows(page, "\x01") || shows(page, "\xff") || shows(page, "\xEF\xBF\xBF"));
  EXPECT_TRUE(shows(page, "&lt;/p&gt;&lt;b x=&#39;1&#39; y=&quot;2&quot;&gt;&amp;amp;]]&gt;") ||
              shows(page, "&lt;/p&gt;&lt;b x=&apos;1&apos; y=&quot;2&quot;&gt;&amp;amp;]]&gt;"));
}

// The checker itself: what it must notice.
TEST(Html, FaultsAreSeen) {
  EXPECT_EQ(faultOf("<!DOCTYPE html>\n<p a=\"b\">x &amp; y<meta q=\"1\"/></p>\n"), "");
  for (llvm::StringRef bad : {"<p>", "</p>", "<p><b></p></b>", "<p>a & b</p>", "<p>&nbsp;</p>",
                              "<p a=\"b>x</p>", "<p>a > b</p>", "<meta>", "<p", "<p a=\"<\">x</p>"})
    EXPECT_NE(faultOf(bad), "") << bad.str();
  std::string head = "<tr><th scope=\"col\">a</th><th scope=\"col\">b</th></tr>";
  EXPECT_EQ(raggedRow(head + "<tr><th>1</th><td>2</td></tr>"), "");
  EXPECT_NE(raggedRow(head + "<tr><th>1</th><td>2</td><td></td></tr>"), "");
}

TEST(Html, Units) {
  EXPECT_EQ(groupedText(0), "0");
  EXPECT_EQ(groupedText(999), "999");
  EXPECT_EQ(groupedText(16384), "16,384");
  EXPECT_EQ(groupedText(-1234567), "-1,234,567");
  EXPECT_EQ(rateText(4.5e11, "B/s"), "450.0 GB/s");
}

// A grid whose axes are in parts is shown as the plan has it.
TEST(Html, Axes) {
  Grid grid;
  grid.axes = {{"data", 4}, {"tensor_a", 4, "tensor"}, {"tensor_b", 2, "tensor"}, {"pipe", 3}};
  std::vector<html::PlanAxis> axes = html::axesOf(grid);
  EXPECT_EQ(html::axesText(axes), "data 4, tensor 8, pipe 3");
  EXPECT_EQ(axes[0].stride, 24);
  EXPECT_EQ(axes[1].stride, 3);
  EXPECT_EQ(axes[2].stride, 1);
}

}  // namespace
}  // namespace planc
