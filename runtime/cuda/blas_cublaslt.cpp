// Everything that a product's shape decides is set once: descriptors, layouts, the algorithm. f32 is
// computed in f32 (no tf32), and sums that are split over k are put together in the compute type, which
// is deterministic.
#include <mutex>

#include "llvm/ADT/Twine.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/library.h"

#define CALLS(CALL)                          \
  CALL(cublasLtCreate)                       \
  CALL(cublasLtDestroy)                      \
  CALL(cublasLtGetStatusString)              \
  CALL(cublasLtMatmul)                       \
  CALL(cublasLtMatmulAlgoGetHeuristic)       \
  CALL(cublasLtMatmulDescCreate)             \
  CALL(cublasLtMatmulDescDestroy)            \
  CALL(cublasLtMatmulDescSetAttribute)       \
  CALL(cublasLtMatmulPreferenceCreate)       \
  CALL(cublasLtMatmulPreferenceDestroy)      \
  CALL(cublasLtMatmulPreferenceSetAttribute) \
  CALL(cublasLtMatrixLayoutCreate)           \
  CALL(cublasLtMatrixLayoutDestroy)          \
  CALL(cublasLtMatrixLayoutSetAttribute)

namespace planc::cuda {
namespace {

struct Api {
  CALLS(PLANC_MEMBER)
};
Api api;  // of all devices

llvm::Error load() {
  static std::once_flag once;
  static std::string failure;
  std::call_once(once, [] {
    failure =
        llvm::toString(loadLibrary("libcublasLt.so." PLANC_CUBLAS_VERSION, {CALLS(PLANC_ENTRY)}));
  });
  if (failure.empty()) return llvm::Error::success();
  return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", failure.c_str());
}

cudaDataType_t typeOf(Elem elem) {
  switch (elem) {
    case Elem::F32:
      return CUDA_R_32F;
    case Elem::BF16:
      return CUDA_R_16BF;
    case Elem::F64:
      return CUDA_R_64F;
    case Elem::I32:
      break;
  }
  return CUDA_R_32I;
}

// A handle of the library with its end.
template <class T, auto destroy>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  ~Owned() {
    if (made_) (api.*destroy)(made_);
  }
  T* out() { return &made_; }
  operator T() const { return made_; }

 private:
  T made_ = nullptr;
};
using Operation = Owned<cublasLtMatmulDesc_t, &Api::cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, &Api::cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, &Api::cublasLtMatmulPreferenceDestroy>;

struct Plan : MatmulPlan {
  Operation operation;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspaceBytes = 0;
  bool isDouble = false;
};

// The first call that fails is the one to tell.
class Calls {
 public:
  void operator()(const char* call, cublasStatus_t status) {
    if (status_ != CUBLAS_STATUS_SUCCESS || status == CUBLAS_STATUS_SUCCESS) return;
    status_ = status;
    call_ = call;
  }
  template <class Descriptor, class Attribute, class T>
  void set(cublasStatus_t (*setter)(Descriptor, Attribute, const void*, size_t), Descriptor of,
           Attribute attribute, T value) {
    (*this)("setting an attribute", setter(of, attribute, &value, sizeof value));
  }
  bool isGood() const { return status_ == CUBLAS_STATUS_SUCCESS; }
  std::string text() const {
    return std::string("cuBLASLt: ") + call_ + ": " + api.cublasLtGetStatusString(status_);
  }

