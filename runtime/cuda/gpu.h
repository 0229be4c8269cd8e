// What planc asks of a GPU and its libraries, and no more: memory, streams, events, graphs, launches,
// matrix products, messages. `driver_cuda.cpp`, `blas_cublaslt.cpp` and `nccl_library.cpp` pass it on to
// CUDA, cuBLASLt and NCCL one to one; tests run everything above this line on a machine made of CPU
// memory instead (tests/gpu), which completes work in adversarial orders.
//
// Calls that only enqueue return nothing: the first one that goes wrong, there or on the GPU later, is
// kept, and `error` tells it with what `at` said was being done. Behind an error nothing runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include "runtime/cuda/kernel.h"

namespace planc::cuda {

// Handles of the driver that made them.
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Graph = struct GraphHandle*;

struct LaunchShape {
  uint32_t x = 1, y = 1, z = 1;  // blocks; y and z at most 65535
  uint32_t threads = 1;          // of a block, in one dimension
  uint32_t sharedBytes = 0;      // dynamic shared memory of a block
};

// D = A B + beta D, `batch` times, as BLAS has it: column-major, op(A) m by k, op(B) k by n, D m by n.
struct MatmulShape {
  bool transA = false, transB = false;
  int64_t m = 0, n = 0, k = 0, batch = 1;
  Elem a = Elem::F32, b = Elem::F32, d = Elem::F32;  // bf16 and f32 are summed in f32, f64 in f64
  int64_t lda = 0, ldb = 0, ldd = 0;                 // elements from column to column
  int64_t strideA = 0, strideB = 0, strideD = 0;     // from one of the batch to the next
};

// A shape with the algorithm that the library chose for it.
class MatmulPlan {
 public:
  virtual ~MatmulPlan() = default;
};

// One GPU, which belongs to one thread.
class Driver {
 public:
  virtual ~Driver() = default;
  Driver() = default;
  Driver(const Driver&) = delete;

  virtual std::string name() const = 0;
  virtual int64_t freeBytes() const = 0;
  virtual int multiprocessors() const = 0;
  // What a launch may ask for: 99 KiB at least, 163 on an A100, 227 on an H100.
  virtual int64_t sharedBytesOfBlock() const = 0;

  // Memory lives as long as the driver. Of the device: zeroed, 256-byte aligned; of the host: pinned,
  // so that copies from and to it run behind the host's back.
  virtual llvm::Expected<std::byte*> allocate(int64_t bytes) = 0;
  virtual llvm::Expected<std::byte*> allocateHost(int64_t bytes) = 0;

  // Streams and events live as long as the driver. `urgent`: its kernels go first where there is a
  // choice (messages).
  virtual Stream makeStream(bool urgent) = 0;
  virtual Event makeEvent() = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;  // what is enqueued behind it
  // Whether all that was ahead of its last `record` is done; true before the first. Not while recording.
  virtual bool isDone(Event event) = 0;

  // Between device memory and device or pinned memory.
  virtual void copy(Stream stream, void* to, const void* from, int64_t bytes) = 0;
  virtual void zero(Stream stream, void* at, int64_t bytes) = 0;
  // `args`: the kernel's argument, copied at once.
  virtual void launch(Stream stream, const KernelInfo& kernel, const LaunchShape& shape,
                      const void* args) = 0;

  // `workspaceBytes` at most are asked for; `plan` serves any pointers of that alignment (bytes).
  virtual llvm::Expected<std::unique_ptr<MatmulPlan>> plan(const MatmulShape& shape,
                                                           int64_t workspaceBytes,
                                                           int alignment) = 0;
  virtual void matmul(Stream stream, const MatmulPlan& plan, const void* a, const void* b, void* d,
                      double beta, void* workspace) = 0;

  // All that is enqueued from `beginGraph` to `endGraph` on this stream, and on streams that wait for
  // its events and that it waits for in turn, becomes a graph and does not run.
  virtual void beginGraph(Stream stream) = 0;
  virtual llvm::Expected<Graph> endGraph(Stream stream) = 0;
  virtual void launch(Stream stream, Graph graph) = 0;
  virtual int64_t nodes(Graph graph) const = 0;
  virtual void destroy(Graph graph) = 0;

  // For errors from here on: the op and its line in the plan.
  virtual void at(llvm::StringRef what) = 0;
  virtual llvm::Error error() = 0;
};

// The GPU of that number; an error where there is no driver, library or GPU says so in a line.
llvm::Expected<std::unique_ptr<Driver>> openGpu(int index);
llvm::Expected<int> countGpus();

enum class Reduce : uint8_t { Sum, Max };

// Messages between GPUs, after NCCL's interface. Ranks are positions in a `Clique`. What is enqueued
// between `begin` and `end` is one operation.
using Clique = struct CliqueHandle*;

class Messenger {
 public:
  virtual ~Messenger() = default;
  Messenger() = default;
  Messenger(const Messenger&) = delete;

  struct Id {
    char bytes[128];
  };
  static constexpr int kNone = -1;

  virtual llvm::Expected<Id> makeId() = 0;
  // All ranks call it at once.
  virtual llvm::Expected<Clique> join(const Id& id, int ranks, int rank) = 0;
  // All ranks of `of` call it at once: those of one colour make a clique, in the order of `of`; those
  // of kNone make none (null).
  virtual llvm::Expected<Clique> split(Clique of, int colour, int key) = 0;

  virtual void begin() = 0;
  virtual void end() = 0;
  virtual void allReduce(Clique clique, const void* send, void* recv, int64_t count, Elem elem,
                         Reduce reduce, Stream stream) = 0;
  virtual void reduceScatter(Clique clique, const void* send, void* recv, int64_t recvCount,
                             Elem elem, Reduce reduce, Stream stream) = 0;
  virtual void allGather(Clique clique, const void* send, void* recv, int64_t sendCount, Elem elem,
                         Stream stream) = 0;
  virtual void broadcast(Clique clique, void* buffer, int64_t count, Elem elem, int root,
                         Stream stream) = 0;
  virtual void send(Clique clique, const void* buffer, int64_t count, Elem elem, int to,
                    Stream stream) = 0;
  virtual void receive(Clique clique, void* buffer, int64_t count, Elem elem, int from,
                       Stream stream) = 0;

  // Messages from and to this memory need no copy on the way, where the library can do that.
  virtual void enroll(Clique clique, void* memory, int64_t bytes) = 0;
  // What went wrong in the background: a rank is gone.
  virtual llvm::Error error(Clique clique) = 0;
  // Nothing is under way and no graph holds messages: all ranks end their cliques at once.
  virtual void finish() = 0;
  // Ends what is under way, as far as that can be done in some seconds; no clique takes more. No graph
  // holds messages.
  virtual void abort() = 0;
};

// How long calls that need other ranks wait for them.
struct Patience {
  std::chrono::milliseconds timeout;
  std::function<bool()> isOver;  // the run is: no need to wait on
};

// Of this driver's GPU and thread.
llvm::Expected<std::unique_ptr<Messenger>> makeMessenger(Driver& driver, Patience patience);

}  // namespace planc::cuda
