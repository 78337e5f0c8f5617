// Making a matrix nearly orthogonal by matrix products alone.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry::optim {

/// `steps` iterations X = a X + (b A + c A A) X. The default is the published polynomial.
struct NewtonSchulzSegment {
  double a = 3.4445;
  double b = -4.7750;
  double c = 2.0315;
  int64_t steps = 5;
};

/// X = x / (|x| + 1e-7), then the segments' iterations one after the other, with A = X X^T; on the
/// transpose where there are more rows than columns: all singular values that are not tiny come
/// near 1. x [rows, columns] or a stack [..., rows, columns] of matrices taken one by one,
/// float32 or float64, contiguous. `products`: x's dtype, or bfloat16, in which then X and A are
/// rounded. For the same shapes and CPU level the same bits come out. Source: Jordan et al. 2024,
/// "Muon".
Tensor newton_schulz(const Tensor& x,
                     const std::vector<NewtonSchulzSegment>& segments,
                     DType products);
/// The same with the published polynomial.
Tensor newton_schulz(const Tensor& x, int64_t steps, DType products);

/// bfloat16 where its products run on units of the processor's own, else float32.
DType fastest_newton_schulz_dtype();

}  // namespace tapestry::optim
