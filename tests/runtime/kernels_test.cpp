// Every kernel of a device against the reference, on random operands: a row of the table is an op
// with its shapes; each runs in f32, bf16 and f64, in shuffled orders of dims, on three variants of
// the device (equal to the bit), in slices of variables, on a dying operand where that is
// allowed, and accumulating with and without `first`. Guards behind each tensor catch what is
// written outside.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "ir/sharding.h"
#include "llvm/ADT/StringExtras.h"
#include "runtime/random.h"
#include "tests/runtime/device_under_test.h"
#include "tests/runtime/kernel_cases.h"

namespace planc {
namespace {

using test::Case;
using test::cases;
using test::DeviceTensor;
using test::makeTestDevice;
using test::Option;
using test::rounded;

// "f[batch 4, slot 9~expert]": f is the case's element type, g always f32 (or f64 if that is f64).
Type parseType(llvm::StringRef text, Elem elem) {
  Type type;
  type.elem = text[0] == 'i' ? Elem::I32 : text[0] == 'f' || elem == Elem::F64 ? elem : Elem::F32;
  llvm::SmallVector<llvm::StringRef, 6> parts;
  text.slice(text.find('[') + 1, text.find(']')).split(parts, ',', -1, false);
  for (llvm::StringRef part : parts) {
    auto [name, size] = part.trim().split(' ');
    auto [count, over] = size.split('~');
    type.dims.push_back({name.str(), std::stoll(count.str()), over.str()});
  }
  return type;
}

// An op in a module of its own, its operands arguments.
struct Bench {
  Module module;
  Block* block = module.addFunction("f")->body.get();
  Op* op = nullptr;
};

uint64_t seedOf(const Case& test, unsigned order) { return randomKey(order, test.name); }

// Random order, but dims that group rows and rows stay in front.
void shuffle(Type& type, uint64_t seed) {
  size_t fixed = type.grouping().empty() ? 0 : 2;
  for (size_t i = type.dims.size(); i > fixed + 1; --i) {
    size_t j = fixed + size_t(philox(seed, i, type.dims.size()).word[0]) % (i - fixed);
    std::swap(type.dims[i - 1], type.dims[j]);
  }
}

void build(const Case& test, Elem elem, unsigned order, bool accumulates, Bench& bench) {
  auto typeOf = [&](const char* text, uint64_t salt) {
    Type type = parseType(text, elem);
    if (order > 0 && !(test.options & Option::KeepOrder)) shuffle(type, seedOf(test, order) + salt);
    return type;
  };
  llvm::SmallVector<Value*, 6> operands;
  for (const char* text : test.operands) {
    operands.push_back(bench.block->addArg(typeOf(text, operands.size()), "x"));
  }
  llvm::SmallVector<Type, 5> results;
  for (const char* text : test.results) results.push_back(typeOf(text, 100 + results.size()));
  Attrs attrs = test.attrs;
  Variable* var = nullptr;
  if (accumulates) {
    Variable variable;
    variable.name = "target";
    variable.type = results[0];
    variable.kind = VarKind::Gradient;
    var = bench.module.addVar(variable);
    attrs.set("first", int64_t{1});
    results.clear();
  }
  bench.op = Builder(bench.block).create(test.kind, operands, results, attrs, var);
}

Array randomValues(const Case& test, const Type& type, llvm::StringRef fill, uint64_t seed) {
  int64_t n = type.elements();
  auto draw = [&](int64_t i) { return uniformAt(seed, uint64_t(i)); };
  Array values;
  auto [what, numberText] = fill.split(' ');
  int64_t number = numberText.empty() ? 0 : std::stoll(numberText.str());
  if (what == "ids") {
    for (int64_t i = 0; i < n; ++i) {
      values.push_back(std::floor((draw(i) + 1) / 2 * double(number + 1)) - 1);
    }
  } else if (what == "below") {
    for (int64_t i = 0; i < n; ++i)
      values.push_back(std::floor((draw(i) + 1) / 2 * double(number)));
  } else if (what == "count") {
    values.assign(size_t(n), double(number));
  } else if (what == "offsets") {
    // The second group is empty, some rows at the end belong to none.
    for (int64_t i = 0; i < n; ++i) values.push_back(double(i <= 1 ? i : i - 1) / double(n));
    for (double& v : values) v = std::floor(v * double(number));
    if (n > 2) values[2] = values[1];
  } else if (what == "documents" || what == "mixed") {
    for (int64_t i = 0; i < n; ++i) {
      int64_t rest = i, s = 0, b = 0;
      for (const Dim& dim : llvm::reverse(type.dims)) {
        (dim.name == "s" ? s : b) = rest % dim.size;
        rest /= dim.size;
      }
      values.push_back(double(what == "mixed" ? (s * s + b) % number : (s + 11 * b) / number));
    }
  } else if (what == "all") {
    for (int64_t i = 0; i < n; ++i) values.push_back(i == 0 ? 0.0 : double(number));
  } else if (what == "rows") {
    // Every eleventh is dropped; the others are 0, 1, ... in a scrambled order.
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return draw(a) < draw(b); });
    values.assign(size_t(n), -1);
    double next = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i % 11 != 5) values[size_t(order[size_t(i)])] = next++;
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      double x = draw(i);
      values.push_back(test.options & Option::Positive ? 0.2 + std::abs(x) : 2 * x);
    }
  }
  return values;
}

