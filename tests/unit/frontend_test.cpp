// Reading, checking and formatting plans: limits on hostile input as a table, the corpus of wrong
// plans, and that the layout is stable and loses nothing, over all plan files of the repository.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "frontend/ast.h"
#include "frontend/check.h"
#include "frontend/frontend.h"
#include "frontend/parse.h"

namespace planc {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = PLANC_SOURCE_DIR;

std::string readFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<fs::path> filesIn(const fs::path& folder, const std::string& extension) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(kRoot / folder))
    if (entry.path().extension() == extension) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string repeat(const std::string& text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

std::string messagesOf(const Diagnostics& diags) {
  std::string text;
  llvm::raw_string_ostream out(text);
  diags.print(out, true);
  return out.str();
}

struct Limit {
  const char* name;
  std::string text;
  Diag id;
  uint32_t line, column;
};

TEST(Frontend, Limits) {
  const std::string open = "module m() { return ", close = " }";
  const Limit limits[] = {
      {"NUL", std::string("module m() {\n \0 }", 17), Diag::NulByte, 2, 2},
      {"UTF-8", "module m() {\n  x = \xff }", Diag::NotUtf8, 2, 7},
      {"UTF-8 cut short", "// \xe2\x82", Diag::NotUtf8, 1, 4},
      {"UTF-8 overlong", "// \xc0\xaf", Diag::NotUtf8, 1, 4},
      {"UTF-16", std::string("\xff\xfem\0", 4), Diag::NulByte, 1, 4},
      {"brackets", open + repeat("(", 300) + "1" + repeat(")", 300) + close, Diag::TooDeep, 1, 220},
      {"only brackets", repeat("[", 100000), Diag::TooDeep, 1, 201},
      {"braces", "module m() " + repeat("{ if a ", 300), Diag::TooDeep, 1, 1412},
      {"signs", open + repeat("-", 300) + "1" + close, Diag::TooDeep, 1, 221},
      {"else if", "module m() { if a { } " + repeat("else if a { } ", 300) + close, Diag::TooDeep,
       1, 2817},
      {"chain", open + "1" + repeat(" + 1", 100000) + close, Diag::ChainTooLong, 1, 4023},
      {"chains in brackets",
       open + repeat("(" + repeat("1 + ", 400), 100) + "1" + repeat(")", 100) + close,
       Diag::ChainTooLong, 1, 0},
      {"tokens", repeat("a ", 2000000), Diag::TooManyTokens, 1, 2097153},
      {"bytes", std::string(kMaxFileBytes + 1, ' '), Diag::FileTooLarge, 0, 0},
      {"number", open + "1" + repeat("0", 400) + close, Diag::NumberTooLarge, 1, 21},
      {"comment", "module m() { } /* open", Diag::OpenComment, 1, 16},
      {"comment at the end", "/*/", Diag::OpenComment, 1, 1},
      {"string", "import \"", Diag::OpenString, 1, 8},
  };
  for (const Limit& limit : limits) {
    Diagnostics diags;
    readPlanText("limit.plan", limit.text, diags);
    ASSERT_EQ(diags.errors(), 1u) << limit.name << '\n' << messagesOf(diags).substr(0, 2000);
    const Diagnostic& message = diags.messages().front();
    EXPECT_EQ(name(message.id), name(limit.id)) << limit.name;
    EXPECT_EQ(message.loc.line, limit.line) << limit.name;
    uint32_t column = limit.column == 0 ? message.loc.column : limit.column;
    EXPECT_EQ(message.loc.column, column) << limit.name;
  }
}

TEST(Frontend, HarmlessOddities) {
  for (const std::string& text : {std::string(), std::string("\n\n"), std::string("// only é"),
                                  std::string("\xEF\xBB\xBFmodule m() { return 1 }"),
                                  std::string("module m() {\r\n  return 1 // c\r\n}\r\n")}) {
    Diagnostics diags;
    EXPECT_EQ(readPlanText("odd.plan", text, diags).size(), 1u) << messagesOf(diags);
    EXPECT_FALSE(diags.failed()) << messagesOf(diags);
    EXPECT_TRUE(formatPlan("odd.plan", text, diags).has_value());
  }
}

// An endless file must not be read to its end.
TEST(Frontend, EndlessFile) {
  Diagnostics diags;
  EXPECT_TRUE(readPlan("/dev/zero", diags).empty());
  ASSERT_EQ(diags.errors(), 1u);
  EXPECT_EQ(name(diags.messages().front().id), "FileTooLarge");
}

TEST(Frontend, MissingFile) {
  Diagnostics diags;
  EXPECT_TRUE(readPlan("there/is/none.plan", diags).empty());
  ASSERT_EQ(diags.errors(), 1u);
  EXPECT_EQ(name(diags.messages().front().id), "CannotRead");
}

// Twenty lines at most, and after each wrong one the next is looked at.
TEST(Frontend, SyntaxErrorsEnd) {
  Diagnostics diags;
  readPlanText("many.plan", "module m() {\n" + repeat("  x = = 3\n", 1000) + "}\n", diags);
  EXPECT_EQ(diags.errors(), 20u);
}

// Recovery neither recurses with the number of errors nor goes back.
TEST(Frontend, WrongLinesInPlenty) {
  for (const char* line : {")\n", "x )\n", "} {\n", "{\n}\n", "1\n", "dim\n", "if if\n"})
    for (const char* head :
         {"", "device d {\n", "module m() {\n", "plan p of m {\n", "cluster c {\n"}) {
      Diagnostics diags;
      EXPECT_TRUE(readPlanText("many.plan", head + repeat(line, 20000), diags).empty());
      EXPECT_TRUE(diags.failed()) << head << line;
    }
}

// A mistake made a hundred thousand times is counted, not compared with all others.
TEST(Frontend, MistakesInPlenty) {
  Diagnostics diags;
  auto files = readPlanText("many.plan", repeat("plan p of none { }\n", 100000), diags);
  EXPECT_FALSE(checkPlans(files, {}, diags));
  EXPECT_GT(diags.errors(), 100000u);
  EXPECT_LE(diags.messages().size(), 2000u);
}

// Imported files come before the ones that import them, each once.
TEST(Frontend, ImportOrder) {
  Diagnostics diags;
  auto files = readPlanText("main.plan",
                            "import \"std/clusters.plan\"\nimport \"std/devices.plan\"\n", diags);
  ASSERT_EQ(files.size(), 3u) << messagesOf(diags);
  EXPECT_EQ(diags.paths()[files[0]->file], "std/devices.plan");
  EXPECT_EQ(diags.paths()[files[1]->file], "std/clusters.plan");
  EXPECT_EQ(files[2]->file, 0u);
}

// A chain of imports is followed only so far.
TEST(Frontend, ManyFiles) {
  fs::path folder = fs::temp_directory_path() / ("planc_imports_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  for (int i = 0; i < 300; ++i)
    std::ofstream(folder / (std::to_string(i) + ".plan")) << "import \"" << i + 1 << ".plan\"\n";
  Diagnostics diags;
  readPlan((folder / "0.plan").string(), diags);
  fs::remove_all(folder);
  ASSERT_EQ(diags.errors(), 1u) << messagesOf(diags);
  EXPECT_EQ(name(diags.messages().front().id), "TooManyFiles");
}

TEST(Frontend, Defaults) {
  Diagnostics diags;
  auto files = readPlanText("d.plan", "import \"std/gpt2.plan\"\nplan p of gpt2 { }\n", diags);
  Scope scope;
  CompileOptions options;
  ASSERT_TRUE(checkFiles(files, options, scope, diags)) << messagesOf(diags);
  const ast::Plan* plan = choosePlan(scope, options, diags);
  ASSERT_NE(plan, nullptr) << messagesOf(diags);
  PlanSettings settings;
  ASSERT_TRUE(checkPlan(*plan, scope, {}, false, options, settings, diags)) << messagesOf(diags);
  EXPECT_EQ(settings.ranks, 1);
  EXPECT_EQ(settings.microbatches, 1);
  EXPECT_EQ(settings.seed, 0);
  EXPECT_EQ(settings.precision, Elem::F32);
  EXPECT_EQ(settings.optimizer, "adamw");
  EXPECT_EQ(settings.numbers["lr"], 3e-4);
  EXPECT_EQ(settings.numbers["beta2"], 0.95);
  EXPECT_EQ(settings.numbers["clip"], 1);
  EXPECT_TRUE(settings.recompute.empty());
}

// Each case of the corpus gives its messages at their places.
TEST(Frontend, WrongPlans) {
  std::vector<fs::path> paths = filesIn("tests/frontend/errors", ".plan");
  ASSERT_GE(paths.size(), 6u);
  for (const fs::path& path : paths) {
    std::string text;
    llvm::raw_string_ostream out(text);
    EXPECT_TRUE(verifyDiagnostics(path.string(), {}, out)) << out.str();
  }
}

std::string withoutBlanks(std::string text) {
  text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return std::isspace(c); }),
             text.end());
  return text;
}

