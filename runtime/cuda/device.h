// The GPU as a device: one arena, a compute stream on which kernels and copies follow each other, the
// step recorded as a graph. For this folder only.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "runtime/cuda/ops.h"

namespace planc::cuda {

// Who is asked while the host waits for the GPU.
class GpuWatch {
 public:
  virtual ~GpuWatch() = default;
  // Often; an error ends the waiting.
  virtual llvm::Error look() = 0;
  // When the GPU is done: what went wrong with messages meanwhile.
  virtual llvm::Error check() = 0;
  // Something went wrong on this GPU, which no other rank knows of.
  virtual void lost(const std::string& why) = 0;
  // The GPU is idle, and a step is about to be recorded, or replayed.
  virtual void restart(bool records) = 0;
};

class CudaDevice : public Device {
 public:
  static llvm::Expected<std::unique_ptr<CudaDevice>> create(std::unique_ptr<Driver> driver,
                                                            Coordinates rank);

  llvm::StringRef name() const override { return "cuda"; }
  bool isHost() const override { return false; }
  llvm::Expected<std::byte*> allocateArena(int64_t bytes) override;
  int64_t arenaBytes() const override { return arenaBytes_; }
  llvm::Expected<std::byte*> allocate(int64_t bytes) override { return gpu_->allocate(bytes); }
  void copy(void* to, const void* from, int64_t bytes) override;
  void zero(void* at, int64_t bytes) override;
  void copy(void* to, const void* from, llvm::ArrayRef<CopyRun> runs) override;
  std::unique_ptr<Copies> prepareCopies(llvm::ArrayRef<CopyRun> runs) override;
  llvm::Error read(void* host, const void* at, int64_t bytes) override;
  void write(void* at, const void* host, int64_t bytes) override;
  void beginStep(int64_t step) override;
  llvm::Error finish() override;
  llvm::Expected<std::unique_ptr<planc::Kernel>> prepare(const Op& op) override;
  llvm::Error finishPreparing() override;
  void at(const Op& op, llvm::StringRef place) override;
  bool canRecord() const override { return true; }
  void beginRecording() override;
  llvm::Error endRecording() override;
  void replay() override;
  // The recorded step, if any, is gone.
  void dropRecording();

  // For messages between GPUs.
  Driver& gpu() { return *gpu_; }
  Stream compute() const { return stream_; }
  std::byte* arena() const { return arena_; }
  void setWatch(GpuWatch* watch) { watch_ = watch; }
  // Waits until the event is done, or something went wrong.
  llvm::Error waitFor(Event event);

 private:
  explicit CudaDevice(std::unique_ptr<Driver> driver);
  // A piece of pinned memory that no copy on the way uses.
  std::byte* stage(int64_t bytes);
  void keep(llvm::Error error);
  llvm::Error noRoom(llvm::StringRef what, int64_t bytes, llvm::Error why);

  std::unique_ptr<Driver> gpu_;
  Stream stream_;
  int64_t* step_ = nullptr;      // device
  std::unique_ptr<Shared> shared_;
  std::byte* arena_ = nullptr;
  int64_t arenaBytes_ = 0;
  Graph graph_ = nullptr;
  Event done_;
  // Pinned memory, used round and round in halves.
  struct Half {
    std::byte* memory = nullptr;
    Event free = nullptr;
    int64_t used = 0;
  };
  std::array<Half, 2> halves_;
  size_t half_ = 0;
  GpuWatch* watch_ = nullptr;
  bool isRecording_ = false;
  std::string failure_;  // empty while all goes well
  std::string where_;
};

}  // namespace planc::cuda
