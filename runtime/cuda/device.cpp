// The GPU as a device, and the table of its kernels' makers. Copies from and to the host go through
// pinned memory, piece by piece. Tested by tests/gpu/kernels_gpu_test.cpp and tests/gpu/machine_test.cpp.
#include "runtime/cuda/device.h"

#include <thread>

#include "runtime/cuda/copies.h"

namespace planc::cuda {
namespace {

constexpr int64_t kHalf = 4 << 20;  // bytes of pinned memory in one piece

using Maker = KernelOr (*)(const Op& op, Shared& shared);

Maker makerOf(const Op& op) {
  if (op.has(Elementwise)) return prepareElementwise;
  switch (op.kind) {
    case OpKind::Accum:
    case OpKind::Const:
    case OpKind::Fused:
      return prepareElementwise;
#define MAKER(Kind)  \
  case OpKind::Kind: \
    return prepare##Kind;
      MAKER(Sum)
      MAKER(Einsum)
      MAKER(Spread)
      MAKER(Softmax)
      MAKER(SoftmaxGrad)
      MAKER(Norm)
      MAKER(NormGrad)
      MAKER(Lookup)
      MAKER(LookupGrad)
      MAKER(CountValid)
      MAKER(CrossEntropy)
      MAKER(CrossEntropyPart)
      MAKER(LogSumExp)
      MAKER(CrossEntropyTotal)
      MAKER(CrossEntropyGrad)
      MAKER(Rope)
      MAKER(Attend)
      MAKER(AttendGrad)
      MAKER(Dropout)
      MAKER(Concat)
      MAKER(Slice)
      MAKER(ShardSlice)
      MAKER(OneCopy)
      MAKER(Route)
      MAKER(RouteGrad)
      MAKER(Admit)
      MAKER(Pack)
      MAKER(Dispatch)
      MAKER(DispatchGrad)
      MAKER(Combine)
      MAKER(CombineGrad)
      MAKER(RowCounts)
      MAKER(RowOffsets)
      MAKER(LearningRate)
      MAKER(SumSquares)
      MAKER(AdamW)
      MAKER(Sgd)
#undef MAKER
    case OpKind::AttendBlock:
      return prepareAttend;
    default:
      return nullptr;
  }
}

std::vector<DeviceRun> cut(llvm::ArrayRef<CopyRun> runs) {
  std::vector<DeviceRun> pieces;
  for (const CopyRun& run : runs)
    for (int64_t at = 0; at < run.bytes; at += kLongestRun)
      pieces.push_back({run.to + at, run.from + at, std::min(kLongestRun, run.bytes - at)});
  return pieces;
}

void launchCopies(Driver& gpu, Stream stream, void* to, const void* from, const DeviceRun* runs,
                  int64_t count) {
  if (count == 0) return;
  CopyRunsArgs args{to, from, runs, count};
  gpu.launch(stream, kCopyRuns, {.x = blocksFor(count, 256 / kWarp), .threads = 256}, &args);
}

}  // namespace

const void* Shared::upload(const void* from, int64_t bytes) {
  auto memory = gpu.allocate(std::max<int64_t>(bytes, 1));
  if (!memory) {
    llvm::consumeError(memory.takeError());  // the driver keeps it
    return nullptr;
  }
  write_(*memory, from, bytes);
  return *memory;
}

CudaDevice::CudaDevice(std::unique_ptr<Driver> driver)
    : gpu_(std::move(driver)), stream_(gpu_->makeStream(false)), done_(gpu_->makeEvent()) {}

llvm::Expected<std::unique_ptr<CudaDevice>> CudaDevice::create(std::unique_ptr<Driver> driver,
                                                               Coordinates rank) {
  std::unique_ptr<CudaDevice> made(new CudaDevice(std::move(driver)));
  for (Half& half : made->halves_) {
    auto memory = made->gpu_->allocateHost(kHalf);
    if (!memory) return memory.takeError();
    half.memory = *memory;
    half.free = made->gpu_->makeEvent();
  }
  auto step = made->gpu_->allocate(sizeof(int64_t));
  if (!step) return step.takeError();
  made->step_ = reinterpret_cast<int64_t*>(*step);
  CudaDevice* self = made.get();
  made->shared_ = std::make_unique<Shared>(
      *made->gpu_, made->stream_, std::move(rank), made->step_,
      [self](void* at, const void* host, int64_t bytes) { self->write(at, host, bytes); });
  if (llvm::Error error = made->gpu_->error()) return error;
  return made;
}

llvm::Expected<std::byte*> CudaDevice::allocateArena(int64_t bytes) {
  arenaBytes_ = std::max<int64_t>(bytes, 1);
  auto memory = gpu_->allocate(arenaBytes_);
  if (!memory) return noRoom("an arena", arenaBytes_, memory.takeError());
  return arena_ = *memory;
}

llvm::Error CudaDevice::noRoom(llvm::StringRef what, int64_t bytes, llvm::Error why) {
  llvm::consumeError(std::move(why));  // says no more
  return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                 gpu_->name() + " has no room for " + what + " of " +
                                     llvm::Twine(bytes) +
                                     " bytes: " + llvm::Twine(gpu_->freeBytes()) + " are free");
}

