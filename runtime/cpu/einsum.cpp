// Products summed by name. The names of the two operands and the result fall into four classes:
//   batch: in all three    M: a and the result    N: b and the result    K: summed
// Neighbours that collapse are merged; one loop of each of M, N and K makes a matrix product, the
// other loops run around it. An operand or result that lies as sgemm wants is used in place; else
// (bf16, awkward strides) its tiles pass through a thread's scratch. What is no matrix product at
// all (a dot product, an outer product) is an elementwise program.
//
// A ragged dim is cut into its groups at run time: with expert weights each group has a product of
// its own.
// Tested by tests/runtime/kernels_test.cpp.
#include "runtime/cpu/elementwise.h"
#include "runtime/cpu/gemm.h"

namespace planc::cpu {
namespace {

enum { A, B, C };

// One product, and the loops around it. Axes have strides {a, b, c}.
struct Plan {
  Loop m, n, k;
  llvm::SmallVector<Loop, 4> outer;        // batch, and what is left of M and N
  llvm::SmallVector<Loop, 4> inner;        // what is left of K: products that add up
  bool copies[3] = {false, false, false};  // whether a, b, c pass through scratch
  bool byColumns = false;  // only the transposed product, with a and b exchanged, finds c's rows
  int64_t tileM = 1, tileN = 1;

