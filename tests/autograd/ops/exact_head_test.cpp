// The head with its loss in exact mode: however rows are taken, the same bits.
#include <gtest/gtest.h>

#include <cstring>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/exact_runs.h"
#include "autograd/ops/heads/leaf_order.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace exact_head_test {
namespace {

constexpr int64_t kVocabulary = 40;
constexpr int64_t kHidden = 12;
constexpr int64_t kTokens = 32;
constexpr int64_t kSamples = 4;

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(dense(a).raw(), dense(b).raw(),
                     static_cast<size_t>(a.numel() * size_of(a.dtype()))) == 0;
}

struct Made {
  Tensor dweight;  // exact sums
  Tensor dhidden;
  Tensor losses;
};

class ExactHead : public ::testing::TestWithParam<DType> {
 protected:
  const Tensor hidden_ = normal(0, 1, {kSamples, kTokens, kHidden}, GetParam(), RandomKey{7, 1, 0});
  const Tensor weight_ = normal(0, 1, {kVocabulary, kHidden}, kFloat32, RandomKey{7, 2, 0});
  const Tensor labels_ = randint(0, kVocabulary, {kSamples, kTokens}, kInt64, RandomKey{7, 3, 0});

  // Samples `at_once` at a time.
  Made run(int64_t at_once, int64_t chunk_rows, bool samples_first = true) const {
    const ExactScope exact;
    const Tensor weight = weight_.clone().set_requires_grad();
    weight.set_main_grad(zeros(weight.shape(), kFloat64));
    Made made;
    TensorList dhidden;
    TensorList losses;
    const auto turned = [&](const Tensor& t) {
      return samples_first ? t : dense(t.transpose(0, 1));
    };
    for (int64_t first = 0; first < kSamples; first += at_once) {
      const ExactTokensScope tokens({.samples = at_once,
                                     .length = kTokens,
                                     .leaves = sequence_leaves(kTokens),
                                     .samples_first = samples_first});
      const Tensor x = turned(hidden_.slice(0, first, first + at_once)).clone();
      x.set_requires_grad();
      const Tensor y = turned(labels_.slice(0, first, first + at_once));
      const Tensor rows = empty(y.shape(), kFloat32);
      linear_cross_entropy(x, weight, y,
                           {.loss = {.reduction = Reduction::kSum,
                                     .loss_mask = full(y.shape(), 0.0078125F, kFloat32)},
                            .chunk_rows = chunk_rows,
                            .losses = rows})
          .backward();
      dhidden.push_back(turned(x.grad()));
      losses.push_back(turned(rows));
    }
    made.dweight = weight.main_grad();
    made.dhidden = cat(dhidden, 0);
    made.losses = cat(losses, 0);
    return made;
  }
};

TEST_P(ExactHead, HasTheSameBitsHoweverItsRowsAreTaken) {
  const Made whole = run(kSamples, 512);
  for (const Made& other : {run(1, 512), run(2, 512), run(kSamples, 2), run(2, 9),
                            run(kSamples, 512, false), run(2, 3, false)}) {
    EXPECT_TRUE(same_bits(other.dweight, whole.dweight));
    EXPECT_TRUE(same_bits(other.dhidden, whole.dhidden));
    EXPECT_TRUE(same_bits(other.losses, whole.losses));
  }
}

TEST_P(ExactHead, HasTheGradientsOfTheOrdinaryOne) {
  const Made exact = run(kSamples, 512);
  const Tensor weight = weight_.clone().set_requires_grad();
  const Tensor x = hidden_.clone().set_requires_grad();
  (linear_cross_entropy(x, weight, labels_, {.loss = {.reduction = Reduction::kSum}}) * 0.0078125)
      .backward();
  const double unit = 0x1p-44;
  const double scale = GetParam() == kFloat32 ? 1 : 1e4;
  EXPECT_LT(max(abs(exact.dweight * unit - weight.grad().to(kFloat64))).item(), 1e-7 * scale);
  EXPECT_LT(max(abs((exact.dhidden - x.grad()).to(kFloat64))).item(), 1e-7 * scale);
}

