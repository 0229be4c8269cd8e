// Streams, events and graphs as CUDA has them. A stream is what its next piece of work comes
// behind; a stream that waits for an event of a graph in the making becomes part of that graph.
// Tested by tests/gpu/fake_test.cpp.
#include "tests/gpu/fake_driver.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "llvm/ADT/STLExtras.h"
#include "tests/gpu/emulator.h"

namespace planc::cuda {

struct Capture {
  Stream origin;
  std::unique_ptr<GraphHandle> graph = std::make_unique<GraphHandle>();
  bool hasEnded = false;
};

}  // namespace planc::cuda

namespace planc::cuda::fake {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

llvm::Error asError(const llvm::Twine& text) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), text);
}

template <class T>
void addMissing(std::vector<T>& to, const std::vector<T>& from) {
  for (const T& one : from)
    if (!llvm::is_contained(to, one)) to.push_back(one);
}

struct FakePlan : MatmulPlan {
  MatmulShape shape;
  int64_t workspaceBytes;
  int alignment;
};

}  // namespace

FakeDriver::~FakeDriver() {
  Lock lock(core->mutex);
  core->drain();
  core->close();
  DeviceMemory::Open open(core->memory);
  std::string broken = core->memory.brokenFence();
  if (broken.empty() || !core->error().empty()) return;
  std::fprintf(stderr, "%s: %s\n", name().c_str(), broken.c_str());
  std::abort();
}

std::string FakeDriver::name() const { return "fake GPU " + std::to_string(core->index); }
int64_t FakeDriver::freeBytes() const { return core->memory.freeBytes(); }

bool FakeDriver::require(bool holds, const llvm::Twine& otherwise) {
  if (!holds) core->fail(otherwise.str());
  return holds;
}

llvm::Expected<std::byte*> FakeDriver::allocate(int64_t bytes) {
  Lock lock(core->mutex);
  if (!require(!isCapturing(), "memory can't be allocated while a graph is made"))
    return asError(core->error());
  std::byte* memory = core->fires(Fault::Allocation) ? nullptr : core->memory.allocate(bytes);
  if (require(memory != nullptr, "out of memory: " + llvm::Twine(bytes) + " bytes")) return memory;
  return asError("out of memory: " + llvm::Twine(bytes) + " bytes");
}

llvm::Expected<std::byte*> FakeDriver::allocateHost(int64_t bytes) {
  Lock lock(core->mutex);
  if (!require(!isCapturing(), "memory can't be allocated while a graph is made"))
    return asError(core->error());
  return core->memory.allocateHost(bytes);
}

Stream FakeDriver::makeStream(bool urgent) {
  streams_.push_back(std::make_unique<StreamHandle>());
  streams_.back()->isUrgent = urgent;
  return streams_.back().get();
}

Event FakeDriver::makeEvent() {
  events_.push_back(std::make_unique<EventHandle>());
  return events_.back().get();
}

std::atomic<int64_t> asked;

void FakeDriver::enqueue(llvm::ArrayRef<Stream> streams, Work work) {
  ++asked;
  Lock lock(core->mutex);
  if (!core->error().empty()) return;
  Place place;
  bool isUrgent = true;
  for (Stream stream : streams) {
    if (!require(stream->place.capture == streams[0]->place.capture,
                 "one operation on streams of a graph and others"))
      return;
    addMissing(place.nodes, stream->place.nodes);
    addMissing(place.captured, stream->place.captured);
    isUrgent &= stream->isUrgent;
  }
  if (auto& capture = streams[0]->place.capture) {
    auto& nodes = capture->graph->nodes;
    nodes.push_back({std::move(work), core->at, isUrgent, std::move(place.captured)});
    for (Stream stream : streams) stream->place.captured = {nodes.size() - 1};
    return;
  }
  NodeRef node = core->add(work(), isUrgent, core->at, place.nodes);
  for (Stream stream : streams) stream->place.nodes = {node};
  if (core->options.mode == Mode::Eager) core->drain();
}

void FakeDriver::record(Event event, Stream stream) {
  Lock lock(core->mutex);
  // A point in time of its own; in a graph only an order.
  if (stream->place.capture == nullptr) enqueue(stream, [] { return [] { return true; }; });
  event->isRecorded = true;
  event->place = stream->place;
}

void FakeDriver::wait(Stream stream, Event event) {
  Lock lock(core->mutex);
  if (!event->isRecorded) return;
  auto& capture = event->place.capture;
  if (capture == nullptr) {
    if (!require(stream->place.capture == nullptr,
                 "a graph in the making waits for an event from outside of it"))
      return;
    addMissing(stream->place.nodes, event->place.nodes);
    return;
  }
  if (!require(!capture->hasEnded, "waits for an event that was recorded in a graph")) return;
  // From here on the stream belongs to the graph.
  stream->place.capture = capture;
  addMissing(stream->place.captured, event->place.captured);
}

