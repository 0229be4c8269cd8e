// Speed of single kernels at the shapes of two small GPTs: "cpu" (width 128, 64 positions, batch
// 12) and "char" (width 384, 256 positions, batch 8); with --device=cuda at those of a layer of Llama 3
// 8B, in bf16. Products report GFLOP/s, sweeps GB/s.
//
//   kernels_bench --benchmark_filter='attend.*' [--threads=N] [--device=cuda]
#include <benchmark/benchmark.h>

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/raw_ostream.h"
#include "runtime/host_bytes.h"

namespace planc {
namespace {

int threads = 0;
bool isGpu = false;

// "f[batch 8, seq 256]" (f32), "h[...]" (bf16), "i[...]" (i32, below 65).
Type parseType(llvm::StringRef text) {
  Type type;
  type.elem = text[0] == 'i' ? Elem::I32 : text[0] == 'h' ? Elem::BF16 : Elem::F32;
  llvm::SmallVector<llvm::StringRef, 6> parts;
  text.slice(text.find('[') + 1, text.find(']')).split(parts, ',', -1, false);
  for (llvm::StringRef part : parts) {
    auto [name, size] = part.trim().split(' ');
    type.dims.push_back({name.str(), std::stoll(size.str()), ""});
  }
  return type;
}

struct Row {
  const char* name;
  OpKind kind;
  std::vector<const char*> operands, results;
  Attrs attrs = {};
  double flops = 0;  // per run; 0: bytes are counted
  // A fused body, as a chain: each kind takes the value before it and, if binary, the next operand.
  std::vector<OpKind> chain = {};
};

std::vector<Row> rows() {
  using K = OpKind;
  double projection = 2.0 * 2048 * 384 * 384, wide = 4 * projection;
  double scores = 2.0 * 8 * 6 * 256 * 256 * 64;
  Attrs attend = {{"seq", "s"}, {"by", "w"}, {"head", "h"}, {"kv", "h"}, {"causal", int64_t{1}}};
  Attrs center = {{"over", "m"}, {"center", int64_t{1}}};
  const char *x = "f[b 8, s 256, m 384]", *heads = "f[b 8, s 256, h 6, w 64]";
  const char *up = "f[b 8, s 256, f 1536]", *lse = "f[b 8, s 256, h 6]";
  const char *small = "f[b 12, s 64, h 4, w 32]", *smallLse = "f[b 12, s 64, h 4]";
  return {
      {"gemm/project", K::Einsum, {x, "f[m 384, h 6, w 64]"}, {heads}, {}, projection},
      {"gemm/unproject", K::Einsum, {heads, "f[h 6, w 64, m 384]"}, {x}, {}, projection},
      {"gemm/up", K::Einsum, {x, "f[m 384, f 1536]"}, {up}, {}, wide},
      {"gemm/down", K::Einsum, {up, "f[f 1536, m 384]"}, {x}, {}, wide},
      {"gemm/up_grad", K::Einsum, {up, "f[m 384, f 1536]"}, {x}, {}, wide},
      {"gemm/down_grad", K::Einsum, {x, "f[f 1536, m 384]"}, {up}, {}, wide},
      {"gemm/up_weight", K::Einsum, {x, up}, {"f[m 384, f 1536]"}, {}, wide},
      {"gemm/down_weight", K::Einsum, {up, x}, {"f[f 1536, m 384]"}, {}, wide},
      {"gemm/project_weight", K::Einsum, {x, heads}, {"f[m 384, h 6, w 64]"}, {}, projection},
      {"gemm/head", K::Einsum, {x, "f[v 65, m 384]"}, {"f[b 8, s 256, v 65]"}, {}, 2.0 * 2048 * 384
       * 65},
      {"gemm/head_weight", K::Einsum, {x, "f[b 8, s 256, v 65]"}, {"f[v 65, m 384]"}, {}, 2.0 * 2048
       * 384 * 65},
      {"gemm/small", K::Einsum, {"f[b 12, s 64, m 128]", "f[m 128, f 128]"},
       {"f[b 12, s 64, f 128]"}, {}, 2.0 * 768 * 128 * 128},
      {"gemm/small_weight", K::Einsum, {"f[b 12, s 64, m 128]", "f[b 12, s 64, f 512]"},
       {"f[m 128, f 512]"}, {}, 2.0 * 768 * 128 * 512},
      {"gemm/bf16", K::Einsum, {"h[b 8, s 256, m 384]", "h[m 384, f 1536]"},
       {"h[b 8, s 256, f 1536]"}, {}, wide},
      // Half of the scores are in the future; flops count what is needed.
      {"attend/char", K::Attend, {heads, heads, heads}, {heads, lse}, attend, scores},
      {"attend_grad/char", K::AttendGrad, {heads, heads, heads, heads, lse, heads}, {heads, heads,
       heads}, attend, 2.5 * scores},
      {"attend/cpu", K::Attend, {small, small, small}, {small, smallLse}, attend, 2.0 * 12 * 4 * 64
       * 64 * 32},
      {"attend_grad/cpu", K::AttendGrad, {small, small, small, small, smallLse, small}, {small,
       small, small}, attend, 5.0 * 12 * 4 * 64 * 64 * 32},
      {"gelu/forward", K::Gelu, {up}, {up}},
      {"gelu/grad", K::GeluGrad, {up, up}, {up}},
      {"fused/residual", K::Fused, {x, x, "f[m 384]"}, {x}, {}, 0, {K::Add, K::Mul}},
      {"fused/gelu", K::Fused, {up, "f[f 1536]"}, {up}, {}, 0, {K::Add, K::Gelu}},
      {"norm/forward", K::Norm, {x}, {x, "f[b 8, s 256]"}, center},
      {"norm/grad", K::NormGrad, {x, x, "f[b 8, s 256]"}, {x}, center},
      {"sum/scale_grad", K::Einsum, {x, x}, {"f[m 384]"}},
      {"softmax/rows", K::Softmax, {x}, {x}, {{"over", "m"}}},
      {"cross_entropy/forward", K::CrossEntropy, {"f[b 8, s 256, v 65]", "i[b 8, s 256]", "i[]"},
       {"f[]", "f[b 8, s 256]"}, {{"over", "v"}}},
      {"cross_entropy/wide", K::CrossEntropy, {"f[b 4, s 256, v 8192]", "i[b 4, s 256]", "i[]"},
       {"f[]", "f[b 4, s 256]"}, {{"over", "v"}}},
      {"table/lookup", K::Lookup, {"f[v 65, m 384]", "i[b 8, s 256]"}, {x}, {{"over", "v"}}},
      {"table/grad", K::LookupGrad, {"i[b 8, s 256]", x}, {"f[v 65, m 384]"}, {{"over", "v"}}},
      {"dropout/forward", K::Dropout, {x}, {x}, {{"rate", 0.1}, {"site", "site"}}},
      {"rope/half", K::Rope, {heads}, {heads}, {{"seq", "s"}, {"by", "w"}, {"style", "half"},
       {"theta", 10000.0}}},
      {"step/sum_squares", K::SumSquares, {"f[a 384, c 1536]"}, {"f[]"}},
      {"step/adamw", K::AdamW, {"f[a 384, c 1536]", "f[a 384, c 1536]", "f[a 384, c 1536]",
       "f[a 384, c 1536]", "f[]", "f[]", "i[]"}, {"f[a 384, c 1536]", "f[a 384, c 1536]",
       "f[a 384, c 1536]"}, {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"decay", 0.1}}},
      {"overhead/smallest", K::Mul, {"f[a 40000]", "f[a 40000]"}, {"f[a 40000]"}},
  };
}

// A sequence of 4096 tokens.
std::vector<Row> gpuRows() {
  using K = OpKind;
  constexpr double kTokens = 4096, kWidth = 4096, kFfn = 14336, kVocab = 128256;
  double scores = 2.0 * 32 * kTokens * kTokens * 128;  // of the two halves that causal leaves, one
  Attrs attend = {{"seq", "s"}, {"by", "w"}, {"head", "h"}, {"kv", "g"}, {"causal", int64_t{1}}};
  const char *x = "h[s 4096, m 4096]", *up = "h[s 4096, f 14336]", *row = "f[s 4096]";
  const char *heads = "h[s 4096, h 32, w 128]", *keys = "h[s 4096, g 8, w 128]";
  const char *table = "h[v 128256, m 4096]", *logits = "h[s 4096, v 128256]";
  const char *weight = "f[a 4096, c 14336]", *lse = "f[s 4096, h 32]";
  return {
      {"gemm/project", K::Einsum, {x, "h[m 4096, h 32, w 128]"}, {heads}, {}, 2 * kTokens * kWidth
       * kWidth},
      {"gemm/up", K::Einsum, {x, "h[m 4096, f 14336]"}, {up}, {}, 2 * kTokens * kWidth * kFfn},
      {"gemm/down", K::Einsum, {up, "h[f 14336, m 4096]"}, {x}, {}, 2 * kTokens * kWidth * kFfn},
      {"gemm/up_grad", K::Einsum, {up, "h[m 4096, f 14336]"}, {x}, {}, 2 * kTokens * kWidth * kFfn},
      {"gemm/up_weight", K::Einsum, {x, up}, {"h[m 4096, f 14336]"}, {}, 2 * kTokens * kWidth
       * kFfn},
      {"gemm/head", K::Einsum, {x, table}, {logits}, {}, 2 * kTokens * kWidth * kVocab},
      {"attend/causal", K::Attend, {heads, keys, keys}, {heads, lse}, attend, scores},
      {"attend_grad/causal", K::AttendGrad, {heads, keys, keys, heads, lse, heads}, {heads, keys,
       keys}, attend, 2.5 * scores},
      {"silu/forward", K::Silu, {up}, {up}},
      {"fused/gate", K::Fused, {up, up}, {up}, {}, 0, {K::Silu, K::Mul}},
      {"norm/forward", K::Norm, {x}, {x, row}, {{"over", "m"}}},
      {"norm/grad", K::NormGrad, {x, x, row}, {x}, {{"over", "m"}}},
      {"rope/half", K::Rope, {heads}, {heads}, {{"seq", "s"}, {"by", "w"}, {"style", "half"},
       {"theta", 500000.0}}},
      {"cross_entropy/forward", K::CrossEntropy, {logits, "i[s 4096]", "i[]"}, {"f[]", row},
       {{"over", "v"}}},
      {"table/lookup", K::Lookup, {table, "i[s 4096]"}, {x}, {{"over", "v"}}},
      {"step/sum_squares", K::SumSquares, {weight}, {"f[]"}},
      {"step/adamw", K::AdamW, {weight, weight, weight, weight, "f[]", "f[]", "i[]"}, {weight,
       weight, weight}, {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"decay", 0.1}}},
  };
}

