// Clocks known by hand: programs whose products take whole seconds, on wires that take one for each
// million bytes.
#include "cost/step_time.h"

#include <random>

#include "compile.h"
#include "llvm/Support/FormatVariadic.h"

namespace planc {
namespace {

// Two devices a node, as many nodes as it takes; f32 alone has a rate.
Cluster wired(double nodeLink = 1e6, double podLink = 1e6) {
  Cluster cluster;
  cluster.name = "c";
  cluster.figures = {{"f32", 2e6}};
  cluster.levels = {{"node", 2, {{"link", nodeLink}}}, {"pod", 8, {{"link", podLink}}}};
  return cluster;
}

// A product that takes n seconds.
std::string product(int seconds) {
  static int number = 0;
  return llvm::formatv(
             "    %b{0} = const {{value = 1.0} : f32[k 1000, j {1}]\n    %p{0} = einsum(%a, %b{0}) "
             ": "
             "f32[i 1000, j {1}]\n",
             ++number, seconds)
      .str();
}
// A sum over ranks that takes n seconds.
std::string reduce(const std::string& name, const std::string& axis, int seconds, bool starts,
                   const std::string& more = "") {
  return llvm::formatv(
             "    %{0}c = const {{value = 1.0} : f32[n {1}]\n"
             "    %{0}v = one_copy(%{0}c) {{axes = [{2}]} : f32[n {1}] partial({2})\n"
             "    %{0} = all_reduce(%{0}v) {{axes = [{2}]{3}{4}} : f32[n {1}]\n",
             name, seconds * 250000, axis, starts ? ", start = 1" : "", more)
      .str();
}
std::string wait(const std::string& name, int seconds) {
  return llvm::formatv("    %{0}w = wait(%{0}, %{0}v) : f32[n {1}]\n", name, seconds * 250000)
      .str();
}

struct Timed {
  RoleTime role;
  std::vector<Talk> talks;
};

Timed timed(const std::string& body, const Cluster& cluster = wired(), int calls = 1) {
  std::string text =
      "module m sharded {\n  file \"t.plan\"\n  set microbatches = " + std::to_string(calls) +
      "\n  grid data 2, tensor 2\n";
  for (int i = 0; i < calls; ++i) text += "  call @forward(" + std::to_string(i) + ")\n";
  text +=
      "  func @forward {\n    %a = const {value = 1.0} : f32[i 1000, k 1000]\n" + body + "  }\n}\n";
  auto module = test::parse(text);
  Timed made;
  if (!module) return made;
  Wires wires(cluster, module->grid);
  made.talks = talksOf(*module, wires);
  made.role = timeOf(*module, wires, made.talks);
  return made;
}

double hidden(const Timed& timed, llvm::StringRef axis) {
  for (const Talk& talk : timed.talks)
    if (talk.axes == Words{axis.str()}) return talk.hidden;
  return -1;
}

TEST(StepTime, ComputeHidesAMessageWhollyPartlyOrNot) {
  struct Case {
    int message, compute;
    bool starts;
    double exposed;
  };
  for (const Case& c : {Case{2, 3, true, 0}, {3, 2, true, 1}, {3, 0, true, 3}, {3, 2, false, 3}}) {
    std::string body = reduce("x", "tensor", c.message, c.starts);
    if (c.compute > 0) body += product(c.compute);
    if (c.starts) body += wait("x", c.message);
    Timed made = timed(body, wired(), 2);
    EXPECT_DOUBLE_EQ(made.role.compute, 2 * c.compute);
    EXPECT_DOUBLE_EQ(made.role.exposed, 2 * c.exposed);
    EXPECT_DOUBLE_EQ(made.role.functions["forward"].exposed, c.exposed);
    ASSERT_EQ(made.talks.size(), 1u);
    EXPECT_DOUBLE_EQ(made.talks[0].seconds, 2 * c.message);
    EXPECT_DOUBLE_EQ(made.talks[0].hidden, 2 * (c.message - c.exposed));
  }
}

// Two axes across nodes share its cards; one within a node does not take them.
TEST(StepTime, MessagesShareTheWiresOfTheirLevel) {
  std::string body = reduce("x", "data", 3, true) + reduce("y", "tensor", 2, true) + product(3) +
                     wait("x", 3) + wait("y", 2);
  Timed apart = timed(body);
  EXPECT_DOUBLE_EQ(apart.role.exposed, 0);
  Cluster flat = wired();
  flat.levels = {{"pod", 8, {{"link", 1e6}}}};
  Timed together = timed(body, flat);
  EXPECT_DOUBLE_EQ(together.role.exposed, 2);
  EXPECT_DOUBLE_EQ(hidden(together, "data"), 3);
  EXPECT_DOUBLE_EQ(hidden(together, "tensor"), 0);
}

// What a layer needs is gathered in the one before; the first one's has nothing to hide behind, and the
// last layer gathers none.
TEST(StepTime, ACarriedGather) {
  auto body = [](int compute) {
    return "    %z = const {value = 1.0} : f32[n 750000]\n" + reduce("x", "tensor", 3, true) +
           wait("x", 3) +
           "    %r = repeat(%xw) {count = 5, dim = layer} : f32[n 750000] body(%g : f32[n 750000]) "
           "{\n" +
           reduce("h", "tensor", 3, true, ", unless_last = 1") + product(compute) +
           "    %hw = wait(%h, %hv) {unless_last = 1} : f32[n 750000]\n    yield(%hw)\n    }\n";
  };
  Timed near = timed(body(2)), hides = timed(body(4));
  EXPECT_DOUBLE_EQ(near.role.compute, 10);
  EXPECT_DOUBLE_EQ(near.role.exposed, 3 + 4 * 1);
  EXPECT_DOUBLE_EQ(near.talks[0].seconds, 5 * 3);
  EXPECT_DOUBLE_EQ(near.talks[0].hidden, 4 * 2);
  EXPECT_DOUBLE_EQ(hides.role.compute + hides.role.exposed, 3 + 5 * 4);
}

// A repeat takes as long as its body written out, whatever is under way around it.
TEST(StepTime, RandomRepeatsWrittenOut) {
  constexpr int kSeed = 11;
  std::mt19937 random(kSeed);
  auto below = [&](int n) { return int(random() % unsigned(n)); };
  const char* axes[] = {"data", "tensor"};
  for (int i = 0; i < 60; ++i) {
    int count = 1 + below(9), around = 1 + below(40), outside = below(2);
    struct Part {
      int axis, message, before, behind;
      bool starts, unlessLast;
    };
    std::vector<Part> parts;
    for (int p = below(3); p >= 0; --p)
      parts.push_back({below(2), 1 + below(5), below(4), below(4), below(4) > 0, below(3) == 0});
    auto iteration = [&](const std::string& name, bool isLast, bool isWritten) {
      std::string text;
      for (size_t p = 0; p < parts.size(); ++p) {
        std::string x = name + std::to_string(p);
        bool isLeftOut = isWritten && isLast && parts[p].unlessLast;
        std::string flag = parts[p].unlessLast && !isWritten ? ", unless_last = 1" : "";
        if (!isLeftOut)
          text += reduce(x, axes[parts[p].axis], parts[p].message, parts[p].starts, flag);
        if (parts[p].before > 0) text += product(parts[p].before);
        if (!isLeftOut && parts[p].starts) {
          std::string waits = wait(x, parts[p].message);
          if (!flag.empty()) waits.insert(waits.find(" :"), " {unless_last = 1}");
          text += waits;
        }
        if (parts[p].behind > 0) text += product(parts[p].behind);
      }
      return text;
    };
    std::string front = reduce("o", axes[outside], around, true), back = wait("o", around);
    std::string looped = front + "    repeat {count = " + std::to_string(count) +
                         ", dim = layer} body() {\n" + iteration("x", false, false) +
                         "    yield()\n    }\n" + back;
    std::string written = front;
    for (int n = 0; n < count; ++n)
      written += iteration("x" + std::to_string(n) + "_", n + 1 == count, true);
    written += back;
    Timed loop = timed(looped), out = timed(written);
    ASSERT_NEAR(loop.role.compute, out.role.compute, 1e-9) << "seed " << kSeed << ", case " << i;
    ASSERT_NEAR(loop.role.exposed, out.role.exposed, 1e-9) << looped;
    for (const char* axis : axes)
      ASSERT_NEAR(hidden(loop, axis), hidden(out, axis), 1e-9) << looped;
  }
}

TEST(StepTime, NoRatesNoTimes) {
  std::string body = reduce("x", "tensor", 3, true) + product(2) + wait("x", 3);
  for (const Cluster& cluster : {Cluster(), [] {
                                   Cluster bare = wired();
                                   bare.figures = {};
                                   for (ClusterLevel& level : bare.levels) level.figures = {};
                                   return bare;
                                 }()}) {
    Timed made = timed(body, cluster);
    EXPECT_EQ(made.role.compute, 0);
    EXPECT_EQ(made.role.exposed, 0);
    ASSERT_EQ(made.talks.size(), 1u);
    EXPECT_EQ(made.talks[0].hidden, 0);
  }
}

// Roofline: operations at the rate of the widest type multiplied, or bytes at the memory's.
TEST(StepTime, OpsAreBoundByRateOrMemory) {
  auto module = test::parse(R"(module m sharded {
  file "t.plan"
  call @forward(0)
  func @forward {
    %a = const {value = 1.0} : bf16[i 100, k 100]
    %b = const {value = 1.0} : bf16[k 100, j 100]
    %c = const {value = 1.0} : f32[k 100, j 100]
    %x = einsum(%a, %b) : bf16[i 100, j 100]
    %y = einsum(%a, %c) : f32[i 100, j 100]
    %z = exp(%y) : f32[i 100, j 100]
  }
})");
  ASSERT_TRUE(module);
  std::vector<const Op*> ops(module->functions[0]->body->ops.begin(),
                             module->functions[0]->body->ops.end());
  Cluster cluster;
  cluster.figures = {{"bf16", 2e6}, {"f32", 1e6}};
  EXPECT_DOUBLE_EQ(secondsOf(*ops[3], cluster), 1);
  EXPECT_DOUBLE_EQ(secondsOf(*ops[4], cluster), 2);
  EXPECT_DOUBLE_EQ(secondsOf(*ops[5], cluster), 0);
  cluster.figures.set("hbm", 20000.0);
  EXPECT_DOUBLE_EQ(secondsOf(*ops[3], cluster), 3);
  EXPECT_DOUBLE_EQ(secondsOf(*ops[4], cluster), 5);
  EXPECT_DOUBLE_EQ(secondsOf(*ops[5], cluster), 4);
}

// ---- Pipelines

struct Step {
  Modules stages;
  std::vector<const Module*> roles;
  std::vector<RoleTime> times;
  std::vector<std::vector<Talk>> talks;
  StepTime step;
};

Step stepOf(const std::string& text) {
  Step made;
  made.stages.push_back(test::compileText(text));
  if (!made.stages.front()) return made;
  test::runAll(made.stages);
  Wires wires(made.stages.front()->cluster, made.stages.front()->grid);
  for (const auto& stage : made.stages) {
    made.roles.push_back(stage.get());
    made.talks.push_back(talksOf(*stage, wires));
    made.times.push_back(timeOf(*stage, wires, made.talks.back()));
  }
  made.step = stepTime(made.roles, made.times);
  return made;
}

std::string onCluster(const std::string& link, const std::string& latency,
                      const std::string& statements) {
  return "import \"std/llama3.plan\"\n"
         "device d { memory 1 GiB compute f32 1 TFLOP/s, bf16 8 TFLOP/s hbm 100 GB/s }\n"
         "cluster c {\n  node 4 of d { link " +
         link + ", latency " + latency +
         " }\n  pod 4 of node { link 1 GB/s, latency 5 us }\n}\n"
         "plan p of llama3(layers = 6, model = 64, ffn = 160, head = 4, kv = 2, vocab = 512, seq = "
         "64, "
         "batch = 8) on c {\n" +
         statements + "\n}\n";
}

const char* const kPipelines[] = {
    "grid pipe 4 split layer over pipe by one_f_one_b stages 2 2 1 1 microbatches 6",
    "grid pipe 2, tensor 2 split head, kv, ffn, vocab over tensor split layer over pipe by "
    "interleaved(2) microbatches 4",
    "grid data 2, pipe 4 split batch over data split layer over pipe by zero_bubble "
    "stages 1 1 2 2 microbatches 8 shard optimizer over data",
};

// Stages' own times, put along the schedule by a second, plain replay with messages in between.
TEST(StepTime, UnequalChunksAlongTheirSchedule) {
  for (const char* statements : kPipelines)
    for (const char* link : {"100 GB/s", "200 MB/s"}) {
      SCOPED_TRACE(std::string(statements) + " " + link);
      Step made = stepOf(onCluster(link, "1 us", statements));
      ASSERT_GT(made.roles.size(), 1u);
      auto schedule = scheduleOf(made.roles);
      ASSERT_TRUE(schedule.has_value());
      std::map<std::string, double> took, sent;
      for (const RoleTime& time : made.times)
        for (const auto& [name, passed] : time.functions) {
          took[name] = passed.compute + passed.exposed;
          if (llvm::StringRef(name).startswith("send.")) sent[name] = passed.exposed;
        }
      // Until nothing moves any more: each task after the one before it and after what it needs.
      std::map<std::string, double> end;
      auto key = [](Work work, int chunk, int64_t microbatch) {
        return functionName(work, chunk) + ":" + std::to_string(microbatch);
      };
      Work back = schedule->splitsBackward() ? Work::InputGradient : Work::Backward;
      double length = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < schedule->stages; ++stage) {
          double free = 0;
          for (const Task& task : schedule->tasks[size_t(stage)]) {
            double begin = free;
            bool isForward = task.work == Work::Forward;
            int from = task.chunk + (isForward ? -1 : 1);
            if (task.work != Work::WeightGradient && from >= 0 && from < schedule->chunks()) {
              begin = std::max(
                  begin, end[key(isForward ? Work::Forward : back, from, task.microbatch)] +
                             sent[std::string("send.") + (isForward ? "forward." : "backward.") +
                                  std::to_string(from)]);
            }
            double& mine = end[key(task.work, task.chunk, task.microbatch)];
            double now = begin + took[functionName(task.work, task.chunk)];
            moved |= now > mine;
            free = mine = std::max(mine, now);
            length = std::max(length, free);
          }
        }
      }
      EXPECT_NEAR(made.step.timeline.length / length, 1, 1e-12);
      EXPECT_GT(made.step.bubble, 0);
      // Around it, what stages do once a step.
      double first = 0, rest = 0;
      for (size_t stage = 0; stage < made.roles.size(); ++stage) {
        auto once = [&](const char* name) {
          auto found = made.times[stage].functions.find(name);
          return found == made.times[stage].functions.end()
                     ? 0
                     : found->second.compute + found->second.exposed;
        };
        const Task& last = schedule->tasks[stage].back();
        // What comes first is done while a stage waits for its first task.
        first = std::max(first, once("begin") - made.step.timeline.starts[stage].front());
        rest = std::max(rest, end[key(last.work, last.chunk, last.microbatch)] + once("reduce") +
                                  once("update"));
      }
      EXPECT_GT(rest, length);
      EXPECT_NEAR(made.step.seconds / (first + rest), 1, 1e-12);
      double busy = 0;
      for (double stage : made.step.timeline.busy) busy += stage;
      double idle = length - busy / schedule->stages;
      EXPECT_NEAR(made.step.bubble, idle / made.step.seconds, 1e-12);
    }
}

