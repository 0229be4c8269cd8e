// Ranks and messages in words.
#pragma once

#include "runtime/comm.h"

namespace planc::comm {

// "rank 3", "ranks 0-2, 7"; the ranks are in order.
std::string rankList(llvm::ArrayRef<int> ranks);
// "all_reduce 17 of 'w' (gpt.plan:12)", less what the site doesn't know.
std::string describe(const Site& site);
// "all-reduce (sum) of 1024 f32", "broadcast of 7 i32 from position 2 of the group".
std::string describe(const Message& message);
// "60 s", "250 ms".
std::string seconds(std::chrono::milliseconds time);

}  // namespace planc::comm
