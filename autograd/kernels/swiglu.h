// SwiGLU (Shazeer 2020, arXiv:2002.05202): silu(gate) * up, silu(x) = x / (1 + e^-x).
//
// gate and up are [rows, n] with row strides in elements, so that they can be halves of one matrix.
// One floating dtype; float16 and bfloat16 are computed in float32 and rounded once.
#pragma once

#include <cstdint>

#include "autograd/kernels/dtype.h"

namespace tapestry::kernels {

/// y [rows, n] contiguous = silu(gate) up.
void swiglu(DType dtype,
            int64_t rows,
            int64_t n,
            const void* gate,
            int64_t gate_row_stride,
            const void* up,
            int64_t up_row_stride,
            void* y);

/// dy [rows, n] contiguous. With s = sigmoid(gate):
///   dup = dy gate s, dgate = dy up s (1 + gate (1 - s)).
/// dgate and dup may be exactly gate and up.
void swiglu_backward(DType dtype,
                     int64_t rows,
                     int64_t n,
                     const void* gate,
                     int64_t gate_row_stride,
                     const void* up,
                     int64_t up_row_stride,
                     const void* dy,
                     void* dgate,
                     int64_t dgate_row_stride,
                     void* dup,
                     int64_t dup_row_stride);

}  // namespace tapestry::kernels
