// Table lookup.
#pragma once

#include <optional>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Rows of a table: weight [V, H], ids [...] int32 or int64, result [..., H] in weight's dtype or,
/// for a float32 table, in the given 16-bit one.
///
/// Any strides. The gradient of weight adds up repeated ids, in order of their positions and in
/// float32 for 16-bit tables and gradients; nothing but the gradient is allocated, and that only
/// where weight has no main_grad. Saves ids. ValueError unless weight has two axes, TypeError for
/// other dtypes, IndexError naming id, position and V if an id lies outside [0, V).
Tensor embedding(const Tensor& weight,
                 const Tensor& ids,
                 std::optional<DType> dtype = std::nullopt);

}  // namespace tapestry
