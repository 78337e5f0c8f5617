// What norm.cpp hands to the loops of isa/norm.cpp.
#pragma once

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

}  // namespace tapestry::kernels
