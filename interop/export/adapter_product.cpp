#include "interop/export/adapter_product.h"

#include <algorithm>
#include <cmath>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// Columns that are summed before the next ones, so that they stay in the cache.
constexpr int64_t kBlock = 2048;

std::vector<double> adapter_values(const TensorSource& adapter,
                                   const std::string& name,
                                   const Shape& shape) {
  check<ValueError>(adapter.contains(name), "the adapter lacks the tensor ", name,
                    ", which target_modules of its adapter_config.json asks for");
  check<ValueError>(adapter.shape(name) == shape, adapter.file_of(name), ": ", name, " has shape ",
                    adapter.shape(name),
                    "; with the base and the rank of adapter_config.json it "
                    "would be ",
                    shape);
  const Tensor stored = empty(shape, adapter.dtype(name));
  adapter.read(name, stored.raw());
  const Tensor wide = empty(shape, kFloat64);
  copy_values(stored, wide);
  const auto* values = wide.data<double>();
  std::vector<double> out(values, values + shape.numel());
  check<ValueError>(std::all_of(out.begin(), out.end(), [](double x) { return std::isfinite(x); }),
                    adapter.file_of(name), ": ", name, " has values that are not finite");
  return out;
}

std::vector<double> transpose_of(const std::vector<double>& values, int64_t rows, int64_t columns) {
  std::vector<double> out(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      out[column * rows + row] = values[row * columns + column];
    }
  }
  return out;
}

}  // namespace

AdapterProduct::AdapterProduct(const TensorSource& adapter,
                               const std::string& stem,
                               int64_t out,
                               int64_t in,
                               int64_t rank,
                               double scale,
                               bool dora,
                               bool transposed,
                               int64_t experts)
    : rank_(rank),
      in_(in),
      out_(out),
      experts_(experts),
      columns_(transposed ? out : in),
      scale_(scale),
      dora_(dora),
      transposed_(transposed),
      a_(adapter_values(adapter, stem + ".lora_A.weight", {experts * rank, in})),
      b_(adapter_values(adapter, stem + ".lora_B.weight", {out, rank * experts})) {
  if (dora) {
    magnitude_ = adapter_values(adapter, stem + ".lora_magnitude_vector", {out});
    squares_.assign(transposed ? static_cast<size_t>(out) : 0, 0.0);
  }
  choose(0);
}

void AdapterProduct::choose(int64_t expert) {
  const auto first = a_.begin() + expert * rank_ * in_;
  std::vector<double> a(first, first + rank_ * in_);
  std::vector<double> b(static_cast<size_t>(out_ * rank_));
  for (size_t i = 0; i < b.size(); ++i) {
    b[i] = b_[i * static_cast<size_t>(experts_) + static_cast<size_t>(expert)];
  }
  left_ = transposed_ ? transpose_of(a, rank_, in_) : std::move(b);
  right_ = transposed_ ? transpose_of(b, out_, rank_) : std::move(a);
  for (double& value : left_) {
    value *= scale_;
  }
}

void AdapterProduct::add_product(std::span<double> rows, int64_t first) const {
  const auto count = static_cast<int64_t>(rows.size()) / columns_;
  kernels::parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const double* factors = left_.data() + (first + row) * rank_;
      for (int64_t block = 0; block < columns_; block += kBlock) {
        const int64_t width = std::min(kBlock, columns_ - block);
        double* sums = rows.data() + row * columns_ + block;
        for (int64_t k = 0; k < rank_; ++k) {
          const double factor = factors[k];
          const double* of = right_.data() + k * columns_ + block;
          for (int64_t column = 0; column < width; ++column) {
            sums[column] += factor * of[column];
          }
        }
      }
    }
  });
}

void AdapterProduct::measure(std::span<double> rows, int64_t first) {
  add_product(rows, first);
  const auto count = static_cast<int64_t>(rows.size()) / columns_;
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t column = 0; column < columns_; ++column) {
      const double value = rows[row * columns_ + column];
      squares_[column] += value * value;
    }
  }
}

void AdapterProduct::add_to(std::span<double> rows, int64_t first) const {
  add_product(rows, first);
  if (!dora_) {
    return;
  }
  const auto count = static_cast<int64_t>(rows.size()) / columns_;
  for (int64_t row = 0; row < count; ++row) {
    double* values = rows.data() + row * columns_;
    if (transposed_) {
      for (int64_t column = 0; column < columns_; ++column) {
        values[column] *= magnitude_[column] / std::sqrt(squares_[column]);
      }
      continue;
    }
    double squares = 0;
    for (int64_t column = 0; column < columns_; ++column) {
      squares += values[column] * values[column];
    }
    const double factor = magnitude_[first + row] / std::sqrt(squares);
    for (int64_t column = 0; column < columns_; ++column) {
      values[column] *= factor;
    }
  }
}

}  // namespace tapestry
