// What gated_norm.cpp hands to the loops of isa/gated_norm.cpp.
#pragma once

#include "autograd/kernels/gated_norm.h"
#include "autograd/kernels/machine/cpu.h"

namespace tapestry::kernels {

/// Rows of compute type that a call of the loops needs to work in.
inline constexpr int64_t kGatedNormBuffers = 8;

/// Each with the gain in compute type. dgain: sums over the rows of one call, as many as the gain
/// has elements, accumulated into; null: not wanted.
TAPESTRY_DECLARE_PER_ISA(
    void gated_norm_rows(const GatedNormForward& call, int64_t begin, int64_t end, void* buffers);
    void gated_norm_backward_rows(
        const GatedNormBackward& call, int64_t begin, int64_t end, void* dgain, void* buffers);
    void gated_squares_rows(const GatedSquares& call, int64_t begin, int64_t end, void* buffers);
    void gated_squares_backward_rows(
        const GatedSquaresBackward& call, int64_t begin, int64_t end, void* buffers))

}  // namespace tapestry::kernels