bool FakeDriver::isDone(Event event) {
  std::unique_lock lock(core->mutex);
  if (!require(!isCapturing(), "the host waits while a graph is made") ||
      !require(event->place.capture == nullptr, "waits for an event that was recorded in a graph"))
    return false;
  auto isDone = [&] {
    return llvm::all_of(event->place.nodes, [](const NodeRef& node) { return node->isDone; });
  };
  if (isDone()) return true;
  bool any = core->progress(1 + unsigned(emulator::nextRandom(core->random) % 8));
  if (any || !core->isWaiting()) return isDone();
  lock.unlock();
  if (!helpOthers(*core)) std::this_thread::sleep_for(std::chrono::microseconds(50));
  return false;
}

void FakeDriver::copy(Stream stream, void* to, const void* from, int64_t bytes) {
  Lock lock(core->mutex);
  const DeviceMemory& memory = core->memory;
  if (!require(bytes > 0, "a copy of " + llvm::Twine(bytes) + " bytes") ||
      !require(memory.reaches(to, bytes) && memory.reaches(from, bytes),
               "a copy of " + llvm::Twine(bytes) +
                   " bytes that are not in one allocation of the GPU or of pinned memory"))
    return;
  auto *a = static_cast<std::byte*>(to), *b = static_cast<std::byte*>(const_cast<void*>(from));
  if (!require(a + bytes <= b || b + bytes <= a, "a copy onto itself")) return;
  enqueue(stream, [=] {
    return [=] {
      std::memcpy(to, from, size_t(bytes));
      return true;
    };
  });
}

void FakeDriver::zero(Stream stream, void* at, int64_t bytes) {
  Lock lock(core->mutex);
  if (!require(bytes > 0 && core->memory.holds(at, bytes),
               "clears " + llvm::Twine(bytes) + " bytes that are not in one allocation"))
    return;
  enqueue(stream, [=] {
    return [=] {
      std::memset(at, 0, size_t(bytes));
      return true;
    };
  });
}

void FakeDriver::launch(Stream stream, const KernelInfo& kernel, const LaunchShape& shape,
                        const void* args) {
  Lock lock(core->mutex);
  if (!require(kernel.argBytes <= 4000, llvm::Twine(kernel.name) + ": arguments of " +
                                            llvm::Twine(kernel.argBytes) + " bytes") ||
      !require(shape.sharedBytes <= sharedBytesOfBlock(),
               llvm::Twine(kernel.name) + ": launched with " + llvm::Twine(shape.sharedBytes) +
                   " bytes of shared memory, and a block has " +
                   llvm::Twine(sharedBytesOfBlock())))
    return;
  // In words, so that it is aligned for any struct.
  std::vector<std::max_align_t> copied(size_t(kernel.argBytes) / sizeof(std::max_align_t) + 1);
  std::memcpy(copied.data(), args, size_t(kernel.argBytes));
  Core* gpu = core.get();
  enqueue(stream, [gpu, &kernel, shape, copied = std::move(copied)] {
    return [=, &kernel] {
      if (gpu->fires(Fault::Launch)) {
        gpu->fail("the launch fails, as a test wants it");
        return true;
      }
      if (auto error = emulator::launch(kernel, shape, copied.data(), gpu->kernelSeed()))
        gpu->fail(llvm::toString(std::move(error)));
      if (std::string broken = gpu->memory.brokenFence(); !broken.empty())
        gpu->fail(std::string("kernel ") + kernel.name + ": " + broken);
      return true;
    };
  });
}

llvm::Expected<std::unique_ptr<MatmulPlan>> FakeDriver::plan(const MatmulShape& shape,
                                                             int64_t workspaceBytes,
                                                             int alignment) {
  std::string refused = checkMatmul(shape);
  if (!refused.empty()) return asError("no algorithm for a product: " + refused);
  auto made = std::make_unique<FakePlan>();
  made->shape = shape;
  made->workspaceBytes = workspaceBytes;
  made->alignment = alignment;
  return made;
}

