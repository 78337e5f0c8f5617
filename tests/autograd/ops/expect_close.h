// Comparison of tensors in tests of ops.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Same shape, and no element further from its counterpart than `bound` times the largest finite
/// magnitude of `expected` (at least 1). NaN equals NaN, an infinity itself.
inline void expect_close(const Tensor& actual, const Tensor& expected, double bound) {
  ASSERT_TRUE(actual.defined() && expected.defined());
  ASSERT_EQ(actual.shape(), expected.shape());
  const std::vector<double> a = actual.to_vector<double>();
  const std::vector<double> b = expected.to_vector<double>();
  double scale = 1;
  for (const double value : b) {
    scale = std::isfinite(value) ? std::max(scale, std::abs(value)) : scale;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    ASSERT_TRUE(same || std::abs(a[i] - b[i]) <= bound * scale)
        << "element " << i << " of " << actual.shape() << ": " << a[i] << ", expected " << b[i];
  }
}

}  // namespace tapestry
