// The .planx file: the model-level module (what the plan means on one rank) and the rank program
// (what runs), in a compact binary form that holds exactly what IR text holds.
//
//   magic "PLANX\r\n\x1a", u32 version, u32 sections, then per section: u32 tag ("MODL", "RANK"),
//   u64 size, u32 CRC-32 of the payload; u32 CRC-32 of all of that; then the payloads.
//   Little-endian. A module's encoding stands in planx.cpp.
//
// Reading checks size, checksums and structure, then verifies both modules: a truncated, altered or
// hostile file gives an error.
#pragma once

#include <memory>
#include <string>

#include "ir/op.h"
#include "llvm/Support/Error.h"

namespace planc {

inline constexpr uint32_t kPlanxVersion = 1;

struct Planx {
  std::unique_ptr<Module> model;
  std::unique_ptr<Module> program;
};

std::string writePlanx(const Module& model, const Module& program);
llvm::Expected<Planx> readPlanx(llvm::StringRef bytes);

// A deep copy: through the binary form, so that it is what a reader would see.
std::unique_ptr<Module> cloneModule(const Module& module);

}  // namespace planc
