// Schedules call by call: each rule's breach is told with the call, the variable and the line.
#include "ir/verify_schedule.h"

#include "compile.h"

namespace planc {
namespace {

// Three microbatches over one stage, by hand: what comes from outside is received into `x`, of which two
// microbatches are in flight.
constexpr const char* kProgram = R"(
  file "stage.plan"
  set microbatches = 3
  grid pipe 2
  var @x : f32[a 4] slot flights 2
  var @y : f32[a 4] slot flights 2
  var @saved : f32[a 4] slot flights 3
  var @w : f32[layer 2, a 4] weight stack [layer]
  var @grad.w : f32[layer 2, a 4] gradient of @w stack [layer]
  var @loss : f32[] metric
  var @count : f32[] metric
  func @begin {
    zero @loss loc(0:1:1)
    %c = const {value = 1.0} : f32[]
    write @count(%c)
  }
  func @receive {
    %x = receive {axes = [pipe], from = 1} : f32[a 4] loc(0:2:1)
    write @x(%x) loc(0:2:2)
  }
  func @forward {
    %x = read @x : f32[a 4] loc(0:3:1)
    write @saved(%x)
    write @y(%x) loc(0:3:2)
    %l = sum(%x) : f32[]
    accum @loss(%l) loc(0:3:3)
  }
  func @send {
    %y = read @y : f32[a 4] loc(0:4:1)
    send(%y) {axes = [pipe], to = 1} loc(0:4:2)
  }
  func @backward {
    %x = read @saved : f32[a 4] loc(0:5:1)
    %c = read @count : f32[]
    %y = repeat(%x) {count = 2, dim = layer} : f32[a 4] body(%z : f32[a 4]) {
      accum @grad.w(%z) {first = 1} loc(0:5:2)
      yield(%z)
    }
  }
  func @update {
    %g = read @grad.w : f32[layer 2, a 4] loc(0:6:1)
    write @w(%g)
    %l = read @loss : f32[] loc(0:6:2)
  }
)";
constexpr const char* kCalls = R"(
  call @begin
  start @receive(0)
  wait @receive(0)
  start @receive(1)
  call @forward(0)
  start @send(0)
  wait @receive(1)
  start @receive(2)
  call @forward(1)
  start @send(1)
  call @backward(0)
  wait @send(0)
  wait @receive(2)
  call @forward(2)
  start @send(2)
  call @backward(1)
  call @backward(2)
  wait @send(1)
  wait @send(2)
  call @update
)";

void replace(std::string& text, const std::string& from, const std::string& to) {
  size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
}

std::string verdict(const std::string& program, const std::string& calls) {
  auto module = test::parse("module stage sharded at pipe 0 {" + program + calls + "}");
  return module ? llvm::toString(verifySchedule(*module)) : "unreadable";
}

TEST(VerifySchedule, Fits) { EXPECT_EQ(verdict(kProgram, kCalls), ""); }

struct Case {
  std::string name, from, to;  // in the calls, or else in the program
  std::vector<const char*> says;
};

