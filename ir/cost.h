// What ops cost to compute, for who balances or predicts work. Floating-point operations of one rank; a
// multiplication with its addition counts as two.
#pragma once

#include "ir/op.h"

namespace planc {

// Of one run; a repeat's of all its iterations. Rough for all but products and attention.
double flopsOf(const Op& op);
double flopsOf(const Block& block);

}  // namespace planc
