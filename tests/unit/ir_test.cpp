// IR text: every dump of every example and golden plan, after every pass, reads back to the same
// text and through the binary form; errors have places.
#include <filesystem>
#include <fstream>

#include "compile.h"

namespace planc {
namespace {

std::vector<std::string> plans() {
  std::vector<std::string> paths;
  for (const char* folder : {"/examples", "/tests/golden"})
    for (const auto& entry : std::filesystem::directory_iterator(std::string(PLANC_SOURCE_DIR) + folder))
      if (entry.path().extension() == ".plan") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Every axis that an example has, set to 1: not all passes know grids yet.
CompileOptions oneRank(const std::string& path) {
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  CompileOptions options;
  for (const char* axis : {"data", "tensor", "expert", "context"}) {
    size_t grid = text.find("\n  grid ");
    if (grid == std::string::npos) break;
    std::string line = text.substr(grid, text.find('\n', grid + 1) - grid);
    if (line.find(std::string(axis) + " ") != std::string::npos) options.grid.push_back({axis, "1"});
  }
  return options;
}

std::vector<std::string> plansOf(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> names;
  for (std::string word; in >> word;)
    if (word == "plan" && in >> word) {
      std::string next;
      in >> next;
      if (next == "of") names.push_back(word);
    }
  return names;
}

TEST(IrText, RoundTripsAfterEveryPass) {
  ASSERT_FALSE(plans().empty());
  for (const std::string& path : plans()) {
    for (const std::string& plan : plansOf(path)) {
      CompileOptions options = oneRank(path);
      options.plan = plan;
      Modules modules;
      modules.push_back(test::compileFile(path, options));
      ASSERT_TRUE(modules.front());
      auto check = [&](llvm::StringRef after) {
        std::string text, again, cloned;
        for (const auto& module : modules) text += test::print(*module);
        Diagnostics diags;
        for (const auto& module : parseModules(diags.addFile("test.ir", text), diags))
          again += test::print(*module);
        for (const auto& module : modules) cloned += test::print(*cloneModule(*module));
        EXPECT_EQ(again, text) << path << " after " << after.str() << test::messages(diags);
        EXPECT_EQ(cloned, text) << path << " after " << after.str();
      };
      check("the frontend");
      for (const PassInfo& pass : allPasses()) {
        test::runAll(modules, {pass.name.str()});
        check(pass.name);
      }
    }
  }
}

// Where a text is wrong, and what is said.
struct ErrorCase {
  const char* text;
  unsigned line, column;
  const char* message;
};

TEST(IrText, ErrorsHavePlaces) {
  const ErrorCase cases[] = {
      {"modul m model {}", 1, 1, "expected 'module'"},
      {"module m model {", 1, 17, "expected 'arena'"},
      {"module m model {\n  var @w : f31[] weight\n}", 2, 12, "unknown element type 'f31'"},
      {"module m model {\n  var @w : f32[] wait\n}", 2, 18, "unknown kind of variable"},
      {"module m model {\n  var @w : f32[a 99999999999999999999] weight\n}", 2, 18, "out of range"},
      {"module m model {\n  func @f {\n    %a = nop() : f32[]\n  }\n}", 3, 10, "unknown op 'nop'"},
      {"module m model {\n  func @f {\n    %a = exp(%b) : f32[]\n  }\n}", 3, 14, "not defined"},
      {"module m model {\n  func @f {\n    %a = read @w : f32[]\n  }\n}", 3, 15,
       "unknown variable '@w'"},
      {"module m model {\n  func @f {\n    %a = const {value = 1.0} : f32[]\n"
       "    %a = const {value = 1.0} : f32[]\n  }\n}", 4, 5, "defined twice"},
      {"module m model {\n  func @f {\n    %a = const {value = 1.0} : f32[], f32[]\n  }\n}", 3, 10,
       "1 results but 2 types"},
      {"module m model {\n  set x = \"abc\n}", 2, 11, "a word or a string"},
      {"module m model {} x", 1, 19, "expected another module or the end of the file"},
  };
  for (const ErrorCase& c : cases) {
    Diagnostics diags;
    EXPECT_FALSE(parseModule(diags.addFile("t.ir", c.text), diags)) << c.text;
    ASSERT_FALSE(diags.messages().empty()) << c.text;
    const Diagnostic& message = diags.messages().front();
    EXPECT_EQ(message.loc.line, c.line) << c.text;
    EXPECT_EQ(message.loc.column, c.column) << c.text;
    EXPECT_NE(message.text.find(c.message), std::string::npos) << message.text;
  }
}

TEST(IrText, NumbersReadBack) {
  for (double value : {0.0, -0.0, 1.0, 0.1, 1e300, 5e-324, 1.0 / 3, -2.5e-7,
                       std::numeric_limits<double>::infinity()}) {
    std::string text = "module m model {\n  set x = " + numberText(value) + "\n}\n";
    auto module = test::parse(text);
    ASSERT_TRUE(module);
    double again = module->settings.number("x");
    EXPECT_EQ(memcmp(&again, &value, 8), 0) << text;
  }
}

TEST(IrText, DeepNestingIsAnError) {
  std::string text = "module m model {\n func @f {\n";
  for (int i = 0; i < 100000; ++i) text += "repeat {count = 2, dim = a} body() {\n";
  Diagnostics diags;
  EXPECT_FALSE(parseModule(diags.addFile("t.ir", text), diags));
}

TEST(Ir, UseListsFollowEdits) {
  Module module;
  Builder builder(module.addFunction("f")->body.get());
  Value* a = builder.constant(1, {Elem::F32, {}});
  Value* b = builder.constant(2, {Elem::F32, {}});
  Value* sum = builder.elementwise(OpKind::Add, {a, a});
  EXPECT_EQ(a->uses().size(), 2u);
  a->replaceAllUsesWith(b);
  EXPECT_EQ(a->uses().size(), 0u);
  EXPECT_EQ(b->uses().size(), 2u);
  sum->def()->erase();
  EXPECT_EQ(b->uses().size(), 0u);
  EXPECT_EQ(module.findFunction("f")->body->ops.size(), 2u);
}

TEST(Ir, TakenNamesGetNumbers) {
  Module module;
  std::vector<std::string> names;
  for (int i = 0; i < 5000; ++i) {
    Variable var;
    var.name = "x";
    module.addVar(std::move(var));
  }
  EXPECT_EQ(module.vars[0]->name, "x");
  EXPECT_EQ(module.vars[1]->name, "x_2");
  EXPECT_EQ(module.vars.back()->name, "x_5000");
  module.eraseVars([](const Variable& var) { return var.name == "x"; });
  EXPECT_EQ(module.findVar("x"), nullptr);
  EXPECT_NE(module.findVar("x_2"), nullptr);
}

TEST(Ir, SizesSaturate) {
  Type type{Elem::F32, {{"a", int64_t{1} << 40, ""}, {"b", int64_t{1} << 40, ""}}};
  EXPECT_EQ(type.elements(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(type.bytes(), std::numeric_limits<int64_t>::max());
  Type ragged{Elem::F32, {{"e", 8, ""}, {"s", 10, "e"}, {"m", 4, ""}}};
  EXPECT_EQ(ragged.elements(), 40);
}

TEST(Ir, DimRolesFollowTheTable) {
  auto module = test::parse(R"(module m model {
  var @x : f32[a 2, b 3] weight init const(0.0)
  var @y : f32[b 3, c 4] weight init const(0.0)
  func @f {
    %x = read @x : f32[a 2, b 3]
    %y = read @y : f32[b 3, c 4]
    %z = einsum(%x, %y) : f32[a 2, c 4]
    %s = softmax(%z) {over = c} : f32[a 2, c 4]
  }
})");
  const Op& einsum = *module->findFunction("f")->body->ops[2];
  EXPECT_EQ(dimRole(einsum, "a"), DimRole::Parallel);
  EXPECT_EQ(dimRole(einsum, "b"), DimRole::Summed);
  const Op& softmax = *module->findFunction("f")->body->ops[3];
  EXPECT_EQ(dimRole(softmax, "c"), DimRole::Special);
  EXPECT_EQ(dimRole(softmax, "a"), DimRole::Parallel);
}

}  // namespace
}  // namespace planc
