// Lookup and its gradient. The gradient sorts tokens by entry (order.h) and adds up the rows of
// each entry; entries that no token has are cleared before. Ids outside the table, or outside the
// piece of it that this rank holds, read zeros and add nothing. Tested by
// tests/runtime/kernels_test.cpp.
#include "runtime/cuda/table.h"

#include <bit>

#include "runtime/cuda/order.h"
#include "runtime/cuda/room.h"
#include "runtime/layout.h"

namespace planc::cuda {
namespace {

constexpr int64_t kDigitBits = 10;
constexpr int64_t kPieces = 512, kLeastPiece = 32, kMostPiece = 4096;  // of sorted tokens
constexpr uint32_t kSumThreads = 128;

// The rows of a table as a looked-up tensor has them.
struct Shape {
  Walk<2> tokens, row;  // {ids, rows}, {table, rows}
  OwnIds own{};
  int64_t count = 0, elements = 0, stride = 0;
  bool isVector = false;

  // The error for what no kernel does.
  llvm::Error set(const Op& op, const Type& table, const Type& ids, const Type& rows,
                  const Coordinates& rank) {
    for (const Dim& dim : ids.dims)
      if (table.has(dim.name)) return unsupported(op, "table and ids share dim '" + dim.name + "'");
    std::string over = op.attrs.word("over");
    const Dim& entries = table.dims[size_t(table.find(over))];
    Space byToken(memoryDims(ids), {&ids, &rows}), own(dimsWithout(table, {over}), {&table, &rows});
    if (!tokens.set(byToken) || !row.set(own)) return unsupported(op, "dims in so odd an order");
    count = byToken.count(), elements = own.count();
    stride = strideOf(table, over);
    if (count > INT32_MAX || rank.valid(entries) >= INT32_MAX)
      return unsupported(op, "more than 2^31 tokens or entries");
    this->own = {rank.offset(entries), int32_t(rank.valid(entries))};
    isVector = row.isVector({0, 1}) && tokens.isWhole(1) && stride % kVector == 0;
    return llvm::Error::success();
  }
};

}  // namespace

KernelOr prepareLookup(const Op& op, Shared& shared) {
  const Type table = op.operand(0)->type, ids = op.operand(1)->type, rows = op.result()->type;
  Shape shape;
  if (llvm::Error error = shape.set(op, table, ids, rows, shared.rank)) return error;
  bool isDoubled = isDouble(op);
  return makeKernel([=, &shared](const RunContext&, Operands in, Results out) {
    LookupArgs args{};
    args.table = refTo(in[0], table);
    args.ids = static_cast<const int32_t*>(in[1]);
    args.rows = refTo(out[0], rows);
    args.own = shape.own;
    args.stride = shape.stride;
    args.count = shape.count;
    args.tokens = shape.tokens;
    args.row = shape.row;
    args.elements = shape.elements;
    bool isVector = shape.isVector && isAligned({in[0], out[0]});
    const auto& kernel = isDoubled ? kLookupF64 : isVector ? kLookupVectorF32 : kLookupF32;
    shared.launch(kernel, {.x = blocksFor(shape.count, 256 / 32), .threads = 256}, args);
  });
}

KernelOr prepareLookupGrad(const Op& op, Shared& shared) {
  const Type ids = op.operand(0)->type, dy = op.operand(1)->type, table = resultType(op);
  Shape shape;
  if (llvm::Error error = shape.set(op, table, ids, dy, shared.rank)) return error;
  Accumulate accumulate(op);
  bool isDoubled = isDouble(op);

  // Keys up to `valid`, sorted digit by digit.
  int64_t keyBits = std::bit_width(uint64_t(shape.own.valid));
  int64_t digits = std::max<int64_t>(1, (keyBits + kDigitBits - 1) / kDigitBits);
  int64_t digitBits = std::max<int64_t>(1, (keyBits + digits - 1) / digits);
  Order order(1, shape.count, int64_t(1) << digitBits);
  int64_t perPiece = std::clamp((shape.count + kPieces - 1) / kPieces, kLeastPiece, kMostPiece);
  int64_t pieces = blocksFor(shape.count, perPiece);
  if (shape.elements > 65535 * int64_t(kSumThreads))
    return unsupported(op, "a row of " + llvm::Twine(shape.elements) + " elements");

  Room room(shared);
  int64_t lists[2][2];  // keys and tokens, before and behind a digit's sort
  for (auto& list : lists)
    for (int64_t& at : list) at = room.take(shape.count * 4);
  int64_t counts = room.take(order.countBytes()), begins = room.take(((1 << digitBits) + 1) * 4);
  int64_t partial = room.take(2 * pieces * shape.elements * (isDoubled ? 8 : 4));
  int64_t bytes = table.bytes();

  return makeKernel([=, &shared](const RunContext& context, Operands in, Results out) {
    TokenKeysArgs keys{};
    keys.ids = static_cast<const int32_t*>(in[0]);
    keys.own = shape.own;
    keys.count = shape.count;
    keys.tokens = shape.tokens;
    keys.keys = room.at<int32_t>(lists[0][0]);
    shared.launch(kTokenKeys, {.x = blocksFor(shape.count, 256), .threads = 256}, keys);

    auto list = [&](int64_t i) {
      return Order::Sorted{room.at<int32_t>(lists[i % 2][0]), room.at<int32_t>(lists[i % 2][1])};
    };
    for (int64_t digit = 0; digit < digits; ++digit) {
      Order::Sorted from = list(digit);
      if (digit == 0) from.items = nullptr;
      order.sortDigit(shared, int(digit * digitBits), from, list(digit + 1),
                      room.at<int32_t>(counts), room.at<int32_t>(begins));
    }

    LookupGradArgs args{};
    args.dy = refTo(in[1], dy);
    args.table = refTo(out[0], table);
    args.keys = list(digits).keys;
    args.tokens = list(digits).items;
    args.own = shape.own;
    args.count = shape.count;
    args.perPiece = perPiece;
    args.byToken = shape.tokens;
    args.row = shape.row;
    args.elements = shape.elements;
    args.stride = shape.stride;
    args.adds = accumulate.addsIn(context);
    args.partial = room.at<void>(partial);
    if (!args.adds) shared.gpu.zero(shared.stream, out[0], bytes);
    bool isVector = !isDoubled && shape.isVector && isAligned({in[1], out[0]});
    const auto& sum = isDoubled ? kSumPiecesF64 : isVector ? kSumPiecesVectorF32 : kSumPiecesF32;
    const auto& ends = isDoubled ? kSumEndsF64 : isVector ? kSumEndsVectorF32 : kSumEndsF32;
    LaunchShape launch{.x = uint32_t(pieces), .threads = kSumThreads};
    launch.y = blocksFor(shape.elements, int64_t(kSumThreads) * (isVector ? kVector : 1));
    launch.sharedBytes = uint32_t(perPiece) * 8;
    shared.launch(sum, launch, args);
    launch.sharedBytes = 0;
    shared.launch(ends, launch, args);
  });
}

}  // namespace planc::cuda