// As tensor-parallel ranks, which have but a part of the vocabulary, take them. Chunks of 3 tokens:
// pairs of bfloat16 end with each of them.
TEST_P(ExactHead, HasTheBitsOfItsLinearLayerAndItsLoss) {
  const ExactScope exact;
  constexpr int64_t kLength = 48;
  const ExactTokensScope tokens({.samples = kSamples,
                                 .length = kLength,
                                 .leaves = sequence_leaves(kLength),
                                 .samples_first = true});
  const Tensor labels = randint(0, kVocabulary, {kSamples, kLength}, kInt64, RandomKey{7, 4, 0});
  const Tensor factors = full(labels.shape(), 0.0078125F, kFloat32);
  const auto made_by = [&](const auto& loss) {
    const Tensor weight = weight_.clone().set_requires_grad();
    weight.set_main_grad(zeros(weight.shape(), kFloat64));
    const Tensor x = normal(0, 1, {kSamples, kLength, kHidden}, GetParam(), RandomKey{7, 5, 0});
    x.set_requires_grad();
    loss(x, weight).backward();
    return Made{weight.main_grad(), x.grad(), {}};
  };
  const Made fused = made_by([&](const Tensor& x, const Tensor& weight) {
    return linear_cross_entropy(x, weight, labels,
                                {.loss = {.reduction = Reduction::kSum, .loss_mask = factors}});
  });
  const Made apart = made_by([&](const Tensor& x, const Tensor& weight) {
    const Tensor logits =
        linear(x, weight, {}, {}, nullptr, {.inputs = {}, .outputs = tree_runs(kVocabulary)});
    return sum(cross_entropy(logits, labels, {.reduction = Reduction::kNone}) * factors);
  });
  EXPECT_TRUE(same_bits(fused.dweight, apart.dweight));
  EXPECT_TRUE(same_bits(fused.dhidden, apart.dhidden));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ExactHead, ::testing::Values(kFloat32, kBFloat16));

TEST(ExactHeadErrors, AnotherFactorOfTheLossIsRefused) {
  const ExactScope exact;
  const Tensor weight = normal(0, 1, {kVocabulary, kHidden}, kFloat32, RandomKey{7, 2, 0});
  weight.set_requires_grad();
  weight.set_main_grad(zeros(weight.shape(), kFloat64));
  const Tensor x = normal(0, 1, {3, kHidden}, kFloat32, RandomKey{7, 1, 0});
  const Tensor loss = linear_cross_entropy(x, weight, tensor(std::vector<int64_t>{1, 2, 3}, {3}),
                                           {.loss = {.reduction = Reduction::kSum}});
  EXPECT_THROW((loss * 0.5).backward(), RuntimeError);
}

TEST(LeafOrder, PutsTheChunksOfALeafSideBySide) {
  const ExactTokensScope tokens({.samples = 2, .length = 4, .leaves = 2, .samples_first = true});
  const LeafOrder order = leaf_order(8);
  EXPECT_EQ(order.leaf_rows, 2);
  const Tensor rows = arange(8);
  const Tensor moved = order.apply(rows);
  const std::vector<int64_t> expected = {0, 3, 1, 2, 4, 7, 5, 6};
  EXPECT_TRUE(same_bits(moved, tensor(expected, {8})));
  EXPECT_TRUE(same_bits(order.undo(moved), rows));
}

TEST(LeafOrder, OfOtherRowsIsThatOfRows) {
  const ExactTokensScope tokens({.samples = 2, .length = 4, .leaves = 2, .samples_first = true});
  EXPECT_FALSE(leaf_order(4).rows.defined());
  EXPECT_EQ(leaf_order(4).leaf_rows, 1);
}

}  // namespace
}  // namespace exact_head_test
}  // namespace tapestry
