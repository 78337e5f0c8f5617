#include "autograd/kernels/gemm/gemm_choice.h"

#include "autograd/kernels/gemm/gemm_blas.h"
#include "autograd/kernels/gemm/gemm_onednn.h"
#include "autograd/kernels/gemm/gemm_tiled.h"

namespace tapestry::kernels {

bool prefers_tiles(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return openblas_lacks_avx512();
    case kBFloat16:
    case kFloat16:
      return !has_onednn_gemm(dtype) && has_tiled_gemm(dtype);
    default:
      return false;
  }
}

}  // namespace tapestry::kernels
