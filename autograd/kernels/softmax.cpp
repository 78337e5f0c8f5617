#include "autograd/kernels/softmax.h"

#include <cassert>

#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

namespace {

constexpr int64_t kUnitColumns = 512;  // kBlock of isa/row_io.h

/// Calls body on ranges of units: rows if inner is 1, else blocks of columns.
template <class Body>
void for_units(int64_t outer, int64_t n, int64_t inner, const Body& body) {
  const int64_t blocks = inner == 1 ? 1 : (inner + kUnitColumns - 1) / kUnitColumns;
  const int64_t work = std::max<int64_t>(n * std::min(inner, kUnitColumns), 1);  // of a unit
  parallel_for(outer * blocks, std::max<int64_t>(kGrainSize / 4 / work, 1), body);
}

void forward(
    DType dtype, bool logarithm, int64_t outer, int64_t n, int64_t inner, const void* x, void* y) {
  assert(is_floating(dtype));
  const auto run = TAPESTRY_DISPATCH(softmax_units);
  for_units(outer, n, inner,
            [&](int64_t begin, int64_t end) { run(dtype, logarithm, begin, end, n, inner, x, y); });
}

void backward(DType dtype,
              bool logarithm,
              int64_t outer,
              int64_t n,
              int64_t inner,
              const void* y,
              const void* dy,
              void* dx) {
  assert(is_floating(dtype));
  const auto run = TAPESTRY_DISPATCH(softmax_backward_units);
  for_units(outer, n, inner, [&](int64_t begin, int64_t end) {
    run(dtype, logarithm, begin, end, n, inner, y, dy, dx);
  });
}

}  // namespace

void softmax(DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x, void* y) {
  forward(dtype, /*logarithm=*/false, outer, n, inner, x, y);
}

void log_softmax(DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x, void* y) {
  forward(dtype, /*logarithm=*/true, outer, n, inner, x, y);
}

void softmax_backward(
    DType dtype, int64_t outer, int64_t n, int64_t inner, const void* y, const void* dy, void* dx) {
  backward(dtype, /*logarithm=*/false, outer, n, inner, y, dy, dx);
}

void log_softmax_backward(
    DType dtype, int64_t outer, int64_t n, int64_t inner, const void* y, const void* dy, void* dx) {
  backward(dtype, /*logarithm=*/true, outer, n, inner, y, dy, dx);
}

void logsumexp(DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x, void* y) {
  assert(is_floating(dtype));
  const auto run = TAPESTRY_DISPATCH(logsumexp_units);
  for_units(outer, n, inner,
            [&](int64_t begin, int64_t end) { run(dtype, begin, end, n, inner, x, y); });
}

}  // namespace tapestry::kernels
