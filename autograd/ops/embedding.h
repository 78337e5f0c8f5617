// Table lookup.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Rows of a table: weight [V, H], ids [...] int32 or int64, result [..., H] in weight's dtype.
///
/// Any strides. The gradient of weight adds up repeated ids, in order of their positions and in
/// float32 for 16-bit tables; nothing but the gradient is allocated. Saves ids. ValueError unless
/// weight has two axes, TypeError for other dtypes, IndexError naming id, position and V if an id
/// lies outside [0, V).
Tensor embedding(const Tensor& weight, const Tensor& ids);

}  // namespace tapestry