// "all" offsets depend on the rows that "rows" hands out.
int64_t usedRows(const Array& rows) {
  return int64_t(std::count_if(rows.begin(), rows.end(), [](double r) { return r >= 0; }));
}

double toleranceOf(Elem elem, const Type& result) {
  if (elem == Elem::F64 && result.elem != Elem::F32) return 1e-11;
  return elem == Elem::BF16 ? 1.2e-2 : 2e-5;
}

std::vector<Type> typesOf(const Op& op) {
  if (op.var != nullptr) return {op.var->type};
  return resultTypes(op);
}

struct Outcome {
  std::vector<Array> values;
  std::vector<std::vector<std::byte>> bits;
};

void expectDone(llvm::Error error) {
  if (error) ADD_FAILURE() << llvm::toString(std::move(error));
}

// Runs the op once; `inPlace`: result 0 lies on operand 0; `slice`: all tensors are that slice of
// a variable. Checks all guards.
Outcome runOnce(const Case& test, Device& device, const Op& op, const std::vector<Array>& in,
                const Array& before, const RunContext& context, bool inPlace, int64_t slice = 0) {
  auto kernel = device.prepare(op);
  if (!kernel) {
    ADD_FAILURE() << test.name << ": " << llvm::toString(kernel.takeError());
    return {};
  }
  expectDone(device.finishPreparing());
  device.beginStep(context.step);
  std::vector<std::unique_ptr<DeviceTensor>> operands, results;
  std::vector<const void*> from;
  for (size_t i = 0; i < in.size(); ++i) {
    operands.push_back(
        std::make_unique<DeviceTensor>(device, op.operand(unsigned(i))->type, slice));
    operands.back()->set(in[i]);
    from.push_back(operands.back()->data());
  }
  std::vector<void*> to;
  for (const Type& type : typesOf(op)) {
    results.push_back(std::make_unique<DeviceTensor>(device, type, slice));
    if (op.var != nullptr) results.back()->set(before);
    if (inPlace && to.empty()) {
      results.back()->set(in[0]);
      from[0] = results.back()->data();
    }
    to.push_back(results.back()->data());
  }
  device.at(op, test.name);
  // Twice, as in a second step: kernels must leave nothing behind.
  if (!inPlace && op.var == nullptr) (*kernel)->run(context, from.data(), to.data());
  (*kernel)->run(context, from.data(), to.data());
  expectDone(device.finish());
  for (auto& tensor : operands) EXPECT_TRUE(tensor->isIntact()) << test.name << " operand";
  Outcome outcome;
  for (auto& tensor : results) {
    EXPECT_TRUE(tensor->isIntact()) << test.name << " result";
    outcome.values.push_back(tensor->get());
    outcome.bits.push_back(tensor->bits());
  }
  return outcome;
}

