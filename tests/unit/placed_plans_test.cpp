// The order of axes for compiled plans: traffic that crosses nodes in closed form, programs, examples.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "compile.h"
#include "cost/placement.h"
#include "cost/wires.h"
#include "llvm/ADT/STLExtras.h"
#include "tools/compile.h"

namespace planc {
namespace {

std::string readText(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Placed {
  std::unique_ptr<Planx> planx = std::make_unique<Planx>();
  std::string said;  // errors and warnings
  bool isMade = false;
};

Placed compile(const std::string& text, const CompileOptions& options = {}) {
  Placed made;
  std::string path = ::testing::TempDir() + "placed-" + std::to_string(::getpid()) + ".plan";
  std::ofstream(path) << text;
  Diagnostics diags;
  auto files = readPlan(path, diags, options.cluster);
  std::string internal;
  PassOptions passes;
  passes.verify = false;  // other tests do
  if (!diags.failed())
    made.isMade =
        compilePlaced(files, options, passes, *made.planx, diags, internal) == PassResult::Ok;
  made.said = test::messages(diags) + internal;
  std::remove(path.c_str());
  return made;
}

// Without locations and what was written.
std::string programs(Planx& planx) {
  std::string text;
  llvm::raw_string_ostream out(text);
  PrintOptions options;
  options.locations = false;
  auto print = [&](Module& module) {
    module.settings.erase("written");
    printModule(module, out, options);
  };
  print(*planx.model);
  for (auto& role : planx.roles) print(*role);
  return out.str();
}

// The plan's text with its grid's axes in another order.
std::string withGrid(const std::string& text, const std::string& grid) {
  return std::regex_replace(text, std::regex("\n  grid [^\n]*"), "\n  grid " + grid);
}

// 4 layers of 64 wide, 4 heads and a hidden layer of 256 without any other weight, in f32; 2 nodes of 4 and a
// grid of 2 x 2 x 2. Layers are what is left of a difference of layer counts, boundaries of a difference of
// microbatches.
std::string crossing(int layers, int microbatches, const std::string& grid) {
  return R"(
device d { memory 1 GiB compute f32 1 TFLOP/s hbm 1 TB/s }
cluster two {
  node 4 of d { link 100 GB/s, latency 1 us }
  pod 2 of node { link 10 GB/s, latency 1 us }
}
model m(layers = 4) {
  dim batch = 2, seq = 32, vocab = 16, model = 64, head = 4, width = 16, ffn = 256
  input tokens[batch, seq] : token(vocab)
  input targets[batch, seq] : token(vocab)
  weight table [vocab, model]
  weight out [model, vocab]
  x[batch, seq, model] = table[tokens]
  repeat layer = layers {
    weight wq, wk, wv [model, head, width]
    weight wo [head, width, model]
    weight up [model, ffn]
    weight down [ffn, model]
    n[batch, seq, model] = rms_norm(x, over = model)
    q[batch, seq, head, width] = n @ wq
    k[batch, seq, head, width] = n @ wk
    v[batch, seq, head, width] = n @ wv
    a[batch, seq, head, width] = attend(q, k, v, causal)
    x = x + a @ wo
    h[batch, seq, ffn] = gelu(rms_norm(x, over = model) @ up)
    x = x + h @ down
  }
  logits[batch, seq, vocab] = x @ out
  loss cross_entropy(logits, targets)
}
plan p of m(layers = )" +
         std::to_string(layers) + R"() on two {
  grid )" +
         grid + R"(
  split batch over data
  split head, ffn over tensor
  split layer over pipe
  microbatches )" +
         std::to_string(microbatches) + "\n}\n";
}

TEST(Placement, BytesThatCrossNodesAreTheClosedForms) {
  // What crosses nodes when the axis does.
  auto crossed = [](int layers, int microbatches, const std::string& axis) {
    Placed made = compile(crossing(layers, microbatches, "tensor 2, data 2, pipe 2"));
    EXPECT_TRUE(made.isMade) << made.said;
    std::optional<Placement> placement = placementOf(*made.planx);
    // The lightest traffic crosses.
    EXPECT_EQ(placement->chosen.axes.front(), "pipe");
    EXPECT_EQ(placement->written.axes, (Words{"tensor", "data", "pipe"}));
    for (const Across& across : placement->across)
      if (across.axis == axis) return across.placing.bytes[1];
    return 0.0;
  };
  EXPECT_EQ(crossed(4, 8, "pipe") - crossed(4, 4, "pipe"), 262144);
  EXPECT_EQ(crossed(8, 4, "data") - crossed(4, 4, "data"), 1572864);
  EXPECT_EQ(crossed(8, 4, "tensor") - crossed(4, 4, "tensor"), 2097152);
}

TEST(Placement, ProgramsAreThoseOfTheGridWrittenSo) {
  std::string text = crossing(4, 4, "tensor 2, data 2, pipe 2");
  Placed placed = compile(text);
  ASSERT_TRUE(placed.isMade) << placed.said;
  Words order = placementOf(*placed.planx)->chosen.axes;
  EXPECT_EQ(placed.planx->model->settings.words("written"), (Words{"tensor", "data", "pipe"}));
  std::string grid;
  for (const std::string& axis : order) grid += (grid.empty() ? "" : ", ") + axis + " 2";
  Placed rewritten = compile(withGrid(text, grid));
  ASSERT_TRUE(rewritten.isMade);
  EXPECT_TRUE(rewritten.planx->model->settings.words("written").empty());
  EXPECT_EQ(programs(*placed.planx), programs(*rewritten.planx));
  // An order that is asked for is kept.
  CompileOptions options;
  options.order = {"tensor", "data", "pipe"};
  Placed kept = compile(text, options);
  EXPECT_EQ(kept.planx->grid().axes[0].name, "tensor");
}

// What a rank sends is the same in all orders of the grid: the order is chosen by it.
TEST(Placement, BytesOfTheProgramsDoNotDependOnTheOrder) {
  for (const char* file : {"five_axes.plan", "llama3_8b.plan", "mixtral.plan"}) {
    std::string text = readText(std::string(PLANC_SOURCE_DIR "/examples/") + file);
    Placed first = compile(text);
    ASSERT_TRUE(first.isMade) << first.said;
    Words order = writtenOrder(*first.planx->model);
    llvm::sort(order);
    std::optional<std::vector<std::map<std::string, int64_t>>> seen;
    do {
      CompileOptions options;
      options.order = order;
      Placed made = compile(text, options);
      ASSERT_TRUE(made.isMade) << made.said;
      std::vector<std::map<std::string, int64_t>> sums;
      for (const auto& role : made.planx->roles) {
        auto& sum = sums.emplace_back();
        Wires wires(role->cluster, role->grid);
        for (const Talk& talk : talksOf(*role, wires)) {
          Words axes = talk.axes;
          llvm::sort(axes);
          std::string key = info(talk.kind).text.str();
          for (const std::string& axis : axes) key += " " + axis;
          sum[key] += talk.bytes;
        }
      }
      if (!seen) seen = sums;
      EXPECT_EQ(*seen, sums) << file << " " << order[0] << " first";
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

// `split ... within node` says by what lies behind an axis what of it is in a node: that stays.
TEST(Placement, ScopesKeepWhatLiesBehindTheirAxis) {
  std::string text = R"(import "std/llama3.plan"
device d { memory 1 GiB compute f32 1 TFLOP/s hbm 1 TB/s }
cluster two {
  node 4 of d { link 100 GB/s, latency 1 us }
  pod 4 of node { link 10 GB/s, latency 1 us }
}
plan p of llama3(layers = 2, model = 32, ffn = 64, head = 8, kv = 8, width = 4, vocab = 32, seq = 32,
    batch = 4) on two {
  grid context 4, data 2, tensor 2
  split batch over data
  split head, kv over tensor
  split seq over context by ring within node, heads across
}
)";
  Placed made = compile(text);
  ASSERT_TRUE(made.isMade) << made.said;
  Words order = placementOf(*made.planx)->chosen.axes;
  EXPECT_EQ(order.front(), "context");
  // Without the scope it would not stay outside: its messages are the most.
  Placed free = compile(std::regex_replace(text, std::regex(" within node, heads across"), ""));
  ASSERT_TRUE(free.isMade) << free.said;
  EXPECT_NE(placementOf(*free.planx)->chosen.axes.front(), "context");
}

// ---- Examples

const char* const kClusters = R"(
device example_device { memory 80 GiB compute bf16 989 TFLOP/s, f32 67 TFLOP/s hbm 3.35 TB/s }
cluster example_pod {
  node 8 of example_device { link 450 GB/s, latency 1 us }
  pod 16 of node { link 50 GB/s, latency 5 us }
}
cluster example_reversed {
  node 8 of example_device { link 10 GB/s, latency 1 us }
  pod 16 of node { link 400 GB/s, latency 1 us }
}
)";

std::optional<Placement> placeExample(const std::string& text, const std::string& cluster,
                                      CompileOptions options, Grid& grid) {
  options.cluster = cluster;
  Placed made = compile(text + kClusters, options);
  if (!made.isMade) return std::nullopt;
  grid = made.planx->grid();
  return placementOf(*made.planx);
}

TEST(Placement, TensorLiesWithinANodeByItsBytesAlone) {
  std::vector<std::string> seen;
  for (const auto& entry : std::filesystem::directory_iterator(PLANC_SOURCE_DIR "/examples")) {
    if (entry.path().extension() != ".plan") continue;
    std::string text = readText(entry.path());
    std::smatch found;
    if (!std::regex_search(text, found, std::regex("\n  grid ([^\n/]*)"))) continue;
    std::string written = found[1];
    text = std::regex_replace(text, std::regex("\n  place [^\n]*"), "");
    // Tensor 8, of the other axes what fits on 128 devices with it.
    Words axes;
    CompileOptions options;
    int64_t left = 16;
    std::replace(written.begin(), written.end(), ',', ' ');
    std::istringstream words(written);
    std::string name;
    for (int64_t size = 1; words >> name >> size;) {
      axes.push_back(name);
      if (name == "tensor") continue;
      while (size > left) size /= 2;
      left /= size;
      options.grid.push_back({name, std::to_string(size)});
    }
    if (!llvm::is_contained(axes, "tensor")) continue;
    options.grid.push_back({"tensor", "8"});
    llvm::sort(axes);
    std::optional<Placing> first;
    do {
      std::string grid;
      for (const std::string& axis : axes) grid += (grid.empty() ? "" : ", ") + axis + " 1";
      std::string other = withGrid(text, grid);
      Grid made;
      std::optional<Placement> placement = placeExample(other, "example_pod", options, made);
      if (!placement) break;  // this model has no tensor 8, or no other axis
      EXPECT_TRUE(lieWithin(made, {"tensor"}, 8)) << entry.path() << " " << grid;
      // However the grid is written, the same time.
      if (first) {
        EXPECT_NEAR(placement->chosen.seconds, first->seconds, 1e-9 * first->seconds);
        continue;
      }
      first = placement->chosen;
      seen.push_back(entry.path().filename());
      Grid reversed;
      ASSERT_TRUE(placeExample(other, "example_reversed", options, reversed));
      EXPECT_FALSE(lieWithin(reversed, {"tensor"}, 8)) << entry.path();
    } while (std::next_permutation(axes.begin(), axes.end()));
  }
  for (const char* file : {"llama3_8b.plan", "llama3_405b.plan", "llama3_405b_128k.plan"})
    EXPECT_TRUE(llvm::is_contained(seen, file)) << file;
}

}  // namespace
}  // namespace planc
