// Tested by tests/passes/overlap and tests/passes/prefetch.
#include "passes/bucket.h"

#include "llvm/ADT/STLExtras.h"

namespace planc {
namespace {

bool fitTogether(const Op& a, const Op& b) {
  return a.kind == b.kind && a.attrs.words("axes") == b.attrs.words("axes") &&
         a.operand(0)->type.elem == b.operand(0)->type.elem;
}

int64_t operandBytes(const Op& op) {
  int64_t bytes = 0;
  for (const Value* operand : op.operands()) bytes += operand->type.bytes();
  return bytes;
}

}  // namespace

std::vector<std::vector<Op*>> makeBuckets(llvm::ArrayRef<Op*> collectives) {
  std::vector<std::vector<Op*>> buckets;
  for (Op* op : collectives) {
    auto open = llvm::find_if(buckets, [&](const std::vector<Op*>& bucket) {
      int64_t bytes = operandBytes(*op);
      for (const Op* other : bucket) bytes += operandBytes(*other);
      return fitTogether(*bucket.front(), *op) && bytes <= kBucketBytes;
    });
    if (open == buckets.end()) buckets.push_back({op});
    else open->push_back(op);
  }
  return buckets;
}

Op* joinBucket(Builder& builder, llvm::ArrayRef<Op*> bucket) {
  const Op& last = *bucket.back();
  llvm::SmallVector<Value*, 8> operands;
  llvm::SmallVector<Type, 8> types;
  Words names, dims;
  for (const Op* op : bucket) {
    operands.append(op->operands().begin(), op->operands().end());
    for (const Value* result : op->results()) {
      types.push_back(result->type);
      names.push_back(result->name);
    }
    for (const std::string& dim : op->attrs.words("dim")) dims.push_back(dim);
  }
  Attrs attrs = last.attrs;
  if (!dims.empty()) attrs.set("dim", dims);
  builder.loc = last.loc;
  Op* joined = builder.create(last.kind, operands, types, attrs);
  for (Value* result : joined->results()) result->name = names[result->index()];
  return joined;
}

}  // namespace planc
