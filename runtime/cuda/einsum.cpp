// Products summed by name. Names fall into four classes (see einsum.h); neighbours that collapse
// are merged. Where one loop of each of m, n and k makes a matrix product that the BLAS takes, one
// more may be its batch, and the rest are products one after the other; what is no matrix product,
// or mixes element types, or would be very many small ones, goes to kernels of our own. So do the
// products of groups, for which the host would have to know how many rows they have. Tested by
// tests/gpu/kernels_gpu_test.cpp.
#include "runtime/cuda/einsum.h"

#include "runtime/cuda/product.h"

namespace planc::cuda {

int64_t countOf(llvm::ArrayRef<Loop> loops) {
  int64_t count = 1;
  for (const Loop& loop : loops) count *= loop.size;
  return count;
}

namespace {

Loop loopOf(const Dim& dim, llvm::ArrayRef<Type> types) {
  Loop loop{dim.size, {}};
  for (const Type& type : types) loop.strides.push_back(strideOf(type, dim.name));
  return loop;
}

RaggedDim findRagged(llvm::ArrayRef<Type> types, const Type& offsets) {
  RaggedDim ragged;
  bool in[3] = {false, false, false}, grouped = false, kept = false;
  for (int t : {A, B, C}) {
    for (const Dim& dim : types[size_t(t)].dims) {
      if (!dim.isRagged()) continue;
      ragged.dim = dim.name;
      ragged.over = dim.over;
      ragged.bound = dim.size;
      in[t] = true;
    }
  }
  ragged.last = offsets.dims.front().size - 1;
  for (int t : {A, B, C}) {
    const Type& type = types[size_t(t)];
    ragged.rowSteps[t] = strideOf(type, ragged.dim);
    if (in[t] || !type.has(ragged.over)) continue;
    grouped = true;
    kept |= t == C;
    ragged.groups = ragged.last;
    ragged.slices[t] = strideOf(type, ragged.over);
  }
  // Without slices a row is like any other, also those that no group uses.
  if (in[C] && (!grouped || (in[A] && in[B]))) return {};
  ragged.role = in[C] ? Ragged::Rows : Ragged::Sum;
  ragged.isOfB = in[C] && in[B];
  ragged.sums = grouped && !kept && !in[C];
  return ragged;
}

}  // namespace

Product::Product(const Op& op)
    : types{op.operand(0)->type, op.operand(1)->type, resultType(op)},
      isDouble(planc::isDouble(op)),
      accumulate(op) {
  if (op.operands().size() == 3) ragged = findRagged(types, op.operand(2)->type);
  if (ragged.isOfB) {
    exchanged = true;
    std::swap(types[A], types[B]);
    std::swap(ragged.slices[A], ragged.slices[B]);
    std::swap(ragged.rowSteps[A], ragged.rowSteps[B]);
  }
  llvm::SmallVector<std::string, 8> seen;
  if (ragged.role != Ragged::None) seen = {ragged.dim, ragged.over};
  for (int t : {C, A, B}) {
    for (const Dim& dim : memoryDims(types[t])) {
      if (llvm::is_contained(seen, dim.name)) continue;
      seen.push_back(dim.name);
      bool inA = types[A].has(dim.name), inB = types[B].has(dim.name), inC = types[C].has(dim.name);
      Loops& loops = !inC ? k : inA && inB ? outer : inA ? m : n;
      loops.push_back(loopOf(dim, types));
    }
  }
  for (Loops* loops : {&outer, &m, &n, &k}) merge(*loops, 3);
}

namespace {

// One product of the BLAS, and the loops around it.
struct BlasPlan {
  MatmulShape shape;
  bool exchanged = false;  // the BLAS's A is b
  Loops calls, sums;       // products for their own sake, and those that add up
  int64_t score = -1;
};

bool isStep(const Loop& loop, int t) { return loop.size == 1 || loop.strides[size_t(t)] == 1; }
int64_t columnStep(const Loop& loop, int t, int64_t rows) {
  return loop.size == 1 ? rows : std::max(loop.strides[size_t(t)], rows);
}

// `rows` is along the columns of D in memory, and a dim of x; `columns` is one of y.
std::optional<MatmulShape> shapeOf(const Loop& rows, const Loop& columns, const Loop& k, int x,
                                   int y) {
  if (!isStep(rows, C)) return std::nullopt;
  MatmulShape s;
  s.m = rows.size, s.n = columns.size, s.k = k.size;
  s.ldd = columnStep(columns, C, s.m);
  s.transA = !isStep(rows, x);
  if (s.transA && !isStep(k, x)) return std::nullopt;
  s.lda = s.transA ? columnStep(rows, x, s.k) : columnStep(k, x, s.m);
  s.transB = !isStep(k, y);
  if (s.transB && !isStep(columns, y)) return std::nullopt;
  s.ldb = s.transB ? columnStep(k, y, s.n) : columnStep(columns, y, s.k);
  return s;
}

llvm::SmallVector<Loop, 4> candidates(llvm::ArrayRef<Loop> loops) {
  llvm::SmallVector<Loop, 4> list(loops.begin(), loops.end());
  list.push_back({1, {0, 0, 0}});
  return list;
}

// The loops but one.
void addRest(llvm::ArrayRef<Loop> loops, const Loop& taken, Loops& to) {
  for (const Loop& loop : loops)
    if (loop.size != taken.size || loop.strides != taken.strides) to.push_back(loop);
}

// The greatest of the loops around becomes the batch.
void takeBatch(BlasPlan& plan) {
  auto most = std::max_element(plan.calls.begin(), plan.calls.end(),
                               [](const Loop& a, const Loop& b) { return a.size < b.size; });
  if (most == plan.calls.end() || most->size == 1) return;
  MatmulShape& s = plan.shape;
  s.batch = most->size;
  s.strideA = most->strides[plan.exchanged ? B : A];
  s.strideB = most->strides[plan.exchanged ? A : B];
  s.strideD = most->strides[C];
  plan.calls.erase(most);
}

// The choice that does most in one product.
BlasPlan choose(const Product& p) {
  BlasPlan best;
  for (const Loop& m : candidates(p.m))
    for (const Loop& n : candidates(p.n))
      for (const Loop& k : candidates(p.k))
        for (bool exchanged : {false, true}) {
          // What only one operand has cannot be the k of a product.
          if (k.size > 1 && (k.strides[A] == 0 || k.strides[B] == 0)) continue;
          auto shape = exchanged ? shapeOf(n, m, k, B, A) : shapeOf(m, n, k, A, B);
          if (!shape) continue;
          BlasPlan plan;
          plan.shape = *shape;
          plan.exchanged = exchanged;
          plan.calls = p.outer;
          addRest(p.m, m, plan.calls);
          addRest(p.n, n, plan.calls);
          addRest(p.k, k, plan.sums);
          takeBatch(plan);
          plan.score = plan.shape.m * plan.shape.n * plan.shape.k * plan.shape.batch;
          if (plan.score > best.score) best = plan;
        }
  return best;
}

bool isKindOfBlas(const Product& p) {
  Elem a = p.types[A].elem, c = p.types[C].elem;
  return a == p.types[B].elem && a != Elem::I32 && (c == a || (a == Elem::BF16 && c == Elem::F32));
}

// Bytes that an operand's matrices begin at multiples of, if the operand does.
int64_t alignmentOf(const Product& p, const BlasPlan& plan) {
  int64_t all = 16;
  for (int t : {A, B, C}) {
    int64_t size = bytesPerElement(p.types[t].elem);
    int64_t batch = t == C                       ? plan.shape.strideD
                    : (t == A) == plan.exchanged ? plan.shape.strideB
                                                 : plan.shape.strideA;
    llvm::SmallVector<int64_t, 8> steps = {batch};
    for (const Loops* loops : {&plan.calls, &plan.sums})
      for (const Loop& loop : *loops) steps.push_back(loop.strides[size_t(t)]);
    for (int64_t step : steps)
      while (step * size % all != 0) all /= 2;
  }
  return all;
}

// Offsets of a, b and c at an index of some loops.
void place(llvm::ArrayRef<Loop> loops, int64_t index, int64_t (&at)[3]) {
  for (const Loop& loop : llvm::reverse(loops)) {
    int64_t i = index % loop.size;
    index /= loop.size;
    for (int t : {A, B, C}) at[t] += i * loop.strides[size_t(t)];
  }
}

// Null: the BLAS does not take it, or is no better.
std::unique_ptr<planc::Kernel> makeBlas(const Product& p, Shared& shared) {
  constexpr int64_t kMostCalls = 64, kLeastWork = 4096;
  if (!isKindOfBlas(p)) return nullptr;
  BlasPlan plan = choose(p);
  int64_t sums = countOf(plan.sums), calls = countOf(plan.calls) * sums;
  const MatmulShape& s = plan.shape;
  // Of products that add up, only the last may be rounded.
  bool isRounded = sums > 1 && p.types[C].elem == Elem::BF16;
  if (plan.score < kLeastWork || calls > kMostCalls || isRounded || s.k == 1) return nullptr;
  plan.shape.a = plan.shape.b = p.types[A].elem;
  plan.shape.d = p.types[C].elem;
  // For tensors that begin anywhere, and for those that begin as in an arena.
  int64_t least = bytesPerElement(p.types[A].elem), most = alignmentOf(p, plan);
  std::shared_ptr<MatmulPlan> matmuls[2];
  for (int64_t i = 0; i < 2; ++i) {
    if (i == 1 && most <= least) continue;
    auto made = shared.gpu.plan(plan.shape, kBlasWorkspace, int(i == 0 ? least : most));
    if (!made) {
      llvm::consumeError(made.takeError());
      return nullptr;
    }
    matmuls[i] = std::move(*made);
  }
  shared.needWorkspace(kBlasWorkspace);
  return makeKernel([=, &shared, anywhere = matmuls[0], aligned = matmuls[1]](
                        const RunContext& context, Operands in, Results out) {
    bool adds = p.accumulate.addsIn(context);
    bool isGood = aligned != nullptr && isAligned(in[0], most) && isAligned(in[1], most) &&
                  isAligned(out[0], most);
    const MatmulPlan& matmul = isGood ? *aligned : *anywhere;
    for (int64_t call = 0; call < calls; ++call) {
      int64_t at[3] = {0, 0, 0};
      place(plan.calls, call / sums, at);
      place(plan.sums, call % sums, at);
      auto part = [&](const void* data, int t) {
        return static_cast<const std::byte*>(data) + at[t] * bytesPerElement(p.types[t].elem);
      };
      const void *a = part(p.a(in), A), *b = part(p.b(in), B);
      if (plan.exchanged) std::swap(a, b);
      shared.gpu.matmul(shared.stream, matmul, a, b, const_cast<std::byte*>(part(out[0], C)),
                        adds || call % sums > 0 ? 1 : 0, shared.workspace());
    }
  });
}

// The kernel's view of a product.
llvm::Expected<EinsumArgs> argsOf(const Op& op, const Product& p) {
  EinsumArgs e{};
  int count = 0;
  const Loops* classes[] = {&p.outer, &p.m, &p.n, &p.k};
  Loops outer = p.outer;
  // Of ragged rows, m is those of a group.
  if (p.ragged.role == Ragged::Rows) {
    outer.append(p.m.begin(), p.m.end());
    classes[EinsumArgs::Outer] = &outer;
  }
  for (int c = 0; c < EinsumArgs::kClasses; ++c) {
    e.sizes[c] = 1;
    bool isLeft = c == EinsumArgs::M && p.ragged.role == Ragged::Rows;
    for (const Loop& loop : *classes[c]) {
      if (isLeft || loop.size == 1) continue;
      if (count == kEinsumLoops)
        return unsupported(op, "more loops than " + llvm::Twine(kEinsumLoops));
      EinsumLoop& to = e.loops[count++];
      std::copy_n(loop.strides.begin(), 3, to.strides);
      to.size = loop.size;
      e.sizes[c] *= loop.size;
    }
    e.ends[c] = count;
  }
  auto isByK = [&](int t) {
    int64_t k = p.k.back().size > 1 ? p.k.back().strides[size_t(t)] : 0;
    if (p.ragged.role == Ragged::Sum) k = p.ragged.rowSteps[t];
    const Loops& others = t == A ? p.m : p.n;
    int64_t other = others.back().size > 1 ? others.back().strides[size_t(t)] : 0;
    if (t == A && p.ragged.role == Ragged::Rows) other = p.ragged.rowSteps[A];
    return other == 0 || (k > 0 && k < other);
  };
  e.aByK = isByK(A);
  e.bByK = isByK(B);
  e.ragged = p.ragged.role;
  e.sums = p.ragged.sums;
  e.groups = int32_t(p.ragged.groups);
  e.last = int32_t(p.ragged.last);
  e.bound = int32_t(p.ragged.bound);
  std::copy_n(p.ragged.slices, 3, e.slices);
  std::copy_n(p.ragged.rowSteps, 3, e.rowSteps);
  e.splits = 1;
  e.eachSplit = INT64_MAX / 2;
  return e;
}

int64_t pieces(int64_t size, int64_t each) { return (size + each - 1) / each; }

}  // namespace

int64_t raggedTiles(const RaggedDim& ragged, int64_t rows) {
  return ragged.bound / rows + ragged.groups + 1;
}

void findTiles(const RaggedDim& ragged, const int32_t* offsets, RaggedTile* tiles, int64_t rows,
               Shared& shared) {
  RaggedTilesArgs args{};
  args.offsets = offsets;
  args.tiles = tiles;
  args.groups = int32_t(ragged.groups);
  args.last = int32_t(ragged.last);
  args.bound = int32_t(ragged.bound);
  args.rows = int32_t(rows);
  args.tileCount = int32_t(raggedTiles(ragged, rows));
  shared.launch(kRaggedTiles, {.threads = 256}, args);
}

KernelOr makeProduct(const Op& op, const Product& p, Shared& shared) {
  // Splits are worth it where blocks are few; each has so many elements of k at least.
  constexpr int64_t kBlocks = 512, kLeastSplit = 512;
  auto found = argsOf(op, p);
  if (!found) return found.takeError();
  EinsumArgs e = *found;
  int64_t m = e.sizes[EinsumArgs::M], n = e.sizes[EinsumArgs::N], k = e.sizes[EinsumArgs::K];
  int64_t outer = e.sizes[EinsumArgs::Outer], outputs = outer * m * n, blocks = 0;
  bool isRagged = e.ragged != Ragged::None, isDots = !isRagged && std::min(m, n) == 1;
  if (isDots) {
    e.lanes = 1;
    while (e.lanes < kWarp && e.lanes < k) e.lanes *= 2;
    blocks = pieces(outputs * e.lanes, kEinsumThreads);
  } else {
    blocks = outer * pieces(n, kEinsumTile);
    if (e.ragged == Ragged::Rows) e.tileCount = int32_t(raggedTiles(p.ragged, kEinsumTile));
    blocks *= e.ragged == Ragged::Rows ? e.tileCount : pieces(m, kEinsumTile);
    if (e.ragged == Ragged::Sum && !e.sums) blocks *= e.groups;
  }
  if (!isRagged && blocks < kBlocks && k >= 2 * kLeastSplit) {
    e.splits = std::min(pieces(kBlocks, blocks), k / kLeastSplit);
    e.eachSplit = pieces(k, e.splits);
    e.splits = pieces(k, e.eachSplit);
    blocks = isDots ? pieces(outputs * e.splits * e.lanes, kEinsumThreads) : blocks * e.splits;
  }
  if (e.splits > 1) shared.needWorkspace(e.splits * outputs * (p.isDouble ? 8 : 4));
  if (e.ragged == Ragged::Rows) shared.needWorkspace(e.tileCount * int64_t(sizeof(RaggedTile)));
  return makeKernel([=, &shared](const RunContext& context, Operands in, Results out) {
    EinsumArgs args = e;
    args.a = refTo(p.a(in), p.types[A]);
    args.b = refTo(p.b(in), p.types[B]);
    args.c = refTo(out[0], p.types[C]);
    args.add = p.accumulate.addsIn(context);
    args.partial = shared.workspace();
    if (e.ragged != Ragged::None) args.offsets = static_cast<const int32_t*>(in[2]);
    if (e.ragged == Ragged::Rows) {
      auto* tiles = reinterpret_cast<RaggedTile*>(shared.workspace());
      findTiles(p.ragged, args.offsets, tiles, kEinsumTile, shared);
      args.tiles = tiles;
    }
    const auto& tiled = p.isDouble ? kEinsumF64 : kEinsumF32;
    const auto& dots = p.isDouble ? kDotsF64 : kDotsF32;
    LaunchShape shape{.x = uint32_t(blocks), .threads = kEinsumThreads};
    if (!isDots)
      shape.sharedBytes = p.isDouble ? sizeof(EinsumShared<double>) : sizeof(EinsumShared<float>);
    shared.launch(isDots ? dots : tiled, shape, args);
    if (e.splits == 1) return;
    shared.launch(p.isDouble ? kEinsumSplitsF64 : kEinsumSplitsF32,
                  {.x = blocksFor(outputs, kEinsumThreads), .threads = kEinsumThreads}, args);
  });
}

KernelOr prepareEinsum(const Op& op, Shared& shared) {
  Product product(op);
  if (product.ragged.role != Ragged::None) {
    auto made = makeProduct(op, product, shared);
    if (!made) return made;
    std::shared_ptr<planc::Kernel> other = std::move(*made);
    if (auto grouped = makeGrouped(product, other, shared)) return grouped;
    return makeProduct(op, product, shared);
  }
  if (auto blas = makeBlas(product, shared)) return blas;
  return makeProduct(op, product, shared);
}

}  // namespace planc::cuda