void expectStable(const std::string& name, const std::string& text) {
  Diagnostics diags;
  std::optional<std::string> once = formatPlan(name, text, diags);
  ASSERT_TRUE(once.has_value()) << name << '\n' << messagesOf(diags);
  EXPECT_EQ(withoutBlanks(*once), withoutBlanks(text)) << name;
  EXPECT_EQ(formatPlan(name, *once, diags), once) << name;
}

TEST(Format, StableAndLossless) {
  for (const char* folder : {"examples", "std", "tests/frontend/fmt", "tests/frontend/language",
                             "tests/frontend/errors/parts", "tests/golden"})
    for (const fs::path& path : filesIn(folder, ".plan"))
      expectStable(path.string(), readFile(path));
}

TEST(Format, Canonical) {
  for (const fs::path& path : filesIn("tests/frontend/fmt", ".in")) {
    Diagnostics diags;
    std::optional<std::string> out = formatPlan(path.string(), readFile(path), diags);
    ASSERT_TRUE(out.has_value()) << messagesOf(diags);
    EXPECT_EQ(*out, readFile(fs::path(path).replace_extension(".plan")));
  }
}

// What ships with the compiler is an example of its own layout.
TEST(Format, ShippedFilesAreFormatted) {
  for (const char* folder : {"examples", "std"})
    for (const fs::path& path : filesIn(folder, ".plan")) {
      Diagnostics diags;
      EXPECT_EQ(formatPlan(path.string(), readFile(path), diags), readFile(path)) << path;
    }
}

