// The fake GPU: what it does right in every order, what it tells, and that what a program forgets
// to wait for goes wrong on it.
#include "tests/gpu/fake_kernels.h"

#include "runtime/bf16.h"
#include "runtime/random.h"

namespace planc::cuda {
namespace {

using fake::Fault;
using fake::Mode;

class FakeGpu : public testing::Test {
 protected:
  void SetUp() override { before_ = fake::options(); }
  void TearDown() override {
    fake::options() = before_;
    fake::clearFaults();
  }

 private:
  fake::Options before_;
};

TEST_F(FakeGpu, AStreamIsInOrder) {
  inAllOrders([] {
    Gpu gpu;
    int32_t *x = gpu.memory(40), *y = gpu.memory(40);
    int32_t wanted = 0;
    for (int i = 1; i < 10; ++i) {
      gpu.step(gpu.a, x, 3, i, 40);
      wanted = 3 * wanted + i;
    }
    gpu->copy(gpu.a, y, x, 160);
    gpu->zero(gpu.a, x, 4);
    EXPECT_EQ(gpu.read(y, 40), std::vector<int32_t>(40, wanted));
    EXPECT_EQ(gpu.read(x, 2), (std::vector<int32_t>{0, wanted}));
  });
}

TEST_F(FakeGpu, EventsOrderStreams) {
  auto run = [](bool waits) {
    Gpu gpu;
    int32_t *x = gpu.memory(1), *y = gpu.memory(1);
    gpu.step(gpu.a, x, 0, 5);
    gpu->record(gpu.event, gpu.a);
    gpu.step(gpu.a, gpu.memory(1), 0, 5);
    if (waits) gpu->wait(gpu.b, gpu.event);
    gpu.move(gpu.b, y, x);
    EXPECT_EQ(gpu.finish(gpu.b), "");
    return gpu.read(y, 1)[0];
  };
  int wrong = 0;
  inAllOrders([&] {
    EXPECT_EQ(run(true), 5);
    wrong += run(false) != 5;
  });
  EXPECT_GE(wrong, 12);
}

TEST_F(FakeGpu, NothingRunsUntilSomebodyAsks) {
  for (Mode mode : fake::kModes) {
    fake::options().mode = mode;
    Gpu gpu;
    int32_t* x = gpu.memory(1);
    auto* pinned = reinterpret_cast<int32_t*>(*gpu->allocateHost(4));
    auto* got = reinterpret_cast<int32_t*>(*gpu->allocateHost(4));
    *pinned = 7;
    *got = 0;
    gpu->copy(gpu.a, x, pinned, 4);
    gpu->copy(gpu.a, got, x, 4);
    EXPECT_EQ(*got, mode == Mode::Eager ? 7 : 0);
    *pinned = 8;  // too early
    EXPECT_EQ(gpu.finish(gpu.a), "");
    EXPECT_EQ(*got, mode == Mode::Eager ? 7 : 8);
  }
}

TEST_F(FakeGpu, ArgumentsAreCopiedAtOnce) {
  Gpu gpu;
  StepArgs args{gpu.memory(1), 1, 0, 5};
  gpu->launch(gpu.a, kStep, {.threads = 32}, &args);
  args = {};
  EXPECT_EQ(gpu.finish(gpu.a), "");
}

TEST_F(FakeGpu, Events) {
  Gpu gpu;
  EXPECT_TRUE(gpu->isDone(gpu.event));
  gpu->wait(gpu.b, gpu.event);
  gpu->record(gpu.event, gpu.a);
  while (!gpu->isDone(gpu.event)) {
  }
  // A wait is for what was recorded when it was asked for.
  int32_t* x = gpu.memory(1);
  gpu->record(gpu.event, gpu.a);
  gpu->wait(gpu.b, gpu.event);
  gpu.step(gpu.a, x, 0, 5);
  gpu->record(gpu.event, gpu.a);
  EXPECT_EQ(gpu.finish(gpu.event), "");
  EXPECT_EQ(gpu.read(x, 1)[0], 5);
}

// --- memory ---

TEST_F(FakeGpu, Memory) {
  Gpu gpu;
  for (int64_t n : {1, 100, 70000}) {
    int32_t* x = gpu.memory(n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x) % 256, 0u);
    EXPECT_EQ(gpu.read(x, n), std::vector<int32_t>(size_t(n), 0));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*gpu->allocateHost(n)) % 64, 0u);
  }
  EXPECT_LT(gpu->freeBytes(), fake::options().bytes);
  auto much = gpu->allocate(fake::options().bytes);
  ASSERT_FALSE(bool(much));
  EXPECT_HAS(llvm::toString(much.takeError()), "out of memory: 1073741824 bytes");
  EXPECT_HAS(llvm::toString(gpu->error()), "fake GPU 0: out of memory");
}

