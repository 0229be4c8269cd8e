// Makers of elementwise ops, fused chains and sums by name. A chain's loops are cut into the cells
// and items of elementwise.h; sums of many items into few cells take two launches, the first of
// which leaves partial sums in the workspace. Nothing here depends on the GPU, so that sums are the
// same on all. Tested by tests/gpu/kernels_gpu_test.cpp.
#include "runtime/cuda/elementwise.h"

#include <bit>
#include <variant>

#include "runtime/cuda/chains.h"
#include "runtime/cuda/step_code.h"

namespace planc::cuda {
namespace {

constexpr int64_t kWantedBlocks = 1024;  // enough for any GPU

// Where a tensor is found when the kernel runs.
struct Place {
  enum { Operand, Result, Workspace } where;
  int number = 0;
};

struct Tensor {
  Elem elem;
  Place place;
  int64_t offset = 0;  // elements
};

// A chain over loops: tensors are the inputs that the code loads, the outputs, and the sum's
// target.
struct Form {
  llvm::SmallVector<Loop, 4> axes;  // outermost first
  llvm::SmallVector<Tensor, 8> tensors;
  int inputs = 0, outputs = 0;
  const StepCode* code = nullptr;
  bool sums = false, isDouble = false;
  bool isLast = false;  // its items are not cut into chunks

  size_t target() const { return size_t(inputs + outputs); }
  bool isSummed(const Loop& axis) const {
    return sums && axis.size > 1 && axis.strides[target()] == 0;
  }
};

// A form's loops as a kernel has them: innermost first, cells before items, the loop of units in
// units.
struct Loops {
  llvm::SmallVector<Loop, 4> all;
  int cellLoops = 0;
  int unitLoop = 0;
  int64_t unitSize = 1;  // elements
  llvm::SmallVector<int64_t, 8> steps;  // of each tensor in a unit
  bool addsUp = false;

  int64_t count(int from, int to) const {
    int64_t product = 1;
    for (int l = from; l < to; ++l) product *= all[size_t(l)].size;
    return product;
  }
  int64_t cells() const { return count(0, cellLoops); }
  int64_t items() const { return count(cellLoops, int(all.size())); }
};

// Kept loops go outside the summed ones, but the innermost stays for the sake of its stride.
void order(Form& form) {
  merge(form.axes, form.tensors.size());
  std::stable_partition(form.axes.begin(), form.axes.end() - 1,
                        [&](const Loop& axis) { return !form.isSummed(axis); });
  merge(form.axes, form.tensors.size());
}

Loops loopsOf(const Form& form, int64_t width) {
  Loops loops;
  llvm::SmallVector<Loop, 4> items;
  for (const Loop& axis : llvm::reverse(form.axes))
    (form.isSummed(axis) ? items : loops.all).push_back(axis);
  loops.addsUp = form.isSummed(form.axes.back());
  loops.cellLoops = int(loops.all.size());
  loops.unitLoop = loops.addsUp ? loops.cellLoops : 0;
  loops.all.append(items);
  Loop& units = loops.all[size_t(loops.unitLoop)];
  loops.unitSize = units.size;
  loops.steps.assign(units.strides.begin(), units.strides.end());
  units.size = (units.size + width - 1) / width;
  for (int64_t& stride : units.strides) stride *= width;
  return loops;
}

// Cells side by side in a block of `threads`, and how many threads share each.
Split splitOf(const Loops& loops, const Form& form, int threads) {
  Split split{};
  split.cells = loops.cells();
  split.items = loops.items();
  split.chunks = split.itemThreads = 1;
  split.unitLoop = loops.unitLoop;
  split.unitSize = loops.unitSize;
  split.sums = form.sums;
  split.addsUp = loops.addsUp;
  if (!form.sums) return split;
  // Of columns at least a warp side by side, for the sake of long reads.
  auto upTo = [](int64_t count, int most) {
    return int(std::bit_ceil(uint64_t(std::clamp<int64_t>(count, 1, most))));
  };
  int columns = split.addsUp ? 1 : upTo(split.cells, kWarp);
  split.itemThreads = upTo(split.items, threads / columns);
  if (form.isLast) return split;
  int64_t blocks = blocksFor(split.cells, threads / split.itemThreads);
  int64_t most = std::min<int64_t>(split.items / (8 * split.itemThreads), kWantedBlocks);
  int64_t wanted = std::min((kWantedBlocks + blocks - 1) / blocks, most);
  split.chunks = int32_t(std::max<int64_t>(1, wanted));
  return split;
}

LaunchShape shapeOf(const Split& split, int threads) {
  int64_t each = split.sums ? threads / split.itemThreads : threads;
  LaunchShape shape;
  shape.x = blocksFor(split.cells, each);
  shape.y = uint32_t(split.chunks);
  shape.threads = uint32_t(threads);
  return shape;
}

// Partial sums in the workspace: a row a chunk, in it the cells' elements, innermost loop first,
// the units padded to whole ones.
struct Partials {
  llvm::SmallVector<int64_t, 4> strides;  // by loop of the cells; of units from unit to unit
  int64_t chunkStride = 0;