void FakeDriver::matmul(Stream stream, const MatmulPlan& plan, const void* a, const void* b,
                        void* d, double beta, void* workspace) {
  Lock lock(core->mutex);
  const auto& made = static_cast<const FakePlan&>(plan);
  MatmulExtents extents = extentsOf(made.shape);
  auto check = [&](const char* what, const void* at, int64_t bytes) {
    return require(reinterpret_cast<uintptr_t>(at) % uintptr_t(made.alignment) == 0,
                   llvm::Twine("a product's ") + what + " is not aligned as its plan says") &&
           require(bytes == 0 || core->memory.holds(at, bytes),
                   llvm::Twine("a product's ") + what + ", " + llvm::Twine(bytes) +
                       " bytes, is not in one allocation");
  };
  if (!check("a", a, extents.a * bytesPerElement(made.shape.a)) ||
      !check("b", b, extents.b * bytesPerElement(made.shape.b)) ||
      !check("d", d, extents.d * bytesPerElement(made.shape.d)) ||
      !check("workspace", workspace, made.workspaceBytes))
    return;
  enqueue(stream, [=, shape = made.shape, room = made.workspaceBytes] {
    return [=] {
      runMatmul(shape, a, b, d, beta);
      // Nobody may rely on what is there.
      std::memset(workspace, 0xa5, size_t(std::min<int64_t>(room, 4096)));
      return true;
    };
  });
}

void FakeDriver::beginGraph(Stream stream) {
  Lock lock(core->mutex);
  if (!require(!isCapturing(), "a graph is begun in a graph")) return;
  capture_ = std::make_shared<Capture>();
  capture_->origin = stream;
  stream->place.capture = capture_;
}

llvm::Expected<Graph> FakeDriver::endGraph(Stream stream) {
  Lock lock(core->mutex);
  if (!require(isCapturing() && capture_->origin == stream, "no graph was begun on this stream"))
    return asError(core->error());
  std::shared_ptr<Capture> capture = std::move(capture_);
  capture->hasEnded = true;
  std::vector<size_t> joined = stream->place.captured;
  for (auto& other : streams_) {
    if (other->place.capture != capture) continue;
    other->place.capture = nullptr;
    other->place.captured.clear();
  }
  // What nothing comes behind must be what the first stream has joined.
  auto& nodes = capture->graph->nodes;
  std::vector<bool> isAhead(nodes.size(), false);
  for (const auto& node : nodes)
    for (size_t other : node.ahead) isAhead[other] = true;
  for (size_t i = 0; i < nodes.size(); ++i)
    if (!require(isAhead[i] || llvm::is_contained(joined, i),
                 "a graph ends while a stream has not joined it again (" + nodes[i].at + ")"))
      return asError(core->error());
  if (!core->error().empty()) return asError(core->error());
  graphs_.push_back(std::move(capture->graph));
  return graphs_.back().get();
}

void FakeDriver::destroy(Graph graph) {
  Lock lock(core->mutex);
  llvm::erase_if(graphs_, [&](const auto& other) { return other.get() == graph; });
}

int64_t enqueued() { return asked; }

void FakeDriver::launch(Stream stream, Graph graph) {
  ++asked;
  Lock lock(core->mutex);
  if (!require(!isCapturing(), "a graph is launched while another is made")) return;
  if (!core->error().empty()) return;
  std::vector<NodeRef> ahead = stream->place.nodes, made;
  if (graph->last != nullptr) addMissing(ahead, {graph->last});
  for (const auto& node : graph->nodes) {
    std::vector<NodeRef> before;
    for (size_t other : node.ahead) before.push_back(made[other]);
    made.push_back(core->add(node.work(), node.isUrgent,
                             core->at.empty() ? node.at : core->at + ", " + node.at,
                             node.ahead.empty() ? ahead : before));
  }
  addMissing(made, ahead);
  graph->last = core->add([] { return true; }, stream->isUrgent, core->at, made);
  stream->place.nodes = {graph->last};
  if (core->options.mode == Mode::Eager) core->drain();
}

void FakeDriver::at(llvm::StringRef what) {
  Lock lock(core->mutex);
  core->at = what.str();
}

llvm::Error FakeDriver::error() {
  Lock lock(core->mutex);
  if (core->error().empty()) {
    DeviceMemory::Open open(core->memory);
    if (std::string broken = core->memory.brokenFence(); !broken.empty()) core->fail(broken);
  }
  if (core->error().empty()) return llvm::Error::success();
  return asError(name() + ": " + core->error());
}

}  // namespace planc::cuda::fake

namespace planc::cuda {

llvm::Expected<std::unique_ptr<Driver>> openGpu(int index) {
  if (index < 0 || index >= fake::options().gpus)
    return fake::asError("there is no GPU " + llvm::Twine(index) + ": this machine has " +
                         llvm::Twine(fake::options().gpus));
  return std::make_unique<fake::FakeDriver>(index);
}

llvm::Expected<int> countGpus() { return fake::options().gpus; }

}  // namespace planc::cuda
