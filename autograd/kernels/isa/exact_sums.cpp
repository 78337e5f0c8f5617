#include "autograd/kernels/exact_sums.h"

#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

constexpr float kUnits = 0x1p44F;
constexpr double kUnit = 0x1p-44;
static_assert(kExactUnitExponent == -44);

}  // namespace

void add_row_to_exact(int64_t n, const float* x, double* sums) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    sums[i] += static_cast<double>(__builtin_rintf(x[i] * kUnits));
  }
}

double exact_row_to_float32(int64_t n, const double* sums, float* y) {
  double largest = 0;
  double nan = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double sum = sums[i];
    const double size = __builtin_fabs(sum);
    largest = size > largest ? size : largest;
    nan += sum - sum;
    y[i] = static_cast<float>(sum * kUnit);
  }
  return nan == 0 ? largest : nan;
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
