#include "runtime/cuda/product.h"
namespace planc::cuda {
KernelOr makeGrouped(const Op&, const Product&, Shared&) { return nullptr; }
}  // namespace planc::cuda
