// `planrun verify`: a program on all its ranks against its model on one.
#pragma once

#include "ir/planx.h"
#include "runtime/comm.h"
#include "tools/command.h"
#include "tools/ranks.h"

namespace planc {

struct VerifyCommand {
  int64_t steps = 3;
  bool ownPrecision = false;  // else f64
  double bound = 0;           // 0: by precision
  bool json = false;
  RankOptions ranks;
};

// `process`: this process's rank; null where all ranks are threads of it.
Exit verify(llvm::StringRef tool, llvm::StringRef path, Planx& planx, Communicator* process,
            const VerifyCommand& command);

}  // namespace planc
