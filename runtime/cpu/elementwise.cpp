// Elementwise programs, run block by block. A block is some rows of the innermost loop, at most 512
// elements; each step is one loop over it. Inputs that already lie as the block wants are read in
// place, others (broadcast, strided, another element type) are copied into a register of the block.
//
// A space is cut into cells and items: a cell is a block of the sum's result, its items are the
// blocks that add to it. Without a sum each block is a cell of one item. With few cells the items
// are cut into fixed chunks whose partial sums are added in order, whatever the number of threads.
// Tested by tests/runtime/kernels_test.cpp.
#include "runtime/cpu/elementwise.h"

#include "runtime/cpu/steps.h"

namespace planc::cpu {
namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kMaxChunks = 128;

// The loops of a program: the block (rows x inner), and the cells and items made of blocks.
struct Loops {
  Loop row, inner;  // whole; a block has rowStep x innerStep of them
  int64_t rowStep = 1, innerStep = 1;
  llvm::SmallVector<Loop, 4> cells, items;  // the piece loops of row and inner stand last
  bool rowSummed = false, innerSummed = false;

  int64_t cellCount() const { return product(cells); }
  int64_t itemCount() const { return product(items); }
  // Elements of the sum's accumulator.
  int64_t cellSize() const { return (rowSummed ? 1 : rowStep) * (innerSummed ? 1 : innerStep); }

  static int64_t product(llvm::ArrayRef<Loop> axes) {
    int64_t count = 1;
    for (const Loop& axis : axes) count *= axis.size;
    return count;
  }
};

// Where a block is: its tensors' offsets and its extent. Of the blocks that hold the same elements
// of an output which lacks dims of the space, all but one have that output's bit in `repeats`.
struct Block {
  llvm::SmallVector<int64_t, 8> offsets;
  int64_t rows = 1, n = 1;
  uint64_t repeats = 0;
};

// `sumAt` is the sum's place among the tensors, or -1.
Loops loopsOf(const Program& program, llvm::ArrayRef<const Type*> tensors, int sumAt) {
  llvm::SmallVector<Loop, 4> axes;
  for (const Dim& dim : program.space()) {
    Loop axis{dim.size, {}};
    for (const Type* type : tensors) axis.strides.push_back(strideOf(*type, dim.name));
    axes.push_back(std::move(axis));
  }
  merge(axes, tensors.size());
  auto isSummed = [&](const Loop& axis) {
    return sumAt >= 0 && axis.size > 1 && axis.strides[size_t(sumAt)] == 0;
  };
  // Kept loops go outside the summed ones, but the innermost stays for the sake of its stride.
  std::stable_partition(axes.begin(), axes.end() - 1, [&](const Loop& a) { return !isSummed(a); });
  merge(axes, tensors.size());

  Loops loops;
  loops.inner = axes.pop_back_val();
  loops.row = {1, llvm::SmallVector<int64_t, 6>(tensors.size(), 0)};
  if (!axes.empty()) loops.row = axes.pop_back_val();
  loops.innerSummed = isSummed(loops.inner);
  loops.rowSummed = isSummed(loops.row);
  loops.innerStep = std::min(loops.inner.size, kBlock);
  loops.rowStep = std::min(loops.row.size, std::max<int64_t>(1, kBlock / loops.inner.size));
  for (const Loop& axis : axes) (isSummed(axis) ? loops.items : loops.cells).push_back(axis);
  auto pieces = [&](Loop axis, int64_t step, bool summed) {
    axis.size = (axis.size + step - 1) / step;
    for (int64_t& stride : axis.strides) stride *= step;
    (summed ? loops.items : loops.cells).push_back(axis);
  };
  pieces(loops.row, loops.rowStep, loops.rowSummed);
  pieces(loops.inner, loops.innerStep, loops.innerSummed);
  return loops;
}

template <class T>
class ProgramKernel : public Kernel {
 public:
  ProgramKernel(Program program, Shared& shared) : program_(std::move(program)), shared_(shared) {
    tensors_ = program_.tensors();
    int sumAt = program_.sum ? int(tensors_.size()) - 1 : -1;
    loops_ = loopsOf(program_, tensors_, sumAt);
    planInputs();
    planOutputs();
    planRegisters();
    planChunks();
  }

