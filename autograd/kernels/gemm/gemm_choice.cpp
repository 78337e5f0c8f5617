#include "autograd/kernels/gemm/gemm_choice.h"

#include "autograd/kernels/gemm/gemm_blas.h"
#include "autograd/kernels/gemm/gemm_onednn.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/machine/cpu.h"

namespace tapestry::kernels {

bool prefers_tiles(DType dtype) {
  switch (dtype) {
    case kFloat32:
      // With AVX-512 tiles do more than OpenBLAS's kernels for such a processor (gemm_bench): on
      // Zen 5, of the layers of char and tiny, 0.98 to 1.6 times as much with two threads.
      return cpu_level() >= CpuLevel::kAvx512 || openblas_lacks_avx512();
    case kBFloat16:
    case kFloat16:
      return !has_onednn_gemm(dtype) && has_tiled_gemm(dtype);
    default:
      return false;
  }
}

}  // namespace tapestry::kernels
