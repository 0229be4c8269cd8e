// Tested by tests/unit/cluster_test.cpp.
#include "ir/cluster.h"

#include "llvm/ADT/STLExtras.h"

namespace planc {

int64_t Cluster::devicesWithin(size_t count) const {
  int64_t devices = 1;
  for (size_t i = 0; i < std::min(count, levels.size()); ++i)
    devices = saturatingMul(devices, std::max<int64_t>(1, levels[i].count));
  return devices;
}

size_t Cluster::levelBetween(int64_t rank, int64_t other) const {
  for (size_t level = 0; level < levels.size(); ++level) {
    int64_t devices = devicesWithin(level + 1);
    if (rank / devices == other / devices) return level;
  }
  return levels.size();
}

std::string Cluster::broken() const {
  auto wrong = [](const Attrs& figures) {
    for (const auto& [key, value] : figures)
      if (double number = figures.number(key); !(number > 0 && number <= 0x1p80))
        return "'" + key + "' is no figure";
    return std::string();
  };
  if (!known() && !levels.empty()) return "levels of no cluster";
  if (std::string what = wrong(figures); !what.empty()) return "device '" + device + "': " + what;
  for (size_t i = 0; i < levels.size(); ++i) {
    if (find(levels[i].name) != i) return "level '" + levels[i].name + "' stands twice";
    if (std::string what = wrong(levels[i].figures); !what.empty())
      return "level '" + levels[i].name + "': " + what;
  }
  if (devicesWithin(levels.size()) > kMaxDevices) return "it has too many devices";
  return "";
}

size_t Cluster::find(llvm::StringRef level) const {
  auto at = llvm::find_if(levels, [&](const ClusterLevel& l) { return l.name == level; });
  return size_t(at - levels.begin());
}

}  // namespace planc
