#include "optim/newton_schulz.h"

#include <cmath>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry::optim {

namespace {

constexpr double kNormEps = 1e-7;

// c = alpha op(a) op(b) + beta c of matrices that lie together; c is [m, n].
struct Factor {
  const Tensor& matrix;
  bool transposed = false;
};
void multiply(double alpha, const Factor& a, const Factor& b, double beta, const Tensor& c) {
  const int64_t k = a.matrix.size(a.transposed ? 0 : 1);
  kernels::gemm({.dtype = c.dtype(),
                 .c_dtype = c.dtype(),
                 .trans_a = a.transposed,
                 .trans_b = b.transposed,
                 .m = c.size(0),
                 .n = c.size(1),
                 .k = k,
                 .alpha = alpha,
                 .lda = a.matrix.size(1),
                 .ldb = b.matrix.size(1),
                 .beta = beta,
                 .ldc = c.size(1)},
                a.matrix.raw(), b.matrix.raw(), c.raw());
}

// x becomes orthogonal in place; it is the working copy, already scaled.
void orthogonalise(Tensor x, const std::vector<NewtonSchulzSegment>& segments, const Tensor& out) {
  const bool wide = x.size(0) <= x.size(1);
  const int64_t small = std::min(x.size(0), x.size(1));
  const Tensor gram = empty({small, small}, x.dtype());
  const Tensor polynomial = empty({small, small}, x.dtype());
  Tensor next = empty(x.shape(), x.dtype());
  for (const NewtonSchulzSegment& segment : segments) {
    for (int64_t step = 0; step < segment.steps; ++step) {
      multiply(1, {x, !wide}, {x, wide}, 0, gram);
      copy_values(gram, polynomial);
      multiply(segment.c, {gram}, {gram}, segment.b, polynomial);
      copy_values(x, next);
      if (wide) {
        multiply(1, {polynomial}, {x}, segment.a, next);
      } else {
        multiply(1, {x}, {polynomial}, segment.a, next);
      }
      std::swap(x, next);
    }
  }
  copy_values(x, out);
}

}  // namespace

Tensor newton_schulz(const Tensor& x,
                     const std::vector<NewtonSchulzSegment>& segments,
                     DType products) {
  check<ValueError>(x.dim() >= 2 && x.is_contiguous(),
                    "newton_schulz: takes contiguous matrices, got ", describe(x));
  check<TypeError>((x.dtype() == kFloat32 || x.dtype() == kFloat64) &&
                       (products == x.dtype() || products == kBFloat16),
                   "newton_schulz: of ", describe(x), " with products in ", name_of(products));
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  Tensor out = empty(x.shape(), x.dtype());
  const Shape matrix = {x.size(-2), x.size(-1)};
  const int64_t size = matrix.numel();
  for (int64_t first = 0; first < x.numel(); first += size) {
    const Tensor own = alias(x, matrix, contiguous_strides(matrix), x.offset() + first);
    const double norm = std::sqrt(kernels::sum_of_squares(x.dtype(), size, own.raw()));
    const Tensor scaled = empty(matrix, x.dtype());
    copy_values(own, scaled);
    kernels::scale_inplace(x.dtype(), size, 1.0 / (norm + kNormEps), scaled.raw());
    Tensor work = scaled;
    if (products != x.dtype()) {
      work = empty(matrix, products);
      copy_values(scaled, work);
    }
    orthogonalise(work, segments,
                  alias(out, matrix, contiguous_strides(matrix), out.offset() + first));
  }
  return out;
}

Tensor newton_schulz(const Tensor& x, int64_t steps, DType products) {
  return newton_schulz(x, {NewtonSchulzSegment{.steps = steps}}, products);
}

DType fastest_newton_schulz_dtype() {
  return kernels::has_native_gemm(kBFloat16) ? kBFloat16 : kFloat32;
}

}  // namespace tapestry::optim