TEST(VerifySchedule, NamesWhatIsBroken) {
  const Case kCases[] = {
      // Functions.
      {"twice a step",
       "  call @begin\n",
       "  call @begin\n  call @begin\n",
       {"call 2, 'call @begin' runs once more what call 1, 'call @begin' has run"}},
      {"for both",
       "  call @backward(1)",
       "  call @backward",
       {"call 11, 'call @backward(0)' is one for the whole step, and others are for a microbatch"}},
      {"never",
       "  call @begin\n",
       "",
       {"'call @forward(0)' adds to '@loss', which nothing has set in this step:\n    accum @loss",
        "at stage.plan:3:3"}},
      {"no update",
       "  call @update\n",
       "",
       {"no call runs '@update':\n    %g = read @grad.w", "at stage.plan:6:1"}},
      // Starts and waits.
      {"started twice",
       "  start @send(0)\n",
       "  start @send(0)\n  start @send(0)\n",
       {"call 7, 'start @send(0)' comes before the wait for call 6, 'start @send(0)'"}},
      {"run while under way",
       "  start @send(0)\n",
       "  start @send(0)\n  call @send(0)\n",
       {"call 7, 'call @send(0)' comes before the wait for call 6"}},
      {"not started",
       "  start @send(0)\n",
       "",
       {"call 11, 'wait @send(0)' waits for what no call has started"}},
      {"not waited for", "  wait @send(2)\n", "", {"no call waits for call 15, 'start @send(2)'"}},
      {"starts to compute",
       "  call @backward(0)\n",
       "  start @backward(0)\n  wait @backward(0)\n",
       {"call 11, 'start @backward(0)' starts what does not only send or only receive"}},
      // Slots.
      {"never set",
       "  start @receive(0)\n  wait @receive(0)\n",
       "",
       {"call 3, 'call @forward(0)' reads '@x', which nothing has set for microbatch 0:\n    %x = "
        "read @x",
        "at stage.plan:3:1"}},
      {"another microbatch's",
       "@saved : f32[a 4] slot flights 3",
       "@saved : f32[a 4] slot",
       {"call 11, 'call @backward(0)' reads '@saved' for microbatch 0, which holds microbatch 1 (1 "
        "in flight)",
        "at stage.plan:5:1"}},
      {"read while it comes",
       "  wait @receive(1)\n  start @receive(2)\n  call @forward(1)\n",
       "  call @forward(1)\n  wait @receive(1)\n  start @receive(2)\n",
       {"call 7, 'call @forward(1)' reads '@x', which call 4, 'start @receive(1)' receives and "
        "nobody has waited for"}},
      {"received while it comes",
       "@x : f32[a 4] slot flights 2",
       "@x : f32[a 4] slot",
       {"call 5, 'call @forward(0)' reads '@x', which call 4, 'start @receive(1)' receives"}},
      {"written while it comes",
       "  wait @receive(0)\n  start @receive(1)\n  call @forward(0)\n  start @send(0)\n  wait "
       "@receive(1)\n",
       "  start @receive(1)\n  start @receive(2)\n  wait @receive(0)\n  call @forward(0)\n",
       {"call 4, 'start @receive(2)' writes '@x', which call 2, 'start @receive(0)' receives and "
        "nobody has waited for",
        "at stage.plan:2:2"}},
      {"written while it goes",
       "@y : f32[a 4] slot flights 2",
       "@y : f32[a 4] slot",
       {"call 9, 'call @forward(1)' writes '@y', which call 6, 'start @send(0)' sends and nobody "
        "has waited for",
        "write @y(%x)", "at stage.plan:3:2"}},
      {"added to while it goes",
       "    %c = read @count : f32[]\n",
       "    %c = read @count : f32[]\n    accum @y(%x) loc(0:5:3)\n",
       {"call 11, 'call @backward(0)' writes '@y', which call 6, 'start @send(0)' sends and nobody "
        "has waited for",
        "at stage.plan:5:3"}},
      {"for the whole step",
       "    zero @loss loc(0:1:1)\n",
       "    %z = const {value = 0.0} : f32[a 4]\n    write @x(%z)\n    zero @loss\n",
       {"call 1, 'call @begin' is for the whole step and touches '@x', which has 2 in flight"}},
      {"read by the whole step",
       "    %l = read @loss : f32[] loc(0:6:2)\n",
       "    %s = read @one : f32[a 4]\n",
       {"call 20, 'call @update' reads '@one' for the whole step, which holds microbatch 2:"}},
      // Sums.
      {"used too early",
       "  call @backward(2)\n  wait @send(1)\n  wait @send(2)\n  call @update\n",
       "  call @update\n  call @backward(2)\n  wait @send(1)\n  wait @send(2)\n",
       {"'call @update' reads '@grad.w', to which '@backward' has not added for microbatch 2:",
        "at stage.plan:6:1"}},
      {"twice",
       "  call @backward(1)\n",
       "  call @backward(1)\n  call @backward(1)\n",
       {"call 17, 'call @backward(1)' adds once more to '@grad.w' what call 16, 'call "
        "@backward(1)' has added:",
        "at stage.plan:5:2"}},
      {"not the first",
       "  call @backward(0)\n  wait @send(0)\n",
       "  wait @send(0)\n",
       {"'call @backward(1)' adds to '@grad.w', which nothing has set in this step:"}},
      {"nothing reads it",
       "    %l = read @loss : f32[] loc(0:6:2)\n",
       "    zero @loss loc(0:6:3)\n",
       {"call 20, 'call @update' overwrites '@loss', to which call 14, 'call @forward(2)' has "
        "added:\n    zero @loss",
        "at stage.plan:6:3"}},
      {"overwritten by the first",
       "    accum @loss(%l) loc(0:3:3)\n",
       "    accum @loss(%l)\n    accum @loss(%l) {first = 1} loc(0:3:3)\n",
       {"call 5, 'call @forward(0)' overwrites '@loss', to which call 5, 'call @forward(0)' has "
        "added:",
        "at stage.plan:3:3"}},
      {"in each iteration",
       "      accum @grad.w(%z)",
       "      %l = sum(%z) : f32[]\n      accum @loss(%l) {first = 1} loc(0:5:3)\n      accum "
       "@grad.w(%z)",
       {"in '@backward' each iteration of 'layer' overwrites '@loss':", "at stage.plan:5:3"}},
      {"never set in the step",
       "    write @count(%c)\n",
       "",
       {"call 11, 'call @backward(0)' reads '@count', which nothing has set in this step:"}},
  };
  for (const Case& c : kCases) {
    std::string program = kProgram, calls = kCalls;
    replace(calls.find(c.from) != std::string::npos ? calls : program, c.from, c.to);
    // A slot that the step as a whole reads.
    if (c.to.find("@one") != std::string::npos) {
      replace(program, "  func @begin", "  var @one : f32[a 4] slot\n  func @begin");
      replace(program, "    write @saved(%x)\n", "    write @saved(%x)\n    write @one(%x)\n");
    }
    std::string text = verdict(program, calls);
    for (const char* part : c.says)
      EXPECT_NE(text.find(part), std::string::npos) << c.name << ": lacks \"" << part << "\" in:\n"
                                                    << text;
  }
}

