// Small things that the ranks of a run tell each other. All ranks call each of these at once; an
// error is the same on all of them.
#pragma once

#include <string>
#include <vector>

#include "runtime/comm.h"

namespace planc {

// Every rank's number, by rank.
llvm::Expected<std::vector<int64_t>> gather(Communicator& comm, int64_t mine);
// Whether any rank says so.
llvm::Expected<bool> any(Communicator& comm, bool mine);
// Rank 0's text; what others bring does not count.
llvm::Expected<std::string> fromFirst(Communicator& comm, std::string text);
// Every rank's text, by rank, on rank 0; on others nothing.
llvm::Expected<std::vector<std::string>> toFirst(Communicator& comm, const std::string& text);

// What this rank brings, if all ranks bring something: see Communicator::agree.
template <class T>
llvm::Expected<T> agree(Communicator& comm, llvm::Expected<T> mine) {
  if (llvm::Error error = comm.agree(mine ? llvm::Error::success() : mine.takeError()))
    return error;
  return mine;
}

// What f does on rank 0; its error is one of all.
template <class F>
llvm::Error onFirst(Communicator& comm, F&& f) {
  return comm.agree(comm.rank() == 0 ? f() : llvm::Error::success());
}

// An error that other ranks don't know of: ends the run on them too.
inline llvm::Error tellOthers(Communicator& comm, llvm::Error mine) {
  std::string why = llvm::toString(std::move(mine));
  if (comm.size() > 1) comm.fail(why);
  return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", why.c_str());
}

}  // namespace planc
