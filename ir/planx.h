// The .planx file: the model-level module (what the plan means on one rank) and the rank programs
// (what runs), one for each role in the grid, in a compact binary form that holds exactly what IR
// text holds.
//
//   magic "PLANX\r\n\x1a", u32 version, u32 sections, then per section: u32 tag ("MODL", then
//   "ROLE" one or more times), u64 size, u32 CRC-32 of the payload; u32 CRC-32 of all of that; then
//   the payloads. Little-endian. A module's and a role's encoding stand in planx.cpp.
//
// Reading checks size, checksums and structure, then verifies all modules and that they fit: a truncated, altered or
// hostile file gives an error.
#pragma once

#include <memory>
#include <string>

#include "ir/op.h"
#include "llvm/Support/Error.h"

namespace planc {

inline constexpr uint32_t kPlanxVersion = 5;

struct Planx {
  std::unique_ptr<Module> model;
  // The rank programs: at least one, all of the same grid. A rank plays the first whose `where` fits
  // it, and every rank has one.
  Modules roles;

  const Grid& grid() const { return roles.front()->grid; }
  // The number of the role that a rank plays, and its program.
  size_t roleOf(int64_t rank) const;
  const Module& program(int64_t rank) const { return *roles[roleOf(rank)]; }
};

// Whether the programs are this model's: of one grid, a program for each rank, with the model's inputs
// and weights, of which the stages together hold each iteration once, and with the model's attention.
llvm::Error checkFits(const Planx& planx);

std::string writePlanx(const Planx& planx);
llvm::Expected<Planx> readPlanx(llvm::StringRef bytes);

// A deep copy: through the binary form, so that it is what a reader would see.
std::unique_ptr<Module> cloneModule(const Module& module);
// The model of a plan on one rank: without a grid and all that belongs to it.
std::unique_ptr<Module> cloneForOneRank(const Module& model);

}  // namespace planc
