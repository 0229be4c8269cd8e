// Reads ahead and ops that the last iteration leaves out: a program that uses them, and each way to
// spoil it, told by name.
#include "compile.h"

namespace planc {
namespace {

// Three slices of 32 bytes at 0x40, gathered to 64 at 0xc0 and, under way, at 0x100. The arena ends
// there, and so do the places of slices ahead: at 0x60 + 0x20 * 1, at 0x20 + 0x20 * 1.
constexpr const char* kProgram = R"(module m rank {
  arena 0x140
  grid data 2
  var @x : f32[model 16] weight init const(0.0) @0x0
  var @w : f32[layer 3, model 16/data] weight stack [layer] init const(0.0) @0x40
  var @in : i32[microbatch 1, s 1, t 1] input stack [microbatch] vocab 7 @0xa0
  func @f {
    %w = read @w {index = 0} : f32[model 16/data] @0x40
    %g = all_gather(%w) {axes = [data], dim = [model]} : f32[model 16] @0xc0
    %last = repeat(%g) {count = 3, dim = layer} : f32[model 16] @0xc0 body(%h : f32[model 16] @0xc0) {
      %n = read @w {ahead = 1} : f32[model 16/data] @0x60+layer*0x20
      %k = all_gather(%n) {axes = [data], dim = [model], start = 1, unless_last = 1} : f32[model 16] @0x100
      write @x(%h)
      %k.1 = wait(%k, %n) {unless_last = 1} : f32[model 16] @0x100
      yield(%k.1)
    }
    %v = read @w {index = 2} : f32[model 16/data] @0x80
    %i = all_gather(%v) {axes = [data], dim = [model]} : f32[model 16] @0xc0
    %end = repeat(%i) {count = 3, dim = layer, reverse = 1} : f32[model 16] @0xc0 body(%j : f32[model 16] @0xc0) {
      %o = read @w {ahead = 1} : f32[model 16/data] @0x20+layer*0x20
      %l = all_gather(%o) {axes = [data], dim = [model], unless_last = 1} : f32[model 16] @0x100
      write @x(%j)
      yield(%l)
    }
  }
}
)";

std::string with(std::string text, llvm::StringRef from, llvm::StringRef to) {
  size_t at = text.find(from.str());
  EXPECT_NE(at, std::string::npos) << from.str();
  return text.replace(at, from.size(), to.str());
}

std::string verdict(const std::string& text) {
  Diagnostics diags;
  parseModule(diags.addFile("ahead.ir", text), diags);
  return diags.messages().empty() ? "" : diags.messages().front().text;
}

TEST(Ahead, ProgramIsSoundInBothForms) {
  ASSERT_EQ(verdict(kProgram), "");
  // A variable at the arena's start: ahead of its first slice lies nothing.
  std::string low = with(with(kProgram, "@0x0\n", "@0x80\n"), "@0x40\n", "@0x0\n");
  for (auto [from, to] : {std::pair("@0x40\n", "@0x0\n"),
                          {"@0x60+", "@0x20+"},
                          {"@0x80\n    %i", "@0x40\n    %i"},
                          {"@0x20+layer*0x20\n      %l", "@-0x20+layer*0x20\n      %l"}})
    low = with(low, from, to);
  low = with(low, "@0xa0", "@0x60");
  ASSERT_EQ(verdict(low), "");
  auto module = test::parse(low);
  EXPECT_NE(test::print(*module).find("@-0x20+layer*0x20"), std::string::npos);
  EXPECT_EQ(test::print(*test::parse(test::print(*module))), test::print(*module));
  EXPECT_EQ(test::print(*cloneModule(*module)), test::print(*module));
}

struct Broken {
  const char *from, *to, *message;
};

