#include "autograd/kernels/exact/exact_class.h"

#include "autograd/kernels/machine/bfloat16_pairs.h"
#include "autograd/kernels/machine/cpu.h"

namespace tapestry {

std::string_view exact_class(DType compute) {
#if defined(__x86_64__)
  const bool fused = cpu_level() >= CpuLevel::kAvx2;
#else
  constexpr bool fused = true;
#endif
  switch (compute) {
    case DType::kBFloat16:
      if (kernels::prefers_bfloat16_pairs()) {
        return "bfloat16-pairs";
      }
      return fused ? "bfloat16-widened" : "bfloat16-portable";
    case DType::kFloat16:
      return fused ? "float16-widened" : "float16-portable";
    case DType::kFloat64:
      return fused ? "float64-fma" : "float64-portable";
    default:
      return fused ? "float32-fma" : "float32-portable";
  }
}

}  // namespace tapestry
