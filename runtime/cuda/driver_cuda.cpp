// The driver on CUDA's runtime: each call is one of its calls.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "llvm/ADT/Twine.h"
#include "runtime/cuda/cublaslt.h"

namespace planc::cuda {
namespace {

constexpr int kLeastCapability = 8;
constexpr uint32_t kSharedByDefault = 48 << 10;  // a block gets more only when asked for

llvm::Error failed(const llvm::Twine& what, cudaError_t code) {
  std::string text =
      (what + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")").str();
  return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", text.c_str());
}

cudaStream_t raw(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t raw(Event event) { return reinterpret_cast<cudaEvent_t>(event); }
cudaGraphExec_t raw(Graph graph) { return reinterpret_cast<cudaGraphExec_t>(graph); }

class CudaDriver : public Driver {
 public:
  static llvm::Expected<std::unique_ptr<Driver>> open(int index);
  ~CudaDriver() override;

  std::string name() const override { return "GPU " + std::to_string(index_) + " (" + name_ + ")"; }
  int64_t freeBytes() const override {
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? int64_t(free) : 0;
  }
  int multiprocessors() const override { return multiprocessors_; }
  int64_t sharedBytesOfBlock() const override { return sharedBytesOfBlock_; }

  llvm::Expected<std::byte*> allocate(int64_t bytes) override;
  llvm::Expected<std::byte*> allocateHost(int64_t bytes) override;

  Stream makeStream(bool urgent) override;
  Event makeEvent() override;
  void record(Event event, Stream stream) override {
    check("cudaEventRecord", cudaEventRecord(raw(event), raw(stream)));
  }
  void wait(Stream stream, Event event) override {
    check("cudaStreamWaitEvent", cudaStreamWaitEvent(raw(stream), raw(event), 0));
  }
  bool isDone(Event event) override {
    cudaError_t code = cudaEventQuery(raw(event));
    if (code == cudaErrorNotReady) {
      cudaGetLastError();  // no error of anybody's
      return false;
    }
    check("cudaEventQuery", code);
    return true;
  }

  void copy(Stream stream, void* to, const void* from, int64_t bytes) override {
    check("cudaMemcpyAsync",
          cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDefault, raw(stream)));
  }
  void zero(Stream stream, void* at, int64_t bytes) override {
    check("cudaMemsetAsync", cudaMemsetAsync(at, 0, size_t(bytes), raw(stream)));
  }
  void launch(Stream stream, const KernelInfo& kernel, const LaunchShape& shape,
              const void* args) override;

  llvm::Expected<std::unique_ptr<MatmulPlan>> plan(const MatmulShape& shape, int64_t workspaceBytes,
                                                   int alignment) override {
    return blas_->plan(shape, workspaceBytes, alignment);
  }
  void matmul(Stream stream, const MatmulPlan& plan, const void* a, const void* b, void* d,
              double beta, void* workspace) override {
    if (!failure_.empty()) return;
    cublasStatus_t status = blas_->run(raw(stream), plan, a, b, d, beta, workspace);
    if (status != CUBLAS_STATUS_SUCCESS) keep("cublasLtMatmul: " + blas_->text(status));
  }

  // Of this thread only: other ranks may be threads of this process.
  void beginGraph(Stream stream) override {
    check("cudaStreamBeginCapture",
          cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeThreadLocal));
  }
  llvm::Expected<Graph> endGraph(Stream stream) override;
  void launch(Stream stream, Graph graph) override {
    check("cudaGraphLaunch", cudaGraphLaunch(raw(graph), raw(stream)));
  }
  int64_t nodes(Graph graph) const override { return nodes_.at(graph); }
  void destroy(Graph graph) override {
    if (nodes_.erase(graph) > 0) cudaGraphExecDestroy(raw(graph));
  }

  void at(llvm::StringRef what) override { where_.assign(what.data(), what.size()); }
  llvm::Error error() override {
    if (failure_.empty()) return llvm::Error::success();
    return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", failure_.c_str());
  }

 private:
  explicit CudaDriver(int index) : index_(index) {}
  // An error of the GPU shows at some later call, so the place is no more than near.
  void check(const char* call, cudaError_t code) {
    if (code != cudaSuccess)
      keep(std::string(call) + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) +
           ")");
  }
  void keep(const std::string& what) {
    if (failure_.empty())
      failure_ = name() + ": " + what + (where_.empty() ? "" : ", in or before " + where_);
  }

  const int index_;
  std::string name_, failure_, where_;
  int multiprocessors_ = 0, sharedBytesOfBlock_ = 0, mostUrgent_ = 0;
  std::unique_ptr<CublasLt> blas_;
  std::map<const void*, uint32_t> shared_;  // bytes that a kernel may have, where it asked for more
  std::map<Graph, int64_t> nodes_;
  std::vector<void*> device_, host_;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
};