TEST(Ahead, NamesTheBrokenRule) {
  const Broken cases[] = {
      // Places: one stride beyond those that are read, and the very last that are.
      {"@0x60+layer*0x20", "@0x100+layer*0x20", ""},
      {"@0x60+layer*0x20", "@0x104+layer*0x20", "outside the arena"},
      {"@0x20+layer*0x20", "@-0x20+layer*0x20", ""},
      {"@0x20+layer*0x20", "@-0x24+layer*0x20", "outside the arena"},
      {"@0x20+layer*0x20", "@0xe0+layer*0x20", ""},
      {"@0x20+layer*0x20", "@0xe4+layer*0x20", "outside the arena"},
      {"@0x20+layer*0x20", "@0x21+layer*0x20", "unaligned"},
      {"@0x0\n", "@-0x4\n", "outside the arena"},
      // What is ahead.
      {"%n = read @w {ahead = 1} : f32[model 16/data] @0x60+layer*0x20",
       "%n = read @x {ahead = 1} : f32[model 16] @0x0", "'@x' stacks no 'layer'"},
      {"%w = read @w {index = 0} : f32[model 16/data]",
       "%w = read @w {ahead = 1} : f32[layer 3, model 16/data]", "outside a repeat"},
      {"      write @x(%h)\n", "      write @x(%h)\n %e = exp(%n) : f32[model 16/data] @0x100\n",
       "reads ahead for 'exp', which is not 'unless_last'"},
      {"start = 1, unless_last = 1", "start = 1", "reads ahead for 'all_gather'"},
      // By number.
      {"index = 0", "index = 3", "picks slice 3 of 3"},
      {"index = 0", "index = -1", "picks slice -1 of 3"},
      {"index = 0", "index = word", "picks slice -1 of 3"},
      {"read @w {index = 0} : f32[model 16/data]", "read @x {index = 0} : f32[model 16]",
       "'@x', which stacks none"},
      {"read @w {index = 0} : f32[model 16/data] @0x40",
       "read @in {index = 0} : i32[s 1, t 1] @0xa0", "'@in', which stacks none"},
      {"{ahead = 1}", "{index = 1}", "which the repeat around it does"},
      {"index = 0} : f32[model 16/data]", "index = 0} : f32[layer 3, model 16/data]",
       "but the slice is f32[model 16/data]"},
      // What is left out.
      {"dim = [model]} : f32[model 16] @0xc0\n    %last",
       "dim = [model], unless_last = 1} : f32[model 16] @0xc0\n    %last", "outside a repeat"},
      {"write @x(%h)", "write @x(%h) {unless_last = 1}",
       "is 'unless_last', but does more than make values"},
      {"wait(%k, %n) {unless_last = 1}", "wait(%k, %n)", "reads ahead for 'wait'"},
      {"%l = all_gather(%o) {axes = [data], dim = [model], unless_last = 1}",
       "%p = read @w : f32[model 16/data] @0x40+layer*0x20\n"
       "%m = all_gather(%p) {axes = [data], dim = [model], start = 1} : f32[model 16] @0x100\n"
       "%l = wait(%m, %p) {unless_last = 1}",
       "is 'unless_last', but what it waits for is not"},
      {"yield(%k.1)\n    }", "yield(%k.1)\n    }\n    write @x(%last)",
       "is 'unless_last', but 'yield' needs result 0"},
      {"write @x(%j)", "write @x(%l)", "is 'unless_last', but 'write' needs result 0"},
  };
  for (const Broken& c : cases) {
    std::string text = verdict(with(kProgram, c.from, c.to));
    EXPECT_EQ(text.empty(), c.message[0] == 0) << c.to << "\n" << text;
    EXPECT_NE(text.find(c.message), std::string::npos) << c.to << "\n" << text;
  }
}

TEST(Ahead, OneIterationHasNoNext) {
  std::string text = kProgram;
  for (const char* from : {"count = 3", "count = 3"}) text = with(text, from, "count = 1");
  text = with(text, "layer 3", "layer 1");
  EXPECT_NE(verdict(with(text, "index = 2", "index = 0")).find("in a repeat of one iteration"),
            std::string::npos);
}

}  // namespace
}  // namespace planc
