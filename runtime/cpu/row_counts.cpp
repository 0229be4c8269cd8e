// How many rows experts have, and where they begin. Tested by tests/runtime/exchange_test.cpp.
#include "runtime/cpu/kernels.h"

namespace planc::cpu {

KernelOr prepareRowCounts(const Op& op, Shared& shared) {
  const Dim& experts = op.result()->type.dims.back();
  return makeKernel([count = experts.size, first = shared.rank.offset(experts)](
                        const RunContext&, Operands in, Results out) {
    const int32_t* offsets = static_cast<const int32_t*>(in[0]) + first;
    int32_t* counts = static_cast<int32_t*>(out[0]);
    for (int64_t e = 0; e < count; ++e) counts[e] = offsets[e + 1] - offsets[e];
  });
}

KernelOr prepareRowOffsets(const Op& op, Shared&) {
  const Type& type = op.operand(0)->type;
  int64_t count = type.dims.back().size, parts = type.elements() / count;
  return makeKernel([count, parts](const RunContext&, Operands in, Results out) {
    const int32_t* counts = static_cast<const int32_t*>(in[0]);
    int32_t* offsets = static_cast<int32_t*>(out[0]);
    offsets[0] = 0;
    int64_t end = 0;  // past what an i32 counts the exchange of these rows ends the run
    for (int64_t e = 0; e < count; ++e) {
      for (int64_t part = 0; part < parts; ++part) end += counts[part * count + e];
      offsets[e + 1] = int32_t(std::min<int64_t>(end, INT32_MAX));
    }
  });
}

}  // namespace planc::cpu