void CudaDevice::copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) gpu_->copy(stream_, to, from, bytes);
}

void CudaDevice::zero(void* at, int64_t bytes) {
  if (bytes > 0) gpu_->zero(stream_, at, bytes);
}

// The table lies in pinned memory, from where the kernel reads it.
void CudaDevice::copy(void* to, const void* from, llvm::ArrayRef<CopyRun> runs) {
  std::vector<DeviceRun> pieces = cut(runs);
  constexpr size_t kAtOnce = kHalf / sizeof(DeviceRun);
  for (size_t at = 0; at < pieces.size(); at += kAtOnce) {
    size_t count = std::min(kAtOnce, pieces.size() - at);
    std::byte* table = stage(int64_t(count * sizeof(DeviceRun)));
    if (table == nullptr) return;
    std::memcpy(table, &pieces[at], count * sizeof(DeviceRun));
    launchCopies(*gpu_, stream_, to, from, reinterpret_cast<const DeviceRun*>(table),
                 int64_t(count));
  }
}

std::unique_ptr<Copies> CudaDevice::prepareCopies(llvm::ArrayRef<CopyRun> runs) {
  struct Table : Copies {
    void run(void* to, const void* from) override {
      launchCopies(*gpu, stream, to, from, runs, count);
    }
    Driver* gpu;
    Stream stream;
    const DeviceRun* runs;
    int64_t count;
  };
  std::vector<DeviceRun> pieces = cut(runs);
  auto made = std::make_unique<Table>();
  made->gpu = gpu_.get();
  made->stream = stream_;
  made->runs = shared_->table(llvm::ArrayRef<DeviceRun>(pieces));
  made->count = int64_t(pieces.size());
  return made;
}

// Null: something went wrong while waiting for what is on the way.
std::byte* CudaDevice::stage(int64_t bytes) {
  assert(bytes <= kHalf && !isRecording_);
  bytes = (bytes + 63) / 64 * 64;
  if (halves_[half_].used + bytes > kHalf) {
    gpu_->record(halves_[half_].free, stream_);
    half_ = 1 - half_;
    halves_[half_].used = 0;
    if (llvm::Error error = waitFor(halves_[half_].free)) {
      keep(std::move(error));
      return nullptr;
    }
  }
  Half& half = halves_[half_];
  std::byte* memory = half.memory + half.used;
  half.used += bytes;
  return memory;
}

llvm::Error CudaDevice::read(void* host, const void* at, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    int64_t piece = std::min(kHalf, bytes - done);
    std::byte* memory = stage(piece);
    if (memory == nullptr) return finish();
    gpu_->copy(stream_, memory, static_cast<const std::byte*>(at) + done, piece);
    if (llvm::Error error = finish()) return error;
    std::memcpy(static_cast<std::byte*>(host) + done, memory, size_t(piece));
    done += piece;
  }
  return llvm::Error::success();
}

