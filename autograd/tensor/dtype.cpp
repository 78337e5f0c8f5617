#include "autograd/tensor/dtype.h"

#include <algorithm>

#include "autograd/tensor/error.h"

namespace tapestry {

DType promote(DType a, DType b) {
  if (a == b) {
    return a;
  }
  if (std::min(a, b) == kFloat16 && std::max(a, b) == kBFloat16) {
    return kFloat32;
  }
  return std::max(a, b);
}

DType promote_scalar(DType tensor, bool scalar_is_floating) {
  return scalar_is_floating && !is_floating(tensor) ? kFloat32 : tensor;
}

DType parse_dtype(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (name_of(static_cast<DType>(i)) == name) {
      return static_cast<DType>(i);
    }
  }
  throw ValueError(concat("unknown dtype '", name,
                          "'; known are bool, int32, int64, float16, bfloat16, float32, float64"));
}

void check_floating(std::string_view op, DType dtype) {
  check<TypeError>(is_floating(dtype), op, ": needs a floating dtype, got ", name_of(dtype));
}

}  // namespace tapestry
