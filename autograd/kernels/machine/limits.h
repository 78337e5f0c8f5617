// Limits that kernels and tensors share.
#pragma once

namespace tapestry::kernels {

/// Most axes an array can have.
inline constexpr int kMaxDims = 8;

}  // namespace tapestry::kernels
