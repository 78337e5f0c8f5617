// Experts whose matrices are blocks of 8 or 4 bits a number.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/ops/transformer/quantized_matrix.h"

namespace tapestry {

/// grouped_linear() with a constant matrix for each group of rows: x [R, in], `matrix` the [E out,
/// in] of all groups, one below the other, bias [E, out] of x's dtype or float32, or undefined; y
/// [R, out] in x's dtype. `ends` as there. Gradients: dx = dy matrix[e], dbias[e] = sum dy. Each
/// group is computed as by linear_quantized. ValueError, TypeError as grouped_linear().
Tensor grouped_linear_quantized(const Tensor& x,
                                const QuantizedMatrix& matrix,
                                const std::vector<int64_t>& ends,
                                const Tensor& bias = {});

/// Its dx = dy matrix[e], dy [R, out]; the gradient is that of grouped_linear_quantized in turn.
Tensor grouped_linear_quantized_backward(const Tensor& dy,
                                         const QuantizedMatrix& matrix,
                                         const std::vector<int64_t>& ends);

}  // namespace tapestry