  void run(const RunContext& context, Operands operands, Results results) override {
    int64_t cells = loops_.cellCount();
    auto tasks = [&](int64_t task, int thread) {
      int64_t chunk = task % chunks_, first = task / chunks_ * cellsPerTask_;
      T* registers = reinterpret_cast<T*>(shared_.pool.scratch(thread));
      fillUniform(operands, registers);
      int64_t items = loops_.itemCount();
      int64_t begin = chunk * items / chunks_, end = (chunk + 1) * items / chunks_;
      for (int64_t cell = first; cell < std::min(cells, first + cellsPerTask_); ++cell) {
        runCell(context, cell, chunk, begin, end, registers, operands, results);
      }
    };
    shared_.pool.parallelFor((cells + cellsPerTask_ - 1) / cellsPerTask_ * chunks_, tasks);
    if (chunks_ > 1) addChunks(context, results);
  }

 private:
  // How a value of the program is held in a block.
  struct Held {
    int reg = -1;          // its register, unless it is read in place or computed in its output
    int direct = -1;       // the tensor that holds it
    bool uniform = false;  // one element for the whole space: filled once a task
    int last = -1;         // the last step that reads it
  };

  bool liesAsBlock(size_t tensor) const {
    constexpr Elem own = std::is_same_v<T, double> ? Elem::F64 : Elem::F32;
    int64_t row = loops_.row.strides[tensor], inner = loops_.inner.strides[tensor];
    return tensors_[tensor]->elem == own && (inner == 1 || loops_.inner.size == 1) &&
           (loops_.rowStep == 1 || row == loops_.inner.size);
  }

  bool isUniform(size_t tensor) const {
    auto still = [&](const Loop& axis) { return axis.size == 1 || axis.strides[tensor] == 0; };
    return still(loops_.row) && still(loops_.inner) && llvm::all_of(loops_.cells, still) &&
           llvm::all_of(loops_.items, still);
  }

  void planInputs() {
    held_.resize(program_.inputs.size() + program_.steps.size());
    for (auto& step : program_.steps) {
      if (step.a >= 0) step.a = program_.source(step.a);
      if (step.b >= 0) step.b = program_.source(step.b);
    }
    for (auto& output : program_.outputs) output.value = program_.source(output.value);
    if (program_.sum) program_.sum->value = program_.source(program_.sum->value);
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      held_[i].uniform = isUniform(i);
      if (!held_[i].uniform && liesAsBlock(i)) held_[i].direct = int(i);
    }
    int at = 0;
    for (const auto& step : program_.steps) {
      if (step.a >= 0) held_[size_t(step.a)].last = at;
      if (step.b >= 0) held_[size_t(step.b)].last = at;
      ++at;
    }
  }

