#include "autograd/ops/elementwise.h"
#include "autograd/ops/transformer/grouped_linear_quantized.h"
#include "autograd/ops/transformer/quantized_matrix.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {
namespace samples_quantized {
namespace {

auto of(const QuantizedMatrix& matrix) {
  return [matrix](const Tensor& x) { return linear_quantized(x, matrix); };
}

auto with_bias(const QuantizedMatrix& matrix) {
  return
      [matrix](const Tensor& x, const Tensor& bias) { return linear_quantized(x, matrix, bias); };
}

auto grouped(const QuantizedMatrix& matrix, const std::vector<int64_t>& ends) {
  return [=](const Tensor& x) { return grouped_linear_quantized(x, matrix, ends); };
}

auto grouped_with_bias(const QuantizedMatrix& matrix, const std::vector<int64_t>& ends) {
  return [=](const Tensor& x, const Tensor& bias) {
    return grouped_linear_quantized(x, matrix, ends, bias);
  };
}

auto grouped_backward(const QuantizedMatrix& matrix, const std::vector<int64_t>& ends) {
  return [=](const Tensor& dy) { return grouped_linear_quantized_backward(dy, matrix, ends); };
}

const std::vector<int64_t> kAllEnds[] = {{2, 5}, {0, 3, 3, 4}, {4}, {0, 0, 6}, {0, 0}, {70, 71}};

}  // namespace

OP_SAMPLES(linear_quantized) {
  // For many rows the numbers of the matrix are rounded to 16 bits as well; the sums of products
  // of either sign are smaller than their terms.
  rounds(4, 8);
  for (const BlockFormat format : kernels::kBlockFormats) {
    const auto matrix = [&](int64_t out, int64_t in) {
      return quantize((randn({out, in}) * 0.3).to(kFloat32), format);
    };
    const QuantizedMatrix m = matrix(5, 32);
    add(of(m), {randn({3, 32})});
    add(of(m), {randn({32})});
    add(of(m), {randn({2, 3, 32})});
    add(of(m), {randn({0, 32})});
    add(of(matrix(0, 32)), {randn({2, 32})});
    add(of(matrix(3, 64)), {randn({70, 64})});
    add(with_bias(m), {randn({3, 32}), randn({5})});
    add_large(of(matrix(300, 256)), {randn({130, 256})}).threads_may_round();

    add_error<ValueError>(of(m), {randn({3, 64})}, "linear_quantized: the last axis of [3, 64]");
    add_error<ValueError>(of(m), {randn({})}, "linear_quantized: the last axis of []");
    add_error<TypeError>(of(m), {integers({2, 32}, 3)}, "linear_quantized: x must be floating");
    add_error<ValueError>(with_bias(m), {randn({2, 32}), randn({4})}, "linear_quantized: bias [4]");
    add_error<TypeError>(with_bias(m), {randn({2, 32}), integers({5}, 3)},
                         "linear_quantized: bias must be");
  }
  add_error<ValueError>(of({}), {randn({2, 32})}, "matrix is undefined");
}

OP_SAMPLES(linear_quantized_backward) {
  rounds(4, 8);
  for (const BlockFormat format : kernels::kBlockFormats) {
    const QuantizedMatrix m = quantize((randn({5, 64}) * 0.3).to(kFloat32), format);
    const auto fn = [m](const Tensor& dy) { return linear_quantized_backward(dy, m); };
    add(fn, {randn({3, 5})});
    add(fn, {randn({2, 3, 5})});
    add(fn, {randn({0, 5})});
    const QuantizedMatrix large = quantize((randn({300, 256}) * 0.3).to(kFloat32), format);
    add_large([large](const Tensor& dy) { return linear_quantized_backward(dy, large); },
              {randn({130, 300})})
        .threads_may_round();
    add_error<ValueError>(fn, {randn({3, 64})},
                          "linear_quantized_backward: the last axis of [3, 64]");
  }
}

OP_SAMPLES(grouped_linear_quantized) {
  rounds(4, 8);
  for (const BlockFormat format : kernels::kBlockFormats) {
    const auto matrices = [&](int64_t groups, int64_t out, int64_t in) {
      return quantize((randn({groups * out, in}) * 0.3).to(kFloat32), format);
    };
    for (const std::vector<int64_t>& ends : kAllEnds) {
      const auto groups = static_cast<int64_t>(ends.size());
      add(grouped(matrices(groups, 3, 32), ends), {randn({ends.back(), 32})});
      add(grouped_with_bias(matrices(groups, 3, 32), ends),
          {randn({ends.back(), 32}), randn({groups, 3})});
    }
    add_large(grouped(matrices(3, 60, 64), {400, 400, 430}), {randn({430, 64})})
        .threads_may_round();
    const QuantizedMatrix m = matrices(2, 3, 32);
    const auto plain = grouped(m, {2, 4});
    add_error<ValueError>(plain, {randn({4, 64})},
                          "grouped_linear_quantized: x must be [rows, 32] for 2 matrices");
    add_error<ValueError>(plain, {randn({2, 2, 32})}, ": x must be [rows, 32]");
    add_error<TypeError>(plain, {integers({4, 32}, 3)}, "x must be floating");
    add_error<ValueError>(grouped(m, {1, 2, 3, 4}), {randn({4, 32})}, "those of 4 groups");
    add_error<ValueError>(grouped(m, {}), {randn({4, 32})}, "those of 0 groups");
    add_error<ValueError>(grouped(m, {2, 5}), {randn({4, 32})}, "must end at the 4 rows");
    add_error<ValueError>(grouped(m, {4, 3}), {randn({3, 32})}, "ends must ascend");
    const auto biased = grouped_with_bias(m, {2, 4});
    add_error<ValueError>(biased, {randn({4, 32}), randn({3})}, "bias [3] must be [groups, out]");
    add_error<TypeError>(biased, {randn({4, 32}), integers({2, 3}, 3)}, "bias must be");
  }
  add_error<ValueError>(grouped({}, {2, 4}), {randn({4, 32})}, "matrix is undefined");
}

OP_SAMPLES(grouped_linear_quantized_backward) {
  rounds(4, 8);
  for (const BlockFormat format : kernels::kBlockFormats) {
    for (const std::vector<int64_t>& ends : kAllEnds) {
      const auto groups = static_cast<int64_t>(ends.size());
      add(grouped_backward(quantize((randn({groups * 3, 64}) * 0.3).to(kFloat32), format), ends),
          {randn({ends.back(), 3})});
    }
    const QuantizedMatrix m = quantize(randn({6, 64}).to(kFloat32), format);
    add_error<ValueError>(grouped_backward(m, {2, 4}), {randn({4, 64})}, ": x must be [rows, 3]");
  }
}

}  // namespace samples_quantized
}  // namespace tapestry
