// The whole way down against the reference: a tiny model per builtin, compiled by all passes and run
// by the interpreter on the CPU device, equals the model-level program run by the reference, weight
// by weight: every gradient of the first step and every weight after three steps, in f64 and f32;
// and the same to the bit with one thread and with two.
#include "../unit/compile.h"
#include "../unit/models.h"
#include "runtime/interpreter.h"
#include "runtime/reference.h"
#include "runtime/session.h"

namespace planc {
namespace {

struct Outcome {
  std::map<std::string, std::vector<double>> vars;
};

double elementAt(const Variable& var, const std::byte* data, size_t i) {
  if (var.type.elem == Elem::F64) return reinterpret_cast<const double*>(data)[i];
  if (var.type.elem == Elem::F32) return reinterpret_cast<const float*>(data)[i];
  return reinterpret_cast<const int32_t*>(data)[i];
}

int32_t tokenAt(const Variable& var, size_t i, int64_t step) {
  if (!var.follows.empty() && i % 5 == 4) return -1;
  return int32_t((i * 7 + (var.follows.empty() ? 3 : 5) + i / 5 + size_t(step)) % size_t(var.vocab));
}

// Runs `steps` steps; collects gradients (of the last step), weights and moments.
Outcome onDevice(const Module& program, int threads, int64_t steps) {
  auto device = makeCpuDevice(threads);
  auto made = Interpreter::create(program, *device);
  EXPECT_TRUE(bool(made)) << llvm::toString(made.takeError());
  Interpreter& interpreter = **made;
  uint64_t seed = uint64_t(program.settings.integer("seed"));
  for (const auto& var : program.vars)
    if (var->kind == VarKind::Weight) initialiseWeight(*var, seed, interpreter.data(*var));
  for (int64_t step = 1; step <= steps; ++step) {
    for (const auto& var : program.vars) {
      auto* ints = reinterpret_cast<int32_t*>(interpreter.data(*var));
      if (var->kind == VarKind::Input)
        for (int64_t i = 0; i < var->type.elements(); ++i) ints[i] = tokenAt(*var, size_t(i), step);
      if (var->kind == VarKind::Step) ints[0] = int32_t(step);
    }
    for (const Call& call : program.schedule) llvm::cantFail(interpreter.run(call, seed, step));
  }
  Outcome run;
  for (const auto& var : program.vars) {
    bool wanted = var->kind == VarKind::Gradient || var->kind == VarKind::Weight ||
                  var->kind == VarKind::Moment || var->kind == VarKind::Metric;
    if (!wanted) continue;
    for (int64_t i = 0; i < var->type.elements(); ++i)
      run.vars[var->name].push_back(elementAt(*var, interpreter.data(*var), size_t(i)));
  }
  return run;
}

Outcome onReference(const Module& module, int64_t steps) {
  Reference reference(module);
  for (int64_t step = 1; step <= steps; ++step) {
    for (const auto& var : module.vars)
      if (var->kind == VarKind::Input) {
        Array& data = reference.var(var->name);
        for (size_t i = 0; i < data.size(); ++i) data[i] = tokenAt(*var, i, step);
      }
    reference.step(step);
  }
  Outcome run;
  for (const auto& var : module.vars) run.vars[var->name] = reference.var(var->name);
  return run;
}

void compare(const Outcome& got, const Outcome& want, double bound, const char* what) {
  for (const auto& [name, values] : got.vars) {
    const auto& other = want.vars.at(name);
    ASSERT_EQ(values.size(), other.size());
    // A gradient that is zero but for rounding has no scale of its own.
    double largest = 1e-3, worst = 0;
    for (double v : other) largest = std::max(largest, std::abs(v));
    for (size_t i = 0; i < values.size(); ++i)
      worst = std::max(worst, std::abs(values[i] - other[i]));
    EXPECT_LE(worst / largest, bound) << what << ": " << name;
  }
}

class Equivalence : public testing::TestWithParam<test::TinyModel> {};

TEST_P(Equivalence, DeviceEqualsReference) {
  for (const char* precision : {"f64", "f32"}) {
    auto module = test::compileModel(
        GetParam(), std::string("precision ") + precision +
                        "\nseed 7\nmicrobatches 2\noptimizer adamw { lr 1e-2, warmup 2, cosine 10, "
                        "clip 0.5, eps 1e-4 }");
    ASSERT_TRUE(module);
    test::runAll(*module, {"autodiff", "recompute", "precision", "optimizer"});
    auto program = cloneModule(*module);
    test::runAll(*program, {"fuse", "memory", "emit"});
    bool isDouble = std::string(precision) == "f64";
    for (int64_t steps : {1, 3}) {
      Outcome reference = onReference(*module, steps);
      Outcome one = onDevice(*program, 1, steps);
      compare(one, reference, isDouble ? 1e-10 : steps == 1 ? 1e-5 : 1e-3, precision);
      Outcome two = onDevice(*program, 2, steps);
      EXPECT_EQ(one.vars, two.vars) << "threads change the result";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Equivalence, testing::ValuesIn(test::kModels),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace planc
