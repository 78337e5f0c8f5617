#include "autograd/kernels/elementwise/elementwise.h"

#include "autograd/kernels/elementwise/elementwise_rows.h"
#include "autograd/kernels/machine/cpu.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(UnaryRow unary_row_of(UnaryOp op, DType dtype);
                         BinaryRow binary_row_of(BinaryOp op, DType dtype);
                         ScalarRow scalar_row_of(ScalarOp op, DType dtype);
                         TernaryRow where_row_of(DType dtype);
                         UnaryRow floating_cast_row_of(DType from, DType to))

UnaryRow unary_row(UnaryOp op, DType dtype) {
  if (gives_bool(op)) {
    return TAPESTRY_DISPATCH_UP_TO_AVX2(predicate_row)(op, dtype);
  }
  if (!is_floating(dtype)) {
    return TAPESTRY_DISPATCH_UP_TO_AVX2(integer_unary_row)(op, dtype);
  }
  const UnaryRow row = TAPESTRY_DISPATCH(unary_row_of)(op, dtype);
  return row != nullptr ? row : libm_unary_row(op, dtype);
}

BinaryRow binary_row(BinaryOp op, DType dtype) {
  if (gives_bool(op)) {
    return TAPESTRY_DISPATCH_UP_TO_AVX2(relation_row)(op, dtype);
  }
  if (!is_floating(dtype)) {
    return TAPESTRY_DISPATCH_UP_TO_AVX2(integer_binary_row)(op, dtype);
  }
  const BinaryRow row = TAPESTRY_DISPATCH(binary_row_of)(op, dtype);
  return row != nullptr ? row : libm_binary_row(op, dtype);
}

ScalarRow scalar_row(ScalarOp op, DType dtype) {
  if (gives_bool(op)) {
    return TAPESTRY_DISPATCH_UP_TO_AVX2(scalar_relation_row)(op, dtype);
  }
  if (!is_floating(dtype)) {
    return TAPESTRY_DISPATCH_UP_TO_AVX2(integer_scalar_row)(op, dtype);
  }
  const ScalarRow row = TAPESTRY_DISPATCH(scalar_row_of)(op, dtype);
  return row != nullptr ? row : libm_scalar_row(op, dtype);
}

TernaryRow where_row(DType dtype) { return TAPESTRY_DISPATCH(where_row_of)(dtype); }

UnaryRow cast_row(DType from, DType to) {
  if (from == to) {
    return TAPESTRY_DISPATCH_UP_TO_AVX2(copy_row)(size_of(from));
  }
  return is_floating(from) && is_floating(to) ? TAPESTRY_DISPATCH(floating_cast_row_of)(from, to)
                                              : TAPESTRY_DISPATCH_UP_TO_AVX2(convert_row)(from, to);
}

void fill_row(DType dtype, int64_t n, double value, void* y, int64_t sy) {
  TAPESTRY_DISPATCH_UP_TO_AVX2(fill_row)(dtype, n, value, y, sy);
}

}  // namespace tapestry::kernels