// With nobody to read it, a sum may still lack a part at the end.
TEST(VerifySchedule, EveryMicrobatchAdds) {
  std::string program = kProgram, calls = kCalls;
  replace(calls, "  call @backward(2)\n", "");
  replace(program, "    %g = read @grad.w : f32[layer 2, a 4] loc(0:6:1)\n    write @w(%g)\n", "");
  EXPECT_EQ(verdict(program, calls),
            "no call runs '@backward' for microbatch 2, where it adds to '@grad.w':\n"
            "    accum @grad.w(%z) {first = 1}\n    at stage.plan:5:2");
}

// What a function sets itself it may read, whatever was there.
TEST(VerifySchedule, OwnWritesServe) {
  std::string program = kProgram;
  replace(program, "    %x = read @saved",
          "    %o = const {value = 0.0} : f32[a 4]\n    write @own(%o)\n"
          "    %p = read @own : f32[a 4]\n    %x = read @saved");
  replace(program, "  func @begin", "  var @own : f32[a 4] slot\n  func @begin");
  replace(program, "    zero @loss loc(0:1:1)\n", "    zero @loss\n    %l = read @loss : f32[]\n");
  EXPECT_EQ(verdict(program, kCalls), "");
}

// What has been read may be written: a sum in place.
TEST(VerifySchedule, SumsMayBeReplaced) {
  std::string program = kProgram;
  replace(program, "    %l = read @loss : f32[] loc(0:6:2)\n",
          "    %l = read @loss : f32[]\n    write @loss(%l)\n");
  EXPECT_EQ(verdict(program, kCalls), "");
}

// A hostile file's numbers cost nothing.
TEST(VerifySchedule, LargeNumbers) {
  std::string program = kProgram;
  replace(program, "set microbatches = 3", "set microbatches = 1000000000000000");
  replace(program, "@saved : f32[a 4] slot flights 3",
          "@saved : f32[a 4] slot flights 1000000000000000");
  std::string text = verdict(program, kCalls);
  EXPECT_NE(text.find("reads '@grad.w', to which '@backward' has not added for microbatch 3"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace planc