TEST_F(FakeGpu, WritesBehindMemory) {
  for (int n : {11, 12, 60}) {
    Gpu gpu;
    int32_t* x = gpu.memory(10);
    gpu->at("sgd (line 3)");
    gpu.step(gpu.a, x, 0, 5, n);
    gpu->at("something else");
    EXPECT_HAS(gpu.finish(gpu.a),
               "sgd (line 3): kernel kStep: written behind an allocation of 40 bytes");
  }
  Gpu gpu;
  int32_t* x = gpu.memory(10);
  gpu.step(gpu.a, x - 1, 0, 5);
  EXPECT_HAS(gpu.finish(gpu.a), "written in front of the first allocation");
}

TEST_F(FakeGpu, TheHostMustNotTouchMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (!fake::options().isProtected) GTEST_SKIP();
  Gpu gpu;
  int32_t* x = gpu.memory(1);
  EXPECT_DEATH(*x = 1, "the host touched a GPU's memory");
  gpu.step(gpu.a, x, 0, 5);
  EXPECT_EQ(gpu.finish(gpu.a), "");
  EXPECT_DEATH(std::printf("%d", *x), "the host touched a GPU's memory");
}

TEST_F(FakeGpu, CopiesThatCudaCannotDo) {
  using Try = std::function<void(Gpu&, int32_t*)>;
  int32_t own = 0;
  const std::pair<Try, const char*> tries[] = {
      {[&](Gpu& gpu, int32_t* x) { gpu->copy(gpu.a, x, &own, 4); }, "not in one allocation"},
      {[&](Gpu& gpu, int32_t* x) { gpu->copy(gpu.a, &own, x, 4); }, "not in one allocation"},
      {[](Gpu& gpu, int32_t* x) { gpu->copy(gpu.a, x + 8, x, 12); }, "not in one allocation"},
      {[](Gpu& gpu, int32_t* x) { gpu->copy(gpu.a, x + 1, x, 8); }, "a copy onto itself"},
      {[](Gpu& gpu, int32_t* x) { gpu->copy(gpu.a, x + 1, x, 0); }, "a copy of 0 bytes"},
      {[](Gpu& gpu, int32_t* x) { gpu->zero(gpu.a, x + 9, 8); }, "clears 8 bytes"},
  };
  for (const auto& [attempt, text] : tries) {
    Gpu gpu;
    attempt(gpu, gpu.memory(10));
    EXPECT_HAS(llvm::toString(gpu->error()), text);
  }
}

// --- graphs ---

// x = 2 x + 1, and on another stream y = x; then x = x + y.
Graph makeGraph(Gpu& gpu, int32_t* x, int32_t* y, bool joins = true) {
  Event fork = gpu->makeEvent(), join = gpu->makeEvent();
  gpu->beginGraph(gpu.a);
  gpu.step(gpu.a, x, 2, 1);
  gpu->record(fork, gpu.a);
  gpu->wait(gpu.b, fork);
  gpu.move(gpu.b, y, x);
  gpu->record(join, gpu.b);
  if (joins) gpu->wait(gpu.a, join);
  gpu.step(gpu.a, x, 3, 0);
  auto graph = gpu->endGraph(gpu.a);
  if (graph) return *graph;
  llvm::consumeError(graph.takeError());
  return nullptr;
}

