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

TEST(QuantizedParameter, ShowsWhatItsBlocksHold) {
  const QuantizedMatrix matrix = quantize_q8_0(randn({6, 64}));
  Parameter parameter(zeros({6, 64}), {.matmul = true});
  EXPECT_THROW(parameter.set_quantized(matrix), RuntimeError);  // it is trained
  parameter.set_requires_grad(false);
  EXPECT_FALSE(parameter.is_quantized());
  EXPECT_THROW(parameter.store_quantized(), RuntimeError);
  EXPECT_THROW(parameter.set_quantized(quantize_q8_0(randn({5, 64}))), ValueError);
  parameter.set_quantized(matrix);
  ASSERT_TRUE(parameter.is_quantized());
  EXPECT_EQ(parameter.shape(), (Shape{6, 64}));
  EXPECT_EQ(parameter.dtype(), kFloat32);
  EXPECT_TRUE(same_numbers(parameter, dequantize(matrix)));
  EXPECT_TRUE(same_numbers(parameter.slice(0, 2, 4), dequantize(matrix.rows(2, 4))));
}

TEST(QuantizedParameter, KeepsWhatIsStoredAndOneDecodedMatrix) {
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<Tensor> values;
  constexpr int64_t kRows = 256;
  constexpr int64_t kColumns = 1024;
  for (int i = 0; i < 5; ++i) {
    parameters.push_back(
        std::make_unique<Parameter>(zeros({kRows, kColumns}), ParameterFlags{.matmul = true}));
    parameters.back()->set_requires_grad(false);
    parameters.back()->set_quantized(QuantizedMatrix(kRows, kColumns));
    values.push_back(dequantize(quantize_q8_0(randn({kRows, kColumns}))));
  }
  const auto& allocator = RankContext::current().allocator();
  const int64_t before = allocator.stats().current_bytes;
  for (int i = 0; i < 5; ++i) {
    copy_values(values[i], parameters[i]->detach());
    parameters[i]->store_quantized();
  }
  for (int i = 0; i < 5; ++i) {
    // Encoding numbers that come from blocks gives nearly the same ones back.
    EXPECT_LE(max(abs(sub(*parameters[i], values[i]))).item(), 5e-3) << i;
  }
  EXPECT_LE(allocator.stats().current_bytes - before, 2 * kRows * kColumns * 4);
}

TEST(QuantizedParameter, MatricesRefuseWhatIsNone) {
  EXPECT_THROW(quantize_q8_0(randn({2, 33})), ValueError);
  EXPECT_THROW(quantize_q8_0(randn({32})), ValueError);
  EXPECT_THROW(quantize_q8_0(zeros({2, 32}, kInt32)), TypeError);
  EXPECT_THROW(quantize_q8_0(full({2, 32}, 1e30)), ValueError);
  EXPECT_THROW(QuantizedMatrix(zeros({2, 35}, kUInt8)), ValueError);
  EXPECT_THROW(QuantizedMatrix(zeros({2, 34})), TypeError);
  EXPECT_THROW(QuantizedMatrix(2, 33), ValueError);
  const QuantizedMatrix matrix(4, 32);
  EXPECT_THROW(matrix.rows(2, 5), ValueError);
  EXPECT_THROW(quantize_q8_0_into(zeros({2, 32}), matrix, 3), ValueError);
  EXPECT_THROW(dequantize(matrix, kInt32), TypeError);
}

}  // namespace
}  // namespace tapestry::nn
