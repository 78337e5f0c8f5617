#include "autograd/tensor/dtype.h"

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

// Of two dtypes of different ranks the higher holds what they meet in.
int rank_of(DType dtype) {
  constexpr int kRanks[kNumDTypes] = {0, 2, 3, 4, 4, 5, 6, 1, 1};
  return kRanks[static_cast<int>(dtype)];
}

}  // namespace

DType promote(DType a, DType b) {
  if (a == b) {
    return a;
  }
  if (rank_of(a) == rank_of(b)) {
    return is_floating(a) ? kFloat32 : kInt32;
  }
  return rank_of(a) > rank_of(b) ? a : b;
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
  throw ValueError(
      concat("unknown dtype '", name,
             "'; known are bool, int8, uint8, int32, int64, float16, bfloat16, float32, float64"));
}

void check_floating(std::string_view op, DType dtype) {
  check<TypeError>(is_floating(dtype), op, ": needs a floating dtype, got ", name_of(dtype));
}

}  // namespace tapestry
