// Makers of ops that move elements without computing on them: joining, cutting, a rank's share.
// Tested by tests/gpu/kernels_gpu_test.cpp.
#include "runtime/cuda/chains.h"

namespace planc::cuda {
namespace {

// A type whose dim `from` is called `to`.
Type renamed(Type type, llvm::StringRef from, llvm::StringRef to) {
  if (int at = type.find(from); at >= 0) type.dims[size_t(at)].name = to.str();
  return type;
}

Move moveOver(llvm::ArrayRef<Dim> dims, const Type& from, const Type& to) {
  Move move{{}, from.elem, to.elem};
  for (const Dim& dim : dims)
    move.axes.push_back({dim.size, {strideOf(from, dim.name), strideOf(to, dim.name)}});
  return move;
}

}  // namespace

KernelOr prepareConcat(const Op& op, Shared& shared) {
  const Type& y = op.result()->type;
  std::string over = op.attrs.word("over");
  Words parts = op.attrs.words("parts");
  std::vector<std::unique_ptr<planc::Kernel>> moves;
  int64_t start = 0;
  for (unsigned i = 0; i < op.operands().size(); ++i) {
    const Type& part = op.operand(i)->type;
    llvm::SmallVector<Dim, 4> dims = memoryDims(y);
    for (Dim& dim : dims)
      if (dim.name == over) dim.size = part.size(parts[i]);
    Move move = moveOver(dims, renamed(part, parts[i], over), y);
    move.toOffset = start * strideOf(y, over);
    move.operand = int(i);
    auto kernel = makeMove(op, std::move(move), shared);
    if (!kernel) return kernel.takeError();
    moves.push_back(std::move(*kernel));
    start += part.size(parts[i]);
  }
  return makeKernel([moves = std::move(moves)](const RunContext& context, Operands in,
                                               Results out) {
    for (const auto& move : moves) move->run(context, in, out);
  });
}

KernelOr prepareSlice(const Op& op, Shared& shared) {
  const Type &x = op.operand(0)->type, &y = op.result()->type;
  std::string over = op.attrs.word("over");
  Move move = moveOver(memoryDims(y), renamed(x, over, op.attrs.word("part")), y);
  move.fromOffset = op.attrs.integer("offset") * strideOf(x, over);
  return makeMove(op, std::move(move), shared);
}

KernelOr prepareShardSlice(const Op& op, Shared& shared) {
  const Type &x = op.operand(0)->type, &y = op.result()->type;
  std::string name = op.attrs.word("dim");
  const Dim &whole = x.dims[size_t(x.find(name))], &piece = y.dims[size_t(y.find(name))];
  int64_t valid = shared.rank.valid(piece), bytes = y.bytes();
  bool isPadded = valid < piece.size;
  llvm::SmallVector<Dim, 4> dims = memoryDims(y);
  for (Dim& dim : dims)
    if (dim.name == name) dim.size = valid;
  Move move = moveOver(dims, x, y);
  move.fromOffset = (shared.rank.offset(piece) - shared.rank.offset(whole)) * strideOf(x, name);
  auto kernel = makeMove(op, std::move(move), shared);
  if (!kernel || !isPadded) return kernel;
  return makeKernel([=, &shared, move = std::move(*kernel)](const RunContext& context, Operands in,
                                                           Results out) {
    shared.gpu.zero(shared.stream, out[0], bytes);
    if (valid > 0) move->run(context, in, out);
  });
}

// Its result may lie on its operand.
KernelOr prepareOneCopy(const Op& op, Shared& shared) {
  // The first of the ranks that differ only on these axes.
  bool isFirst = llvm::all_of(op.attrs.words("axes"),
                              [&](const std::string& axis) { return shared.rank.on(axis) == 0; });
  int64_t bytes = op.result()->type.bytes();
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    if (!isFirst) shared.gpu.zero(shared.stream, out[0], bytes);
    else if (in[0] != out[0]) shared.gpu.copy(shared.stream, out[0], in[0], bytes);
  });
}

}  // namespace planc::cuda