 private:
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
  const char* call_ = "";
};

void makeLayout(Calls& calls, Layout& layout, Elem elem, int64_t rows, int64_t columns, int64_t ld,
                int64_t batch, int64_t stride) {
  calls("a layout", api.cublasLtMatrixLayoutCreate(layout.out(), typeOf(elem), uint64_t(rows),
                                                   uint64_t(columns), ld));
  if (!calls.isGood() || batch == 1) return;
  calls.set(api.cublasLtMatrixLayoutSetAttribute, cublasLtMatrixLayout_t(layout),
            CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t(batch));
  calls.set(api.cublasLtMatrixLayoutSetAttribute, cublasLtMatrixLayout_t(layout),
            CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
}

std::string sizes(const MatmulShape& s) {
  return std::to_string(s.m) + " x " + std::to_string(s.n) + " x " + std::to_string(s.k) +
         (s.batch > 1 ? ", " + std::to_string(s.batch) + " times" : "");
}

llvm::Error error(const llvm::Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", what.str().c_str());
}

}  // namespace

llvm::Expected<std::unique_ptr<CublasLt>> CublasLt::create() {
  if (llvm::Error failed = load()) return failed;
  std::unique_ptr<CublasLt> made(new CublasLt);
  cublasStatus_t status = api.cublasLtCreate(&made->handle_);
  if (status != CUBLAS_STATUS_SUCCESS)
    return error(llvm::Twine("cuBLASLt does not start: ") + api.cublasLtGetStatusString(status));
  return made;
}

std::string CublasLt::text(cublasStatus_t status) { return api.cublasLtGetStatusString(status); }

CublasLt::~CublasLt() {
  if (handle_) api.cublasLtDestroy(handle_);
}

llvm::Expected<std::unique_ptr<MatmulPlan>> CublasLt::plan(const MatmulShape& s,
                                                           int64_t workspaceBytes, int alignment) {
  auto made = std::make_unique<Plan>();
  made->isDouble = s.a == Elem::F64;
  Calls calls;
  calls("an operation",
        api.cublasLtMatmulDescCreate(made->operation.out(),
                                     made->isDouble ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                     made->isDouble ? CUDA_R_64F : CUDA_R_32F));
  if (calls.isGood()) {
    cublasLtMatmulDesc_t operation = made->operation;
    calls.set(api.cublasLtMatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_TRANSA,
              int32_t(s.transA ? CUBLAS_OP_T : CUBLAS_OP_N));
    calls.set(api.cublasLtMatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_TRANSB,
              int32_t(s.transB ? CUBLAS_OP_T : CUBLAS_OP_N));
  }
  makeLayout(calls, made->a, s.a, s.transA ? s.k : s.m, s.transA ? s.m : s.k, s.lda, s.batch,
             s.strideA);
  makeLayout(calls, made->b, s.b, s.transB ? s.n : s.k, s.transB ? s.k : s.n, s.ldb, s.batch,
             s.strideB);
  makeLayout(calls, made->d, s.d, s.m, s.n, s.ldd, s.batch, s.strideD);
  Preference preference;
  calls("a preference", api.cublasLtMatmulPreferenceCreate(preference.out()));
  if (!calls.isGood()) return error(calls.text());
  cublasLtMatmulPreference_t wanted = preference;
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    calls.set(api.cublasLtMatmulPreferenceSetAttribute, wanted, attribute, value);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size_t(workspaceBytes));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, uint32_t(alignment));
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  calls("looking for an algorithm",
        api.cublasLtMatmulAlgoGetHeuristic(handle_, made->operation, made->a, made->b, made->d,
                                           made->d, preference, 1, &best, &found));
  if (!calls.isGood()) return error(calls.text() + " (" + sizes(s) + ")");
  if (found == 0) return error("cuBLASLt has no algorithm for a product of " + sizes(s));
  made->algorithm = best.algo;
  made->workspaceBytes = best.workspaceSize;
  return made;
}

cublasStatus_t CublasLt::run(cudaStream_t stream, const MatmulPlan& which, const void* a,
                             const void* b, void* d, double beta, void* workspace) {
  const Plan& plan = static_cast<const Plan&>(which);
  double one = 1;
  float oneFloat = 1, betaFloat = float(beta);
  const void* alphaAt = plan.isDouble ? static_cast<const void*>(&one) : &oneFloat;
  const void* betaAt = plan.isDouble ? static_cast<const void*>(&beta) : &betaFloat;
  return api.cublasLtMatmul(handle_, plan.operation, alphaAt, a, plan.a, b, plan.b, betaAt, d,
                            plan.d, d, plan.d, &plan.algorithm, workspace, plan.workspaceBytes,
                            stream);
}

}  // namespace planc::cuda
