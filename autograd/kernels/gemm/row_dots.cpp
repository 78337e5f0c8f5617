#include "autograd/kernels/gemm/row_dots.h"

#include <cassert>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/work_counter.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(
    void float_row_dots(
        int64_t rows, int64_t columns, int64_t n, const float* x, const float* w, float* y);
    void double_row_dots(
        int64_t rows, int64_t columns, int64_t n, const double* x, const double* w, double* y))

namespace {

template <class T, class Dots>
void run_row_dots(
    Dots dots, int64_t rows, int64_t columns, int64_t n, const void* x, const void* w, void* y) {
  const int64_t grain = kGrainSize / std::max<int64_t>(columns * n, 1) + 1;
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    dots(end - begin, columns, n, static_cast<const T*>(x) + begin * n, static_cast<const T*>(w),
         static_cast<T*>(y) + begin * columns);
  });
}

}  // namespace

void row_dots(
    DType dtype, int64_t rows, int64_t columns, int64_t n, const void* x, const void* w, void* y) {
  assert(dtype == kFloat32 || dtype == kFloat64);
  const CountedWork work(2.0 * static_cast<double>(rows) * static_cast<double>(columns) *
                         static_cast<double>(n));
  if (dtype == kFloat32) {
    run_row_dots<float>(TAPESTRY_DISPATCH(float_row_dots), rows, columns, n, x, w, y);
  } else {
    run_row_dots<double>(TAPESTRY_DISPATCH(double_row_dots), rows, columns, n, x, w, y);
  }
}

}  // namespace tapestry::kernels
