// Removes what no one reads. Passes that leave such ops behind call it before they end.
#pragma once

#include "ir/op.h"

namespace planc {

// Ops without an effect whose results are all unused, and what only they used.
void eraseDeadOps(Module& module);

}  // namespace planc
