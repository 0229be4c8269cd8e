// The .planx file: the model-level module (what the plan means on one rank) and the rank programs
// (what runs), one for each role in the grid, in a compact binary form that holds exactly what IR
// text holds.
//
//   magic "PLANX\r\n\x1a", u32 version, u32 sections, then per section: u32 tag ("MODL", then
//   "ROLE" one or more times), u64 size, u32 CRC-32 of the payload; u32 CRC-32 of all of that; then
//   the payloads. Little-endian. A module's and a role's encoding stand in planx.cpp.
//
// Reading checks size, checksums and structure, then verifies all modules: a truncated, altered or
// hostile file gives an error.
#pragma once

#include <memory>
#include <string>

#include "ir/op.h"
#include "llvm/Support/Error.h"

namespace planc {

inline constexpr uint32_t kPlanxVersion = 2;

// The program of the ranks at these coordinates of the grid; a rank plays the first role that fits.
struct Role {
  std::vector<std::pair<std::string, int64_t>> where;  // axis and coordinate; none: every rank
  std::unique_ptr<Module> program;

  bool fits(const Coordinates& rank) const;
};

struct Planx {
  std::unique_ptr<Module> model;
  std::vector<Role> roles;  // at least one; every rank of the grid has one; all have the same grid

  const Grid& grid() const { return roles.front().program->grid; }
  // The number of the role that a rank plays.
  size_t roleOf(int64_t rank) const;
};

std::string writePlanx(const Planx& planx);
llvm::Expected<Planx> readPlanx(llvm::StringRef bytes);

// A deep copy: through the binary form, so that it is what a reader would see.
std::unique_ptr<Module> cloneModule(const Module& module);

}  // namespace planc
