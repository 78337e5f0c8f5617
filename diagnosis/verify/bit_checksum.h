// Checksums of the bits of tensors.
#pragma once

#include <cstdint>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Of shape, dtype and elements in order, whatever the strides: equal for equal bits; a different
/// bit goes unnoticed with a chance of 2^-64. An undefined tensor has one of its own.
uint64_t bit_checksum(const Tensor& x);

}  // namespace tapestry
