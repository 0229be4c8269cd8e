// What a fake GPU has to do: work, and what each piece of it comes behind. What may run next is
// chosen by the mode. One `Core` is the inner side of one GPU, which its driver and its messages
// share.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/gpu/fake.h"
#include "tests/gpu/memory.h"

namespace planc::cuda::fake {

// Does its part; false: it waits for other GPUs and is to be called again.
using Step = std::function<bool()>;
// Enqueued once, or each time that a graph is launched.
using Work = std::function<Step()>;

struct Node {
  Step step;
  std::string at;  // what the program was doing when it enqueued this
  bool isUrgent = false;
  uint64_t serial = 0;
  unsigned missing = 0;  // of those ahead
  bool isDone = false;
  std::vector<std::shared_ptr<Node>> behind;
};
using NodeRef = std::shared_ptr<Node>;

class Core {
 public:
  Core(int index, const Options& options);
  ~Core();

  // All below needs it.
  std::recursive_mutex mutex;
  const int index;
  const Options options;
  DeviceMemory memory;
  std::string at;
  uint64_t random;

  NodeRef add(Step step, bool isUrgent, std::string doing, const std::vector<NodeRef>& ahead);
  // Runs `most` nodes; whether any was done.
  bool progress(unsigned most);
  // Until nothing can run.
  void drain() {
    while (progress(64)) {
    }
  }
  // Nothing runs from here on.
  void close() { ready_.clear(); }
  bool isWaiting() const { return !ready_.empty() && error_.empty(); }

  // The first one stays. Behind it nothing runs.
  void fail(const std::string& text);
  const std::string& error() const { return error_; }
  // Whether the fault is to be now.
  bool fires(Fault fault);
  // The next seed for the emulator.
  uint64_t kernelSeed();

 private:
  void complete(const NodeRef& node);
  void sortReady();

  std::vector<NodeRef> ready_;
  uint64_t serial_ = 0;
  std::string error_;
  std::string doing_;  // what the node at hand was enqueued for
};

// All that live, for those that wait for them: a GPU goes on while its host does something else.
std::shared_ptr<Core> makeCore(int index);
// Whether any other GPU could do something.
bool helpOthers(const Core& waiting);

// When a GPU last did something, in seconds; for the detection of hangs.
double lastProgress();
void noteProgress();
double now();

}  // namespace planc::cuda::fake
