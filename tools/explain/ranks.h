// How attention is divided between ranks, and the experts' rows.
#pragma once

#include <string>
#include <vector>

#include "cost/imbalance.h"
#include "ir/planx.h"

namespace planc {

// Attention whose tokens ranks hold apart.
struct DividedAttention {
  std::string seq, axes;  // of the queries
  std::string method;     // ring, gather
  bool isZigzag = false;
  int64_t tokens = 0, queries = 0, keys = 0;  // of all; of a rank, at once
  // Pairs of a query and a key that it sees, as far as `causal` and `window` tell (documents are known
  // at run time): the most that a rank has, and of all ranks the mean.
  double mostPairs = 0, meanPairs = 0;
};
std::vector<DividedAttention> dividedAttention(const Planx& planx);

// Experts whose rows are sent to them.
struct SentRows {
  std::string expert, axes;
  int64_t experts = 0, own = 0;  // of all, of a rank
  int64_t packed = 0, room = 0;  // rows that a rank packs at most, and has room for
};
std::vector<SentRows> sentRows(const Planx& planx);

// All in sentences, a line each.
std::string betweenText(const std::vector<DividedAttention>& attention,
                        const std::vector<SentRows>& rows, const std::vector<ExpertRows>& experts);

}  // namespace planc
