// What norm.cpp hands to the loops of isa/norm.cpp.
#pragma once

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/norm.h"

namespace tapestry::kernels {

/// Rows of the type that the norm is computed in which a call of the loops needs to work in.
inline constexpr int64_t kNormRowBuffers = 4;

/// Sums over the rows of one call, in the type that the norm is computed in, accumulated into; null
/// where they are not wanted. dbias implies dweight.
struct NormSums {
  void* dweight;
  void* dbias;
  void* dx_bias;
};

TAPESTRY_DECLARE_PER_ISA(
    void norm_forward_rows(const NormForward& call, int64_t begin, int64_t end, void* buffers);
    void norm_backward_rows(
        const NormBackward& call, int64_t begin, int64_t end, const NormSums& sums, void* buffers))

}  // namespace tapestry::kernels