// Without a pipeline a step is what its calls take.
TEST(StepTime, OneStage) {
  Step made =
      stepOf(onCluster("100 GB/s", "1 us", "grid data 4 split batch over data microbatches 3"));
  ASSERT_EQ(made.times.size(), 1u);
  const auto& functions = made.times[0].functions;
  double sum = 0;
  for (const auto& [name, passed] : functions)
    sum += (name == "forward" || name == "backward" ? 3 : 1) * (passed.compute + passed.exposed);
  EXPECT_NEAR(made.step.seconds / sum, 1, 1e-12);
  EXPECT_EQ(made.step.bubble, 0);
  EXPECT_TRUE(made.step.timeline.starts.empty());
}

// What stands still is what is not hidden, and no talk hides more than it has.
TEST(StepTime, ExposedTimeIsThatOfTheTalks) {
  for (const char* statements : kPipelines) {
    SCOPED_TRACE(statements);
    Step made = stepOf(onCluster("200 MB/s", "1 us", statements));
    for (size_t stage = 0; stage < made.roles.size(); ++stage) {
      double exposed = 0;
      for (const Talk& talk : made.talks[stage]) {
        exposed += talk.seconds - talk.hidden;
        EXPECT_GE(talk.hidden, 0);
        EXPECT_LE(talk.hidden, talk.seconds);
      }
      EXPECT_NEAR(exposed, made.times[stage].exposed, 1e-9 * (1 + exposed));
      EXPECT_GT(exposed, 0);
    }
  }
}

// Nothing that gets faster makes a step longer.
TEST(StepTime, FasterIsNoSlower) {
  for (const char* statements : kPipelines) {
    double last = 0;
    for (int mega : {25600, 12800, 6400, 3200, 1600, 800, 400, 200, 100, 50}) {
      Step made = stepOf(onCluster(std::to_string(mega) + " MB/s", "1 us", statements));
      EXPECT_GE(made.step.seconds, last) << statements << " at " << mega;
      last = made.step.seconds;
    }
  }
}

}  // namespace
}  // namespace planc