Op* build(const Row& row, Module& module) {
  Block* block = module.addFunction("f")->body.get();
  llvm::SmallVector<Value*, 8> operands;
  for (const char* text : row.operands) operands.push_back(block->addArg(parseType(text), "x"));
  llvm::SmallVector<Type, 4> results;
  for (const char* text : row.results) results.push_back(parseType(text));
  Op* op = Builder(block).create(row.kind, operands, results, row.attrs);
  if (row.chain.empty()) return op;
  op->body = std::make_unique<Block>(module, op);
  for (Value* operand : operands) op->body->addArg(operand->type, "x");
  Builder body(op->body.get());
  Value* value = op->body->args()[0];
  unsigned next = 1;
  for (OpKind kind : row.chain) {
    llvm::SmallVector<Value*, 2> in{value};
    if (info(kind).minOperands == 2) in.push_back(op->body->args()[next++]);
    value = body.elementwise(kind, in);
  }
  body.create(OpKind::Yield, {value}, {});
  return op;
}

void fill(const Type& type, std::byte* at, uint32_t seed) {
  for (int64_t i = 0; i < type.elements(); ++i) {
    seed = seed * 1664525 + 1013904223;
    if (type.elem == Elem::F32) {
      reinterpret_cast<float*>(at)[i] = float(seed >> 8) * 0x1p-24f + 0.1f;
    } else if (type.elem == Elem::I32) {
      reinterpret_cast<int32_t*>(at)[i] = int32_t(seed >> 8) % 65;
    } else {
      reinterpret_cast<uint16_t*>(at)[i] = uint16_t(0x3F80 + (seed >> 28));
    }
  }
}

