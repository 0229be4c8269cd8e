// How unlike the work of ranks can be that run one program: of attention, by the mask; of experts, by what
// the tokens choose, which only a bound is known of before.
#pragma once

#include <string>
#include <vector>

#include "ir/planx.h"

namespace planc {

// Pairs of queries and keys of the rank that has the most, over the mean of all, by areas as in ir/cost.h;
// 1: all have as many (no causal mask, queries in one piece, or dealt in zigzag order). Documents are not
// known.
double attentionImbalance(const Op& attention);

// Packed rows that meet experts, of one kind of routing.
struct ExpertRows {
  std::string expert;            // the experts' dim
  Words axes;                    // along which experts are cut; none: every rank has all
  int64_t experts = 0, own = 0;  // of all, of a rank
  double even = 0;               // rows of a rank when experts get equal shares
  int64_t most = 0;  // that a rank computes at most: it has room for no more, or none are let in

  double bound() const { return even > 0 ? double(most) / even : 1; }
};
// Each once, in the order of the programs; whether rows are sent to their experts or packed where they are.
std::vector<ExpertRows> expertRows(const Planx& planx);

}  // namespace planc
