#include "autograd/kernels/elementwise.h"

#include "autograd/kernels/cpu.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(
    UnaryRow unary_row_of(UnaryOp op, DType dtype);
    BinaryRow binary_row_of(BinaryOp op, DType dtype);
    ScalarRow scalar_row_of(ScalarOp op, DType dtype);
    TernaryRow where_row_of(DType dtype);
    UnaryRow cast_row_of(DType from, DType to);
    void fill_row_of(DType dtype, int64_t n, double value, void* y, int64_t sy))

UnaryRow unary_row(UnaryOp op, DType dtype) { return TAPESTRY_DISPATCH(unary_row_of)(op, dtype); }

BinaryRow binary_row(BinaryOp op, DType dtype) {
  return TAPESTRY_DISPATCH(binary_row_of)(op, dtype);
}

ScalarRow scalar_row(ScalarOp op, DType dtype) {
  return TAPESTRY_DISPATCH(scalar_row_of)(op, dtype);
}

TernaryRow where_row(DType dtype) { return TAPESTRY_DISPATCH(where_row_of)(dtype); }

UnaryRow cast_row(DType from, DType to) { return TAPESTRY_DISPATCH(cast_row_of)(from, to); }

void fill_row(DType dtype, int64_t n, double value, void* y, int64_t sy) {
  TAPESTRY_DISPATCH(fill_row_of)(dtype, n, value, y, sy);
}

}  // namespace tapestry::kernels
