#include "autograd/kernels/exact/exact_sums.h"

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
  constexpr int64_t kLanes = 16;
  double largest[kLanes] = {};
  double nan[kLanes] = {};  // stays 0 where all are finite
  const auto convert = [&](int64_t lane, int64_t i) {
    const double sum = sums[i];
    const double size = __builtin_fabs(sum);
    largest[lane] = size > largest[lane] ? size : largest[lane];
    nan[lane] += sum - sum;
    y[i] = static_cast<float>(sum * kUnit);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      convert(lane, i + lane);
    }
  }
  for (; i < n; ++i) {
    convert(0, i);
  }
  for (int64_t lane = 1; lane < kLanes; ++lane) {
    largest[0] = largest[lane] > largest[0] ? largest[lane] : largest[0];
    nan[0] += nan[lane];
  }
  return nan[0] == 0 ? largest[0] : nan[0];
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
