#include "parallel_core/optimizer/exact_norms.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "autograd/kernels/exact/exact_squares.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// Of a magnitude: numbers in the same order, in which NaN is above infinity.
double rank_of(float magnitude) {
  uint32_t bits = 0;
  std::memcpy(&bits, &magnitude, sizeof(bits));
  return bits;
}

double magnitude_of(double rank) {
  const auto bits = static_cast<uint32_t>(rank);
  float magnitude = 0;
  std::memcpy(&magnitude, &bits, sizeof(bits));
  return magnitude;
}

Tensor dense_elements(const Tensor& elements) {
  check<TypeError>(elements.dtype() == kFloat32, "exact norms are of float32 elements, not ",
                   describe(elements));
  return dense(elements);
}

}  // namespace

std::vector<double> ExactNorms::result(const Reduce& reduce) const {
  std::vector<double> largest(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (const Part& part : parts_[i]) {
      const Tensor values = dense_elements(part.elements);
      const float own = kernels::largest_magnitude(values.numel(), values.data<float>());
      largest[i] = std::max(largest[i], rank_of(own));
    }
  }
  reduce(largest, ReduceOp::kMax);
  std::transform(largest.begin(), largest.end(), largest.begin(), magnitude_of);

  constexpr size_t kDigits = std::tuple_size_v<kernels::ExactSquares>;
  std::vector<double> digits(parts_.size() * kDigits);
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (const Part& part : parts_[i]) {
      const Tensor values = dense_elements(part.elements);
      const kernels::ExactSquares own =
          kernels::exact_squares(values.numel(), values.data<float>(), largest[i]);
      for (size_t k = 0; k < kDigits; ++k) {
        digits[i * kDigits + k] += part.is_taken_away ? -own[k] : own[k];
      }
    }
  }
  reduce(digits, ReduceOp::kSum);

  std::vector<double> norms(parts_.size());
  for (size_t i = 0; i < norms.size(); ++i) {
    kernels::ExactSquares squares;
    std::copy_n(digits.begin() + static_cast<std::ptrdiff_t>(i * kDigits), kDigits,
                squares.begin());
    norms[i] = kernels::exact_norm(squares, largest[i]);
  }
  return norms;
}

void reduce_over(ProcessGroup& group, std::span<double> values, ReduceOp op) {
  if (group.size() == 1 || values.empty()) {
    return;
  }
  const Tensor all = tensor(std::span<const double>(values), {static_cast<int64_t>(values.size())});
  group.all_reduce(all, op);
  std::copy_n(all.data<double>(), values.size(), values.begin());
}

}  // namespace tapestry
