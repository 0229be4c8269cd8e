// One card: where a rank is, what it holds, and whom it talks to.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/explain/report.h"

namespace planc {

struct HeldVariable {
  std::string name, kind;  // as in IR: weight, gradient, ...
  std::string
      pieces;  // `model 4096, head 4-7 of 32`: dims that are split, what this rank has of them
  int64_t bytes = 0;
};

struct Peers {
  Talk talk;
  std::vector<int64_t> ranks;  // that take part, this one among them
};

struct Card {
  std::vector<std::pair<std::string, int64_t>> coordinates;  // on each axis of the grid
  std::vector<std::pair<std::string, int64_t>> units;  // of each level: its number in the cluster
  size_t stage = 0;
  std::vector<HeldVariable> holds;  // weights and the rest of the state, the largest first
  std::vector<Peers> peers;
};
Card cardOf(const Report& report, int64_t rank);

}  // namespace planc
