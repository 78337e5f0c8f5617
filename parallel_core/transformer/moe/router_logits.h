// The product that a router decides by.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// x weight^T: x [T, H], weight [E, H], both float32 or both float64, [T, E]. As linear(), but that
/// equal tokens have equal logits, wherever they stand and whichever others there are: sequences
/// that begin alike tie, and do so on any layout of ranks. ValueError if shapes do not fit,
/// TypeError for other dtypes.
///
/// In exact mode (autograd/kernels/machine/exact.h) plus bias [E] if it is defined; weight and bias
/// have any floating dtype and are widened, and in the gradients of both each token is a term, as x
/// may be a piece of the sequence.
Tensor router_logits(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace tapestry
