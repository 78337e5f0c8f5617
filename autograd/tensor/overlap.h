// Whether elements of a tensor share memory, so that it must not be written.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// False if no two elements of the tensor lie at the same place: of what views of a dense tensor
/// make, only expand() gives true. True in doubt (strides from alias() that interleave axes).
bool elements_overlap(const Tensor& t);

}  // namespace tapestry
