// Collectives that are joined to one message.
#pragma once

#include "ir/op.h"

namespace planc {

// Of a message, as data-parallel trainers have found it to pay: large enough for full bandwidth,
// small enough that the first is under way early.
constexpr int64_t kBucketBytes = 25 << 20;

// Puts each op into the first bucket that it fits into, or opens one.
std::vector<std::vector<Op*>> makeBuckets(llvm::ArrayRef<Op*> collectives);

// The bucket's collectives as one. Their results get the names of the ops' results; nobody uses them
// yet.
Op* joinBucket(Builder& builder, llvm::ArrayRef<Op*> bucket);

}  // namespace planc