// The forward results that a gradient op reads must fit its other operands.
void makeConsistent(const Case& test, Bench& bench, std::vector<Array>& in) {
  const Op& op = *bench.op;
  auto forward = [&](OpKind kind, unsigned operands, llvm::ArrayRef<Type> results) {
    const Op* made =
        Builder(bench.block).create(kind, op.operands().take_front(operands), results, op.attrs);
    return referenceOp(*made, {in.begin(), in.begin() + operands}, {});
  };
  if (test.kind == OpKind::AttendGrad) {
    llvm::SmallVector<Value*, 5> operands = llvm::to_vector<5>(op.operands().take_front(3));
    std::vector<Array> values(in.begin(), in.begin() + 3);
    for (size_t i = 6; i < in.size(); ++i) {
      operands.push_back(op.operand(unsigned(i)));
      values.push_back(in[i]);
    }
    const Op* attend =
        Builder(bench.block)
            .create(OpKind::Attend, operands, {op.operand(3)->type, op.operand(4)->type}, op.attrs);
    auto made = referenceOp(*attend, values, {});
    in[3] = made[0], in[4] = made[1];
  }
  if (test.kind == OpKind::RouteGrad) {
    Type sums = op.operand(3)->type;
    in[1] = forward(OpKind::Route, 1, {op.operand(1)->type, op.operand(2)->type, sums, sums})[0];
  }
  if (test.kind == OpKind::Pack && in.size() > 1)
    for (double& fit : in[1]) fit = fit > -0.5 ? 1 : 0;
  auto clampAll = [&](size_t i, double low, double high) {
    for (double& x : in[i]) x = std::clamp(x, low, high);
  };
  if (test.kind == OpKind::CrossEntropyGrad) clampAll(3, 2, 4);
  if (test.kind == OpKind::AdamW || test.kind == OpKind::Sgd) {
    size_t rate = test.kind == OpKind::AdamW ? 4 : 3;
    in[rate][0] = 0.01;
  }
  if (int at = offsetsOperand(op); at > 0 && op.has(Packs))
    for (size_t i = 1; i < in[size_t(at)].size(); ++i)
      in[size_t(at)][i] = double(usedRows(in[size_t(at) - 1]));
}

void compare(const Case& test, Elem elem, llvm::ArrayRef<Type> types, const Outcome& outcome,
             llvm::ArrayRef<Array> wanted) {
  for (size_t r = 0; r < wanted.size(); ++r) {
    const Array& got = outcome.values[r];
    double most = 0;
    for (double x : wanted[r]) most = std::max(most, std::abs(x));
    double bound = types[r].elem == Elem::I32
                       ? 0
                       : toleranceOf(elem, types[r]) * test.tolerance * std::max(most, 0.5);
    ASSERT_EQ(got.size(), wanted[r].size());
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::abs(got[i] - wanted[r][i]) <= bound) continue;
      FAIL() << "result " << r << " element " << i << ": " << got[i] << ", not " << wanted[r][i];
    }
  }
}

void check(const Case& test, Elem elem, unsigned order, bool accumulates, int64_t microbatch) {
  Bench bench;
  build(test, elem, order, accumulates, bench);
  const Op& op = *bench.op;
  SCOPED_TRACE(testing::Message() << test.name << " " << name(elem).str() << " order " << order
                                  << (accumulates ? " accumulates" : ""));
  std::vector<Array> in;
  for (unsigned i = 0; i < op.operands().size(); ++i) {
    const Type& type = op.operand(i)->type;
    llvm::StringRef fill = i < test.fill.size() ? test.fill[i] : "";
    in.push_back(rounded(type, randomValues(test, type, fill, seedOf(test, order) + i)));
  }
  makeConsistent(test, bench, in);
  for (unsigned i = 0; i < in.size(); ++i) in[i] = rounded(op.operand(i)->type, in[i]);
  int64_t iteration[2] = {3, 1};
  RunContext context;
  context.seed = 7;
  context.step = 5;
  context.microbatch = microbatch;
  context.iteration = iteration;
  // The reference leaves adding to variables to its caller.
  std::vector<Array> wanted = test.kind == OpKind::Accum ? in : referenceOp(op, in, context);
  std::vector<Type> types = typesOf(op);
  Array before;
  if (accumulates) {
    before = rounded(types[0], randomValues(test, types[0], "", 99));
    for (size_t i = 0; microbatch > 0 && i < before.size(); ++i) wanted[0][i] += before[i];
  }

  auto one = makeTestDevice(1), two = makeTestDevice(2), three = makeTestDevice(3);
  Outcome base = runOnce(test, *one, op, in, before, context, false);
  if (base.values.empty()) return;
  compare(test, elem, types, base, wanted);
  for (Device* device : {two.get(), three.get()}) {
    Outcome other = runOnce(test, *device, op, in, before, context, false);
    EXPECT_TRUE(other.bits == base.bits) << "variants";
  }
  Outcome slices = runOnce(test, *two, op, in, before, context, false, 1);
  compare(test, elem, types, slices, wanted);
  bool fits = op.has(InPlace) && op.var == nullptr && op.operands().size() > 0 &&
              op.operand(0)->type == types[0];
  if (fits) {
    Outcome other = runOnce(test, *two, op, in, before, context, true);
    EXPECT_TRUE(other.bits[0] == base.bits[0]) << "in place";
  }
}