  Partials(const Loops& loops, int64_t width) {
    int64_t stride = loops.addsUp ? 1 : width;
    for (int l = 0; l < loops.cellLoops; ++l) {
      strides.push_back(stride);
      stride *= loops.all[size_t(l)].size;
    }
    chunkStride = (stride + 63) / 64 * 64;
  }
};

const StepCode& sumCode() {
  static const StepCode code{{{StepKind::Move, 0, kAcc, kNoSlot}}, {}, {0}, 1};
  return code;
}

// What adds up the chunks: a sum over the workspace.
Form secondForm(const Form& first, const Loops& loops, const Partials& partials, int chunks,
                int64_t width) {
  Form form;
  form.inputs = 1;
  form.code = &sumCode();
  form.sums = true;
  form.isDouble = first.isDouble;
  form.isLast = true;
  form.tensors = {{first.isDouble ? Elem::F64 : Elem::F32, {Place::Workspace}},
                  first.tensors[first.target()]};
  form.axes.push_back({chunks, {partials.chunkStride, 0}});
  for (int l = loops.cellLoops; l-- > 0;) {
    const Loop& loop = loops.all[size_t(l)];
    bool isUnits = l == loops.unitLoop;
    int64_t to = loop.strides[first.target()], from = partials.strides[size_t(l)];
    if (isUnits) form.axes.push_back({loops.unitSize, {from / width, loops.steps[first.target()]}});
    else form.axes.push_back({loop.size, {from, to}});
  }
  return form;
}

// One launch, and where its tensors are.
struct Stage {
  LaunchShape shape;
  llvm::SmallVector<Tensor, 8> tensors;
  Split split;

  void* find(size_t tensor, Operands in, Results out, std::byte* workspace) const {
    const Tensor& t = tensors[tensor];
    int64_t bytes = t.offset * bytesPerElement(t.elem);
    const void* base = workspace;
    if (t.place.where == Place::Operand) base = in[t.place.number];
    if (t.place.where == Place::Result) base = out[t.place.number];
    return const_cast<std::byte*>(static_cast<const std::byte*>(base)) + bytes;
  }
};

// A kernel of ChainArgs and what it is good for.
struct Tier {
  int width, slots, sumSlots;
  const cuda::Kernel<ChainArgs>*plain, *sum;
};
const Tier kTiers[] = {
    {8, kFewSlots, kFewSumSlots, &kChainFew, &kChainSumFew},
    {8, kSomeSlots, kSomeSlots, &kChainSome, &kChainSumSome},
    {4, kManySlots, kManySlots, &kChainMany, &kChainSumMany},
};

struct ShortStage : Stage {
  const cuda::Kernel<ChainArgs>* kernel;
  ChainArgs args{};
  int width;

  // Elements that a tensor's vectors take must lie as the kernel loads them.
  void run(Shared& shared, Operands in, Results out, bool adds) const {
    ChainArgs launched = args;
    launched.split.adds = adds;
    for (size_t t = 0; t < tensors.size(); ++t) {
      ChainTensor& tensor = launched.tensors[t];
      tensor.data = find(t, in, out, shared.workspace());
      uint64_t alignment = std::min<uint64_t>(16, uint64_t(width * bytesPerElement(tensor.elem)));
      bool isAligned = reinterpret_cast<uintptr_t>(tensor.data) % alignment == 0;
      if (tensor.access == Access::Vector && !isAligned) tensor.access = Access::Strided;
    }
    shared.launch(*kernel, shape, launched);
  }
};

struct LongStage : Stage {
  const cuda::Kernel<LongArgs>* kernel;
  LongArgs args{};

