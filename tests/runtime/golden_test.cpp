// Tiny GPT-2, Llama and MoE models against PyTorch (tests/golden/make_golden.py): loss, logits and
// the gradient of every weight, each relative to the tensor's largest entry. Twice: the oracle on
// the compiled module, and `planc compile` with `planrun eval`; plain, and with what must not
// change the meaning: microbatches, recomputation, fewer threads, other precisions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "passes/pass_manager.h"
#include "runtime/io/safetensors.h"
#include "runtime/reference.h"
#include "tests/unit/temporary.h"

namespace planc {
namespace {

const std::string kGolden = std::string(PLANC_SOURCE_DIR) + "/tests/golden/";

// Plain names, so that the tests' names say what they are about.
struct Case {
  const char* model;
  const char* variant;
  const char* body = "";  // of the plan
  int64_t microbatches = 1;
  const char* options = "";  // of planrun
  double tolerance = 1e-5;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << " " << c.variant;
}
std::string caseName(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.model) + "_" + info.param.variant;
}

const Case kCases[] = {
    {"gpt2", "plain"},
    {"llama", "plain"},
    {"moe", "plain"},
    {"gpt2", "one_thread", "", 1, "--threads 1"},
    {"gpt2", "microbatches", "microbatches 2", 2},
    {"llama", "microbatches", "microbatches 2", 2},
    {"gpt2", "recompute_layer", "recompute layer"},
    {"llama", "recompute_layer_microbatches", "recompute layer\n  microbatches 2", 2},
    {"moe", "recompute_layer", "recompute layer"},
    {"llama", "recompute_ops", "recompute attend, rms_norm, silu"},
    {"gpt2", "recompute_ops", "recompute attend, layer_norm, gelu_tanh"},
    {"gpt2", "f64", "precision f64", 1, "", 1e-6},
    {"llama", "f64", "precision f64", 1, "", 1e-6},
    {"moe", "f64", "precision f64", 1, "", 1e-6},
    {"gpt2", "bf16", "precision bf16", 1, "", 5e-2},
    {"llama", "bf16", "precision bf16", 1, "", 5e-2},
};

// The committed plan with another body, and with the batch cut into microbatches.
std::string planText(const Case& c) {
  std::string text = contents(kGolden + c.model + ".plan");
  if (c.microbatches > 1) text.replace(text.find("batch = 2"), 9, "batch = 1");
  text.insert(text.rfind('}'), std::string("  ") + c.body + "\n");
  return text;
}

Array readAll(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry& entry = file.tensors().at(name);
  bool isInt = entry.elem == TensorElem::I32;
  Type type{isInt ? Elem::I32 : Elem::F64, {}};
  for (int64_t size : entry.shape) {
    type.dims.push_back({"d" + std::to_string(type.dims.size()), size, ""});
  }
  Array values(size_t(type.elements()), 0.0);
  std::vector<int32_t> ids(isInt ? values.size() : 0);
  void* into = isInt ? static_cast<void*>(ids.data()) : values.data();
  if (llvm::Error error = file.read(name, type, into))
    ADD_FAILURE() << llvm::toString(std::move(error));
  if (isInt) values.assign(ids.begin(), ids.end());
  return values;
}

double largestOf(const Array& values) {
  double largest = 0;
  for (double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// `scale`: the largest gradient of any weight. A bias of all keys moves all scores of a query
// alike, so its gradient is zero and what PyTorch gives is rounding: that is measured by the scale.
void expectNear(const std::string& name, const Array& got, const Array& expected, double tolerance,
                double scale) {
  ASSERT_EQ(got.size(), expected.size()) << name;
  double largest = largestOf(expected), worst = 0;
  if (largest < 1e-12 * scale) largest = scale;
  for (size_t i = 0; i < got.size(); ++i) {
    double distance = std::abs(got[i] - expected[i]);
    worst = distance > worst || std::isnan(distance) ? distance : worst;
  }
  EXPECT_LT(worst, tolerance * largest) << name << " is off by " << worst << " of " << largest;
}

class Golden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto given = SafetensorsFile::open(kGolden + GetParam().model + ".in.safetensors");
    auto expected = SafetensorsFile::open(kGolden + GetParam().model + ".out.safetensors");
    ASSERT_OK(given);
    ASSERT_OK(expected);
    given_.emplace(std::move(*given));
    expected_.emplace(std::move(*expected));
    plan_ = folder_.write("x.plan", planText(GetParam()));
    for (const auto& [name, entry] : expected_->tensors()) {
      if (llvm::StringRef(name).take_front(5) != "grad.") continue;
      scale_ = std::max(scale_, largestOf(readAll(*expected_, name)));
    }
  }

  TemporaryFolder folder_;
  std::optional<SafetensorsFile> given_, expected_;
  std::string plan_;
  double scale_ = 0;
};

TEST_P(Golden, Oracle) {
  Diagnostics diags;
  auto files = readPlan(plan_, diags);
  std::unique_ptr<Module> module = diags.failed() ? nullptr : compilePlan(files, {}, diags);
  PassOptions options;
  options.passes = {"autodiff", "recompute", "precision", "optimizer", "fuse"};
  std::string internal;
  Modules modules;
  modules.push_back(std::move(module));
  if (modules.front()) runPasses(modules, options, diags, internal);
  module = std::move(modules.front());
  diags.print(llvm::errs());
  ASSERT_TRUE(module != nullptr && !diags.failed() && internal.empty()) << internal;

  Reference reference(*module);
  for (const auto& [name, entry] : given_->tensors()) {
    ASSERT_TRUE(reference.has(name)) << "the plan has no " << name;
    Array values = readAll(*given_, name);
    ASSERT_EQ(reference.var(name).size(), values.size()) << name;
    reference.var(name) = values;
  }
  reference.step(1);
  for (const auto& [name, entry] : expected_->tensors()) {
    if (name == "logits" && !reference.has(name)) continue;
    ASSERT_TRUE(reference.has(name)) << "the plan has no " << name;
    if (name == "logits" && GetParam().microbatches > 1) continue;  // the last one's only
    expectNear(name, reference.var(name), readAll(*expected_, name), 1e-6, scale_);
  }
}

TEST_P(Golden, Planrun) {
  const Case& c = GetParam();
  std::string in = folder_.file("in.safetensors"), out = folder_.file("out.safetensors");
  std::string planx = folder_.file("x.planx");
  // The inputs' leading dim is that of the microbatches when there are several.
  std::vector<std::vector<float>> weights;
  std::vector<std::vector<int32_t>> inputs;
  std::vector<TensorSource> tensors;
  for (const auto& [name, entry] : given_->tensors()) {
    TensorSource tensor{name, {entry.elem == TensorElem::I32 ? Elem::I32 : Elem::F32, {}}, nullptr};
    std::vector<int64_t> shape = entry.shape;
    if (tensor.type.elem == Elem::I32 && c.microbatches > 1) {
      shape = {c.microbatches, shape[0] / c.microbatches, shape[1]};
    }
    for (int64_t size : shape) tensor.type.dims.push_back({"d", size, ""});
    Array values = readAll(*given_, name);
    if (tensor.type.elem == Elem::I32) {
      tensor.data = inputs.emplace_back(values.begin(), values.end()).data();
    } else {
      tensor.data = weights.emplace_back(values.begin(), values.end()).data();
    }
    tensors.push_back(tensor);
  }
  ASSERT_DONE(writeSafetensors(in, tensors));

  std::string tools = std::string(PLANC_BINARY_DIR) + "/";
  ASSERT_EQ(std::system((tools + "planc compile " + plan_ + " -o " + planx).c_str()), 0);
  ASSERT_EQ(std::system((tools + "planrun eval " + planx + " --tensors " + in + " -o " + out + " " +
                         c.options)
                            .c_str()),
            0);
  auto got = SafetensorsFile::open(out);
  ASSERT_OK(got);
  for (const auto& [name, entry] : expected_->tensors()) {
    ASSERT_TRUE(got->tensors().count(name)) << name << " is missing";
    expectNear(name, readAll(*got, name), readAll(*expected_, name), c.tolerance, scale_);
  }
  for (const auto& [name, entry] : got->tensors()) {
    EXPECT_TRUE(name == "penalty" || expected_->tensors().count(name)) << name << " is too many";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden, testing::ValuesIn(kCases), caseName);

}  // namespace
}  // namespace planc