void run(benchmark::State& state, const Row& row) {
  Module module;
  Op* op = build(row, module);
  std::unique_ptr<Device> device =
      isGpu ? llvm::cantFail(makeCudaDevice(0)) : makeCpuDevice(threads);
  std::vector<Type> types;
  for (Value* value : op->operands()) types.push_back(value->type);
  for (Value* value : op->results()) types.push_back(value->type);
  int64_t bytes = 0, room = 0;
  for (const Type& type : types) {
    bytes += type.bytes();
    room += (type.bytes() + 127) / 64 * 64;
  }
  std::byte* arena = llvm::cantFail(device->allocateArena(room));
  std::vector<const void*> in;
  std::vector<void*> out;
  for (size_t i = 0; i < types.size(); ++i) {
    HostBytes host = HostBytes::blank(*device, arena, types[i].bytes());
    fill(types[i], host.data(), uint32_t(i));
    host.store();
    if (i < op->operands().size()) {
      in.push_back(arena);
    } else {
      out.push_back(arena);
    }
    arena += (types[i].bytes() + 127) / 64 * 64;
  }
  std::unique_ptr<Kernel> kernel = llvm::cantFail(device->prepare(*op));
  llvm::cantFail(device->finishPreparing());
  // To wait for a GPU takes some microseconds, which several runs share.
  int runs = isGpu ? 20 : 1;
  for (auto _ : state) {
    for (int i = 0; i < runs; ++i) kernel->run({}, in.data(), out.data());
    llvm::cantFail(device->finish());
  }
  auto rate = benchmark::Counter::kIsIterationInvariantRate;
  if (row.flops > 0) {
    state.counters["GFLOP/s"] = benchmark::Counter(runs * row.flops * 1e-9, rate);
  } else {
    state.counters["GB/s"] = benchmark::Counter(runs * double(bytes) * 1e-9, rate);
  }
}

}  // namespace
}  // namespace planc

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    llvm::StringRef arg = argv[i];
    if (arg.consume_front("--threads=")) planc::threads = std::atoi(arg.data());
    planc::isGpu |= arg == "--device=cuda";
  }
  if (planc::isGpu)
    if (auto gpus = planc::countGpus(); !gpus || *gpus == 0) {
      llvm::errs() << "kernels_bench: "
                   << (gpus ? "there is no GPU here" : llvm::toString(gpus.takeError())) << '\n';
      return 1;
    }
  for (const planc::Row& row : planc::isGpu ? planc::gpuRows() : planc::rows()) {
    benchmark::RegisterBenchmark(row.name,
                                 [row](benchmark::State& state) { planc::run(state, row); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RunSpecifiedBenchmarks();
}