  void run(Shared& shared, Operands in, Results out, bool adds) const {
    LongArgs launched = args;
    launched.split.adds = adds;
    for (size_t t = 0; t < tensors.size(); ++t)
      launched.data[t] = find(t, in, out, shared.workspace());
    shared.launch(*kernel, shape, launched);
  }
};

// A thread loads units of `width` from neighbouring places as one.
Access accessOf(const Loops& loops, size_t tensor, int64_t width) {
  if (loops.steps[tensor] == 0) return Access::Same;
  if (loops.steps[tensor] != 1) return Access::Strided;
  auto isEven = [&](const Loop& loop) {
    return loop.size == 1 || loop.strides[tensor] % width == 0;
  };
  return llvm::all_of(loops.all, isEven) ? Access::Vector : Access::Strided;
}

// The kernel of ChainArgs for a form, if its units go well with one.
const Tier* tierOf(const Form& form) {
  const StepCode& code = *form.code;
  if (form.isDouble || form.axes.size() > kChainLoops || form.tensors.size() > kChainTensors ||
      code.steps.size() > kChainSteps || code.constants.size() > kChainConstants)
    return nullptr;
  int64_t row = form.axes.back().size;
  for (const Tier& tier : kTiers) {
    bool fitsBetter = form.axes.size() > 1 && row % tier.width != 0 && row % 4 == 0;
    Loops loops = loopsOf(form, tier.width);
    constexpr int64_t kMost = int64_t{1} << 32;
    int slots = form.sums ? tier.sumSlots : tier.slots;
    if (code.slots > slots || fitsBetter || loops.cells() >= kMost || loops.items() >= kMost)
      continue;
    return &tier;
  }
  return nullptr;
}

class ChainKernel : public planc::Kernel {
 public:
  ChainKernel(Form form, Accumulate accumulate, Shared& shared)
      : accumulate_(accumulate), shared_(shared) {
    add(std::move(form));
  }
  // What the kernels have no room for; empty: nothing.
  llvm::StringRef lacks() const { return lacks_; }

  void run(const RunContext& context, Operands in, Results out) override {
    bool adds = accumulate_.addsIn(context);
    // Of several launches the last one stores the sum.
    for (const auto& stage : stages_) {
      bool isLast = &stage == &stages_.back();
      std::visit([&](const auto& s) { s.run(shared_, in, out, adds && isLast); }, stage);
    }
  }

 private:
  void add(Form form) {
    order(form);
    for (const Loop& axis : form.axes)
      if (axis.size == 0) return;
    const Tier* tier = tierOf(form);
    if (tier != nullptr) return addShort(std::move(form), *tier);
    addLong(std::move(form));
  }

  // Puts partial sums in the target's place where the items are cut into chunks; `later` is then
  // what adds them up.
  Partials cut(Form& form, const Loops& loops, const Split& split, int64_t width,
               std::optional<Form>& later) {
    Partials partials(loops, width);
    if (split.chunks == 1) return partials;
    later = secondForm(form, loops, partials, split.chunks, width);
    Elem elem = form.isDouble ? Elem::F64 : Elem::F32;
    form.tensors[form.target()] = {elem, {Place::Workspace}};
    shared_.needWorkspace(split.chunks * partials.chunkStride * bytesPerElement(elem));
    return partials;
  }

  void addShort(Form form, const Tier& tier) {
    Loops loops = loopsOf(form, tier.width);
    ShortStage stage;
    stage.width = tier.width;
    stage.kernel = form.sums ? tier.sum : tier.plain;
    stage.split = splitOf(loops, form, kChainThreads);
    stage.shape = shapeOf(stage.split, kChainThreads);
    if (form.sums) stage.shape.sharedBytes = uint32_t(tier.width * kChainThreads * sizeof(float));
    std::optional<Form> later;
    Partials partials = cut(form, loops, stage.split, tier.width, later);
    stage.tensors = form.tensors;

    ChainArgs& args = stage.args;
    args.split = stage.split;
    args.cellLoops = loops.cellLoops;
    args.loops = int32_t(loops.all.size());
    args.inputs = form.inputs;
    args.outputs = form.outputs;
    args.steps = int32_t(form.code->steps.size());
    for (size_t l = 0; l < loops.all.size(); ++l) args.sizes[l] = uint32_t(loops.all[l].size);
    for (size_t t = 0; t < form.tensors.size(); ++t) {
      ChainTensor& tensor = args.tensors[t];
      tensor.elem = form.tensors[t].elem;
      tensor.step = loops.steps[t];
      tensor.access = accessOf(loops, t, tier.width);
      for (size_t l = 0; l < loops.all.size(); ++l) tensor.strides[l] = loops.all[l].strides[t];
    }
    if (later) {
      ChainTensor& target = args.tensors[form.target()];
      args.chunkStride = partials.chunkStride;
      target.step = 1;
      target.access = Access::Vector;
      std::copy(partials.strides.begin(), partials.strides.end(), target.strides);
    }
    std::copy(form.code->steps.begin(), form.code->steps.end(), args.code);
    for (size_t c = 0; c < form.code->constants.size(); ++c)
      args.constants[c] = float(form.code->constants[c]);
    stages_.push_back(std::move(stage));
    if (later) add(std::move(*later));
  }

