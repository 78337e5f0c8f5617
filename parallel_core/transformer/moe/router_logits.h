// The product that a router decides by.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// x weight^T: x [T, H], weight [E, H], both float32 or both float64, [T, E]. As linear(), but that
/// equal tokens have equal logits, wherever they stand and whichever others there are: sequences
/// that begin alike tie, and do so on any layout of ranks. ValueError if shapes do not fit,
/// TypeError for other dtypes.
Tensor router_logits(const Tensor& x, const Tensor& weight);

}  // namespace tapestry
