// Tested by tests/gpu/fake_test.cpp.
#include "tests/gpu/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>

#include "tests/gpu/emulator.h"

namespace planc::cuda::fake {
namespace {

std::atomic<double> progressAt{0};

struct Cores {
  std::mutex mutex;
  std::vector<std::weak_ptr<Core>> list;
};
Cores& cores() {
  static Cores all;
  return all;
}

struct Faults {
  std::mutex mutex;
  std::map<std::pair<Fault, int>, int64_t> left;  // how many are still to come
};
Faults& faults() {
  static Faults all;
  return all;
}

int64_t number(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

}  // namespace

Options& options() {
  static Options options = [] {
    Options o;
    o.seed = uint64_t(number("PLANC_GPU_SEED", int64_t(o.seed)));
    o.mode = Mode(number("PLANC_GPU_MODE", int64_t(o.mode)) % int64_t(std::size(kModes)));
    o.gpus = int(number("PLANC_GPU_COUNT", o.gpus));
    o.bytes = number("PLANC_GPU_BYTES", o.bytes);
    o.sharedBytes = number("PLANC_GPU_SHARED", o.sharedBytes);
    o.isProtected = number("PLANC_GPU_PROTECT", o.isProtected) != 0;
    return o;
  }();
  return options;
}

void inject(Fault fault, int gpu, int64_t n) {
  std::lock_guard lock(faults().mutex);
  faults().left[{fault, gpu}] = n;
}

void clearFaults() {
  std::lock_guard lock(faults().mutex);
  faults().left.clear();
}

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

double lastProgress() { return progressAt; }
void noteProgress() { progressAt = now(); }

Core::Core(int index, const Options& options)
    : index(index),
      options(options),
      memory(options.bytes, options.isProtected),
      random(options.seed * 1000003 + uint64_t(index)) {}

Core::~Core() = default;

NodeRef Core::add(Step step, bool isUrgent, std::string doing, const std::vector<NodeRef>& ahead) {
  auto node = std::make_shared<Node>();
  node->step = std::move(step);
  node->at = std::move(doing);
  node->isUrgent = isUrgent;
  node->serial = serial_++;
  for (const NodeRef& other : ahead) {
    if (other->isDone) continue;
    ++node->missing;
    other->behind.push_back(node);
  }
  if (node->missing == 0) ready_.push_back(node);
  noteProgress();
  return node;
}

void Core::sortReady() {
  auto by = [&](auto key) {
    std::sort(ready_.begin(), ready_.end(),
              [&](const NodeRef& a, const NodeRef& b) { return key(*a) < key(*b); });
  };
  using Key = std::pair<bool, uint64_t>;
  switch (options.mode) {
    case Mode::Eager:
      return by([](const Node& n) { return n.serial; });
    case Mode::Newest:
      return by([](const Node& n) { return ~n.serial; });
    case Mode::StarveCompute:
      return by([](const Node& n) { return Key(!n.isUrgent, n.serial); });
    case Mode::StarveMessages:
      return by([](const Node& n) { return Key(n.isUrgent, n.serial); });
    case Mode::Random:
      by([](const Node& n) { return n.serial; });
      for (size_t i = ready_.size(); i > 1; --i)
        std::swap(ready_[i - 1], ready_[emulator::nextRandom(random) % i]);
      return;
  }
}

void Core::complete(const NodeRef& node) {
  node->isDone = true;
  node->step = nullptr;
  noteProgress();
  for (NodeRef& next : node->behind)
    if (--next->missing == 0) ready_.push_back(std::move(next));
  node->behind.clear();
}

bool Core::progress(unsigned most) {
  if (ready_.empty() || !error_.empty()) return false;
  DeviceMemory::Open open(memory);
  bool any = false;
  for (unsigned i = 0; i < most && error_.empty(); ++i) {
    sortReady();
    NodeRef done;
    for (const NodeRef& node : std::vector<NodeRef>(ready_)) {
      doing_ = node->at;
      if (!node->step()) continue;
      done = node;
      break;
    }
    doing_.clear();
    if (done == nullptr || !error_.empty()) return any;
    ready_.erase(std::find(ready_.begin(), ready_.end(), done));
    complete(done);
    any = true;
  }
  return any;
}

void Core::fail(const std::string& text) {
  if (!error_.empty()) return;
  const std::string& doing = doing_.empty() ? at : doing_;
  error_ = doing.empty() ? text : doing + ": " + text;
}

bool Core::fires(Fault fault) {
  std::lock_guard lock(faults().mutex);
  auto found = faults().left.find({fault, index});
  return found != faults().left.end() && --found->second == 0;
}

uint64_t Core::kernelSeed() {
  return options.seed < 2 ? options.seed : emulator::nextRandom(random) | 2;
}

std::shared_ptr<Core> makeCore(int index) {
  auto core = std::make_shared<Core>(index, options());
  std::lock_guard lock(cores().mutex);
  std::erase_if(cores().list, [](const auto& weak) { return weak.expired(); });
  cores().list.push_back(core);
  return core;
}

bool helpOthers(const Core& waiting) {
  std::vector<std::shared_ptr<Core>> others;
  {
    std::lock_guard lock(cores().mutex);
    for (const auto& weak : cores().list)
      if (auto core = weak.lock(); core != nullptr && core.get() != &waiting)
        others.push_back(core);
  }
  bool any = false;
  for (const auto& core : others) {
    std::unique_lock lock(core->mutex, std::try_to_lock);
    if (lock.owns_lock()) any |= core->progress(4);
  }
  return any;
}

}  // namespace planc::cuda::fake
