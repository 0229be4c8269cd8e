// The proof that the ranks' programs fit together, for all ranks at once and before anything runs:
// every collective is entered by every member of its group, in the same order and as the same one
// (kind, elements, counts, dims, reduction, tensor), and so is every message between stages, which one
// side sends and the other receives; what is started is waited for exactly once; and no rank waits for
// ever, even when nothing is buffered: to start never blocks, a wait ends when all members have started,
// and a collective without `start` is both. Each program's schedule is sound (ir/verify_schedule.h).
#pragma once

#include "ir/planx.h"
#include "llvm/Support/Error.h"

namespace planc {

// Success, or what does not fit: the ranks with their coordinates, their operations (numbered from
// 1 in the order in which the rank enters them in a step), the group and the plan's lines.
//
// The work depends on how many kinds of ranks the roles tell apart, not on how many ranks there
// are. A single role is proved from one pass over its text.
llvm::Error checkProtocol(const Planx& planx);

}  // namespace planc