TEST_F(FakeGpu, Graphs) {
  inAllOrders([] {
    Gpu gpu;
    int32_t *x = gpu.memory(1), *y = gpu.memory(1);
    Graph graph = makeGraph(gpu, x, y);
    ASSERT_NE(graph, nullptr);
    EXPECT_EQ(gpu->nodes(graph), 3);
    EXPECT_EQ(gpu.read(x, 1)[0], 0);  // recorded, not done
    gpu->launch(gpu.a, graph);
    gpu.step(gpu.a, x, 1, 5);
    gpu->launch(gpu.a, graph);
    gpu->launch(gpu.a, graph);
    gpu.step(gpu.a, x, 1, 5);
    EXPECT_EQ(gpu.read(x, 1)[0], ((3 * 1 + 5) * 2 + 1) * 3 * 6 + 3 + 5);
    EXPECT_EQ(gpu.read(y, 1)[0], ((3 * 1 + 5) * 2 + 1) * 3 * 2 + 1);
    // The streams are free of the graph.
    gpu.step(gpu.b, y, 0, 9);
    EXPECT_EQ(gpu.finish(gpu.b), "");
    EXPECT_EQ(gpu.read(y, 1)[0], 9);
  });
}

TEST_F(FakeGpu, GraphsThatAreNone) {
  using Try = std::function<void(Gpu&, Event before)>;
  const std::pair<Try, const char*> tries[] = {
      {[](Gpu& gpu, Event) { makeGraph(gpu, gpu.memory(1), gpu.memory(1), false); },
       "a stream has not joined it again"},
      {[](Gpu& gpu, Event) {
         gpu->beginGraph(gpu.a);
         gpu->isDone(gpu.event);
       },
       "the host waits while a graph is made"},
      {[](Gpu& gpu, Event) {
         gpu->beginGraph(gpu.a);
         llvm::consumeError(gpu->allocate(4).takeError());
       },
       "memory can't be allocated while a graph is made"},
      {[](Gpu& gpu, Event before) {
         gpu->beginGraph(gpu.a);
         gpu->wait(gpu.a, before);
       },
       "a graph in the making waits for an event from outside of it"},
      {[](Gpu& gpu, Event) {
         gpu->beginGraph(gpu.a);
         gpu->beginGraph(gpu.b);
       },
       "a graph is begun in a graph"},
      {[](Gpu& gpu, Event) {
         gpu->beginGraph(gpu.a);
         llvm::consumeError(gpu->endGraph(gpu.b).takeError());
       },
       "no graph was begun on this stream"},
      {[](Gpu& gpu, Event) {
         gpu->beginGraph(gpu.a);
         gpu->record(gpu.event, gpu.a);
         llvm::cantFail(gpu->endGraph(gpu.a).takeError());
         gpu->wait(gpu.b, gpu.event);
       },
       "waits for an event that was recorded in a graph"},
      {[](Gpu& gpu, Event) {
         gpu->beginGraph(gpu.a);
         gpu->record(gpu.event, gpu.a);
         llvm::cantFail(gpu->endGraph(gpu.a).takeError());
         gpu->isDone(gpu.event);
       },
       "waits for an event that was recorded in a graph"},
  };
  for (const auto& [attempt, text] : tries) {
    Gpu gpu;
    Event before = gpu->makeEvent();
    gpu->record(before, gpu.b);
    attempt(gpu, before);
    EXPECT_HAS(llvm::toString(gpu->error()), text);
  }
}

// --- products ---

struct Product {
  Elem in, out;
  bool transA, transB;
  int64_t batch;
  double beta;
};

