// Makers of attention's kernels: which heads are this rank's and how their rows lie, which
// positions its queries and keys have, and which kernels can do it. Where ranks hold pieces of the
// heads, one may hold some of the heads that share a key head, all of the next's, and none of
// another's: these are parts with loops of their own, and launches of their own. Tested by
// tests/gpu/kernels_gpu_test.cpp.
#include "runtime/cuda/attention.h"

#include <cmath>

#include "runtime/cuda/ops.h"
#include "runtime/layout.h"
#include "runtime/places.h"

namespace planc::cuda {
namespace {

using Role = AttendRole;
static_assert(kAttendNoKeys == float(kNoKeys));

// Which dims a tensor has beside its positions and its heads.
enum class Like { Query, Key, Value, Output, Row, RowOfKeys };

// One of the op's operands or results.
struct Use {
  int role;
  Like like;
  bool isResult;
  unsigned index;
  Type type;
};
using Uses = llvm::SmallVector<Use, 11>;

Use operandOf(const Op& op, int role, Like like, unsigned index) {
  return {role, like, false, index, op.operand(index)->type};
}
Use resultOf(const Op& op, int role, Like like, unsigned index) {
  return {role, like, true, index, op.result(index)->type};
}
void addDocuments(const Op& op, Uses& uses) {
  unsigned first = unsigned(op.info().minOperands);
  if (op.operands().size() <= first) return;
  uses.push_back(operandOf(op, Role::OfQueries, Like::Row, first));
  uses.push_back(operandOf(op, Role::OfKeys, Like::RowOfKeys, first + 1));
}

// The heads that one launch does.
struct Part {
  llvm::SmallVector<Loop, 4> outer, own;  // strides by role
  int64_t start[Role::kCount] = {};
};

int64_t countOf(llvm::ArrayRef<Loop> loops) {
  int64_t count = 1;
  for (const Loop& loop : loops) count *= loop.size;
  return count;
}

class Attention {
 public:
  // On tensor cores if `onCores`, else by the plain kernels.
  Attention(const Op& op, Uses uses, bool onCores, Shared& shared)
      : uses_(std::move(uses)),
        shared_(shared),
        onCores_(onCores),
        isDouble_(isDouble(op)),
        isGradient_(op.kind == OpKind::AttendGrad),
        queryDim_(dimOf(Role::Q, op.attrs.word("seq"))),
        keyDim_(dimOf(Role::K, op.attrs.word("seq"))) {}

  // False: it cannot be done on tensor cores.
  llvm::Expected<bool> analyse(const Op& op);
  // Whether tensor cores can read and write these.
  bool isAligned(Operands in, Results out) const;
  void run(const RunContext& context, Operands in, Results out);

 private:
  const Type& type(int role) const {
    return llvm::find_if(uses_, [&](const Use& use) { return use.role == role; })->type;
  }
  Dim dimOf(int role, llvm::StringRef name) const {
    return type(role).dims[size_t(type(role).find(name))];
  }
  llvm::Error placeTensors(const Op& op);
  void findParts(const Op& op);
  int64_t unitOf(const Use& use) const;
  bool fitsTensorCores() const;
  llvm::Error choosePlainTile(const Op& op);
  AttendSide sideOf(const Dim& dim, int64_t iteration, int32_t rows, int32_t step);
  void makeSides();
  AttendArgs argsOf(const Part& part) const;
  void launch(const Kernel<AttendArgs>& kernel, AttendArgs args, int64_t blocks, int64_t bytes);
  void launchWarps(const Kernel<AttendArgs>& kernel, const AttendArgs& args, int64_t warps);

  // What serves rows of one width: kernels, the rows of their blocks and steps, their shared
  // memory.
  struct Choice {
    const Kernel<AttendArgs>*forward, *queries;
    llvm::SmallVector<const Kernel<AttendArgs>*, 2> keys;
    int32_t width, rows, step, backwardRows, backwardStep;
    uint32_t threads;
    int64_t bytes, backwardBytes;
  };
  template <int D>
  static Choice choiceOf(const Kernel<AttendArgs>& forward, const Kernel<AttendArgs>& queries,
                         llvm::ArrayRef<const Kernel<AttendArgs>*> keys) {
    using Shape = AttendShape<D>;
    return {&forward,
            &queries,
            {keys.begin(), keys.end()},
            D,
            Shape::kQueries,
            Shape::kKeys,
            Shape::kRows,
            Shape::kStep,
            Shape::kThreads,
            int64_t(sizeof(typename Shape::Forward)),
            int64_t(sizeof(typename Shape::Backward))};
  }

