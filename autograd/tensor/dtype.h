// Rules about element types: promotion, names.
#pragma once

#include <string_view>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry {

/// The dtype in which two tensors meet, as PyTorch's promotion table has it: bool < int8, uint8 <
/// int32 < int64 < floats; float16 with bfloat16 gives float32. int8 with uint8, which meet in
/// int16 there, meet in int32: there is no int16.
DType promote(DType a, DType b);

/// The dtype of a tensor combined with a C++ number: the tensor's own, except that a number of a
/// floating type (Scalar) turns integers and bool into float32.
DType promote_scalar(DType tensor, bool scalar_is_floating);

/// Parses "float32", "bfloat16", ... ValueError listing the names.
DType parse_dtype(std::string_view name);

/// TypeError, naming op, unless the dtype is floating.
void check_floating(std::string_view op, DType dtype);

}  // namespace tapestry