template <class T>
std::vector<T> valuesFor(int64_t n, Elem elem, uint64_t seed, std::vector<double>& plain) {
  std::vector<T> held(static_cast<size_t>(n));
  plain.clear();
  for (int64_t i = 0; i < n; ++i) {
    double x = uniformAt(seed, uint64_t(i));
    Bf16 half = toBf16(float(x));
    if (elem == Elem::BF16) std::memcpy(&held[size_t(i)], &half, sizeof half);
    else held[size_t(i)] = T(x);
    plain.push_back(elem == Elem::BF16 ? double(toFloat(half)) : double(held[size_t(i)]));
  }
  return held;
}

template <class In, class Out>
void checkProduct(const Product& p) {
  constexpr int64_t m = 5, n = 7, k = 9;
  MatmulShape shape{.transA = p.transA, .transB = p.transB, .m = m, .n = n, .k = k,
                    .batch = p.batch, .a = p.in, .b = p.in, .d = p.out};
  shape.lda = (p.transA ? k : m) + 1;
  shape.ldb = (p.transB ? n : k) + 2;
  shape.ldd = m + 3;
  shape.strideA = shape.lda * (p.transA ? m : k);
  shape.strideB = shape.ldb * (p.transB ? k : n);
  shape.strideD = shape.ldd * n;
  Gpu gpu;
  std::vector<double> a, b, d;
  std::vector<In> heldA = valuesFor<In>(p.batch * shape.strideA, p.in, 1, a);
  std::vector<In> heldB = valuesFor<In>(p.batch * shape.strideB, p.in, 2, b);
  std::vector<Out> heldD = valuesFor<Out>(p.batch * shape.strideD, p.out, 3, d);
  In *atA = gpu.memory<In>(int64_t(a.size())), *atB = gpu.memory<In>(int64_t(b.size()));
  Out* atD = gpu.memory<Out>(int64_t(d.size()));
  gpu.write(atA, heldA);
  gpu.write(atB, heldB);
  gpu.write(atD, heldD);
  auto plan = gpu->plan(shape, 1024, 16);
  ASSERT_TRUE(bool(plan)) << llvm::toString(plan.takeError());
  gpu->matmul(gpu.a, **plan, atA, atB, atD, p.beta, gpu.memory(256));
  std::vector<Out> got = gpu.read(atD, int64_t(d.size()));
  for (int64_t i = 0; i < p.batch; ++i)
    for (int64_t col = 0; col < shape.ldd * n; ++col) {
      int64_t row = col % shape.ldd, c = col / shape.ldd;
      int64_t at = i * shape.strideD + col;
      double wanted = d[size_t(at)];
      if (row < m) {
        wanted *= p.beta;
        for (int64_t j = 0; j < k; ++j)
          wanted += a[size_t(i * shape.strideA + (p.transA ? row * shape.lda + j
                                                           : j * shape.lda + row))] *
                    b[size_t(i * shape.strideB + (p.transB ? j * shape.ldb + c
                                                           : c * shape.ldb + j))];
      }
      double x = double(got[size_t(at)]);
      if (p.out == Elem::BF16) x = double(toFloat(Bf16{uint16_t(x)}));
      double bound = p.out == Elem::BF16 ? 2e-2 : p.out == Elem::F32 ? 2e-6 : 1e-14;
      ASSERT_NEAR(x, wanted, bound) << "row " << row << " column " << c;
    }
}

TEST_F(FakeGpu, Products) {
  for (bool transA : {false, true})
    for (bool transB : {false, true})
      for (int64_t batch : {1, 3})
        for (double beta : {0.0, 1.0}) {
          checkProduct<double, double>({Elem::F64, Elem::F64, transA, transB, batch, beta});
          checkProduct<float, float>({Elem::F32, Elem::F32, transA, transB, batch, beta});
          checkProduct<uint16_t, float>({Elem::BF16, Elem::F32, transA, transB, batch, beta});
          checkProduct<uint16_t, uint16_t>({Elem::BF16, Elem::BF16, transA, transB, batch, beta});
        }
}