  int64_t product() const { return m.size * n.size * k.size; }
};

enum class Role { None, M, N, K };

// A ragged dim whose groups matter: some tensor has a slice for each group, or the rows are summed.
struct Ragged {
  std::string dim, over;
  Role role = Role::None;
  int64_t groups = 1;
  int64_t slice[3] = {0, 0, 0};  // from one group's slice to the next
  bool sums = false;             // the groups' products add up
  int64_t bound = 0;             // rows in memory
  int64_t last = 0;              // of the offsets
};

Loop axisOf(const Dim& dim, llvm::ArrayRef<Type> types) {
  Loop axis{dim.size, {}};
  for (const Type& type : types) axis.strides.push_back(strideOf(type, dim.name));
  return axis;
}

Ragged findRagged(llvm::ArrayRef<Type> types, const Type& offsets) {
  Ragged ragged;
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
    if (in[t] || !type.has(ragged.over)) continue;
    grouped = true;
    kept |= t == C;
    ragged.groups = ragged.last;
    ragged.slice[t] = strideOf(type, ragged.over);
  }
  // Without slices a row is like any other, also those that no group uses.
  if (in[C] && (!grouped || (in[A] && in[B]))) return {};
  ragged.role = !in[C] ? Role::K : in[A] ? Role::M : Role::N;
  ragged.sums = grouped && !kept && !in[C];
  return ragged;
}

struct Classes {
  llvm::SmallVector<Loop, 4> batch, m, n, k;
};

// Every dim but the ragged one, and the one that groups it.
Classes classify(llvm::ArrayRef<Type> types, const Ragged& ragged) {
  Classes classes;
  llvm::SmallVector<std::string, 8> seen;
  if (ragged.role != Role::None) seen = {ragged.dim, ragged.over};
  for (int t : {C, A, B}) {
    for (const Dim& dim : memoryDims(types[size_t(t)])) {
      if (llvm::is_contained(seen, dim.name)) continue;
      seen.push_back(dim.name);
      bool inA = types[A].has(dim.name), inB = types[B].has(dim.name), inC = types[C].has(dim.name);
      auto& list = !inC ? classes.k : inA && inB ? classes.batch : inA ? classes.m : classes.n;
      list.push_back(axisOf(dim, types));
    }
  }
  for (auto* list : {&classes.batch, &classes.m, &classes.n, &classes.k}) {
    merge(*list, 3);
    if (list->front().size == 1) list->clear();
  }
  return classes;
}

// Decides what runs in place. An operand of another element type than the product's never does.
void planCopies(Plan& plan, const bool (&ownElem)[3]) {
  const Loop &m = plan.m, &n = plan.n, &k = plan.k;
  bool isC = ownElem[C] && isMatrix(m.size, n.size, m.strides[C], n.strides[C]);
  bool rows = isC && (n.size == 1 || n.strides[C] == 1);
  bool columns = isC && (m.size == 1 || m.strides[C] == 1);
  plan.byColumns = !rows && columns;
  plan.copies[A] = !ownElem[A] || !isMatrix(m.size, k.size, m.strides[A], k.strides[A]);
  plan.copies[B] = !ownElem[B] || !isMatrix(k.size, n.size, k.strides[B], n.strides[B]);
  plan.copies[C] = !rows && !columns;
}

// The loops that may be a product's M (or N, or K): the ragged one if it is of this class.
llvm::SmallVector<Loop, 4> candidates(llvm::ArrayRef<Loop> axes, const Loop* ragged) {
  if (ragged != nullptr) return {*ragged};
  llvm::SmallVector<Loop, 4> list(axes.begin(), axes.end());
  list.push_back({1, {0, 0, 0}});
  return list;
}

// The best choice of M, N and K: the biggest product, where a copy costs as much as half the size.
Plan choose(const Classes& classes, const bool (&ownElem)[3], const Loop& ragged, Role role) {
  auto forced = [&](Role r) { return role == r ? &ragged : nullptr; };
  Plan best;
  int64_t score = -1;
  for (const Loop& m : candidates(classes.m, forced(Role::M))) {
    for (const Loop& n : candidates(classes.n, forced(Role::N))) {
      for (const Loop& k : candidates(classes.k, forced(Role::K))) {
        // What only one operand has cannot be the K of a product.
        if (k.size > 1 && (k.strides[A] == 0 || k.strides[B] == 0)) continue;
        Plan plan;
        plan.m = m, plan.n = n, plan.k = k;
        planCopies(plan, ownElem);
        int64_t points = 8 * plan.product();
        for (bool copy : plan.copies) points /= copy ? 2 : 1;
        if (points <= score) continue;
        score = points;
        best = plan;
      }
    }
  }
  auto rest = [](llvm::ArrayRef<Loop> axes, const Loop& taken, llvm::SmallVectorImpl<Loop>& to) {
    for (const Loop& axis : axes) {
      if (axis.size != taken.size || axis.strides != taken.strides) to.push_back(axis);
    }
  };
  best.outer.append(classes.batch.begin(), classes.batch.end());
  rest(classes.m, best.m, best.outer);
  rest(classes.n, best.n, best.outer);
  rest(classes.k, best.k, best.inner);
  return best;
}

int64_t countOf(llvm::ArrayRef<Loop> axes) {
  int64_t count = 1;
  for (const Loop& axis : axes) count *= axis.size;
  return count;
}

int64_t pieces(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

// The greatest tile of at most `most` that cuts a size into nearly equal pieces.
int64_t evenTile(int64_t size, int64_t most) {
  if (size <= most) return std::max<int64_t>(size, 1);
  int64_t each = pieces(size, pieces(size, most));
  return std::min((each + 15) / 16 * 16, size);
}

// How much of K one product takes: sgemm is slower on long strides that leave the second-level
// cache (measured: 5 to 25 % at K 2048, most where a is read by columns).
constexpr int64_t kDepth = 384, kDepthByColumns = 128;
// The width of copied tiles.
constexpr int64_t kCopiedWidth = 256;

// Tiles give every thread some tasks where they are worth it. They depend only on the shape, so
// that results are the same for any number of threads.
void chooseTiles(Plan& plan) {
  constexpr int64_t kTasks = 4, kWorthATask = 1 << 19;
  bool copies = plan.copies[A] || plan.copies[B] || plan.copies[C];
  plan.tileM = evenTile(plan.m.size, copies ? 256 : 512);
  plan.tileN = evenTile(plan.n.size, copies ? kCopiedWidth : 384);
  auto tasks = [&] {
    return countOf(plan.outer) * pieces(plan.m.size, plan.tileM) * pieces(plan.n.size, plan.tileN);
  };
  while (tasks() < kTasks && plan.tileM * plan.tileN * plan.k.size >= 2 * kWorthATask) {
    if (plan.tileM >= 96 && plan.tileM * 3 >= plan.tileN) {
      plan.tileM = evenTile(plan.tileM, (plan.tileM + 1) / 2);
    } else if (plan.tileN >= 64) {
      plan.tileN = evenTile(plan.tileN, (plan.tileN + 1) / 2);
    } else {
      return;
    }
  }
}

template <class T>
class EinsumKernel : public Kernel {
 public:
  // `types` are of a, b and c; `exchanged`: a is the op's second operand.
  EinsumKernel(Plan plan, Ragged ragged, llvm::ArrayRef<Type> types, bool exchanged,
               Accumulate accumulate, Shared& shared)
      : plan_(std::move(plan)),
        ragged_(std::move(ragged)),
        exchanged_(exchanged),
        accumulate_(accumulate),
        shared_(shared) {
    for (int t : {A, B, C}) elems_[t] = types[size_t(t)].elem;
    int64_t room = (plan_.tileM + plan_.tileN) * kDepth + plan_.tileM * plan_.tileN +
                   std::max(plan_.tileM, plan_.tileN);
    if (copiesAny()) shared_.pool.reserveScratch((room + 64) * int64_t(sizeof(T)));
    first_.resize(size_t(separateGroups()) + 1, 0);
  }

  void run(const RunContext& context, Operands operands, Results results) override {
    Run run{{operands[exchanged_ ? 1 : 0], operands[exchanged_ ? 0 : 1]},
            results[0],
            nullptr,
            accumulate_.addsIn(context)};
    if (ragged_.role != Role::None) run.offsets = static_cast<const int32_t*>(operands[2]);
    int64_t outer = countOf(plan_.outer);
    for (int64_t g = 0; g < separateGroups(); ++g) {
      Extent e = extent(g, run);
      first_[size_t(g) + 1] =
          first_[size_t(g)] + outer * pieces(e.m, plan_.tileM) * pieces(e.n, plan_.tileN);
    }
    if (!run.add && (ragged_.role == Role::M || ragged_.role == Role::N)) clearUnused(run);
    shared_.pool.parallelFor(first_.back(), [&](int64_t task, int thread) {
      size_t g = size_t(std::upper_bound(first_.begin(), first_.end(), task) - first_.begin()) - 1;
      runTask(int64_t(g), task - first_[g], run, thread);
    });
  }

 private:
  struct Run {
    const void* operands[2];
    void* result;
    const int32_t* offsets;
    bool add;
  };
  // The size of a group's product, and its first ragged row.
  struct Extent {
    int64_t m, n, k, row;
  };
  // A tile of the result while it is computed: in place or in scratch.
  struct Tile {
    int64_t m, n;
    T* c;
    int64_t rows;
    bool started;  // holds a sum already
  };

  bool copiesAny() const { return plan_.copies[A] || plan_.copies[B] || plan_.copies[C]; }
  int64_t separateGroups() const { return ragged_.sums ? 1 : ragged_.groups; }

  Extent extent(int64_t group, const Run& run) const {
    Extent e{plan_.m.size, plan_.n.size, plan_.k.size, 0};
    if (ragged_.role == Role::None) return e;
    // Offsets are indices in memory, whatever wrote them.
    e.row = ragged_.groups == 1 ? 0 : std::clamp<int64_t>(run.offsets[group], 0, ragged_.bound);
    int64_t end = run.offsets[ragged_.groups == 1 ? ragged_.last : group + 1];
    int64_t count = std::clamp<int64_t>(end, e.row, ragged_.bound) - e.row;
    (ragged_.role == Role::M ? e.m : ragged_.role == Role::N ? e.n : e.k) = count;
    return e;
  }

  const Loop& raggedAxis() const {
    return ragged_.role == Role::M ? plan_.m : ragged_.role == Role::N ? plan_.n : plan_.k;
  }

  // Rows that no group uses hold zeros.
  void clearUnused(const Run& run) const {
    Elem elem = elems_[C];
    const Loop& rows = raggedAxis();
    const Loop& columns = ragged_.role == Role::M ? plan_.n : plan_.m;
    int64_t used = std::clamp<int64_t>(run.offsets[ragged_.last], 0, ragged_.bound);
    for (int64_t o = 0; o < countOf(plan_.outer); ++o) {
      int64_t at[3];
      place(plan_.outer, o, at);
      for (int64_t r = used; r < ragged_.bound; ++r) {
        for (int64_t c = 0; c < columns.size; ++c) {
          storeOne<T>(0, run.result, elem, at[C] + r * rows.strides[C] + c * columns.strides[C]);
        }
      }
    }
  }

  static void place(llvm::ArrayRef<Loop> axes, int64_t index, int64_t (&at)[3]) {
    at[A] = at[B] = at[C] = 0;
    for (const Loop& axis : llvm::reverse(axes)) {
      int64_t i = index % axis.size;
      index /= axis.size;
      for (int t : {A, B, C}) at[t] += i * axis.strides[size_t(t)];
    }
  }

  void runTask(int64_t group, int64_t task, const Run& run, int thread) const {
    Extent e = extent(group, run);
    int64_t tilesM = pieces(e.m, plan_.tileM), tilesN = pieces(e.n, plan_.tileN);
    // Pairs of rows of tiles, so that neighbouring tasks share a tile of b and yet a thread's part
    // of the tasks is a part of the rows.
    int64_t index = task % (tilesM * tilesN), pair = index / (2 * tilesN);
    int64_t inPair = std::min<int64_t>(2, tilesM - 2 * pair);
    index -= pair * 2 * tilesN;
    int64_t m = (2 * pair + index % inPair) * plan_.tileM, n = index / inPair * plan_.tileN;
    int64_t start[3];
    place(plan_.outer, task / (tilesM * tilesN), start);
    for (int t : {A, B, C}) start[t] += m * plan_.m.strides[t] + n * plan_.n.strides[t];

    T* scratch = reinterpret_cast<T*>(shared_.pool.scratch(thread));
    Tile tile{std::min(plan_.tileM, e.m - m), std::min(plan_.tileN, e.n - n), nullptr, 0, run.add};
    int64_t toC = start[C] + group * ragged_.slice[C] + e.row * raggedStride(C);
    if (plan_.copies[C]) {
      tile.c = scratch;
      tile.rows = tile.n;
      tile.started = false;
      scratch += plan_.tileM * plan_.tileN;
    } else {
      tile.c = static_cast<T*>(run.result) + toC;
      tile.rows = plan_.m.strides[C];
    }
    int64_t last = ragged_.sums ? ragged_.groups : group + 1;
    for (int64_t g = group; g < last; ++g) addGroup(g, start, run, tile, scratch);
    finish(tile, toC, run, scratch);
  }

  int64_t raggedStride(int t) const {
    return ragged_.role == Role::None ? 0 : raggedAxis().strides[size_t(t)];
  }

  void addGroup(int64_t group, const int64_t (&start)[3], const Run& run, Tile& tile,
                T* scratch) const {
    Extent e = extent(group, run);
    bool byColumns = plan_.k.strides[A] != 1;
    int64_t depth = evenTile(e.k, byColumns ? kDepthByColumns : kDepth);
    for (int64_t i = 0; i < countOf(plan_.inner); ++i) {
      int64_t at[3];
      place(plan_.inner, i, at);
      for (int t : {A, B}) at[t] += start[t] + group * ragged_.slice[t] + e.row * raggedStride(t);
      for (int64_t k = 0; k < e.k; k += depth) {
        int64_t d = std::min(depth, e.k - k);
        Matrix<T> a =
            operand(A, tile.m, d, plan_.m, plan_.k, at[A] + k * plan_.k.strides[A], run, scratch);
        Matrix<T> b = operand(B, d, tile.n, plan_.k, plan_.n, at[B] + k * plan_.k.strides[B], run,
                              scratch + plan_.tileM * kDepth);
        T beta = tile.started ? T(1) : T(0);
        gemm(tile.m, tile.n, d, T(1), a, b, beta, tile.c, tile.rows);
        tile.started = true;
      }
    }
  }

  // A rows x columns part of an operand, in place or copied; a copy keeps the order that the
  // operand is nearer to.
  Matrix<T> operand(int t, int64_t rows, int64_t columns, const Loop& row, const Loop& column,
                    int64_t at, const Run& run, T* scratch) const {
    int64_t byRow = row.strides[size_t(t)], byColumn = column.strides[size_t(t)];
    const void* base = run.operands[t];
    if (!plan_.copies[t]) return {static_cast<const T*>(base) + at, byRow, byColumn};
    bool transposed = byRow == 1 && byColumn != 1;
    if (transposed) std::swap(rows, columns), std::swap(byRow, byColumn);
    for (int64_t r = 0; r < rows; ++r) {
      T* to = scratch + r * columns;
      const T* from = loadRow(base, elems_[t], at + r * byRow, byColumn, columns, to);
      if (from != to) std::copy_n(from, columns, to);
    }
    if (transposed) return {scratch, 1, columns};
    return {scratch, columns, 1};
  }

  void finish(Tile& tile, int64_t toC, const Run& run, T* scratch) const {
    int64_t rows = tile.m, columns = tile.n;
    if (!tile.started) {
      for (int64_t r = 0; r < rows; ++r) std::fill_n(tile.c + r * tile.rows, columns, T(0));
    }
    if (!plan_.copies[C]) return;
    int64_t byRow = plan_.m.strides[C], byColumn = plan_.n.strides[C];
    for (int64_t r = 0; r < rows; ++r) {
      T* row = tile.c + r * columns;
      if (run.add) {
        const T* old = loadRow(run.result, elems_[C], toC + r * byRow, byColumn, columns, scratch);
        for (int64_t i = 0; i < columns; ++i) row[i] += old[i];
      }
      storeRow(row, run.result, elems_[C], toC + r * byRow, byColumn, columns);
    }
  }

  Plan plan_;
  Ragged ragged_;
  bool exchanged_;
  Accumulate accumulate_;
  Shared& shared_;
  Elem elems_[3];
  std::vector<int64_t> first_;  // each group's first task
};

// a * b summed, as an elementwise program.
std::unique_ptr<Kernel> makeProductSum(const Op& op, const Type& result, Shared& shared) {
  Program program(op);
  program.inputs = {op.operand(0)->type, op.operand(1)->type};
  program.steps.push_back({OpKind::Mul, 0, 1});
  program.sum = {program.valueOfStep(0), result, 0};
  return makeProgram(std::move(program), shared);
}

}  // namespace

KernelOr prepareEinsum(const Op& op, Shared& shared) {
  constexpr int64_t kSmallProduct = 512;
  Type types[3] = {op.operand(0)->type, op.operand(1)->type, resultType(op)};
  Elem own = isDouble(op) ? Elem::F64 : Elem::F32;
  Ragged ragged;
  Plan plan;
  bool exchanged = false;
  while (true) {
    if (op.operands().size() == 3) ragged = findRagged(types, op.operand(2)->type);
    Loop rows;
    if (ragged.role != Role::None) rows = axisOf({ragged.dim, ragged.bound, ragged.over}, types);
    bool ownElem[3];
    for (int t : {A, B, C}) ownElem[t] = types[t].elem == own;
    plan = choose(classify(types, ragged), ownElem, rows, ragged.role);
    if (!plan.byColumns || exchanged) break;
    std::swap(types[A], types[B]);
    exchanged = true;
  }
  // Among equal plans the exchanged search may choose another one.
  plan.copies[C] |= plan.byColumns;
  bool isMatrixProduct =
      std::min({plan.m.size, plan.n.size, plan.k.size}) > 1 && plan.product() >= kSmallProduct;
  if (ragged.role == Role::None && !isMatrixProduct) {
    return makeProductSum(op, types[C], shared);
  }
  chooseTiles(plan);
  return withCompute(op, [&](auto zero) -> KernelOr {
    return std::make_unique<EinsumKernel<decltype(zero)>>(plan, ragged, types, exchanged,
                                                          Accumulate(op), shared);
  });
}

}  // namespace planc::cpu