  void addLong(Form form) {
    if (form.axes.size() > kLongLoops) lacks_ = "more than 8 loops";
    if (form.tensors.size() > kLongTensors) lacks_ = "more than 256 operands and results";
    constexpr int64_t kRoom = 48 << 10;  // bytes of shared memory that any GPU gives
    int64_t each = (form.code->slots + 1) * (form.isDouble ? 8 : 4);
    int threads = kChainThreads;
    while (threads > kWarp && threads * each > kRoom) threads /= 2;
    if (threads * each > kRoom) lacks_ = "more values at a time than shared memory holds";
    if (!lacks_.empty()) return;

    Loops loops = loopsOf(form, 1);
    LongStage stage;
    stage.kernel = form.isDouble ? &kLongChainF64 : &kLongChainF32;
    stage.split = splitOf(loops, form, threads);
    stage.shape = shapeOf(stage.split, threads);
    stage.shape.sharedBytes = uint32_t(threads * each);
    std::optional<Form> later;
    Partials partials = cut(form, loops, stage.split, 1, later);
    stage.tensors = form.tensors;

    LongArgs& args = stage.args;
    args.split = stage.split;
    args.cellLoops = loops.cellLoops;
    args.loops = int32_t(loops.all.size());
    args.inputs = form.inputs;
    args.outputs = form.outputs;
    args.steps = int32_t(form.code->steps.size());
    args.slots = form.code->slots;
    std::vector<LongTensor> tensors(form.tensors.size(), LongTensor{});
    for (size_t l = 0; l < loops.all.size(); ++l) args.sizes[l] = loops.all[l].size;
    for (size_t t = 0; t < tensors.size(); ++t) {
      tensors[t].elem = form.tensors[t].elem;
      for (size_t l = 0; l < loops.all.size(); ++l) tensors[t].strides[l] = loops.all[l].strides[t];
    }
    if (form.sums) args.target = tensors.back();
    if (later) {
      args.chunkStride = partials.chunkStride;
      std::copy(partials.strides.begin(), partials.strides.end(), args.target.strides);
    }
    args.tensors = shared_.table<LongTensor>(tensors);
    args.code = shared_.table<Step>(form.code->steps);
    args.constants = shared_.table<double>(form.code->constants);
    stages_.push_back(std::move(stage));
    if (later) add(std::move(*later));
  }