TEST_F(FakeGpu, ProductsThatAreRefused) {
  MatmulShape good{.m = 4, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldd = 4};
  const std::pair<std::function<void(MatmulShape&)>, const char*> tries[] = {
      {[](MatmulShape& s) { s.a = Elem::BF16; }, "bf16 by f32 to f32"},
      {[](MatmulShape& s) { s.d = Elem::BF16; }, "f32 by f32 to bf16"},
      {[](MatmulShape& s) { s.a = s.b = s.d = Elem::I32; }, "i32 by i32 to i32"},
      {[](MatmulShape& s) { s.k = 0; }, "a size below 1"},
      {[](MatmulShape& s) { s.lda = 3; }, "columns of a overlap"},
      {[](MatmulShape& s) { s.ldb = 3; }, "columns of b overlap"},
      {[](MatmulShape& s) { s.ldd = 3; }, "columns of d overlap"},
      {[](MatmulShape& s) { s.batch = 2; s.strideD = 12; }, "the d of one product overlaps"},
  };
  Gpu gpu;
  llvm::cantFail(gpu->plan(good, 0, 4).takeError());
  for (const auto& [spoil, text] : tries) {
    MatmulShape shape = good;
    spoil(shape);
    auto plan = gpu->plan(shape, 0, 4);
    ASSERT_FALSE(bool(plan)) << text;
    EXPECT_HAS(llvm::toString(plan.takeError()), text);
  }
  auto plan = llvm::cantFail(gpu->plan(good, 0, 16));
  auto* x = gpu.memory<float>(40);
  gpu->matmul(gpu.a, *plan, x, x, x + 2, 0, nullptr);
  EXPECT_HAS(llvm::toString(gpu->error()), "d is not aligned as its plan says");
  Gpu other;
  x = other.memory<float>(40);
  plan = llvm::cantFail(other->plan(good, 0, 16));
  other->matmul(other.a, *plan, x + 28, x, x, 0, nullptr);
  EXPECT_HAS(llvm::toString(other->error()), "a product's a, 64 bytes, is not in one allocation");
}

// --- faults ---

TEST_F(FakeGpu, FaultsOnDemand) {
  fake::inject(Fault::Allocation, 0, 3);
  Gpu gpu;
  gpu.memory(1);
  gpu.memory(1);
  gpu->at("here");
  auto third = gpu->allocate(4);
  ASSERT_FALSE(bool(third));
  EXPECT_EQ(llvm::toString(third.takeError()), "out of memory: 4 bytes");
  EXPECT_EQ(llvm::toString(gpu->error()), "fake GPU 0: here: out of memory: 4 bytes");

  fake::inject(Fault::Launch, 1, 2);
  Gpu other(1);
  int32_t* x = other.memory(1);
  auto* got = reinterpret_cast<int32_t*>(*other->allocateHost(4));
  *got = 0;
  for (const char* what : {"first", "second", "third"}) {
    other->at(what);
    other.step(other.a, x, 1, 1);
  }
  other->copy(other.a, got, x, 4);
  EXPECT_EQ(other.finish(other.a), "fake GPU 1: second: the launch fails, as a test wants it");
  // The first error stays; behind it nothing runs.
  other->copy(other.a, x, &other, 4);
  EXPECT_EQ(other.finish(other.a), "fake GPU 1: second: the launch fails, as a test wants it");
  EXPECT_EQ(*got, 0);
}

TEST_F(FakeGpu, GpusThatAreNotThere) {
  fake::options().gpus = 2;
  EXPECT_EQ(*countGpus(), 2);
  auto opened = openGpu(2);
  ASSERT_FALSE(bool(opened));
  EXPECT_EQ(llvm::toString(opened.takeError()), "there is no GPU 2: this machine has 2");
}

}  // namespace
}  // namespace planc::cuda
