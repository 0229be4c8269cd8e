// Greedy: a group goes into the first round that has none of its members. Larger groups first, which
// are harder to place. Tested by tests/gpu/machine_test.cpp.
#include "runtime/cuda/cliques.h"

#include <algorithm>
#include <set>

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

namespace planc::cuda {

std::string writeGroups(llvm::ArrayRef<GroupKey> groups) {
  std::string text;
  for (const GroupKey& group : groups) {
    text += std::to_string(group.number);
    for (int rank : group.members) text += " " + std::to_string(rank);
    text += "\n";
  }
  return text;
}

llvm::Expected<std::vector<GroupKey>> readGroups(llvm::StringRef text) {
  std::vector<GroupKey> groups;
  llvm::SmallVector<llvm::StringRef, 8> lines, words;
  text.split(lines, '\n', -1, false);
  for (llvm::StringRef line : lines) {
    words.clear();
    line.split(words, ' ', -1, false);
    GroupKey& group = groups.emplace_back();
    for (size_t i = 0; i < words.size(); ++i) {
      int number = 0;
      if (words[i].getAsInteger(10, number))
        return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                       "ranks told each other '" + line + "', which is no group");
      if (i == 0) group.number = number;
      else group.members.push_back(number);
    }
  }
  return groups;
}

std::vector<std::vector<GroupKey>> roundsOf(std::vector<GroupKey> groups) {
  std::sort(groups.begin(), groups.end(), [](const GroupKey& a, const GroupKey& b) {
    if (a.members.size() != b.members.size()) return a.members.size() > b.members.size();
    return a < b;
  });
  std::vector<std::vector<GroupKey>> rounds;
  std::vector<std::set<int>> taken;
  for (GroupKey& group : groups) {
    size_t round = 0;
    auto isFree = [&](int rank) { return taken[round].count(rank) == 0; };
    while (round < rounds.size() && !llvm::all_of(group.members, isFree)) ++round;
    if (round == rounds.size()) {
      rounds.emplace_back();
      taken.emplace_back();
    }
    taken[round].insert(group.members.begin(), group.members.end());
    rounds[round].push_back(std::move(group));
  }
  return rounds;
}

}  // namespace planc::cuda
