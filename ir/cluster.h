// What a plan runs on, as far as figures need it: a device, and the levels of wires that join devices.
// Rank r of a plan sits on device r, counted from one unit of the innermost level to the next, so the
// order of a grid's axes says which of them lie close together.
#pragma once

#include <string>
#include <vector>

#include "ir/attrs.h"
#include "ir/grid.h"

namespace planc {

// `count` units of the level below (of the first level: devices). `link`: what each device sends to others
// at this level, bytes/s in one direction; `latency`: seconds. 0: not given.
struct ClusterLevel {
  std::string name;
  int64_t count = 1;
  Attrs figures;

  double link() const { return figures.number("link"); }
  double latency() const { return figures.number("latency"); }
  bool operator==(const ClusterLevel&) const = default;
};

inline constexpr int64_t kMaxDevices = 1 << 20;

struct Cluster {
  std::string name;  // empty: the plan names none
  std::string device;
  // Of a device: `memory` bytes, `hbm` bytes/s, and by element type operations/s. 0: not given.
  Attrs figures;
  std::vector<ClusterLevel> levels;  // the innermost first

  bool known() const { return !name.empty(); }
  int64_t memory() const { return int64_t(figures.number("memory")); }
  double hbm() const { return figures.number("hbm"); }
  double rate(Elem elem) const { return figures.number(planc::name(elem)); }
  // Devices in one unit of the first `levels` levels; saturates.
  int64_t devicesWithin(size_t levels) const;
  // The number of the innermost level whose unit holds both ranks; levels.size() where none does.
  size_t levelBetween(int64_t rank, int64_t other) const;
  // What is wrong with it, empty: nothing. Figures are finite and more than 0, levels have names of their
  // own and no more than kMaxDevices devices.
  std::string broken() const;
  // The number of a level by name; levels.size(): there is none.
  size_t find(llvm::StringRef level) const;
  bool operator==(const Cluster&) const = default;
};

// `place tensor within node`: ranks that differ on these axes alone lie in one unit of the level. A scope is
// of a split, `by METHOD within node`: what of an axis lies in one unit follows from the ranks behind it in
// the grid, so another order of axes must have as many behind it.
struct Within {
  Words axes;
  std::string level;
  Loc loc = {};
  bool isScope = false;
};

}  // namespace planc
