// Matrix products by oneDNN; used by gemm.cpp only.
#pragma once

#include "autograd/kernels/gemm/gemm_shape.h"

namespace tapestry::kernels {

/// Whether oneDNN's products of that dtype are the best at the level in use: bfloat16 with AMX.
bool has_onednn_gemm(DType dtype);

/// bfloat16 or float32 operands, on the calling thread. False, with c untouched, if oneDNN has no
/// fast product of that shape.
bool onednn_gemm(const GemmShape& shape, const void* a, const void* b, void* c);

}  // namespace tapestry::kernels