// The design's own examples: they parse to the letter, and the first has the mistake that the
// design's error message is about.
TEST(Language, DesignExamples) {
  Diagnostics diags;
  auto files = readPlan((kRoot / "tests/frontend/language/whole_file.plan").string(), diags);
  ASSERT_FALSE(diags.failed()) << messagesOf(diags);
  EXPECT_FALSE(checkPlans(files, {}, diags));
  ASSERT_EQ(diags.errors(), 1u) << messagesOf(diags);
  EXPECT_EQ(name(diags.messages().front().id), "DoesNotDivide");

  Diagnostics more;
  CompileOptions options;
  options.grid = {{"tensor", "4"}};
  EXPECT_TRUE(checkPlans(files, options, more)) << messagesOf(more);
  readPlan((kRoot / "tests/frontend/language/modules.plan").string(), more);
  EXPECT_FALSE(more.failed()) << messagesOf(more);
}

// Every ```plan block of the reference page is a whole file without a mistake.
TEST(Language, ReferencePage) {
  std::string page = readFile(kRoot / "docs/language.md");
  const std::string fence = "\n```plan\n";
  int blocks = 0;
  for (size_t at = page.find(fence); at != page.npos; at = page.find(fence, at), ++blocks) {
    at += fence.size();
    size_t line = size_t(std::count(page.begin(), page.begin() + ptrdiff_t(at), '\n'));
    Diagnostics diags;
    auto files = readPlanText(
        "docs/language.md", repeat("\n", line) + page.substr(at, page.find("```", at) - at), diags);
    if (!diags.failed()) checkPlans(files, {}, diags);
    EXPECT_FALSE(diags.failed()) << messagesOf(diags);
  }
  EXPECT_GE(blocks, 3);
}

}  // namespace
}  // namespace planc
