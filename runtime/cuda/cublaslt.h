// Matrix products by cuBLASLt. For driver_cuda.cpp only.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>

#include "runtime/cuda/gpu.h"

namespace planc::cuda {

class CublasLt {
 public:
  static llvm::Expected<std::unique_ptr<CublasLt>> create();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;

  llvm::Expected<std::unique_ptr<MatmulPlan>> plan(const MatmulShape& shape, int64_t workspaceBytes,
                                                   int alignment);
  cublasStatus_t run(cudaStream_t stream, const MatmulPlan& plan, const void* a, const void* b,
                     void* d, double beta, void* workspace);
  static std::string text(cublasStatus_t status);

 private:
  CublasLt() = default;
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace planc::cuda
