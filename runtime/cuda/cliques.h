// Which groups of ranks are made together: to split a clique, all its ranks take part, and each may be
// in one of the parts.
#pragma once

#include <string>
#include <vector>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/Error.h"

namespace planc::cuda {

// A group's members, in order, and which of the groups with the same members it is.
struct GroupKey {
  std::vector<int> members;
  int number = 0;
  bool operator<(const GroupKey& other) const {
    return std::tie(members, number) < std::tie(other.members, other.number);
  }
  bool operator==(const GroupKey&) const = default;
};

// Between ranks: those groups of which this rank is the first member, as text.
std::string writeGroups(llvm::ArrayRef<GroupKey> groups);
llvm::Expected<std::vector<GroupKey>> readGroups(llvm::StringRef text);

// Groups of one round have no rank in common; every group is in one. The same on all ranks.
std::vector<std::vector<GroupKey>> roundsOf(std::vector<GroupKey> groups);

}  // namespace planc::cuda
