// Products of 16-bit matrices through float32, for processors without 16-bit products; used by
// gemm.cpp only.
#pragma once

#include "autograd/kernels/gemm/gemm_shape.h"

namespace tapestry::kernels {

/// One product of float32 matrices.
using Float32Gemm = void (*)(const GemmShape& shape, const void* a, const void* b, void* c);

/// One product of bfloat16 or float16 (the batch of the shape is not looked at), block by block by
/// `multiply`. Blocks are large enough that conversion is a small part of the time, and bound the
/// working memory (16 MB).
void widened_gemm(
    const GemmShape& shape, const void* a, const void* b, void* c, Float32Gemm multiply);

}  // namespace tapestry::kernels