class Kernels : public testing::TestWithParam<Case> {};

TEST_P(Kernels, MatchReference) {
  for (Elem elem : {Elem::F32, Elem::BF16, Elem::F64}) {
    for (unsigned order = 0; order < 4; ++order) {
      if (order > 0 && (GetParam().options & Option::KeepOrder)) break;
      if (GetParam().kind != OpKind::Accum) check(GetParam(), elem, order, false, 0);
      if (!(GetParam().options & Option::Accumulates)) continue;
      if (GetParam().kind == OpKind::Accum && order > 0) break;
      check(GetParam(), elem, order, true, 0);
      check(GetParam(), elem, order, true, 1);
    }
  }
}

// A body of its own for `fused`: what the helpers below put into it.
struct FusedBench : Bench {
  std::vector<Type> operands;
  Op* make(std::vector<Type> types, std::vector<Type> results,
           const std::function<llvm::SmallVector<Value*>(Builder&, llvm::ArrayRef<Value*>)>& fill,
           Variable* var = nullptr) {
    operands = std::move(types);
    llvm::SmallVector<Value*, 6> values;
    for (const Type& type : operands) values.push_back(block->addArg(type, "x"));
    op = Builder(block).create(OpKind::Fused, values, results, {{"first", int64_t{1}}}, var);
    op->body = std::make_unique<Block>(module, op);
    llvm::SmallVector<Value*, 6> args;
    for (const Type& type : operands) args.push_back(op->body->addArg(type, "x"));
    Builder body(op->body.get());
    body.create(OpKind::Yield, fill(body, args), {});
    return op;
  }
};

// Runs a fused op on two variants against the body's value by the reference.
void checkFused(FusedBench& bench, Elem elem, const std::vector<Array>& wantedOfVar = {}) {
  std::vector<Array> in;
  Case test{"fused", OpKind::Fused, {}, {}};
  for (const Type& type : bench.operands) {
    in.push_back(rounded(type, randomValues(test, type, "", 31 + in.size())));
  }
  std::vector<Array> wanted = wantedOfVar.empty() ? referenceOp(*bench.op, in, {}) : wantedOfVar;
  auto one = makeTestDevice(1), three = makeTestDevice(3);
  Array before(size_t(typesOf(*bench.op)[0].elements()), 0.5);
  Outcome a = runOnce(test, *one, *bench.op, in, before, {}, false);
  Outcome b = runOnce(test, *three, *bench.op, in, before, {}, false);
  ASSERT_EQ(a.values.size(), wanted.size());
  EXPECT_TRUE(a.bits == b.bits) << "variants";
  for (size_t r = 0; r < wanted.size(); ++r) {
    const Array& got = a.values[r];
    double most = 0.5;
    for (double x : wanted[r]) most = std::max(most, std::abs(x));
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], wanted[r][i], 2 * toleranceOf(elem, typesOf(*bench.op)[r]) * most)
          << "result " << r << " element " << i;
    }
  }
}

class Fused : public testing::TestWithParam<Elem> {};

TEST_P(Fused, Chain) {
  Elem elem = GetParam();
  Type x = parseType("f[b 4, s 30, m 72]", elem), bias = parseType("f[m 72]", elem);
  Type scale = parseType("g[b 4, s 30]", elem), scalar = parseType("g[]", elem);
  FusedBench bench;
  bench.make({x, bias, scale, scalar}, {x, x}, [](Builder& body, llvm::ArrayRef<Value*> in) {
    Value* half = body.constant(0.5, {in[3]->type.elem, {}});
    Value* biased = body.elementwise(OpKind::Add, {in[0], in[1]});
    Value* active = body.elementwise(OpKind::Gelu, {biased});
    Value* scaled = body.elementwise(OpKind::Mul, {active, in[2]});
    Value* moved = body.elementwise(OpKind::Sub, {scaled, in[3]});
    return llvm::SmallVector<Value*>{body.elementwise(OpKind::Mul, {moved, half}), biased};
  });
  checkFused(bench, elem);
}