  Uses uses_;
  Shared& shared_;
  bool onCores_, isDouble_, isGradient_;
  Dim queryDim_, keyDim_;
  AttendArgs args_{};
  llvm::SmallVector<Part, 1> parts_;
  Choice choice_{};
  // Of each iteration of the repeat that the keys move with; `repeat_`: its depth.
  int repeat_ = -1;
  // What moves and what stays, forward or in the pass over queries, and in the pass over keys.
  AttendSide queries_{}, movingQueries_{};
  llvm::SmallVector<AttendSide, 4> movingKeys_, keys_;
  int64_t statsBytes_ = 0, keyDocumentsBytes_ = 0;
};

llvm::Error Attention::placeTensors(const Op& op) {
  std::string seq = op.attrs.word("seq"), by = op.attrs.word("by"), head = op.attrs.word("head");
  std::string kv = op.attrs.word("kv");
  const Type &q = type(Role::Q), &k = type(Role::K), &v = type(Role::V);
  bool grouped = !kv.empty() && kv != head && k.has(kv) && q.has(head);
  // A value's width: its dims that pick neither position nor query.
  llvm::SmallVector<Dim, 4> valueDims;
  for (const Dim& dim : memoryDims(v)) {
    bool isHead = grouped && dim.name == kv;
    if (dim.name != seq && !isHead && (!q.has(dim.name) || dim.name == by))
      valueDims.push_back(dim);
  }
  args_.widthQ = int32_t(q.size(by));
  for (const Use& use : uses_) {
    AttendTensor& tensor = args_.tensors[use.role];
    tensor = {nullptr, strideOf(use.type, seq), strideOf(use.type, by), use.type.elem};
    if (use.like != Like::Value && use.like != Like::Output) continue;
    Space space(valueDims, {&use.type});
    if (space.loops().size() != 1) return unsupported(op, "values whose own dims are apart");
    tensor.column = space.loops()[0].size == 1 ? 1 : space.loops()[0].strides[0];
    args_.widthV = int32_t(space.count());
  }
  return llvm::Error::success();
}

void Attention::findParts(const Op& op) {
  std::string seq = op.attrs.word("seq"), by = op.attrs.word("by"), head = op.attrs.word("head");
  std::string kv = op.attrs.word("kv");
  const Type &q = type(Role::Q), &k = type(Role::K), &v = type(Role::V);
  bool grouped = !kv.empty() && kv != head && k.has(kv) && q.has(head);
  // Each tensor's steps: along `keyDim` for keys and values, `step` elements of `dim` for others.
  auto steps = [&](llvm::StringRef dim, llvm::StringRef keyDim, int64_t step) {
    llvm::SmallVector<int64_t, 6> strides(size_t(Role::kCount), 0);
    for (const Use& use : uses_) {
      bool isKey = use.like == Like::Key || use.like == Like::Value || use.like == Like::RowOfKeys;
      strides[size_t(use.role)] =
          isKey ? strideOf(use.type, keyDim) : step * strideOf(use.type, dim);
    }
    return strides;
  };
  llvm::SmallVector<Heads, 3> heads{{0, 0, 0, 0}};  // unused when not grouped
  if (grouped)
    heads = headsOf(q.dims[size_t(q.find(head))], k.dims[size_t(k.find(kv))], shared_.rank);
  for (const Heads& run : heads) {
    Part part;
    for (const Dim& dim : memoryDims(q)) {
      if (dim.name == seq || dim.name == by) continue;
      if (grouped && dim.name == head) {
        part.outer.push_back({run.kvs, steps(head, kv, run.group)});
        part.own.push_back({run.group, steps(head, "", 1)});
        auto toHead = steps(head, "", run.head), toKv = steps("", kv, 0);
        for (size_t t = 0; t < size_t(Role::kCount); ++t)
          part.start[t] = toHead[t] + run.kv * toKv[t];
      } else if (k.has(dim.name) || v.has(dim.name)) {
        part.outer.push_back({dim.size, steps(dim.name, dim.name, 1)});
      } else {
        part.own.push_back({dim.size, steps(dim.name, "", 1)});
      }
    }
    merge(part.outer, size_t(Role::kCount));
    merge(part.own, size_t(Role::kCount));
    parts_.push_back(std::move(part));
  }
}

// Rows of bf16 are read in pieces of 8 elements, other rows read and written in pairs; what is no
// row goes by elements.
int64_t Attention::unitOf(const Use& use) const {
  bool isPlain = use.like == Like::Row || use.like == Like::RowOfKeys;
  if (isPlain || (isGradient_ && use.role == Role::A)) return 1;
  bool isPair = use.isResult || use.role == Role::Before;
  return isPair ? 2 : 8;
}

bool Attention::fitsTensorCores() const {
  if (isDouble_ || args_.widthQ % 16 != 0 || args_.widthV % 16 != 0 || args_.scale <= 0 ||
      std::max(args_.widthQ, args_.widthV) > 256)
    return false;
  return llvm::all_of(uses_, [&](const Use& use) {
    int64_t unit = unitOf(use), rest = args_.tensors[use.role].row % unit;
    if (unit == 1) return true;
    for (const Part& part : parts_) {
      rest |= part.start[use.role] % unit;
      for (const auto* loops : {&part.outer, &part.own})
        for (const Loop& loop : *loops) rest |= loop.strides[size_t(use.role)] % unit;
    }
    bool isKind = unit == 2 || use.type.elem == Elem::BF16;
    return isKind && args_.tensors[use.role].column == 1 && rest == 0;
  });
}

bool Attention::isAligned(Operands in, Results out) const {
  return llvm::all_of(uses_, [&](const Use& use) {
    const void* data = use.isResult ? out[use.index] : in[use.index];
    int64_t unit = unitOf(use) * bytesPerElement(use.type.elem);
    return reinterpret_cast<uintptr_t>(data) % uint64_t(unit) == 0;
  });
}

llvm::Error Attention::choosePlainTile(const Op& op) {
  // Every GPU has that, and an H100's multiprocessors have room for two.
  constexpr int64_t kMostBytes = 96 << 10;
  auto elements = isGradient_ ? attendPlainBackward : attendPlainForward;
  int64_t size = isDouble_ ? 8 : 4;
  int32_t tile = 32;
  while (tile > 1 && elements(tile, args_.widthQ, args_.widthV) * size > kMostBytes) tile /= 2;
  int64_t bytes = elements(tile, args_.widthQ, args_.widthV) * size;
  if (bytes > kMostBytes) return unsupported(op, "rows of more elements than a block has room for");
  choice_.width = 0;
  choice_.rows = choice_.step = choice_.backwardRows = choice_.backwardStep = tile;
  choice_.threads = kAttendPlainThreads;
  choice_.bytes = choice_.backwardBytes = bytes;
  choice_.forward = isDouble_ ? &kAttendF64 : &kAttendF32;
  choice_.queries = isDouble_ ? &kAttendGradQF64 : &kAttendGradQF32;
  choice_.keys = {isDouble_ ? &kAttendGradKVF64 : &kAttendGradKVF32};
  return llvm::Error::success();
}

// `rows`: of a block, 0: this side has none; `step`: of the tiles that it moves by.
AttendSide Attention::sideOf(const Dim& dim, int64_t iteration, int32_t rows, int32_t step) {
  std::vector<AttendSegment> segments;
  std::vector<AttendTile> tiles;
  int32_t count = 0, number = 0;
  for (const Segment& segment : shared_.rank.segments(dim, iteration)) {
    int32_t size = int32_t(segment.count);
    segments.push_back({int32_t(segment.at), int32_t(segment.first), size, number});
    for (int32_t i = 0; rows > 0 && i < size; i += rows)
      tiles.push_back(
          {int32_t(segment.at) + i, int32_t(segment.first) + i, std::min(rows, size - i)});
    number += (size + step - 1) / step;
    count += size;
  }
  for (int32_t i = count; rows > 0 && i < dim.size; i += rows)
    tiles.push_back({i, AttendTile::kPadding, std::min(rows, int32_t(dim.size) - i)});
  AttendSide side{};
  side.segments = shared_.table(llvm::ArrayRef<AttendSegment>(segments));
  side.tiles = shared_.table(llvm::ArrayRef<AttendTile>(tiles));
  side.segmentCount = int32_t(segments.size());
  side.tileCount = int32_t(tiles.size());
  side.documentTiles = number;
  return side;
}

void Attention::makeSides() {
  int32_t rows = isGradient_ ? choice_.backwardRows : choice_.rows;
  int32_t step = isGradient_ ? choice_.backwardStep : choice_.step;
  args_.tile = step;
  int64_t keyTiles = 0, queryTiles = 0;
  queries_ = sideOf(queryDim_, 0, rows, step);
  for (int64_t i = 0; i < (keyDim_.moves.empty() ? 1 : ranksOver(keyDim_.axes)); ++i) {
    movingKeys_.push_back(sideOf(keyDim_, i, 0, step));
    if (isGradient_) keys_.push_back(sideOf(keyDim_, i, rows, step));
    keyTiles = std::max<int64_t>(keyTiles, movingKeys_.back().documentTiles);
  }
  if (isGradient_) {
    movingQueries_ = sideOf(queryDim_, 0, 0, step);
    queryTiles = movingQueries_.documentTiles;
  }
  auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  int64_t queryDocumentsBytes = 0;
  for (const Part& part : parts_) {
    int64_t outer = countOf(part.outer), heads = outer * countOf(part.own);
    if (isGradient_)
      statsBytes_ = std::max(statsBytes_, heads * queryDim_.size * 2 * (isDouble_ ? 8 : 4));
    if (!args_.hasDocuments) continue;
    keyDocumentsBytes_ = std::max(keyDocumentsBytes_, outer * keyTiles * 8);
    queryDocumentsBytes = std::max(queryDocumentsBytes, heads * queryTiles * 8);
  }
  statsBytes_ = aligned(statsBytes_);
  keyDocumentsBytes_ = aligned(keyDocumentsBytes_);
  shared_.needWorkspace(statsBytes_ + keyDocumentsBytes_ + queryDocumentsBytes);
}

llvm::Expected<bool> Attention::analyse(const Op& op) {
  if (!keyDim_.moves.empty()) {
    Words repeats = op.parent()->enclosing();
    auto repeat = llvm::find(repeats, keyDim_.moves);
    if (repeat == repeats.end())
      return unsupported(op, "its keys move with '" + keyDim_.moves + "', which is not around it");
    repeat_ = int(repeat - repeats.begin());
  }
  if (auto error = placeTensors(op)) return error;
  findParts(op);
  for (const Part& part : parts_)
    if (part.outer.size() + part.own.size() > size_t(kAttendLoops))
      return unsupported(op, "more loops around its rows than " + llvm::Twine(kAttendLoops));
  // Beyond all positions it is none, and must not overflow.
  args_.window = int32_t(std::min<int64_t>(op.attrs.integer("window"), 1 << 29));
  args_.isCausal = op.isFlag("causal");
  args_.hasDocuments = op.operands().size() > size_t(op.info().minOperands);
  args_.goesOn = op.kind == OpKind::AttendBlock;
  args_.scale = op.attrs.number("scale", 1 / std::sqrt(double(args_.widthQ)));
  args_.queryRows = int32_t(queryDim_.size);

  static const Choice choices[] = {
      choiceOf<64>(kAttend64, kAttendGradQ64, {&kAttendGradKV64}),
      choiceOf<128>(kAttend128, kAttendGradQ128, {&kAttendGradKV128}),
      choiceOf<256>(kAttend256, kAttendGradQ256, {&kAttendGradK256, &kAttendGradV256}),
  };
  auto fits = [&](const Choice& choice) {
    return std::max(args_.widthQ, args_.widthV) <= choice.width &&
           (isGradient_ ? choice.backwardBytes : choice.bytes) <= shared_.gpu.sharedBytesOfBlock();
  };
  if (onCores_) {
    const auto* choice = fitsTensorCores() ? llvm::find_if(choices, fits) : std::end(choices);
    if (choice == std::end(choices)) return false;
    choice_ = *choice;
  } else if (auto error = choosePlainTile(op)) {
    return error;
  }
  makeSides();
  return true;
}

AttendArgs Attention::argsOf(const Part& part) const {
  AttendArgs args = args_;
  std::copy_n(part.start, size_t(Role::kCount), args.start);
  args.outer = int32_t(countOf(part.outer));
  args.own = int32_t(countOf(part.own));
  args.outerLoops = int32_t(part.outer.size());
  for (const auto* loops : {&part.outer, &part.own}) {
    for (const Loop& loop : *loops) {
      AttendLoop& to = args.loops[args.loopCount++];
      // A part without heads walks none.
      to.size = int32_t(std::max<int64_t>(loop.size, 1));
      std::copy_n(loop.strides.begin(), size_t(Role::kCount), to.strides);
    }
  }
  return args;
}

void Attention::launch(const Kernel<AttendArgs>& kernel, AttendArgs args, int64_t blocks,
                       int64_t bytes) {
  if (blocks == 0) return;
  shared_.launch(
      kernel, {.x = uint32_t(blocks), .threads = choice_.threads, .sharedBytes = uint32_t(bytes)},
      args);
}

void Attention::launchWarps(const Kernel<AttendArgs>& kernel, const AttendArgs& args,
                            int64_t warps) {
  if (warps == 0) return;
  constexpr uint32_t kThreads = kAttendPlainThreads;
  shared_.launch(kernel, {.x = blocksFor(warps, kThreads / kWarp), .threads = kThreads}, args);
}

void Attention::run(const RunContext& context, Operands in, Results out) {
  size_t iteration =
      repeat_ < 0 ? 0 : size_t(context.iteration[size_t(repeat_)]) % movingKeys_.size();
  std::byte *stats = shared_.workspace(), *keyDocuments = stats + statsBytes_;
  std::byte* queryDocuments = keyDocuments + keyDocumentsBytes_;
  for (const Part& part : parts_) {
    AttendArgs args = argsOf(part);
    for (const Use& use : uses_)
      args.tensors[use.role].data =
          use.isResult ? out[use.index] : const_cast<void*>(in[use.index]);
    args.stats = stats;
    args.queries = queries_;
    args.keys = movingKeys_[iteration];
    if (args.hasDocuments) {
      args.keys.documents = reinterpret_cast<const int32_t*>(keyDocuments);
      launchWarps(kAttendKeyDocuments, args, int64_t(args.outer) * args.keys.documentTiles);
    }
    int64_t heads = int64_t(args.outer) * args.own;
    if (!isGradient_) {
      launch(*choice_.forward, args, heads * args.queries.tileCount, choice_.bytes);
      continue;
    }
    launchWarps(isDouble_ ? kAttendStatsF64 : kAttendStatsF32, args, heads * args.queryRows);
    launch(*choice_.queries, args, heads * args.queries.tileCount, choice_.backwardBytes);
    args.queries = movingQueries_;
    args.keys = keys_[iteration];
    if (args.hasDocuments) {
      args.queries.documents = reinterpret_cast<const int32_t*>(queryDocuments);
      launchWarps(kAttendQueryDocuments, args, heads * args.queries.documentTiles);
    }
    for (const auto* kernel : choice_.keys)
      launch(*kernel, args, int64_t(args.outer) * args.keys.tileCount, choice_.backwardBytes);
  }
}

KernelOr make(const Op& op, Uses uses, Shared& shared) {
  addDocuments(op, uses);
  auto plain = std::make_shared<Attention>(op, uses, false, shared);
  auto cores = std::make_shared<Attention>(op, std::move(uses), true, shared);
  auto isPlain = plain->analyse(op);
  if (!isPlain) return isPlain.takeError();
  auto isOnCores = cores->analyse(op);
  if (!isOnCores) return isOnCores.takeError();
  if (!*isOnCores) cores.reset();
  return makeKernel([plain, cores](const RunContext& context, Operands in, Results out) {
    (cores != nullptr && cores->isAligned(in, out) ? cores : plain)->run(context, in, out);
  });
}

}  // namespace

KernelOr prepareAttend(const Op& op, Shared& shared) {
  Uses uses = {operandOf(op, Role::Q, Like::Query, 0), operandOf(op, Role::K, Like::Key, 1),
               operandOf(op, Role::V, Like::Value, 2), resultOf(op, Role::A, Like::Output, 0),
               resultOf(op, Role::Lse, Like::Row, 1)};
  if (op.kind == OpKind::AttendBlock) {
    uses.push_back(operandOf(op, Role::Before, Like::Output, 3));
    uses.push_back(operandOf(op, Role::LseBefore, Like::Row, 4));
  }
  return make(op, std::move(uses), shared);
}

KernelOr prepareAttendGrad(const Op& op, Shared& shared) {
  return make(op,
              {operandOf(op, Role::Q, Like::Query, 0), operandOf(op, Role::K, Like::Key, 1),
               operandOf(op, Role::V, Like::Value, 2), operandOf(op, Role::A, Like::Output, 3),
               operandOf(op, Role::Lse, Like::Row, 4), operandOf(op, Role::Da, Like::Output, 5),
               resultOf(op, Role::Dq, Like::Query, 0), resultOf(op, Role::Dk, Like::Key, 1),
               resultOf(op, Role::Dv, Like::Value, 2)},
              shared);
}

}  // namespace planc::cuda