  Accumulate accumulate_;
  Shared& shared_;
  std::vector<std::variant<ShortStage, LongStage>> stages_;
  llvm::StringRef lacks_;
};

KernelOr finish(const Op& op, Form form, Shared& shared) {
  auto kernel = std::make_unique<ChainKernel>(std::move(form), Accumulate(op), shared);
  if (!kernel->lacks().empty()) return unsupported(op, kernel->lacks());
  return kernel;
}

// A copy whose rows lie across those of its target.
struct Transposition {
  TransposeArgs args{};
  int64_t planes = 1;
};

std::optional<Transposition> transpositionOf(const Move& move) {
  constexpr int64_t kShort = 16;  // a loop too short to fill tiles
  Transposition found;
  TransposeArgs& args = found.args;
  for (const Loop& axis : llvm::reverse(move.axes)) {
    int64_t from = axis.strides[0], to = axis.strides[1];
    if (from == 1 && to != 1 && args.columns == 0) {
      args.columns = axis.size;
      args.toColumn = to;
    } else if (to == 1 && from != 1 && args.rows == 0) {
      args.rows = axis.size;
      args.fromRow = from;
    } else if (args.planeLoops == kPlaneLoops) {
      return std::nullopt;
    } else {
      args.planeSizes[args.planeLoops] = axis.size;
      args.fromPlanes[args.planeLoops] = from;
      args.toPlanes[args.planeLoops++] = to;
      found.planes *= axis.size;
    }
  }
  if (args.rows < kShort || args.columns < kShort) return std::nullopt;
  return found;
}

const StepCode& copyCode() {
  static const StepCode code{
      {{StepKind::Move, 0, kAcc, kNoSlot}, {StepKind::Store, kAcc, kAcc, 0}}, {}, {0}, 1};
  return code;
}

// What only moves between elements of one type is not computed with.
bool isDoubleMove(const Move& move) {
  auto isWide = [&](Elem elem) { return elem == Elem::F64 || elem == Elem::I32; };
  return isWide(move.from) || isWide(move.to);
}

}  // namespace

KernelOr makeChain(const Op& op, const Chain& chain, Shared& shared) {
  StepCode code = codeOf(chain);
  Form form;
  form.code = &code;
  form.isDouble = isDouble(op);
  form.sums = chain.sum.has_value();
  llvm::SmallVector<const Type*, 8> types;
  auto add = [&](const Type& type, Place place) {
    types.push_back(&type);
    form.tensors.push_back({type.elem, place});
  };
  for (int input : code.inputs) add(chain.inputs[size_t(input)], {Place::Operand, input});
  for (const auto& output : chain.outputs) add(output.type, {Place::Result, output.result});
  if (chain.sum) add(chain.sum->type, {Place::Result, chain.sum->result});
  form.inputs = int(code.inputs.size());
  form.outputs = int(chain.outputs.size());
  for (const Dim& dim : chain.space()) {
    Loop axis{dim.size, {}};
    for (const Type* type : types) axis.strides.push_back(strideOf(*type, dim.name));
    form.axes.push_back(std::move(axis));
  }
  return finish(op, std::move(form), shared);
}

KernelOr makeMove(const Op& op, Move move, Shared& shared) {
  merge(move.axes, 2);
  // 32 bits are 32 bits.
  if (move.from == Elem::I32 && move.to == Elem::I32) move.from = move.to = Elem::F32;
  bool isWide = isDoubleMove(move);
  int operand = move.operand;
  auto found = transpositionOf(move);
  if (!found) {
    Form form;
    form.code = &copyCode();
    form.isDouble = isWide;
    form.inputs = form.outputs = 1;
    form.tensors = {{move.from, {Place::Operand, operand}, move.fromOffset},
                    {move.to, {Place::Result, 0}, move.toOffset}};
    form.axes = move.axes;
    return finish(op, std::move(form), shared);
  }
  const TransposeArgs& args = found->args;
  int64_t tiles = int64_t(blocksFor(args.rows, kTile)) * blocksFor(args.columns, kTile);
  LaunchShape shape;
  shape.x = uint32_t(tiles * found->planes);
  shape.threads = kTransposeThreads;
  shape.sharedBytes = kTile * (kTile + 1) * (isWide ? sizeof(double) : sizeof(float));
  const auto& kernel = isWide ? kTransposeF64 : kTransposeF32;
  int64_t from = move.fromOffset * bytesPerElement(move.from);
  int64_t to = move.toOffset * bytesPerElement(move.to);
  return makeKernel([=, &shared, &kernel](const RunContext&, Operands in, Results out) {
    TransposeArgs launched = args;
    launched.from = {static_cast<const std::byte*>(in[operand]) + from, move.from};
    launched.to = {static_cast<std::byte*>(out[0]) + to, move.to};
    shared.launch(kernel, shape, launched);
  });
}

KernelOr prepareElementwise(const Op& op, Shared& shared) {
  if (const Op* inner = notInChain(op))
    return unsupported(op, "its body holds '" + inner->info().text + "'");
  Chain chain = chainOf(op);
  if (!chain.steps.empty() || chain.sum) return makeChain(op, chain, shared);
  const Type &from = chain.inputs[0], &to = chain.outputs[0].type;
  Move move{{}, from.elem, to.elem};
  for (const Dim& dim : memoryDims(to))
    move.axes.push_back({dim.size, {strideOf(from, dim.name), strideOf(to, dim.name)}});
  return makeMove(op, std::move(move), shared);
}

}  // namespace planc::cuda