TEST_P(Fused, EndsInSum) {
  Elem elem = GetParam();
  Type x = parseType("f[b 40, s 30, m 72]", elem), y = parseType("g[m 72]", elem);
  for (const char* kept : {"g[m 72]", "g[b 40, s 30]", "g[]", "g[s 30, m 72]"}) {
    FusedBench bench;
    Type sum = parseType(kept, elem);
    bench.make({x, x, y}, {x, sum}, [&](Builder& body, llvm::ArrayRef<Value*> in) {
      Value* product = body.elementwise(OpKind::Mul, {in[0], in[1]});
      Value* scaled = body.elementwise(OpKind::Mul, {product, in[2]});
      return llvm::SmallVector<Value*>{scaled, body.value(OpKind::Sum, {product}, sum)};
    });
    checkFused(bench, elem);
  }
}

TEST_P(Fused, SumsIntoVariable) {
  Elem elem = GetParam();
  for (bool yields : {false, true}) {
    FusedBench bench;
    Type x = parseType("f[b 40, s 30, m 72]", elem);
    Variable variable;
    variable.name = "grad";
    variable.type = parseType("g[m 72]", elem);
    bench.make(
        {x, x}, {},
        [&](Builder& body, llvm::ArrayRef<Value*> in) {
          Value* product = body.elementwise(OpKind::Mul, {in[0], in[1]});
          Value* sum = body.value(OpKind::Sum, {product}, variable.type);
          return yields ? llvm::SmallVector<Value*>{sum} : llvm::SmallVector<Value*>{};
        },
        bench.module.addVar(variable));
    FusedBench plain;
    plain.make({x, x}, {variable.type}, [&](Builder& body, llvm::ArrayRef<Value*> in) {
      Value* product = body.elementwise(OpKind::Mul, {in[0], in[1]});
      return llvm::SmallVector<Value*>{body.value(OpKind::Sum, {product}, variable.type)};
    });
    std::vector<Array> in;
    for (uint64_t salt : {31, 32}) {
      in.push_back(rounded(x, randomValues({"fused", OpKind::Fused, {}, {}}, x, "", salt)));
    }
    checkFused(bench, elem, referenceOp(*plain.op, in, {}));
  }
}

// More values at a time than registers hold.
TEST_P(Fused, ManyInputs) {
  Elem elem = GetParam();
  Type x = parseType("f[b 9, s 10, m 72]", elem);
  for (unsigned inputs : {5, 10, 18}) {
    for (const char* kept : {"g[m 72]", "g[b 9, s 10]"}) {
      FusedBench bench;
      Type sum = parseType(kept, elem);
      std::vector<Type> types(inputs, x);
      types[1] = parseType("f[s 10]", elem);
      bench.make(types, {x, sum}, [&](Builder& body, llvm::ArrayRef<Value*> in) {
        Value* total = body.elementwise(OpKind::Mul, {in[0], in[1]});
        for (Value* value : in.drop_front(2)) total = body.elementwise(OpKind::Add, {value, total});
        Value* last = total;
        for (Value* value : in) last = body.elementwise(OpKind::Max, {last, value});
        return llvm::SmallVector<Value*>{last, body.value(OpKind::Sum, {total}, sum)};
      });
      checkFused(bench, elem);
    }
  }
}

// A result with fewer dims than the op's others, and a chain over few elements.
TEST_P(Fused, SmallerResult) {
  Elem elem = GetParam();
  Type x = parseType("f[b 40, s 3, m 5]", elem), row = parseType("g[s 3]", elem);
  FusedBench bench;
  bench.make({row, x}, {row, x}, [](Builder& body, llvm::ArrayRef<Value*> in) {
    Value* squared = body.elementwise(OpKind::Square, {in[0]});
    Value* product = body.elementwise(OpKind::Mul, {in[1], squared});
    return llvm::SmallVector<Value*>{squared, product};
  });
  checkFused(bench, elem);
}

INSTANTIATE_TEST_SUITE_P(Elems, Fused, testing::Values(Elem::F32, Elem::BF16, Elem::F64),
                         [](const auto& info) { return name(info.param).str(); });

INSTANTIATE_TEST_SUITE_P(Ops, Kernels, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace planc
