#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/transformer/quantized_matrix.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "nn/parameter.h"

namespace tapestry::nn {
namespace {

bool same_numbers(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && all(eq(a, b)).item() != 0;
}

class QuantizedParameter : public ::testing::TestWithParam<BlockFormat> {};

INSTANTIATE_TEST_SUITE_P(Formats,
                         QuantizedParameter,
                         ::testing::ValuesIn(kernels::kBlockFormats),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(QuantizedParameter, ShowsWhatItsBlocksHold) {
  const BlockFormat format = GetParam();
  const QuantizedMatrix matrix = quantize(randn({6, 64}), format);
  EXPECT_EQ(matrix.format(), format);
  Parameter parameter(zeros({6, 64}), {.matmul = true});
  EXPECT_THROW(parameter.set_quantized(matrix), RuntimeError);  // it is trained
  parameter.set_requires_grad(false);
  EXPECT_FALSE(parameter.is_quantized());
  EXPECT_THROW(parameter.store_quantized(), RuntimeError);
  EXPECT_THROW(parameter.set_quantized(quantize(randn({5, 64}), format)), ValueError);
  parameter.set_quantized(matrix);
  ASSERT_TRUE(parameter.is_quantized());
  EXPECT_EQ(parameter.shape(), (Shape{6, 64}));
  EXPECT_EQ(parameter.dtype(), kFloat32);
  EXPECT_TRUE(same_numbers(parameter, dequantize(matrix)));
  EXPECT_TRUE(same_numbers(parameter.slice(0, 2, 4), dequantize(matrix.rows(2, 4))));
}

TEST_P(QuantizedParameter, HoldsSeveralMatrices) {
  const Tensor values = randn({3, 4, 32});
  Parameter parameter(zeros({3, 4, 32}), {.matmul = true});
  parameter.set_requires_grad(false);
  EXPECT_THROW(parameter.set_quantized(QuantizedMatrix(4, 32, GetParam())), ValueError);
  EXPECT_THROW(parameter.set_quantized(QuantizedMatrix(6, 64, GetParam())), ValueError);
  parameter.set_quantized(QuantizedMatrix(12, 32, GetParam()));
  EXPECT_EQ(parameter.shape(), (Shape{3, 4, 32}));
  copy_values(values, parameter.detach());
  parameter.store_quantized();
  const QuantizedMatrix expected = quantize(values.view({12, 32}), GetParam());
  EXPECT_TRUE(same_numbers(dequantize(parameter.quantized()), dequantize(expected)));
  // Some rows, across two of them.
  const Tensor rows = randn({5, 32});
  parameter.store_quantized(rows, 6);
  EXPECT_TRUE(same_numbers(parameter.view({12, 32}).slice(0, 6, 11),
                           dequantize(quantize(rows, GetParam()))));
  EXPECT_TRUE(
      same_numbers(parameter.view({12, 32}).slice(0, 0, 6), dequantize(expected.rows(0, 6))));
}

TEST_P(QuantizedParameter, KeepsWhatIsStoredAndOneDecodedMatrix) {
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<Tensor> values;
  constexpr int64_t kRows = 256;
  constexpr int64_t kColumns = 1024;
  for (int i = 0; i < 5; ++i) {
    parameters.push_back(
        std::make_unique<Parameter>(zeros({kRows, kColumns}), ParameterFlags{.matmul = true}));
    parameters.back()->set_requires_grad(false);
    parameters.back()->set_quantized(QuantizedMatrix(kRows, kColumns, GetParam()));
    values.push_back(dequantize(quantize(randn({kRows, kColumns}), GetParam())));
  }
  const auto& allocator = RankContext::current().allocator();
  const int64_t before = allocator.stats().current_bytes;
  for (int i = 0; i < 5; ++i) {
    copy_values(values[i], parameters[i]->detach());
    parameters[i]->store_quantized();
  }
  for (int i = 0; i < 5; ++i) {
    // Encoding numbers that come from blocks gives nearly the same ones back; but with 4 bits a
    // block whose largest one is not the first of its size any more has the other sign.
    const double bound = GetParam() == BlockFormat::kQ8_0 ? 5e-3 : 1.0;
    EXPECT_LE(max(abs(sub(*parameters[i], values[i]))).item(), bound) << i;
  }
  EXPECT_LE(allocator.stats().current_bytes - before, 2 * kRows * kColumns * 4);
}

TEST_P(QuantizedParameter, MatricesRefuseWhatIsNone) {
  const BlockFormat format = GetParam();
  const int64_t bytes = kernels::block_bytes(format);
  EXPECT_THROW(quantize(randn({2, 33}), format), ValueError);
  EXPECT_THROW(quantize(randn({32}), format), ValueError);
  EXPECT_THROW(quantize(zeros({2, 32}, kInt32), format), TypeError);
  EXPECT_THROW(quantize(full({2, 32}, 1e30), format), ValueError);
  EXPECT_THROW(QuantizedMatrix(zeros({2, bytes + 1}, kUInt8), format), ValueError);
  EXPECT_THROW(QuantizedMatrix(zeros({2, bytes}), format), TypeError);
  EXPECT_THROW(QuantizedMatrix(2, 33, format), ValueError);
  const QuantizedMatrix matrix(4, 32, format);
  EXPECT_THROW(matrix.rows(2, 5), ValueError);
  EXPECT_THROW(quantize_into(zeros({2, 32}), matrix, 3), ValueError);
  EXPECT_THROW(dequantize(matrix, kInt32), TypeError);
}

}  // namespace
}  // namespace tapestry::nn
