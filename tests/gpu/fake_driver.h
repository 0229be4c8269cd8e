// The fake GPU's driver. Messages enqueue through it.
#pragma once

#include "ir/type.h"
#include "runtime/cuda/gpu.h"
#include "tests/gpu/executor.h"

namespace planc::cuda {

// What a stream or an event stands behind: of what runs, or of a graph that is being made.
struct Capture;
struct Place {
  std::vector<fake::NodeRef> nodes;
  std::shared_ptr<Capture> capture;
  std::vector<size_t> captured;
};
struct StreamHandle {
  bool isUrgent;
  Place place;
};
struct EventHandle {
  Place place;
  bool isRecorded = false;
};
struct GraphHandle {
  struct Node {
    fake::Work work;
    std::string at;
    bool isUrgent;
    std::vector<size_t> ahead;
  };
  std::vector<Node> nodes;
  fake::NodeRef last;  // of its latest launch
};

}  // namespace planc::cuda

namespace planc::cuda::fake {

class FakeDriver : public Driver {
 public:
  explicit FakeDriver(int index) : core(makeCore(index)) {}
  ~FakeDriver() override;

  std::string name() const override;
  int64_t freeBytes() const override;
  int multiprocessors() const override { return 4; }
  int64_t sharedBytesOfBlock() const override { return core->options.sharedBytes; }
  llvm::Expected<std::byte*> allocate(int64_t bytes) override;
  llvm::Expected<std::byte*> allocateHost(int64_t bytes) override;
  Stream makeStream(bool urgent) override;
  Event makeEvent() override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool isDone(Event event) override;
  void copy(Stream stream, void* to, const void* from, int64_t bytes) override;
  void zero(Stream stream, void* at, int64_t bytes) override;
  void launch(Stream stream, const KernelInfo& kernel, const LaunchShape& shape,
              const void* args) override;
  llvm::Expected<std::unique_ptr<MatmulPlan>> plan(const MatmulShape& shape, int64_t workspaceBytes,
                                                   int alignment) override;
  void matmul(Stream stream, const MatmulPlan& plan, const void* a, const void* b, void* d,
              double beta, void* workspace) override;
  void beginGraph(Stream stream) override;
  llvm::Expected<Graph> endGraph(Stream stream) override;
  void launch(Stream stream, Graph graph) override;
  int64_t nodes(Graph graph) const override { return int64_t(graph->nodes.size()); }
  void destroy(Graph graph) override;
  size_t graphs() const { return graphs_.size(); }
  void at(llvm::StringRef what) override;
  llvm::Error error() override;

  // Behind all that these streams have, and ahead of what they get from here on.
  void enqueue(llvm::ArrayRef<Stream> streams, Work work);
  bool isCapturing() const { return capture_ != nullptr; }

  const std::shared_ptr<Core> core;

 private:
  // Notes an error, and is false, unless `holds`.
  bool require(bool holds, const llvm::Twine& otherwise);

  std::vector<std::unique_ptr<StreamHandle>> streams_;
  std::vector<std::unique_ptr<EventHandle>> events_;
  std::vector<std::unique_ptr<GraphHandle>> graphs_;
  std::shared_ptr<Capture> capture_;
};

// What planning refuses; empty: nothing.
std::string checkMatmul(const MatmulShape& shape);
// Elements that an operand's batch takes from its first to its last.
struct MatmulExtents {
  int64_t a, b, d;
};
MatmulExtents extentsOf(const MatmulShape& shape);
void runMatmul(const MatmulShape& shape, const void* a, const void* b, void* d, double beta);

}  // namespace planc::cuda::fake
