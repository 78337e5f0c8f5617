#include "autograd/ops/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/random.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

TEST(Embedding, PicksRows) {
  const Tensor weight = arange(12, kFloat64).reshape({4, 3});
  const Tensor ids = tensor<int32_t>({2, 0, 2, 3}, {2, 2});
  const Tensor out = embedding(weight, ids);
  expect_close(out, tensor<double>({6, 7, 8, 0, 1, 2, 6, 7, 8, 9, 10, 11}, {2, 2, 3}), 0);
  expect_close(embedding(weight, ids.to(kInt64)), out, 0);
  expect_close(embedding(weight, scalar(1, kInt64)), tensor<double>({3, 4, 5}, {3}), 0);
}

TEST(Embedding, RepeatedIdsAddUp) {
  const Tensor weight = zeros({4, 2}).set_requires_grad();
  const Tensor ids = tensor<int64_t>({1, 3, 1}, {3});
  const Tensor dy = tensor<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  expect_close(grad(embedding(weight, ids), {weight}, dy)[0],
               tensor<float>({0, 0, 6, 8, 0, 0, 3, 4}, {4, 2}), 0);
}

TEST(Embedding, SixteenBitGradientsAreSummedInFloat32) {
  // 256 + 1 is lost in bfloat16 if each term is rounded.
  const Tensor weight = zeros({1, 1}, kBFloat16).set_requires_grad();
  const Tensor dy = cat({full({1, 1}, 256, kBFloat16), ones({64, 1}, kBFloat16)});
  const Tensor dx = grad(embedding(weight, zeros({65}, kInt64)), {weight}, dy)[0];
  EXPECT_EQ(dx.item(), 320);
}

TEST(Embedding, SixteenBitRowsOfAFloat32Table) {
  const Tensor weight = randn({700, 4}, kFloat32, RandomKey{1, 2, 0}).set_requires_grad();
  const Tensor ids = tensor<int64_t>({1, 3, 1, 600}, {4});
  const Tensor y = embedding(weight, ids, kBFloat16);
  EXPECT_EQ(y.dtype(), kBFloat16);
  expect_close(y, embedding(weight, ids).to(kBFloat16), 0);
  const Tensor dy = randn({4, 4}, kFloat32, RandomKey{1, 3, 0}).to(kBFloat16);
  const Tensor dweight = grad(y, {weight}, dy)[0];
  EXPECT_EQ(dweight.dtype(), kFloat32);
  expect_close(dweight, grad(embedding(weight, ids), {weight}, dy.to(kFloat32))[0], 0);

  weight.set_main_grad(zeros({700, 4}));
  const Tensor again = embedding(weight, ids, kBFloat16);
  RankContext::current().allocator().reset_peak();
  const int64_t before = memory_stats().current_bytes;
  again.backward(dy);
  EXPECT_LE(memory_stats().peak_bytes, before + 1024);  // a list of positions, nothing of a table
  expect_close(weight.main_grad(), dweight, 0);
  EXPECT_THROW(embedding(zeros({7, 4}, kFloat64), ids, kBFloat16), TypeError);
  EXPECT_THROW(embedding(zeros({7, 4}), ids, kFloat64), TypeError);
}

TEST(Embedding, BackwardAllocatesTheGradientAndAListOfPositions) {
  const Tensor weight = zeros({5000, 64}).set_requires_grad();
  const Tensor ids = randint(0, 5000, {8, 16}, kInt64, RandomKey{1, 1, 0});
  const Tensor out = embedding(weight, ids);
  const Tensor dy = ones(out.shape());
  RankContext::current().allocator().reset_peak();
  const int64_t before = memory_stats().current_bytes;
  const TensorList d = grad(out, {weight}, dy);
  EXPECT_LE(memory_stats().peak_bytes - before,
            CachingAllocator::rounded_size(5000 * 64 * 4) + 2 * ids.numel() * 8);
}

TEST(Embedding, WrongIdsAreNamed) {
  const Tensor weight = zeros({4, 3});
  for (const int64_t wrong : {int64_t{4}, int64_t{-1}}) {
    try {
      embedding(weight, tensor<int64_t>({0, 1, 2, 3, 0, wrong}, {2, 3}));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const IndexError& e) {
      EXPECT_THAT(e.what(), HasSubstr(concat("id ", wrong)));
      EXPECT_THAT(e.what(), HasSubstr("[1, 2]"));
      EXPECT_THAT(e.what(), HasSubstr("[0, 4)"));
    }
  }
}

}  // namespace
}  // namespace tapestry
