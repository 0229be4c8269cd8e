// Shape rules of attention. Tested by tests/unit/verify_test.cpp and verify_casts_test.cpp.
#include "ir/shapes.h"

namespace planc {

using llvm::Error;
using llvm::StringRef;
using llvm::Twine;

namespace shapes {

Error Shapes::attend() const {
  std::string seq = word("seq"), by = word("by"), head = word("head"), kv = word("kv");
  for (unsigned i = 0; i < 2; ++i)
    for (StringRef key : {"seq", "by"}) TRY(needs(key, i));
  if (head.empty() != kv.empty()) return broken("names only one of 'head' and 'kv'");
  if (!head.empty()) {
    TRY(needs("head", 0));
    TRY(needs("kv", 1));
    const Dim &heads = *findDim(in(0), head), &kvs = *findDim(in(1), kv);
    if (heads.all() % kvs.all() != 0)
      return broken("has " + Twine(heads.all()) + " heads, no multiple of " + Twine(kvs.all()) +
                    " kv heads");
    // A rank must hold the keys of all its heads.
    if (heads.isPadded() || kvs.isPadded()) return broken("its heads are cut into unequal pieces");
    if (kvs.axes.size() > heads.axes.size() ||
        !std::equal(kvs.axes.begin(), kvs.axes.end(), heads.axes.begin()))
      return broken("its kv heads are cut otherwise than its heads: " + list({kvs}) + " for " +
                    list({heads}));
  }
  Dims base = less(in(0), {seq, by, head});
  TRY(expectDims("the keys less seq, by and kv", less(in(1), {seq, by, kv}), base));
  Dims values = less(in(2), {seq, kv});
  for (const Dim& dim : base) values = less(values, {dim.name});
  if (values.size() != 1) return broken("the values need exactly one dim of their own");
  Dims keyRows = less(in(1), {by});
  TRY(expectDims("the values", in(2), unite(less(keyRows, {values[0].name}), values)));
  Dims rows = less(in(0), {by});
  Dims result = unite(rows, values);
  TRY(keysPositions());
  TRY(documents());
  if (op_.kind != OpKind::Attend) {
    TRY(expectDims("operand 3", in(3), result));
    TRY(expectDims("operand 4", in(4), rows));
  }
  if (op_.kind == OpKind::AttendGrad) {
    TRY(expectDims("operand 5", in(5), result));
    for (unsigned i = 0; i < 3; ++i) TRY(expectDims(("result " + Twine(i)).str(), out(i), in(i)));
    return Error::success();
  }
  TRY(expectDims("the result", out(0), result));
  TRY(expectDims("the log-sum-exp", out(1), rows));
  if (op_.kind == OpKind::Attend) return Error::success();
  // What blocks add up to is rounded once, when all have been.
  for (unsigned i = 0; i < 2; ++i) {
    Elem before = op_.operand(3 + i)->type.elem, after = op_.result(i)->type.elem;
    if (before != after || after == Elem::BF16)
      return broken("adds to " + name(before) + " and makes " + name(after) +
                    ", where both must be f32 or f64");
  }
  return Error::success();
}

// Keys have all the queries' positions, or are a rank's block of them, its own or one that came.
Error Shapes::keysPositions() const {
  const Dim &queries = *findDim(in(0), word("seq")), &keys = *findDim(in(1), word("seq"));
  bool isBlock = op_.kind == OpKind::AttendBlock || op_.isFlag("block");
  if (queries.isMoved()) return broken("its queries are another rank's: " + list({queries}));
  Dim wanted = splitDim(queries, {});
  // Ranks with pieces of the same queries' block may share its keys.
  if ((isBlock || op_.isFlag("ring")) && keys.axes.size() <= queries.axes.size())
    wanted = splitDim(queries, llvm::ArrayRef<Axis>(queries.axes).take_front(keys.axes.size()));
  if (isBlock) {
    wanted.moved = keys.moved;
    wanted.moves = keys.moves;
  }
  if (keys == wanted) return Error::success();
  return broken("its keys are at " + list({keys}) + ", and its queries at " + list({queries}));
}

// By position, and by other dims that queries and keys both have.
Error Shapes::documents() const {
  unsigned first = unsigned(op_.info().minOperands), count = unsigned(op_.operands().size());
  if (count == first) return Error::success();
  if (count == first + 1) return broken("has the documents of its queries and not of its keys");
  std::string seq = word("seq"), by = word("by"), head = word("head"), kv = word("kv");
  for (unsigned i : {0u, 1u}) {
    Dims dims = less(in(i), {by, head, kv}), mine = in(first + i);
    for (const Dim& dim : less(dims, {seq}))
      if (!findDim(in(first), dim.name)) dims = less(dims, {dim.name});
    TRY(expectDims(i == 0 ? "the documents" : "the documents of the keys", mine, dims));
  }
  return Error::success();
}

}  // namespace shapes
}  // namespace planc
