#include "autograd/kernels/gemm/gemm_choice.h"

#include "autograd/kernels/gemm/gemm_blas.h"
#include "autograd/kernels/gemm/gemm_onednn.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/machine/cpu.h"

namespace tapestry::kernels {

bool prefers_tiles(DType dtype) {
  switch (dtype) {
    case kFloat32:
      // With AVX-512 they do 1.06 to 1.1 of what OpenBLAS's kernels do on Zen 4, more on Zen 5.
      return cpu_level() >= CpuLevel::kAvx512 || openblas_lacks_avx512();
    case kBFloat16:
    case kFloat16:
      return !has_onednn_gemm(dtype) && has_tiled_gemm(dtype);
    default:
      return false;
  }
}

}  // namespace tapestry::kernels