void CudaDevice::write(void* at, const void* host, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    int64_t piece = std::min(kHalf, bytes - done);
    std::byte* memory = stage(piece);
    if (memory == nullptr) return;
    std::memcpy(memory, static_cast<const std::byte*>(host) + done, size_t(piece));
    gpu_->copy(stream_, static_cast<std::byte*>(at) + done, memory, piece);
    done += piece;
  }
}

void CudaDevice::beginStep(int64_t step) { write(step_, &step, sizeof step); }

// The first error is the one to tell.
void CudaDevice::keep(llvm::Error error) {
  std::string text = llvm::toString(std::move(error));
  if (!failure_.empty()) return;
  failure_ = std::move(text);
  if (watch_) watch_->lost(failure_);
}

llvm::Error CudaDevice::waitFor(Event event) {
  using namespace std::chrono_literals;
  auto start = std::chrono::steady_clock::now();
  while (!gpu_->isDone(event)) {
    if (llvm::Error error = gpu_->error()) return error;
    if (watch_)
      if (llvm::Error error = watch_->look()) return error;
    // A step takes milliseconds: leave the processor to other ranks when it is no short wait.
    if (std::chrono::steady_clock::now() - start > 200us) std::this_thread::yield();
  }
  return gpu_->error();
}

llvm::Error CudaDevice::finish() {
  if (failure_.empty()) {
    gpu_->record(done_, stream_);
    if (llvm::Error error = waitFor(done_)) keep(std::move(error));
    if (watch_)
      if (llvm::Error error = watch_->check()) keep(std::move(error));
  }
  if (failure_.empty()) return llvm::Error::success();
  return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", failure_.c_str());
}

llvm::Expected<std::unique_ptr<planc::Kernel>> CudaDevice::prepare(const Op& op) {
  Maker maker = makerOf(op);
  if (maker == nullptr) return unsupported(op, "it has no kernel");
  auto kernel = maker(op, *shared_);
  if (!kernel) return kernel;
  if (llvm::Error error = gpu_->error()) return error;
  return kernel;
}

llvm::Error CudaDevice::finishPreparing() {
  if (shared_->workspaceBytes_ <= shared_->workspaceRoom_) return llvm::Error::success();
  auto memory = gpu_->allocate(shared_->workspaceBytes_);
  if (!memory)
    return noRoom("what its kernels work in", shared_->workspaceBytes_, memory.takeError());
  shared_->workspace_ = *memory;
  shared_->workspaceRoom_ = shared_->workspaceBytes_;
  return llvm::Error::success();
}

void CudaDevice::at(const Op& op, llvm::StringRef place) {
  where_ = op.info().text.str();
  if (!place.empty()) where_ += " (" + place.str() + ")";
  gpu_->at(where_);
}

void CudaDevice::beginRecording() {
  if (llvm::Error error = finish())
    llvm::consumeError(std::move(error));  // `endRecording` tells it
  if (watch_) watch_->restart(true);
  isRecording_ = true;
  gpu_->beginGraph(stream_);
}

llvm::Error CudaDevice::endRecording() {
  isRecording_ = false;
  auto graph = gpu_->endGraph(stream_);
  if (!graph) keep(graph.takeError());
  else graph_ = *graph;
  return finish();
}

void CudaDevice::replay() {
  if (watch_) watch_->restart(false);
  gpu_->at("the recorded step");
  gpu_->launch(stream_, graph_);
}

void CudaDevice::dropRecording() {
  if (graph_ != nullptr) gpu_->destroy(graph_);
  graph_ = nullptr;
}

}  // namespace planc::cuda

namespace planc {

llvm::Expected<int> countGpus() { return cuda::countGpus(); }

llvm::Expected<std::unique_ptr<Device>> makeCudaDevice(int gpu, Coordinates rank) {
  auto driver = cuda::openGpu(gpu);
  if (!driver) return driver.takeError();
  return cuda::CudaDevice::create(std::move(*driver), std::move(rank));
}

}  // namespace planc
