// What ops cost to compute, for who balances or predicts work. Floating-point operations of one rank; a
// multiplication with its addition counts as two.
//
// Where ranks do unlike amounts of one op, it counts what they do on average, so that all ranks together
// count what is done: of packed rows an even share, of attention over blocks of keys what a rank meets in
// one on average. Masks count by areas: a causal mask hides half of all pairs, of a window of w keys the
// first w queries see half (so Dao 2023, "FlashAttention-2", section 4.1; Narayanan et al. 2021, appendix,
// count all pairs). Documents are known at run time only.
#pragma once

#include "ir/op.h"

namespace planc {

// Of one run; a repeat's of all its iterations. Rough for all but products and attention.
double flopsOf(const Op& op);
double flopsOf(const Block& block);

// Products and attention: what the literature counts as a model's operations.
bool isProduct(const Op& op);

// Elements that a rank holds, of packed rows its even share: all rows over the ranks that hold rows or
// their experts apart. As many as Type::elements where nothing is packed.
double evenElements(const Type& type);

}  // namespace planc