  // A step may compute in its output's memory, unless an input that is read in place later may lie
  // there too (outputs may take the place of dying operands).
  void planOutputs() {
    int inputs = int(program_.inputs.size()), lastDirect = -1;
    for (int i = 0; i < inputs; ++i) {
      const Held& input = held_[size_t(i)];
      if (input.direct >= 0) lastDirect = std::max(lastDirect, input.last);
    }
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      size_t value = size_t(program_.outputs[i].value), tensor = size_t(inputs) + i;
      bool readLater = program_.sum && size_t(program_.sum->value) != value &&
                       held_[size_t(program_.sum->value)].direct >= 0;
      for (const auto& other : program_.outputs) readLater |= other.value < inputs;
      Held& held = held_[value];
      auto misses = [&](const Loop& axis) { return axis.size > 1 && axis.strides[tensor] == 0; };
      misses_.push_back(llvm::any_of(loops_.cells, misses) || llvm::any_of(loops_.items, misses) ||
                        misses(loops_.row) || misses(loops_.inner));
      lacking_ |= misses_.back();
      bool isConst =
          int(value) >= inputs && program_.steps[value - size_t(inputs)].kind == OpKind::Const;
      if (int(value) >= std::max(inputs, inputs + lastDirect) && held.direct < 0 && !readLater &&
          !isConst && !misses_.back() && liesAsBlock(tensor)) {
        held.direct = int(tensor);
      }
    }
  }

  void planRegisters() {
    int steps = int(program_.steps.size());
    auto keep = [&](int value) { held_[size_t(value)].last = steps; };
    for (const auto& output : program_.outputs) keep(output.value);
    if (program_.sum) keep(program_.sum->value);
    std::vector<int> free;
    auto take = [&] {
      if (free.empty()) return registers_++;
      int reg = free.back();
      free.pop_back();
      return reg;
    };
    auto needs = [](const Held& held) { return held.direct < 0 && held.last >= 0; };
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      if (needs(held_[i])) held_[i].reg = take();
    }
    for (int s = 0; s < steps; ++s) {
      Held& held = held_[program_.inputs.size() + size_t(s)];
      bool constant = program_.steps[size_t(s)].kind == OpKind::Const;
      held.uniform = constant;
      if (constant && needs(held)) held.reg = registers_++;
    }
    for (int s = 0; s < steps; ++s) {
      const auto& step = program_.steps[size_t(s)];
      if (step.kind == OpKind::Cast || step.kind == OpKind::Const) continue;
      auto release = [&](int value) {
        if (value < 0) return;
        Held& held = held_[size_t(value)];
        if (held.last == s && held.reg >= 0 && !held.uniform) free.push_back(held.reg);
      };
      release(step.a);
      if (step.b != step.a) release(step.b);
      Held& held = held_[program_.inputs.size() + size_t(s)];
      if (needs(held)) held.reg = take();
      code_.push_back({blockLoopOf<T>(step.kind), step.a, step.b < 0 ? step.a : step.b,
                       int(program_.inputs.size()) + s});
    }
    // Two more registers: the accumulator of a cell, and a row of what it is added to.
    shared_.pool.reserveScratch((registers_ + 2) * kBlock * int64_t(sizeof(T)));
  }

  void planChunks() {
    int64_t block = loops_.rowStep * loops_.innerStep, items = loops_.itemCount();
    int64_t cells = loops_.cellCount();
    cellsPerTask_ = std::max<int64_t>(1, 2 * kTaskElements / (items * block));
    if (!program_.sum || cells >= 16) return;
    int64_t wanted = std::max<int64_t>(1, cells * items * block / (2 * kTaskElements));
    chunks_ = std::min({items, wanted, std::max<int64_t>(1, kMaxChunks / cells)});
    if (chunks_ == 1) return;
    cellsPerTask_ = 1;
    partials_.resize(size_t(cells * chunks_ * loops_.cellSize()));
  }

  T* registerAt(T* registers, int reg) const { return registers + reg * kBlock; }

  void fillUniform(Operands operands, T* registers) const {
    for (size_t v = 0; v < held_.size(); ++v) {
      if (!held_[v].uniform || held_[v].reg < 0) continue;
      T value = v < program_.inputs.size() ? loadOne<T>(operands[v], program_.inputs[v].elem)
                                           : T(program_.steps[v - program_.inputs.size()].constant);
      std::fill_n(registerAt(registers, held_[v].reg), kBlock, value);
    }
  }

  uint64_t outputsLacking(const Loop& axis) const {
    uint64_t mask = 0;
    for (size_t o = 0; o < misses_.size(); ++o) {
      if (axis.strides[program_.inputs.size() + o] == 0) mask |= uint64_t{1} << o;
    }
    return mask;
  }

  // Adds the loops' position to the block; pieces of row and inner also set its extent.
  void place(llvm::ArrayRef<Loop> axes, int64_t index, bool hasRow, bool hasInner,
             Block& block) const {
    for (size_t a = axes.size(); a-- > 0;) {
      int64_t i = index % axes[a].size;
      index /= axes[a].size;
      for (size_t t = 0; t < block.offsets.size(); ++t) block.offsets[t] += i * axes[a].strides[t];
      if (i > 0 && lacking_) block.repeats |= outputsLacking(axes[a]);
      if (hasInner) {
        block.n = std::min(loops_.innerStep, loops_.inner.size - i * loops_.innerStep);
        hasInner = false;
      } else if (hasRow) {
        block.rows = std::min(loops_.rowStep, loops_.row.size - i * loops_.rowStep);
        hasRow = false;
      }
    }
  }

  void runCell(const RunContext& context, int64_t cell, int64_t chunk, int64_t begin, int64_t end,
               T* registers, Operands operands, Results results) {
    Block start;
    start.offsets.assign(tensors_.size(), 0);
    place(loops_.cells, cell, !loops_.rowSummed, !loops_.innerSummed, start);
    T* sum = registerAt(registers, registers_);
    int64_t n = start.n, rows = start.rows;
    if (program_.sum) std::fill_n(sum, loops_.cellSize(), T(0));
    for (int64_t item = begin; item < end; ++item) {
      Block block = start;
      place(loops_.items, item, loops_.rowSummed, loops_.innerSummed, block);
      runBlock(block, registers, operands, results);
      if (program_.sum) addBlock(block, registers, operands, results, sum);
    }
    if (!program_.sum) return;
    if (loops_.innerSummed) n = 1;
    if (loops_.rowSummed) rows = 1;
    if (chunks_ > 1) {
      std::copy_n(sum, rows * n, &partials_[size_t((cell * chunks_ + chunk) * loops_.cellSize())]);
    } else {
      storeSum(context, start, rows, n, sum, sum + kBlock, results);
    }
  }

  // Where a value of the block is.
  T* find(int value, const Block& block, T* registers, Operands operands, Results results) const {
    const Held& held = held_[size_t(value)];
    if (held.direct < 0) return registerAt(registers, held.reg);
    size_t tensor = size_t(held.direct), inputs = program_.inputs.size();
    const void* base =
        tensor < inputs ? operands[tensor] : results[program_.outputs[tensor - inputs].result];
    return const_cast<T*>(static_cast<const T*>(base)) + block.offsets[tensor];
  }

  void runBlock(const Block& block, T* registers, Operands operands, Results results) const {
    size_t inputs = program_.inputs.size();
    for (size_t i = 0; i < inputs; ++i) {
      if (held_[i].reg >= 0 && !held_[i].uniform) {
        load(i, block, operands[i], registerAt(registers, held_[i].reg));
      }
    }
    auto at = [&](int value) { return find(value, block, registers, operands, results); };
    for (const Code& c : code_) c.loop(block.rows * block.n, at(c.a), at(c.b), at(c.out));
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      int value = program_.outputs[i].value;
      if (held_[size_t(value)].direct != int(inputs + i)) {
        store(i, block, at(value), results[program_.outputs[i].result]);
      }
    }
  }

  void load(size_t tensor, const Block& block, const void* base, T* to) const {
    int64_t row = loops_.row.strides[tensor], inner = loops_.inner.strides[tensor];
    withElem(tensors_[tensor]->elem, [&](auto* type) {
      using S = std::remove_pointer_t<decltype(type)>;
      const S* from = static_cast<const S*>(base) + block.offsets[tensor];
      if (inner == 1 && row == block.n) {
        convertRow(from, 1, block.rows * block.n, to);
        return;
      }
      for (int64_t r = 0; r < block.rows; ++r, from += row, to += block.n) {
        if (inner == 0) {
          std::fill_n(to, block.n, convert<T>(*from));
        } else {
          convertRow(from, inner, block.n, to);
        }
      }
    });
  }

  void store(size_t output, const Block& block, const T* from, void* base) const {
    size_t tensor = program_.inputs.size() + output;
    Elem elem = tensors_[tensor]->elem;
    int64_t row = loops_.row.strides[tensor], inner = loops_.inner.strides[tensor];
    int64_t offset = block.offsets[tensor], rows = block.rows, n = block.n;
    if (misses_[output]) {
      if (block.repeats >> output & 1) return;
      if (row == 0) rows = 1;
      if (inner == 0) n = 1;
    }
    for (int64_t r = 0; r < rows; ++r) {
      storeRow(from + r * block.n, base, elem, offset + r * row, inner, n);
    }
  }

  void addBlock(const Block& block, T* registers, Operands operands, Results results,
                T* sum) const {
    const T* value = find(program_.sum->value, block, registers, operands, results);
    for (int64_t r = 0; r < block.rows; ++r, value += block.n) {
      T* to = sum + (loops_.rowSummed ? 0 : r * (loops_.innerSummed ? 1 : block.n));
      if (loops_.innerSummed) {
        *to += sumRow(value, block.n);
      } else {
#pragma omp simd
        for (int64_t i = 0; i < block.n; ++i) to[i] += value[i];
      }
    }
  }

  // `spare` has room for a row; sum is used up.
  void storeSum(const RunContext& context, const Block& block, int64_t rows, int64_t n, T* sum,
                T* spare, Results results) const {
    size_t tensor = tensors_.size() - 1;
    void* base = results[program_.sum->result];
    Elem elem = tensors_[tensor]->elem;
    int64_t inner = loops_.inner.strides[tensor], row = loops_.row.strides[tensor];
    for (int64_t r = 0; r < rows; ++r) {
      T* from = sum + r * n;
      int64_t offset = block.offsets[tensor] + r * row;
      if (program_.accumulate.addsIn(context)) {
        const T* old = loadRow(base, elem, offset, inner, n, spare);
        for (int64_t i = 0; i < n; ++i) from[i] += old[i];
      }
      storeRow(from, base, elem, offset, inner, n);
    }
  }

  void addChunks(const RunContext& context, Results results) {
    for (int64_t cell = 0; cell < loops_.cellCount(); ++cell) {
      Block block;
      block.offsets.assign(tensors_.size(), 0);
      place(loops_.cells, cell, !loops_.rowSummed, !loops_.innerSummed, block);
      int64_t size = loops_.cellSize();
      int64_t n = loops_.innerSummed ? 1 : block.n, rows = loops_.rowSummed ? 1 : block.rows;
      T* sum = &partials_[size_t(cell * chunks_ * size)];
      for (int64_t chunk = 1; chunk < chunks_; ++chunk) {
        const T* part = sum + chunk * size;
#pragma omp simd
        for (int64_t i = 0; i < rows * n; ++i) sum[i] += part[i];
      }
      storeSum(context, block, rows, n, sum, sum + size, results);
    }
  }

  struct Code {
    BlockLoop<T> loop;
    int a, b, out;
  };

  Program program_;
  Shared& shared_;
  llvm::SmallVector<const Type*, 8> tensors_;
  Loops loops_;
  std::vector<Held> held_;
  std::vector<Code> code_;
  std::vector<bool> misses_;  // outputs that lack dims of the space
  bool lacking_ = false;      // there are such outputs
  int registers_ = 0;
  int64_t chunks_ = 1, cellsPerTask_ = 1;
  std::vector<T> partials_;
};

}  // namespace

std::unique_ptr<Kernel> makeProgram(Program program, Shared& shared) {
  if (program.isDouble) return std::make_unique<ProgramKernel<double>>(std::move(program), shared);
  return std::make_unique<ProgramKernel<float>>(std::move(program), shared);
}

KernelOr prepareElementwise(const Op& op, Shared& shared) {
  if (const Op* inner = notInChain(op))
    return unsupported(op, "its body holds '" + inner->info().text + "'");
  return makeProgram(Program(op, chainOf(op)), shared);
}

}  // namespace planc::cpu