llvm::Expected<std::unique_ptr<Driver>> CudaDriver::open(int index) {
  auto count = countGpus();
  if (!count) return count.takeError();
  if (index < 0 || index >= *count)
    return llvm::createStringError(
        llvm::inconvertibleErrorCode(),
        "there is no GPU " + llvm::Twine(index) + ": this process sees " + llvm::Twine(*count));
  std::unique_ptr<CudaDriver> made(new CudaDriver(index));
  if (cudaError_t code = cudaSetDevice(index); code != cudaSuccess)
    return failed("GPU " + llvm::Twine(index) + " can't be used", code);
  cudaDeviceProp properties;
  if (cudaError_t code = cudaGetDeviceProperties(&properties, index); code != cudaSuccess)
    return failed("GPU " + llvm::Twine(index), code);
  made->name_ = properties.name;
  made->multiprocessors_ = properties.multiProcessorCount;
  if (properties.major < kLeastCapability)
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   made->name() + " has compute capability " +
                                       llvm::Twine(properties.major) + "." +
                                       llvm::Twine(properties.minor) + "; planc needs 8.0");
  made->check("cudaDeviceGetAttribute",
              cudaDeviceGetAttribute(&made->sharedBytesOfBlock_,
                                     cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
  int least = 0;
  made->check("cudaDeviceGetStreamPriorityRange",
              cudaDeviceGetStreamPriorityRange(&least, &made->mostUrgent_));
  auto blas = CublasLt::create();
  if (!blas) return blas.takeError();
  made->blas_ = std::move(*blas);
  return std::unique_ptr<Driver>(std::move(made));
}

CudaDriver::~CudaDriver() {
  for (auto& [graph, nodes] : nodes_) cudaGraphExecDestroy(raw(graph));
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  for (void* memory : device_) cudaFree(memory);
  for (void* memory : host_) cudaFreeHost(memory);
}

llvm::Expected<std::byte*> CudaDriver::allocate(int64_t bytes) {
  void* memory = nullptr;
  size_t size = size_t(std::max<int64_t>(bytes, 1));
  cudaError_t code = cudaMalloc(&memory, size);
  if (code == cudaSuccess) {
    device_.push_back(memory);
    code = cudaMemset(memory, 0, size);
    // It runs on a stream that ours do not wait for.
    if (code == cudaSuccess) code = cudaStreamSynchronize(cudaStreamLegacy);
  }
  if (code == cudaSuccess) return static_cast<std::byte*>(memory);
  cudaGetLastError();  // running out of memory is no state of the GPU
  std::string what = name() + ": " + std::to_string(bytes) + " bytes can't be had";
  keep(what);
  return failed(what, code);
}

llvm::Expected<std::byte*> CudaDriver::allocateHost(int64_t bytes) {
  void* memory = nullptr;
  if (cudaError_t code = cudaMallocHost(&memory, size_t(bytes)); code != cudaSuccess)
    return failed(llvm::Twine(bytes) + " bytes of pinned memory can't be had", code);
  host_.push_back(memory);
  return static_cast<std::byte*>(memory);
}

Stream CudaDriver::makeStream(bool urgent) {
  cudaStream_t stream = nullptr;
  check("cudaStreamCreate",
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? mostUrgent_ : 0));
  streams_.push_back(stream);
  return reinterpret_cast<Stream>(stream);
}

Event CudaDriver::makeEvent() {
  cudaEvent_t event = nullptr;
  check("cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  events_.push_back(event);
  return reinterpret_cast<Event>(event);
}

void CudaDriver::launch(Stream stream, const KernelInfo& kernel, const LaunchShape& shape,
                        const void* args) {
  if (!failure_.empty()) return;
  if (shape.sharedBytes > kSharedByDefault) {
    uint32_t& allowed = shared_[kernel.entry];
    if (allowed < shape.sharedBytes) {
      check(kernel.name,
            cudaFuncSetAttribute(kernel.entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 int(shape.sharedBytes)));
      allowed = shape.sharedBytes;
    }
  }
  void* parameters[] = {const_cast<void*>(args)};
  check(kernel.name,
        cudaLaunchKernel(kernel.entry, dim3(shape.x, shape.y, shape.z), dim3(shape.threads),
                         parameters, shape.sharedBytes, raw(stream)));
}

llvm::Expected<Graph> CudaDriver::endGraph(Stream stream) {
  cudaGraph_t graph = nullptr;
  if (cudaError_t code = cudaStreamEndCapture(raw(stream), &graph); code != cudaSuccess)
    return failed(name() + ": the step can't be recorded", code);
  size_t nodes = 0;
  check("cudaGraphGetNodes", cudaGraphGetNodes(graph, nullptr, &nodes));
  cudaGraphExec_t made = nullptr;
  cudaError_t code = cudaGraphInstantiate(&made, graph, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(graph);
  if (code != cudaSuccess) return failed(name() + ": the recorded step can't be made", code);
  Graph handle = reinterpret_cast<Graph>(made);
  nodes_[handle] = int64_t(nodes);
  check("cudaGraphUpload", cudaGraphUpload(made, raw(stream)));
  return handle;
}

}  // namespace

llvm::Expected<int> countGpus() {
  // A rank has a stream for each group that it is in. With fewer queues than streams one message waits
  // behind another that it has nothing to do with, which may wait for it on the other side.
  static std::once_flag once;
  std::call_once(once, [] { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); });
  int count = 0;
  cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count;
  if (code == cudaErrorNoDevice) return 0;
  if (code == cudaErrorInsufficientDriver)
    return failed("no GPU can be used here: the NVIDIA driver is missing, or too old", code);
  return failed("no GPU can be used here", code);
}

llvm::Expected<std::unique_ptr<Driver>> openGpu(int index) { return CudaDriver::open(index); }

}  // namespace planc::cuda
